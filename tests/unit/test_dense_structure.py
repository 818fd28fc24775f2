"""Sources of structure of ``dense``: categories, co-citation; and which layers learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.errors import TrainingError
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.structure import Structure
from rerank.rankers.dense.texts import Texts
from rerank.rankers.graphs import links
from rerank.rankers.graphs.pagerank import top_pagerank
from rerank.rankers.graphs.relations import relation_graph
from rerank.records import Document
from tests.dense import collection, trainer
from tests.graphs import pagerank_matrix
from tests.words import Words


def test_shared_categories_by_hand():
    """``rare`` of two relates a and b by 1, ``some`` of three by 1/2 each; all six have ``all``."""
    sets = ["all rare some", "all rare some", "all some", "all single", "all", "all"]
    documents = [Document("abcdef"[i], categories=tuple(s.split())) for i, s in enumerate(sets)]
    graph = relation_graph(documents, "categories")
    wanted = np.zeros((6, 6))
    wanted[0, 1] = wanted[1, 0] = 1.5
    wanted[0, 2] = wanted[2, 0] = wanted[1, 2] = wanted[2, 1] = 0.5
    assert graph.adjacency.toarray().tolist() == wanted.tolist()
    assert graph.left_out == 1
    assert graph.pairs().tolist() == [[0, 1], [0, 2], [1, 2]]
    ids, scores = top_pagerank(graph.matrix(), 2)
    assert ids[0].tolist() == [1, 2]
    dense = pagerank_matrix(graph.matrix())
    np.testing.assert_allclose(scores[0], [dense[0, 1], dense[0, 2]], atol=1e-6)
    assert dense[0, 1] > dense[0, 2]


def test_documents_linked_by_the_same_third_one_by_hand():
    """x and y link to a and b, y to c too: a and b are linked together twice, c with each once."""
    documents = [
        Document("x", links=("a", "b", "b", "x", "gone")),
        Document("y", links=("a", "b", "c")),
        *(Document(name) for name in "abc"),
    ]
    graph = relation_graph(documents, "cocitation")
    assert graph.adjacency.toarray()[2:, 2:].tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]
    assert graph.adjacency.nnz == 6
    assert (graph.counts.unknown, graph.counts.self_links, graph.counts.duplicates) == (1, 1, 1)
    assert relation_graph(documents, "links").pairs().tolist() != graph.pairs().tolist()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.integers(0, 8), max_size=5), min_size=1, max_size=14))
def test_relations_against_plain_loops(sets):
    documents = [
        Document(str(i), categories=tuple(f"c{c}" for c in sorted(s)), links=tuple(str(c) for c in s))
        for i, s in enumerate(sets)
    ]
    size = len(sets)
    members = {c: [i for i, s in enumerate(sets) if c in s] for c in range(9)}
    shared, counted = np.zeros((size, size)), np.zeros((size, size))
    for group in members.values():
        for i in group:
            for j in group:
                if i != j and len(group) <= size / 2:
                    shared[i, j] += 1 / (len(group) - 1)
    for i, s in enumerate(sets):
        linked = [j for j in s if j < size and j != i]
        for j in linked:
            for k in linked:
                counted[j, k] += j != k
    for name, wanted in (("categories", shared), ("cocitation", counted)):
        found = relation_graph(documents, name).matrix()
        np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-6)
        assert abs(found - found.T).nnz == 0


def test_held_out_pairs_of_a_relation_go_whole():
    documents = [Document(str(i), categories=(f"a{i % 3}", f"b{i % 4}")) for i in range(30)]
    graph = relation_graph(documents, "categories")
    rest, held = graph.hold_out(0.3, seed=0)
    assert len(held) == round(0.3 * len(graph.pairs()))
    assert not {tuple(p) for p in held.tolist()} & {tuple(p) for p in rest.pairs().tolist()}
    kept = rest.matrix().toarray()
    before = graph.matrix().toarray()
    assert not kept[held[:, 0], held[:, 1]].any()
    assert ((kept == before) | (kept == 0)).all()


def test_pairs_are_bounded(monkeypatch):
    """The largest groups are left out, all of a size or none."""
    sizes = [2, 3, 3, 10]
    documents = [
        Document(f"{c}.{i}", categories=(f"c{c}",)) for c, size in enumerate(sizes) for i in range(size)
    ] + [Document(f"x{i}") for i in range(20)]
    for most, kept in ((100, 1 + 3 + 3 + 45), (51, 1 + 3 + 3), (6, 1), (0, 0)):
        monkeypatch.setattr(links, "PAIRS", most)
        graph = relation_graph(documents, "categories")
        assert len(graph.pairs()) == kept
        assert graph.left_out == {52: 0, 7: 1, 1: 3, 0: 4}[kept]
    linking = [Document("hub", links=tuple("abcdef")), *(Document(name) for name in "abcdef")]
    assert relation_graph(linking, "cocitation").left_out == 1


@pytest.mark.parametrize("source", ["categories", "cocitation"])
def test_training_on_another_relation_finds_its_held_out_pairs(tiny, source):
    documents = [replace(d, links=(), categories=(f"t{i % 6}",)) for i, d in enumerate(collection())]
    if source == "cocitation":
        documents = [replace(d, categories=()) for d in documents]
        rng = np.random.default_rng(0)
        lists = [rng.choice(np.arange(i % 6, 60, 6), 3, replace=False) for i in range(90)]
        documents += [Document(f"list{i}", links=tuple(map(str, found))) for i, found in enumerate(lists)]
    one = trainer(
        tiny, documents=documents, structure_from=source, steps=30, every=15, rate=4e-3, held_out=0.2
    )
    assert one.evaluator is not None
    done = one.fit()
    assert max(m.measures["R@10"] for m in done.history) > done.history[0].measures["R@10"] + 0.1


def test_nothing_related_says_what_else_could_serve():
    def message(documents, source="links"):
        texts = Texts.read(documents, Words().tokens, structure_from=source)
        with pytest.raises(TrainingError) as error:
            Structure.find(texts, DenseConfig.of(structure_from=source))
        return str(error.value)

    plain = [Document("a", text="w1", links=("gone", "a")), Document("b", text="w2")]
    found = message(plain)
    assert "no links to each other (1 to unknown ids, 1 to themselves)" in found
    assert "`categories` and --structure-from categories" in found
    with_categories = [replace(d, categories=("x",)) for d in plain]
    assert "--structure-from categories (2 documents have some)" in message(with_categories)
    assert "no two documents share a category" in message(with_categories, "categories")
    assert "linked by the same third one (0 links)" in message(plain, "cocitation")
    assert "no document has any text" in message([Document("a", links=("b",)), Document("b")])
    half = [Document("a", links=("b",)), Document("b", text="w2")]
    assert "no two documents related by links have text" in message(half)


def test_which_layers_learn():
    def layers(*there, **changes):
        return [DenseConfig.of(**changes).learning_layers(n) for n in there]

    assert layers(1, 2, 3, 6, 12) == [0, 0, 2, 2, 2]
    assert layers(6, train_layers=0) == [0]
    assert layers(6, train_layers=5) == [5]
    assert layers(12, preset="paper") == [0]
