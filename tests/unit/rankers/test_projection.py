"""Projections: the ranker, its training and errors, and files of pairs.

Expected numbers are computed by hand, not recorded from the code.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from rerank.common.errors import UsageError, WorkspaceError
from rerank.common.progress import SILENT
from rerank.documents.records import Document, Qrels, Query
from rerank.rankers.projection.config import MAX_GAMMA, ProjectionConfig
from rerank.rankers.projection.fit import ProjectionTrainer, TermVectors
from rerank.rankers.projection.ranker import Projection, Terms
from rerank.rankers.projection.s2net import pairwise_logistic
from rerank.rankers.projection.solver import reciprocal_rank
from rerank.rankers.registry import load_ranker
from rerank.rankers.training.job import TrainingJob
from rerank.stack.stack import Stack
from rerank.workflows.encode import encode
from rerank.workflows.train import train
from rerank.workflows.training_data import Inputs, TrainReport, training_data
from rerank.workspace.workspace import Workspace
from tests.support.progress import Watch
from tests.support.rankers import comparisons


def ranker(two=False):
    rng = np.random.default_rng(35)
    terms = Terms(["katze", "cat", "dog", "hund"], np.array([1, 1, 2, 2], dtype=np.float32), 0, 400)
    query = rng.normal(size=(4, 3)).astype(np.float16)
    document = rng.normal(size=(4, 3)).astype(np.float16) if two else query
    return Projection(name="s2net", terms=terms, query=query, document=document, trained={"init": "random"})


def test_the_version_depends_on_both_sides():
    assert ranker().version == ranker().version != ranker(two=True).version


def test_a_score_is_the_cosine_of_the_projections():
    one = ranker(two=True)
    features = one.encode_documents([Document("1", "hund", "dog"), Document("2", text="unheard of")])
    assert (features.dtype, features.shape) == (np.float16, (2, 3))
    f = np.array([0, 0, 2, 2]) / 8**0.5
    expected = f @ one.document.astype(float)
    q = np.array([1.0, 0, 0, 0]) @ one.query.astype(float)
    cosine = q @ expected / np.linalg.norm(q) / np.linalg.norm(expected)
    scores = one.score(one.encode_query(Query("q", "Katze")), features)
    assert scores.tolist() == pytest.approx([cosine, 0.0], abs=2e-3)
    assert one.score(one.encode_query(Query("q", "")), features).tolist() == [0.0, 0.0]
    with pytest.raises(WorkspaceError, match="features have 5 numbers, not 3; train s2net again"):
        one.score(one.encode_query(Query("q", "cat")), np.zeros((2, 5), dtype=np.float16))


def test_a_matrix_of_other_terms_is_refused(tmp_path):
    ranker().save(tmp_path / "r")
    (tmp_path / "r" / "vocabularies.json").write_text('{"terms": ["cat"]}')
    with pytest.raises(WorkspaceError, match="train it again"):
        load_ranker(tmp_path / "r")


GERMAN = ["apfel", "birne", "feige", "pflaume", "kirsche", "traube", "zitrone", "melone"]
ENGLISH = ["apple", "pear", "fig", "plum", "cherry", "grape", "lemon", "melon"]
COLORS = [("red", "rot"), ("green", "gruen"), ("blue", "blau"), ("black", "schwarz"), ("white", "weiss")]


def collection():
    """Return English queries and German documents. Each names a fruit and a color."""
    queries, documents = [], []
    for i, (fruit, frucht) in enumerate(zip(ENGLISH, GERMAN)):
        for j, (color, farbe) in enumerate(COLORS):
            queries.append(Query(f"q{i}{j}", f"{color} {fruit} kw{i % 3}", lang="en"))
            documents.append(Document(f"d{i}{j}", text=f"{farbe} {frucht} kw{i % 3}", lang="de"))
    return queries, documents


QUERIES, DOCUMENTS = collection()
SPLIT = np.random.default_rng(36).permutation(40)
TRAIN = Qrels((QUERIES[i].id, DOCUMENTS[i].id, 2) for i in SPLIT[:30])
DEV = Qrels((QUERIES[i].id, DOCUMENTS[i].id, 2) for i in SPLIT[30:])
PAIRS = [(q.text, d.text) for q, d in zip(QUERIES, DOCUMENTS)]
CONFIG = ProjectionConfig(dim=8, init="random", letters=0, epochs=40, seed=1)


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="de")
    workspace.engine.write(DOCUMENTS)
    return workspace


def fit(workspace, names=("s2net",), queries=QUERIES, qrels=TRAIN, dev=DEV, **options):
    settings = options.pop("config", CONFIG)
    return train(workspace, names, queries=queries, qrels=qrels, dev_qrels=dev, config=settings, **options)


def reciprocal_rank_on_dev(workspace, name):
    """Return the mean reciprocal rank of the dev queries' documents among all documents."""
    found = workspace.ranker(name)
    features = found.encode_documents(DOCUMENTS)
    ranks = []
    for i in SPLIT[30:].tolist():
        scores = found.score(found.encode_query(QUERIES[i]), features)
        ranks.append(1 / (1 + (scores > scores[i]).sum()))
    return float(np.mean(ranks))


def test_s2net_learns_the_meaning_of_words(workspace):
    report = fit(workspace, ("s2net", "lsi", "cllsi", "opca", "cca"))
    assert [fitted.ranker.name for fitted in report.rankers] == ["s2net", "lsi", "cllsi", "opca", "cca"]
    assert report.encoded == dict.fromkeys(sorted(["s2net", "lsi", "cllsi", "opca", "cca"]), 40)
    assert reciprocal_rank_on_dev(workspace, "s2net") > 0.9
    assert reciprocal_rank_on_dev(workspace, "s2net") > reciprocal_rank_on_dev(workspace, "lsi")
    assert all(fitted.dev >= fitted.baseline_value for fitted in report.rankers)
    assert encode(workspace).encoded == dict.fromkeys(report.encoded, 0)
    stack = Stack.parse("tfidf*0.5+s2net*0.5")
    answer = workspace.pipeline(stack.signals).answer(QUERIES[0], stack)
    assert (answer.recomputed, answer.ranking.ids[0]) == ({}, "d00")


@pytest.mark.parametrize(
    "changes",
    [{"beta": 1e-4}, {"init": "lsi"}, {"graded": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_variants_of_s2net_learn(workspace, changes):
    report = fit(workspace, config=structs.replace(CONFIG, **changes))
    assert reciprocal_rank_on_dev(workspace, "s2net") > 0.8
    assert report.rankers[0].epoch <= report.rankers[0].epochs <= 40


def test_the_same_seed_gives_the_same_ranker(workspace):
    one = fit(workspace).rankers[0].ranker.version
    assert repr(workspace.ranker("s2net")) == f"Projection('s2net', version {one!r})"
    assert fit(workspace, queries=QUERIES[::-1]).rankers[0].ranker.version == one
    assert fit(workspace, config=structs.replace(CONFIG, seed=2)).rankers[0].ranker.version != one


def test_an_interrupted_training_can_be_repeated(workspace):
    """The same command gives the ranker of an uninterrupted training, and no files remain."""
    expected = fit(workspace).rankers[0].ranker.version
    listen = Watch(at=9, unit="iteration")
    report = fit(workspace, ["s2net", "lsi"], config=CONFIG, progress=listen)
    assert [(one.ranker.name, one.interrupted) for one in report.rankers] == [("s2net", True)]
    assert sum("interrupted" in line for line in listen.said) == 1
    assert not list((workspace.folder / "training").glob("*"))
    assert fit(workspace).rankers[0].ranker.version == expected
    with pytest.raises(UsageError, match="--restart has no effect with s2net"):
        fit(workspace, restart=True)


def test_text_pairs_can_replace_judgments(workspace):
    report = fit(workspace, ("s2net", "cllsi"), (), None, None, pairs=PAIRS)
    assert (report.train_pairs, report.dev_pairs, report.train_queries) == (36, 4, 0)
    assert reciprocal_rank_on_dev(workspace, "s2net") > 0.9
    assert report.rankers[0].dev > report.rankers[0].baseline_value
    assert report.encoded == {"cllsi": 40, "s2net": 40}
    with pytest.raises(UsageError, match="text"):
        fit(workspace, ("text",), (), None, None, pairs=PAIRS)
    with pytest.raises(UsageError, match=r"s2net .*; give --queries and --qrels, or --text-pairs"):
        fit(workspace, ("s2net",), (), None, None)


def test_text_pairs_can_be_added_to_judgments(workspace):
    few = Qrels((q, d, 2) for q in list(TRAIN)[:3] for d in TRAIN[q])
    fit(workspace, qrels=few)
    alone = reciprocal_rank_on_dev(workspace, "s2net")
    report = fit(workspace, qrels=few, pairs=[PAIRS[i] for i in SPLIT[:30]])
    assert report.train_pairs == 30
    assert reciprocal_rank_on_dev(workspace, "s2net") > alone


def test_a_dimension_above_the_rank_is_reported(workspace):
    listen = Watch()
    fit(workspace, ("cllsi", "s2net"), config=structs.replace(CONFIG, dim=28, init="cllsi"), progress=listen)
    assert any("cllsi" in line and "of the 28" in line for line in listen.said)
    assert workspace.ranker("cllsi").query.shape[1] < 28
    assert workspace.ranker("s2net").query.shape == (29, 28)
    assert np.linalg.norm(workspace.ranker("s2net").query.astype(float), axis=0).min() > 0
    fit(workspace, config=structs.replace(CONFIG, dim=50), progress=listen)
    assert any("s2net: 50 dimensions" in line and "29" in line for line in listen.said)
    assert workspace.ranker("s2net").query.shape == (29, 29)


def test_the_largest_gamma_is_finite_in_single_precision():
    rows = np.eye(2, dtype=np.float32)
    worst = comparisons([1, 0])  # cosine -1 with the partner, 1 with the other
    loss, *gradients = pairwise_logistic(rows, np.stack([rows[0], -rows[0]]), worst, MAX_GAMMA)
    assert loss == pytest.approx((2 * MAX_GAMMA + np.log(2)) / 2, abs=1e-3)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def read(workspace, qrels):
    inputs = Inputs(queries=QUERIES, qrels=qrels, dev_qrels=DEV, first_stage="tfidf", infer=False)
    return training_data(workspace, inputs, TrainReport(), SILENT)


def test_graded_pairs_are_ordered(workspace):
    """A document of grade 1 also forms a pair, but must stay below the document of grade 2."""
    qrels = {q: {**TRAIN[q], DOCUMENTS[(int(q[1]) * 5 + int(q[2]) + 7) % 40].id: 1} for q in TRAIN}
    rows = Qrels((q, d, g) for q, found in qrels.items() for d, g in found.items())
    data = read(workspace, rows)
    pairs = TermVectors(data, structs.replace(CONFIG, graded=True), SILENT).pairs
    assert len(pairs) == 60
    left_out = pairs.comparisons.left_out
    assert all(left_out[row, target] for row, target in enumerate(pairs.comparisons.target.tolist()))
    # A document of grade 2 is compared with the query's other document. A document of grade 1 is not.
    assert sorted(np.diff(left_out.indptr).tolist()) == [1] * 30 + [2] * 30
    assert pairs.comparisons.weight == pytest.approx(np.full(60, 1 / 60))
    plain = TermVectors(data, CONFIG, SILENT).pairs
    assert len(plain) == 30
    assert np.diff(plain.comparisons.left_out.indptr).max() <= 2


def test_documents_with_grade_zero_or_less_are_negatives(workspace):
    """They form no pairs. They must stay below the partner of their query."""
    bad = {q: DOCUMENTS[(int(q[1]) * 5 + int(q[2]) + 7) % 40].id for q in TRAIN}
    rows = [(q, d, g) for q, found in TRAIN.items() for d, g in found.items()]
    rows += [(q, d, -(i % 2)) for i, (q, d) in enumerate(bad.items()) if d not in TRAIN[q]]
    data = read(workspace, Qrels(rows))
    judged = structs.replace(CONFIG, judged=True)
    pairs = TermVectors(data, judged, SILENT).pairs
    compared = pairs.comparisons
    assert (len(pairs), compared.worse.nnz) == (30, len(rows) - 30)
    assert not compared.worse[np.arange(30), compared.target].any()
    assert not compared.worse.multiply(compared.left_out).nnz
    off = TermVectors(data, CONFIG, SILENT).pairs
    assert not off.comparisons.worse.nnz
    assert off.documents.shape == pairs.documents.shape
    graded = [(q, d, 1) for q, d in bad.items() if d not in TRAIN[q]]
    graded += [(q, d, 2) for q, found in TRAIN.items() for d in found]
    data = read(workspace, Qrels(graded))
    ordered = TermVectors(data, structs.replace(judged, graded=True), SILENT).pairs.comparisons
    assert (np.diff(ordered.worse.indptr) == 2 - np.diff(ordered.left_out.indptr)).all()

    def above(judged):
        """Return the mean difference between the scores of partners and negative documents after training."""
        job = TrainingJob(None, read(workspace, Qrels(rows)), None)
        ranker = ProjectionTrainer(job, structs.replace(CONFIG, judged=judged)).fit("s2net").ranker
        by_id = {d.id: d for d in DOCUMENTS}
        found = []
        for query in (query for query in QUERIES if query.id in TRAIN):
            pair = [by_id[next(iter(TRAIN[query.id]))], by_id[bad[query.id]]]
            found.append(
                np.subtract(*ranker.score(ranker.encode_query(query), ranker.encode_documents(pair)))
            )
        return float(np.mean(found))

    assert above(True) > above(False)


def test_equal_texts_count_as_one(workspace):
    """A document with the same words as the relevant one is not a wrong answer for any query."""
    workspace.engine.write([Document("twin", text=DOCUMENTS[0].text)])
    (own, other), expected = list(TRAIN)[:2], [(q, d, 2) for q in list(TRAIN)[2:] for d in TRAIN[q]]
    data = read(workspace, Qrels([(own, "d00", 2), (other, "twin", 2), *expected]))
    pairs = TermVectors(data, CONFIG, SILENT).pairs
    assert len(pairs) == 30
    assert pairs.documents.shape[0] == len({"d00", *(d for _, d, _ in expected)})


def test_reciprocal_ranks_share_ties():
    assert reciprocal_rank(np.ones((2, 2))) == pytest.approx(1 / 1.5)
    assert reciprocal_rank(np.eye(3)) == 1.0
