"""The category graph, walks on it, vectors from the walks, and inferred categories of queries."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from rerank.common.progress import Progress
from rerank.documents.categories import (
    MAX_CO_OCCURRING,
    CategoryGraph,
    co_occurrence_edges,
    infer_categories,
    parents_of_path,
    path_edges,
)
from rerank.rankers.cnn.cooccurrence import positive_information
from rerank.rankers.cnn.embeddings import Embedding, deepwalk, random_walks, word2vec
from rerank.rankers.cnn.towers import Vocabulary

names = st.sampled_from(["a", "b", "c", "d", "a.b", "a.b.c", "x::y", "x", "E. coli"])
category_sets = st.lists(st.lists(names, max_size=5).map(tuple), max_size=6)
edge_lists = st.lists(st.tuples(names, names), max_size=8)


def edges_of(graph):
    """Return the undirected edges as sorted pairs of names."""
    rows, columns = graph.adjacency.nonzero()
    return {tuple(sorted((graph.names[i], graph.names[j]))) for i, j in zip(rows, columns)}


@pytest.mark.parametrize(
    ("category", "parents"),
    [
        ("C.2.4", ["C.2", "C"]),
        ("game::strategy::chess", ["game::strategy", "game"]),
        ("a/b", ["a"]),
        ("Home > Garden > Tools", ["Home > Garden", "Home"]),
        ("a|b", ["a"]),
        *((name, []) for name in ("Deep Learning", "E. coli", "::odd", ".5", "")),
    ],
)
def test_the_parents_of_a_path_are_its_prefixes(category, parents):
    assert parents_of_path(category) == parents


def test_edges_connect_paths_and_categories_that_occur_together():
    assert path_edges(["a.b.c", "a.b.d", "x"]) == [("a.b.c", "a.b"), ("a.b", "a"), ("a.b.d", "a.b")]
    sets = [("b", "a", "b"), ("a", "c"), ("c", "a"), ("d",), ()]
    assert co_occurrence_edges(sets) == [("a", "b"), ("a", "c")]
    many = tuple(f"c{i:03}" for i in range(200))
    assert len(co_occurrence_edges([many])) == MAX_CO_OCCURRING * (MAX_CO_OCCURRING - 1) // 2


# A loop, a double edge, a cycle, one category without documents and one without edges.
GIVEN = [("b", "a"), ("a", "b"), ("b", "a"), ("c", "c"), ("b", "d"), ("d", "a")]


@pytest.mark.parametrize(
    ("sets", "given", "names", "edges"),
    [
        ([("a", "lonely"), ("c",)], GIVEN, "a b c d lonely", "a-b b-d a-d"),
        ([("C.2.4", "D.1")], [("C.2", "C")], "C C.2 C.2.4 D.1", "C-C.2 C.2-C.2.4"),
        ([("C.2.4", "C.1", "x")], None, "C C.1 C.2 C.2.4 x", "C-C.1 C-C.2 C.2-C.2.4 C.2.4-x C.1-x"),
        ([("HIV/AIDS", "b"), ("a", "b")], None, "HIV/AIDS a b", "HIV/AIDS-b a-b"),
        ([("e.g.", "b"), ("a", "b")], None, "a b e.g.", "b-e.g. a-b"),
        ([("a/b",), ("a/c", "TCP/IP")], None, "TCP TCP/IP a a/b a/c", "TCP-TCP/IP a-a/b a-a/c"),
        (
            [("a", "Node.js"), ("x/b", "x/c", "a")],
            None,
            "Node.js a x x/b x/c",
            "Node.js-a x-x/b x-x/c a-x/b a-x/c",
        ),
        ([("cafe\u0301", "b")], [("caf\u00e9", "food")], "b caf\u00e9 food", "caf\u00e9-food"),
        ([("C.2.4",)], [], "C C.2 C.2.4", "C-C.2 C.2-C.2.4"),
        ([("sorting", "coli"), ("trees",)], None, "coli sorting trees", "coli-sorting"),
        ([("sorting",), ("trees",), ()], None, "sorting trees", ""),
        ([(), ()], None, "", ""),
    ],
)
def test_graphs_match_examples_by_hand(sets, given, names, edges):
    """Edges are given, from paths, or from co-occurrences. A missing path joins its nearest prefix."""
    graph = CategoryGraph.build(sets, given)
    assert graph.names == names.split()
    assert edges_of(graph) == {tuple(edge.split("-")) for edge in edges.split()}


@given(category_sets, st.none() | edge_lists)
def test_properties_of_every_graph(sets, edges):
    graph = CategoryGraph.build(sets, edges)
    matrix = graph.adjacency.toarray()
    assert graph.names == sorted(set(graph.names))
    assert {c for s in sets for c in s} <= set(graph.names)
    assert matrix.shape == (len(graph.names), len(graph.names))
    assert (matrix == matrix.T).all()
    assert set(np.unique(matrix)) <= {0, 1}
    assert not matrix.diagonal().any()
    if edges:
        assert {tuple(sorted(edge)) for edge in edges if edge[0] != edge[1]} <= edges_of(graph)
    # The order and the repetition of documents do not matter.
    again = CategoryGraph.build([*sets[::-1], *sets], edges)
    assert (again.names, edges_of(again)) == (graph.names, edges_of(graph))


@settings(deadline=None, max_examples=40)
@given(category_sets, edge_lists, st.integers(1, 3), st.integers(1, 12), st.integers(0, 99))
def test_walks_follow_only_edges(sets, edges, per_node, length, seed):
    graph = CategoryGraph.build(sets, edges)
    n, matrix = len(graph.names), graph.adjacency.toarray()
    walks, again = (
        random_walks(graph.adjacency, length=length, per_node=per_node, seed=seed) for _ in range(2)
    )
    assert walks.shape == (n * per_node, length)
    assert sorted(walks[:, 0].tolist()) == sorted(list(range(n)) * per_node)
    for a, b in zip(walks[:, :-1].ravel().tolist(), walks[:, 1:].ravel().tolist()):
        assert matrix[a, b] == 1 or (a == b and not matrix[a].any())
    assert (walks == again).all()


def test_all_neighbors_are_equally_likely():
    star = csr_matrix(np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]))
    walks = random_walks(star, length=2, per_node=3000, seed=1)
    steps = walks[walks[:, 0] == 0, 1]
    assert np.bincount(steps, minlength=4)[1:] == pytest.approx([1000] * 3, abs=120)
    other = random_walks(star, length=2, per_node=3000, seed=2)
    assert (walks != other).any()


STAR = [(f"leaf{i}", "root") for i in range(40)]


def embed(sets, edges=None, **options):
    graph = CategoryGraph.build(sets, edges)
    return deepwalk(graph, **{"size": 8, "seed": 3, "per_node": 2, **options})


@pytest.mark.parametrize("size", [4, 30])
def test_every_category_gets_a_vector(size):
    """This includes isolated categories, and graphs with fewer categories than dimensions."""
    none = embed([()])
    assert (none.vocabulary.names, none.vectors.tolist()) == ([], [[0] * 8])
    sets = [("a", "lonely"), ("b", "c"), ("d.e",), ()]
    actual = embed(sets, [("a", "b"), ("b", "c"), ("c", "c"), ("d", "a")], size=size)
    assert actual.vocabulary.names == ["a", "b", "c", "d", "d.e", "lonely"]
    assert actual.vectors.shape == (7, size)
    assert actual.vectors.dtype == np.float32
    assert np.isfinite(actual.vectors).all()
    assert not actual.vectors[0].any()  # the padding
    lengths = np.linalg.norm(actual.vectors[1:], axis=1)
    assert lengths.min() > 0.1
    assert lengths.mean() == pytest.approx(1, abs=1e-5)
    assert len(np.unique(actual.vectors[1:].round(6), axis=0)) == 6


@pytest.mark.parametrize("without_gensim", [False, True])
@pytest.mark.parametrize(("size", "rank"), [(8, 8), (60, 13)])
def test_whitened_vectors_have_equal_variance_on_all_axes(size, rank, without_gensim, request):
    """Of 41 categories, at most 13 axes have variance, the same one, and siblings are not parallel."""
    if without_gensim:
        request.getfixturevalue("no_gensim")
    vectors = embed([()], STAR, size=size, per_node=10).vectors[1:]
    covariance = np.cov(vectors.T)
    values = np.linalg.eigvalsh(covariance)[::-1]
    assert values[:rank] == pytest.approx(np.full(rank, values[0]), rel=1e-3)
    assert values[rank:] == pytest.approx(np.zeros(size - rank), abs=1e-6 * values[0])
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-6
    unit = vectors[:40] / np.linalg.norm(vectors[:40], axis=1, keepdims=True)
    assert abs((unit @ unit.T)[np.triu_indices(40, 1)].mean()) < 0.2


def test_the_same_seed_gives_the_same_vectors():
    sets = [("a", "b"), ("b", "c"), ("d",)]
    assert embed(sets).vectors.tobytes() == embed(sets).vectors.tobytes()
    assert embed(sets).vectors.tobytes() != embed(sets, seed=4).vectors.tobytes()


SENTENCES = [["red", "apple", "pie"], ["red", "apple"], ["green", "pear", "pie"], ["rare"], []] * 3


def test_word_vectors_are_trained_and_reproducible():
    def trained(seed):
        return word2vec(lambda: [*SENTENCES, ["once"]], 16, size=6, seed=seed, epochs=2)

    actual = trained(1)
    assert set(actual.vocabulary.names) == {"red", "apple", "pie", "green", "pear", "rare"}
    assert dict(zip(actual.vocabulary.names, actual.counts.tolist()))["pie"] == 6
    assert actual.vectors.shape == (7, 6)
    assert not actual.vectors[0].any()
    assert np.linalg.norm(actual.vectors[1:], axis=1).mean() == pytest.approx(1, abs=1e-5)
    assert trained(1).vectors.tobytes() == actual.vectors.tobytes() != trained(2).vectors.tobytes()


def test_progress_counts_the_texts_of_gensim():
    pytest.importorskip("gensim", reason="this Python has no package of gensim")

    class Steps(Progress):
        def __init__(self):
            self.steps = []

        def start(self, title, total=None, unit=""):
            self.steps.append([title, unit, total, 0])

        def advance(self, count=1):
            self.steps[-1][-1] += count

    steps = Steps()
    word2vec(lambda: SENTENCES, 15, size=6, seed=1, epochs=4, progress=steps)
    embed([("a", "b"), ("b", "c")], progress=steps)
    assert [tuple(step) for step in steps.steps if ":" not in step[0]] == [
        ("word2vec", "text", 60, 60),
        ("DeepWalk", "text", 30, 30),  # three categories, two walks each, five epochs
    ]


class Interrupting(Progress):
    """Raises an error after some texts, as the end of the time of a training does."""

    def __init__(self, texts: int) -> None:
        self.remaining = texts

    def advance(self, count: int = 1) -> None:
        self.remaining -= count
        if self.remaining < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("texts", [5, 20, 40])  # of the first pass, which counts words, and of later ones
def test_an_error_while_texts_are_read_ends_word2vec(texts):
    """gensim reads texts in a thread, and its other threads waited forever if this thread ended."""
    with pytest.raises(KeyboardInterrupt):
        word2vec(lambda: SENTENCES, 15, size=6, seed=1, epochs=4, progress=Interrupting(texts))


def test_if_no_word_occurs_twice_all_words_are_kept():
    actual = word2vec(lambda: [["once", "upon"], ["a", "time"]], 2, size=4, seed=1)
    assert set(actual.vocabulary.names) == {"once", "upon", "a", "time"}
    nothing = word2vec(lambda: [[], []], 2, size=4, seed=1)
    assert (nothing.vocabulary.names, nothing.vectors.tolist()) == ([], [[0] * 4])


@pytest.fixture
def no_gensim(monkeypatch):
    """An environment without gensim, as on the newest Python."""
    for module in ("gensim", "gensim.models"):
        monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.usefixtures("no_gensim")
def test_words_in_the_same_contexts_have_similar_vectors_without_gensim():
    texts = [["the", animal, "drinks", "milk"] for animal in ("cat", "dog")] * 5
    texts += [["my", vehicle, "needs", "fuel"] for vehicle in ("car", "truck")] * 5
    embedding = word2vec(lambda: [*texts, ["once"]], len(texts) + 1, size=4, seed=1)
    rows = {word: embedding.vectors[row] for word, row in embedding.vocabulary.index.items()}
    assert dict(zip(embedding.vocabulary.names, embedding.counts.tolist()))["milk"] == 10
    assert "once" not in rows
    assert not embedding.vectors[0].any()
    assert rows["cat"] == pytest.approx(rows["dog"], abs=0.01)
    assert rows["car"] == pytest.approx(rows["truck"], abs=0.01)
    assert rows["cat"] @ rows["car"] == pytest.approx(0, abs=0.01)
    assert np.linalg.norm(embedding.vectors[1:], axis=1).mean() == pytest.approx(1, abs=1e-5)


@pytest.mark.usefixtures("no_gensim")
def test_small_vocabularies_have_vectors_without_gensim():
    for texts in ([[], []], [["one"]], [["one", "two"]], [["same"]] * 3):
        embedding = word2vec(lambda texts=texts: texts, len(texts), size=4, seed=1)
        assert set(embedding.vocabulary.names) == {word for text in texts for word in text}
        assert embedding.vectors.shape == (len(embedding.vocabulary.names) + 1, 4)
        assert np.isfinite(embedding.vectors).all()
    assert embed([("a", "b"), ("b", "c")]).vectors.shape == (4, 8)


def test_positive_information_by_hand():
    """ "a b" and "a c": a has weight 2, b and c have 1. Contexts: 2^0.75 = 1.6818, 1 and 1, sum 3.6818."""
    weights = csr_matrix(np.array([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]]))
    of_a, of_b = np.log(1 / (2 * 1 / 3.6818)), np.log(1 / (1 * 1.6818 / 3.6818))
    expected = [[0, of_a, of_a], [of_b, 0, 0], [of_b, 0, 0]]
    assert positive_information(weights).toarray() == pytest.approx(np.array(expected), abs=1e-4)


def test_rare_words_have_a_higher_weight():
    vocabulary = Vocabulary("text", ["often", "rare"], 9)
    embedding = Embedding(vocabulary, np.zeros((3, 2), np.float32), np.array([999, 1]))
    padding, often, rare = embedding.importance().tolist()
    assert padding == 0
    assert 0 < often < rare <= 1


def test_inferred_categories_match_an_example_by_hand():
    """Votes: a 3 + 1, b 3, c 2 + 1, d 2. Cast votes: 3 + 2 + 1 = 6, because the document without
    categories casts none. The threshold is 1.5.
    """
    ranked = [(3.0, ["a", "b"]), (2.5, []), (2.0, ["c", "d"]), (1.0, ["a", "c", "c", "e"])]
    assert infer_categories(ranked) == ("a", "b", "c", "d")
    assert infer_categories([(1.0, ["z", "m", "b", "y", "a", "é"])]) == ("a", "b", "m", "y")
    assert infer_categories(ranked[:2]) == ("a", "b")
    assert infer_categories(ranked[2:]) == ("c", "d", "a", "e")  # of 3 votes, 1 is a third
    assert infer_categories([(8.0, ["z"]), (2.0, ["y"])]) == ("z",)  # 2 of 10 is below a quarter
    assert infer_categories([(7.5, ["z"]), (2.5, ["y"])]) == ("z", "y")
    assert infer_categories([]) == infer_categories([(1.0, [])]) == ()
