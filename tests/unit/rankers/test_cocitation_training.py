"""Training on co-citations: held-out pairs, triplets and batches, and texts outside the collection."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from rerank.common.errors import TrainingError
from rerank.documents.records import Document
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.losses import TripletLoss
from rerank.rankers.dense.neighbors import CitedNeighbors, Structure
from rerank.rankers.dense.quintuplets import QuintupletSampler
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.dense.texts import Passages, Texts
from rerank.rankers.dense.triplets import TRIPLETS_PER_TARGET
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.graphs.citations import Citations, held_out
from rerank.rankers.graphs.cocitation import Mention
from tests.support.data import Words, quintuplet_vectors
from tests.support.dense import trainer, with_changes
from tests.support.progress import Watch
from tests.unit.rankers.test_dense_structure import refusal

X = [Mention(ref, n // 3, n, n) for n, ref in enumerate("abcdXe")]
"""A paper with two sections, which also cites itself."""


def citing_document(paper, mentions, **fields):
    rows = [
        {"ref": m.reference, "section": m.section, "paragraph": m.paragraph, "sentence": m.sentence}
        for m in mentions
    ]
    return Document(paper, extra={"citations": rows, **fields})


def same_section_mention(number):
    """Return a mention that shares its section with others, but not its paragraph or sentence."""
    return Mention(f"n{number}", 0, number, number)


def collection(papers=24, seed=0):
    """Return papers that cite 90 references of six topics: one topic per sentence, two per paragraph,
    three per section.

    The first twelve references are documents. Only the titles of the others are known.
    """
    rng = np.random.default_rng(seed)

    def words(ref):
        topic = ref % 6
        own = [f"w{topic * 5 + j}" for j in rng.integers(5, size=5)]
        return " ".join(rng.permutation([*own, *(f"w{j}" for j in rng.integers(30, 40, size=4))]).tolist())

    titles = {f"r{ref}": words(ref) for ref in range(90)}
    documents = [Document(key, titles[key], "a w39") for key in list(titles)[:12]]
    for paper in range(papers):
        rows = []
        for sentence, topic in enumerate(rng.permutation(6).tolist()):
            refs = rng.choice(np.arange(topic, 90, 6), 2, replace=False)
            place = {"section": sentence // 3, "paragraph": sentence // 2, "sentence": sentence}
            rows += [{"ref": f"r{ref}", **place} for ref in refs]
        cited = {row["ref"]: titles[row["ref"]] for row in rows}
        extra = {"citations": rows, "references": cited}
        documents.append(Document(f"p{paper}", f"w{paper % 30}", extra=extra))
    return documents


COCITATION = {"objective": "cocitation", "strategy": "sentence", "steps": 30, "every": 10, "rate": 4e-3}


def settings_of(tiny, **changes):
    base = DenseConfig.of(
        objective="cocitation",
        model=tiny,
        passage_tokens=16,
        batch=12,
        steps=24,
        every=8,
        rate=2e-3,
        held_out=0.2,
        precision="fp32",
        patience=10,
    )
    return with_changes(base, **changes)


@pytest.fixture(scope="module")
def texts():
    return Texts.read(collection(), Words().tokens, relation="citations")


def sampler_of(texts, config):
    neighbors = Structure.find(texts, config).neighbors
    passages = Passages(texts.tokens, 14, 8)
    return QuintupletSampler(neighbors, passages, None, config.batch, config.seed)


def test_citations_are_read_as_a_graph():
    both = [citing_document("X", X), citing_document("Y", X[1:3])]
    documents = [*both, *(Document(key, key) for key in "abcde")]
    graph = Citations.from_documents(documents)
    assert graph.ids == ["X", "Y", *"abcde"]
    near = graph.near(np.arange(7)).toarray() > 0
    assert (near[2:, 2:] == ~np.eye(5, dtype=bool)).all()  # paper X cites all of them
    assert not near[:2].any()
    assert not near[:, :2].any()


def test_references_outside_the_collection_become_texts():
    paper = citing_document("X", X, references={"a": "On A", "b": "On B", "c": "", "e": "On E"})
    texts = Texts.read([paper, Document("d", "D", "is here")], Words().tokens, relation="citations")
    assert texts.graph.ids == ["X", "d", "a", "b", "e"]
    assert (texts.outside, texts.tokens.lengths.tolist()) == (3, [0, 3, 2, 2, 2])


def test_documents_with_only_links_share_no_section():
    documents = [Document("x", links=("a", "b")), *(Document(key, key) for key in "abc")]
    graph = Citations.from_documents(documents)
    assert graph.near(np.array([1])).toarray()[0, 2] == 1
    assert len(graph.network.neighbors(graph.network.keys.index("a"), "document")) == 1
    assert not len(graph.network.neighbors(graph.network.keys.index("a"), "section"))


def test_the_share_and_the_seed_select_the_held_out_articles():
    keys = [f"10.7554/elife.{n:05}" for n in range(3000)]
    for share in (0.0, 0.2, 0.6):
        actual = np.array([[held_out(key, share, seed) for key in keys] for seed in range(3)])
        assert np.abs(actual.mean(axis=1) - share).max() < 0.03
        assert abs((actual[0] & actual[1]).mean() - share * share) < 0.03


def test_held_out_pairs_occur_only_in_held_out_articles():
    graph = Citations.from_documents(collection())
    papers, left = dict(graph.papers()), {}
    for share, seed in ((0.2, 0), (0.4, 0), (0.4, 1)):
        rest, held = graph.hold_out(share, seed)
        left[share, seed] = {paper for paper, _ in rest.papers()}
        assert left[share, seed] == {paper for paper in papers if not held_out(paper, share, seed)}
        assert len(held)
        for a, b in np.array(graph.ids)[held].tolist():
            both = {p for p, found in papers.items() if {a, b} <= {one.reference for one in found}}
            assert both
            assert not both & left[share, seed]
    assert left[0.2, 0] > left[0.4, 0] != left[0.4, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "sentence"},
        {"objective": "contrastive", "strategy": "section"},
    ],
)
def test_no_draw_sees_a_held_out_co_citation(changes):
    """No draw, weight or count of any strategy uses a held-out article."""
    documents = collection()
    config = with_changes(settings_of("tiny"), **changes)
    away = {d.id for d in documents if d.extra and held_out(d.id, 0.2)}
    assert 5 < len(away) < 30
    texts = Texts.read(documents, Words().tokens, relation="citations")
    structure = Structure.find(texts, config)
    graph, held = structure.graph, structure.held_out
    trained = [
        d if d.id not in away else replace(d, extra={"references": d.extra["references"]}) for d in documents
    ]
    without = Texts.read(trained, Words().tokens, relation="citations")
    assert not away & {paper for paper, _ in graph.papers()}
    sizes = [one.network.levels["document"].members.sum() for one in (graph, without.graph, texts.graph)]
    assert sizes[0] == sizes[1] < sizes[2]
    # Draws are the same as from a collection without these articles.
    one, two = sampler_of(texts, config), sampler_of(without, with_changes(config, held_out=0.0))
    pairs, count = {tuple(pair) for pair in held.tolist()}, 0
    assert pairs
    for batch, other in islice(zip(one.epoch(0), two.epoch(0)), 5):
        assert batch.pairs == other.pairs
        count += len(batch.pairs)
        assert not pairs & {tuple(sorted((d.anchor, d.positive))) for d in batch.pairs}
    assert count > 30


def test_an_epoch_contains_the_triplets_of_the_sampler(texts):
    config = settings_of("tiny", held_out=0.0, batch=7)
    sampler = sampler_of(texts, config)
    neighbors = sampler.neighbors
    assert isinstance(neighbors, CitedNeighbors)
    draws = [draw for batch in sampler.epoch(1) for draw in batch.pairs]
    assert sampler.steps() == len(sampler.anchors()) // 7
    assert len(sampler.anchors()) == TRIPLETS_PER_TARGET * int(neighbors.paired.sum())
    assert {draw.level for draw in draws} == {1}
    assert max(Counter(draw.anchor for draw in draws).values()) <= TRIPLETS_PER_TARGET
    for draw in draws:
        rng = np.random.default_rng((config.seed, 1, draw.anchor))
        ref = int(neighbors.refs[draw.anchor])
        expected = [(neighbors.texts[p], neighbors.texts[n]) for p, n in neighbors.triplets.draw(ref, rng)]
        assert (draw.positive, draw.negative) in expected
    assert next(sampler_of(texts, config).epoch(1)).pairs == draws[:7] != next(sampler.epoch(2)).pairs


def test_a_reference_of_a_target_is_not_its_negative():
    documents = [
        citing_document("x", [same_section_mention(i) for i in range(6)]),
        citing_document(
            "y", [m._replace(reference=r) for m, r in zip([same_section_mention(0)] * 2, ("x", "n7"))]
        ),
        *(Document(f"n{i}", f"n{i}") for i in range(8)),
    ]
    documents[0] = replace(documents[0], title="x")
    texts = Texts.read(documents, Words().tokens, relation="citations")

    def negatives(**changes):
        sampler = sampler_of(texts, settings_of("tiny", held_out=0.0, **changes))
        x, neighbors = texts.graph.ids.index("x"), sampler.neighbors
        drawn = [neighbors.triplets.draw(int(neighbors.refs[x]), np.random.default_rng(i)) for i in range(30)]
        return {texts.graph.ids[neighbors.texts[n]] for one in drawn for _, n in one}

    assert not negatives(strategy="section")  # x cites all except its neighbor n7, so no negative remains


def test_the_triplet_loss_matches_values_by_hand():
    given = quintuplet_vectors(anchor=[[0.0, 0.0]] * 2, positive=[[0.6, 0.8]] * 2, negative=[[0.0, 1.5]] * 2)
    assert TripletLoss()(given).item() == pytest.approx(0.5)


def test_training_improves_the_ranking_of_held_out_co_citations(tiny):
    fit = trainer(tiny, documents=collection(), **COCITATION).fit()
    assert fit.history[-1].measures["NDCG"] > fit.history[0].measures["NDCG"] + 0.05


def test_a_checkpoint_of_other_citation_places_is_refused(tiny, tmp_path):
    documents, options = collection(), {**COCITATION, "every": 1}
    trainer(tiny, Watch(at=2), documents, tmp_path, **options).fit()
    rows = documents[-1].extra["citations"]
    moved = [{**row, "sentence": 0} for row in rows]
    documents[-1] = replace(documents[-1], extra={**documents[-1].extra, "citations": moved})
    with pytest.raises(TrainingError, match="other settings, or of another model or other documents"):
        trainer(tiny, None, documents, tmp_path, **options).fit()


def test_the_title_separator_is_stored_in_the_ranker(tiny, tmp_path):
    encoder = TextEncoder.load(tiny, longest=16)
    documents = [
        Document("1", "w1 w2", "w3"),
        Document("2", "w1 w2"),
        Document("3", text="w3"),
        Document("4"),
    ]
    plain, apart = (
        DenseRanker(name="dense", source=encoder, passages=1, separator=one) for one in (False, True)
    )
    assert encoder.separator == [encoder.tokenizer.sep_token_id]
    by_hand = encoder.encode([encoder.tokens(["w1 w2"])[0] + [3] + encoder.tokens(["w3"])[0]])
    actual = apart.encode_documents(documents)
    cosine = actual[0, :-1] @ by_hand[0] / np.linalg.norm(actual[0, :-1].astype(float))
    assert cosine == pytest.approx(1, abs=1e-3)
    assert (plain.encode_documents(documents)[1:] == actual[1:]).all()
    assert (plain.encode_documents(documents)[0] != actual[0]).any()
    assert plain.version != apart.version
    apart.save(tmp_path / "apart")
    again = DenseRanker.load(tmp_path / "apart")
    assert (again.encode_documents(documents) == actual).all()
    assert again.version == apart.version


def test_the_objective_sets_the_other_defaults():
    assert DenseConfig.of(objective="cocitation").strategy == "sentence"
    assert DenseConfig.of(objective="cocitation", strategy="paragraph").strategy == "paragraph"
    assert DenseConfig.of(strategy="sentence").objective == "contrastive"
    assert [DenseConfig.of(**one).separator for one in ({}, {"strategy": "section"})] == [False, True]
    paper = DenseConfig.of("cocitation")
    assert (paper.batch, paper.strategy, paper.rate) == (256, "sentence", 2e-5)
    assert (paper.pooling, paper.passage_tokens, paper.epochs) == ("cls", 512, 2)


def test_a_collection_without_citations_is_refused_with_advice():
    config = settings_of("tiny", held_out=0.0)
    assert "give documents `citations`" in refusal([Document("a", "a"), Document("b", "b")], config)
    flat = [Document("x", links=("a", "b")), *(Document(key, key) for key in "abc")]
    assert "strategy document" in refusal(flat, config)
