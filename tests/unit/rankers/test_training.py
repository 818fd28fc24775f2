"""Sampling, losses, and the training loop on data that is small enough to know the expected result."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args
from uuid import uuid4

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rerank.common.errors import TrainingError, UsageError
from rerank.common.progress import SILENT
from rerank.documents.records import Document, Qrels, Query
from rerank.evaluation.measures import evaluate_runs
from rerank.rankers.cnn import sampling
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.fit import CnnTrainer, in_batch_softmax, pairwise_hinge
from rerank.rankers.cnn.ranker import CnnRanker
from rerank.rankers.cnn.sampling import Sampler, batch_size
from rerank.rankers.training.data import (
    DEV_RANDOM,
    LONGEST_TEXT,
    Corpus,
    DevSet,
    TrainingData,
    TrainingQuery,
    weighted_ndcg,
)
from rerank.rankers.training.job import TrainingJob
from rerank.stack.linear import Linear
from rerank.stack.stack import Stack
from tests.support.progress import Watch

COLLECTION = 30
TEMPORARY = TemporaryDirectory()
"""Folder of checkpoints. It is removed at the end of the process."""


def trainer(data, config, progress=SILENT, folder=None):
    folder = folder or Path(TEMPORARY.name) / uuid4().hex
    return CnnTrainer(TrainingJob(None, data, folder, progress=progress), config)


def ints(values):
    return np.array(values, dtype=np.int64)


@st.composite
def judgments(draw):
    """Return 1 to 8 queries, each with 1 to 5 relevant documents of grade 1 to 3 and 0 to 10 candidates."""
    judged = []
    for query in range(draw(st.integers(1, 8))):
        documents = sorted(draw(st.sets(st.integers(0, COLLECTION - 1), min_size=1, max_size=5)))
        grades = [draw(st.integers(1, 3)) for _ in documents]
        candidates = draw(st.lists(st.integers(0, COLLECTION - 1), unique=True, max_size=10))
        scores = np.linspace(1, 0.1, len(candidates))
        judged.append(TrainingQuery(10 + query, ints(documents), ints(grades), ints(candidates), scores))
    return judged


@given(
    st.sampled_from(get_args(sampling.Negatives)),
    st.booleans(),
    st.sampled_from([1, 2000]),
    judgments(),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_properties_of_every_batch(source, graded, least, judged, batch, negatives, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "LEAST_EXAMPLES", least)
        sampler = Sampler(judged, COLLECTION, batch, negatives, source, graded)
        batches, again = (list(sampler.epoch(np.random.default_rng(seed))) for _ in range(2))
        assert len(batches) == sampler.batches()
    by_query = {one.query: one for one in judged}
    grades = {q: dict(zip(one.documents.tolist(), one.grades.tolist())) for q, one in by_query.items()}
    seen = []
    for actual in batches:
        documents, queries = actual.documents.tolist(), actual.queries.tolist()
        assert 1 <= len(queries) <= batch
        assert documents == sorted(set(documents))
        positive = [documents[column] for column in actual.positive.tolist()]
        seen += list(zip(queries, positive))
        for q, document, weight in zip(queries, positive, actual.weight.tolist()):
            assert weight == (1 if grades[q][document] == max(grades[q].values()) else 0.5)
        # The mask is correct for every query and document of the batch.
        assert actual.relevant.tolist() == [[d in grades[q] for d in documents] for q in queries]
        for owner, worse in zip(actual.owner.tolist(), actual.worse.tolist(), strict=True):
            q, above, below = queries[owner], positive[owner], documents[worse]
            if below in grades[q]:  # only if its grade is lower
                assert graded
                assert grades[q][below] < grades[q][above]
            elif source == "first-stage" and len(by_query[q].candidates):
                assert below in by_query[q].candidates
            elif source == "mixed":
                assert below in by_query[q].candidates or below in positive
        assert (np.bincount(actual.owner, minlength=len(queries)) <= negatives + graded).all()
    # Each repetition of a query in an epoch has another relevant document.
    assert len(set(seen)) == len(seen)
    for one in judged:
        assert sum(q == one.query for q, _ in seen) == min(len(one.grades), -(-least // len(judged)))
    for one, other in zip(batches, again, strict=True):
        for name, value in vars(one).items():
            assert value.tolist() == getattr(other, name).tolist()


def test_negatives_come_from_the_selected_source():
    """A query with candidates 0 to 9 of a collection of 1000, relevant document 999, and 40 negatives."""
    judged = [
        TrainingQuery(0, ints([999]), ints([1]), ints(range(10)), np.ones(10)),
        TrainingQuery(1, ints([998]), ints([1]), ints([]), np.ones(0)),
    ]

    def drawn(source, query=0):
        (batch,) = Sampler(judged, 1000, 2, 40, source, graded=False).epoch(np.random.default_rng(0))
        return batch.documents[batch.worse[batch.queries[batch.owner] == query]].tolist()

    assert len(set(drawn("random"))) > 30
    assert max(drawn("random", 1)) > 100
    assert set(drawn("first-stage")) <= set(range(10))
    mixed = drawn("mixed")
    assert sum(d < 10 for d in mixed) == 20
    assert set(mixed) - set(range(10)) == {998}  # the document of the other query


def test_lower_grades_are_sampled_as_often_as_their_weight(monkeypatch):
    """Each of two lower grades has probability 0.25 / 1.5. They stay below higher grades."""
    monkeypatch.setattr(sampling, "LEAST_EXAMPLES", 1)
    judged = [TrainingQuery(0, ints([1, 2, 3]), ints([1, 3, 2]), ints([]), np.ones(0))]
    rng, counts, pairs = np.random.default_rng(0), np.zeros(4), set()
    sampler = Sampler(judged, 50, 1, 1, "random")
    for _ in range(1500):
        (batch,) = sampler.epoch(rng)
        positive = int(batch.documents[batch.positive[0]])
        counts[positive] += 1
        pairs |= {(positive, worse) for worse in batch.documents[batch.worse].tolist() if worse in (1, 2, 3)}
    assert counts[1:] == pytest.approx([250, 1000, 250], abs=60)
    assert pairs == {(2, 3), (2, 1), (3, 1)}


def test_batch_sizes_depend_on_the_number_of_judgments():
    for queries, relevant, size in (
        (1, 1, 64),
        (1000, 1, 64),
        (20_000, 1, 512),
        (4000, 1, 256),
        (500, 8, 128),
    ):
        one = TrainingQuery(0, ints(range(relevant)), ints([1] * relevant), ints([]), np.ones(0))
        assert batch_size([one] * queries) == size


def test_the_hinge_loss_matches_values_by_hand():
    better, worse = torch.tensor([2.0, 0.5, -1.0, 0.0]), torch.tensor([0.0, 0.5, 1.0, 0.25])
    assert float(pairwise_hinge(better, worse)) == sum([0.0, 1.0, 3.0, 1.25]) / 4


def test_the_cnn_softmax_loss_matches_values_by_hand():
    """Query 0 wants column 0. Column 2 is also relevant, so it is ignored. Query 1 wants column 1."""
    cosines = torch.tensor([[0.5, 0.1, 0.9], [0.2, 0.4, -0.3]])
    relevant = torch.tensor([[True, False, True], [False, True, False]])
    t, weight = 0.5, [1.0, 0.5]
    first = -math.log(math.exp(0.5 / t) / (math.exp(0.5 / t) + math.exp(0.1 / t)))
    second = -math.log(math.exp(0.4 / t) / sum(math.exp(c / t) for c in (0.2, 0.4, -0.3)))
    loss = in_batch_softmax(cosines, torch.tensor([0, 1]), relevant, torch.tensor(weight), t)
    assert float(loss) == pytest.approx((weight[0] * first + weight[1] * second) / sum(weight), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_weighted_ndcg_equals_ir_measures(seed):
    """Tests 21 weights as stacks of z-scores, also with relevant documents that were not retrieved."""
    random = np.random.default_rng(seed)
    judged, scores, rows, grades = [], [], [], []
    for q in range(9):
        n = int(random.integers(1, 40))
        candidates = random.choice(200, n, replace=False)
        relevant = np.unique(np.concatenate((candidates[: random.integers(0, 4)], [300 + q])))
        first, model = np.sort(random.random(n))[::-1], random.normal(size=n)
        grade = random.integers(1, 4, len(relevant))
        judged.append(TrainingQuery(q, relevant, grade, candidates, first))
        scores.append(model)
        rows.append((f"q{q}", [f"d{d:03}" for d in candidates], np.stack((first, model), axis=1)))
        grades += [(f"q{q}", f"d{d:03}", int(g)) for d, g in zip(relevant, grade)]
    stacks = [
        Stack(Linear(("tfidf", "text"), (1 - n / 20, n / 20), normalization="z-score"), "tfidf")
        for n in range(21)
    ]
    runs = {str(n): {q: one.rank(ids, found).ids for q, ids, found in rows} for n, one in enumerate(stacks)}
    evaluation = evaluate_runs(runs, Qrels(grades), ["nDCG"])
    values = [evaluation.mean(run, "nDCG") for run in runs]
    best, alone, without = weighted_ndcg(judged, scores)
    assert (best, alone, without) == pytest.approx((max(values), values[20], values[0]), abs=1e-12)


def toy_data(n=20, candidates=8, **changes):
    """Return data in which query i wants document i. Only training can relate them."""
    documents = [Document(f"d{i}", text=f"w{i} w{i}", categories=(f"c{i}",)) for i in range(n)]
    queries = Corpus.read(Query(f"q{i}", f"v{i} v{i}", (f"k{i}",)) for i in range(n))
    retrieved = [ints([(i + 3 * j) % n for j in range(candidates)]) for i in range(n)]
    judged = [
        TrainingQuery(i, ints([i]), ints([1]), some, np.ones(candidates)) for i, some in enumerate(retrieved)
    ]
    ids, corpus = [d.id for d in documents], Corpus.read(documents)
    data = TrainingData(ids, corpus, queries, judged, judged, "tfidf", True, query_text=queries)
    return replace(data, **changes)


def losses(watch):
    """Return the reported loss of each epoch."""
    return [float(re.search(r"loss ([\d.]+)", line)[1]) for line in watch.said]


def small(**changes):
    sizes = {"filters": 16, "vector_size": 16, "hidden": (32, 16), "word_size": 12, "category_size": 12}
    how = {"epochs": 3, "rate": 5e-3, "dropout": 0.0, "word_epochs": 1, "walks": 1, "width": 1}
    head = changes.pop("head", "cosine")
    return structs.replace(CnnConfig.of(head=head), **{**sizes, **how, **changes})


def test_the_trainer_memorizes_twenty_pairs():
    """Query i has only the candidates i and i + 3."""
    watch = Watch()
    config = small(head="mlp", sampling="first-stage", negatives=4, epochs=24, patience=24, rate=1e-2)
    fitted = trainer(toy_data(candidates=2), config, watch).fit("joint")
    assert losses(watch)[0] > 0.9
    assert losses(watch)[-1] < 0.01
    assert fitted.dev == pytest.approx(1)
    assert fitted.baseline_value == pytest.approx(
        1 / math.log2(3)
    )  # a tie counts against the relevant document
    assert not fitted.interrupted
    scores = all_scores(fitted.ranker)
    rounding = 0.001  # of stored features: after the first epoch a pair may be close without an error
    assert all(scores[i, i] > scores[i, (i + 3) % 20] - rounding for i in range(20))


def test_the_cosine_head_memorizes_twenty_pairs():
    pytest.importorskip("gensim", reason="an SVD leaves words of one text alone without a vector")
    fitted = trainer(toy_data(), small(head="cosine", epochs=12, patience=12)).fit("joint")
    assert fitted.dev == pytest.approx(1)
    # In-batch negatives are all other documents, so document i ranks first.
    assert all_scores(fitted.ranker).argmax(axis=1).tolist() == list(range(20))


def all_scores(ranker):
    """Return scores of all documents for all queries (20, 20), computed by the NumPy ranker."""
    assert isinstance(ranker, CnnRanker)
    features = ranker.encode_documents(
        [Document(f"d{i}", text=f"w{i} w{i}", categories=(f"c{i}",)) for i in range(20)]
    )
    queries = [Query("q", f"v{i} v{i}", (f"k{i}",)) for i in range(20)]
    return np.array([ranker.score(ranker.encode_query(query), features) for query in queries])


def test_training_and_ranking_read_the_same_tokens():
    texts = ["known " * 3 + "rare " + "known " * 600, "Only, THIS: é?", "", "rare"]
    records = [
        Document(str(i), text=text, categories=categories)
        for i, (text, categories) in enumerate(zip(texts, [("b.1", "a", "a"), ("zz",), (), ("b.2", "b.3")]))
    ]
    data = replace(
        toy_data(4),
        documents=Corpus.read(records),
        category_edges=[("a", "b"), ("b.1", "b")],
    )
    made = trainer(data, small(epochs=1))
    ranker = made.fit("joint").ranker
    for tower in ranker.networks[0].document:
        actual = getattr(made.inputs, tower.vocabulary.part)["document"][1]
        for i, record in enumerate(records):
            begin, end = actual.offsets[i : i + 2]
            assert actual.flat[begin:end].tolist() == tower.vocabulary.tokens(record)
    words = made.inputs.text["document"][1]
    assert words.lengths[0] <= LONGEST_TEXT


def test_a_ranker_depends_on_the_seed_not_on_previous_rankers():
    def version(before=(), **changes):
        made = trainer(toy_data(), small(epochs=1, **changes))
        return [made.fit(name).ranker.version for name in (*before, "joint")][-1]

    one = version(seed=5)
    assert version(("text", "meta"), seed=5) == one
    assert version(seed=6) != one


def test_early_stopping_keeps_the_best_epoch():
    """The learning rate is almost 0, so no epoch is better than the first. Patience ends the training."""
    config = small(rate=1e-30, tune_embeddings=False, epochs=50, patience=4)
    fitted = trainer(toy_data(), config).fit("text")
    assert (fitted.epoch, fitted.epochs) == (1, 5)


def test_the_epoch_can_be_selected_on_random_documents():
    """The results of the first stage have no effect, and may be missing."""
    judged = [TrainingQuery(i, ints([i, i + 5]), ints([2, 1]), ints([]), np.zeros(0)) for i in range(10)]
    pools, again, other = (DevSet.from_random_pools(toy_data(n=500, dev=judged), seed) for seed in (3, 3, 4))
    drawn = [pools.documents[columns] for columns in pools.columns]
    for one, actual in zip(judged, drawn, strict=True):
        assert {*one.documents.tolist()} <= {*actual.tolist()}
        assert len(one.documents) + DEV_RANDOM <= len(np.unique(actual)) == len(actual) <= 2 * DEV_RANDOM + 2
    assert [one.tolist() for one in drawn] == [again.documents[actual].tolist() for actual in again.columns]
    assert [one.tolist() for one in drawn] != [other.documents[actual].tolist() for actual in other.columns]
    watch = Watch()
    fitted = trainer(toy_data(dev=judged), small(epoch_by="pool-random"), watch).fit("text")
    assert (fitted.measure, fitted.baseline_value) == ("dev NDCG among random documents", None)
    assert f"among random documents {fitted.dev:.4f}" in watch.said[fitted.epoch - 1]


def test_documents_that_are_all_equal_are_refused():
    same = Corpus.read([Document(f"d{i}", text="same same", categories=("c",)) for i in range(20)])
    for head in ("mlp", "cosine"):
        with pytest.raises(TrainingError, match="text learns nothing: after epoch 1"):
            trainer(toy_data(documents=same), small(head=head)).fit("text")


def test_a_loss_that_is_not_finite_is_reported():
    with pytest.raises(TrainingError, match=r"not finite.*lower --rate"):
        trainer(toy_data(), small(head="mlp", rate=1e30, epochs=20)).fit("text")


LONG = {"head": "mlp", "epochs": 5, "patience": 5, "dropout": 0.3, "batch": 8}
EACH = -(-20 // 8)
"""Steps per epoch with LONG."""


@pytest.mark.parametrize("within", [True, False])
def test_an_interrupted_training_keeps_the_best_epoch(within):
    """It is interrupted within epoch 4, or right after the result of epoch 4 is reported."""
    data, config = toy_data(), small(**LONG)
    done = 3 if within else 4
    watch = Watch(at=3 * EACH + 1) if within else Watch(line="epoch 4 of")
    fitted = trainer(data, config, watch).fit("text")
    assert fitted.interrupted
    assert (len(fitted.curve), fitted.epochs) == (done, 4)
    assert fitted.dev == max(dev for _, _, dev in fitted.curve)
    whole = trainer(data, structs.replace(config, epochs=done)).fit("text")
    assert whole.epoch == fitted.epoch
    assert whole.ranker.version == fitted.ranker.version
    assert whole.dev == fitted.dev


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path):
    """This includes the moments of the sparse optimizer for embeddings."""
    data, config = toy_data(), small(**{**LONG, "head": "cosine"})
    expected = trainer(data, config, folder=tmp_path / "whole").fit("joint")
    first = trainer(data, config, Watch(at=3 * EACH + 2), tmp_path / "parts").fit("joint")
    assert first.interrupted
    watch = Watch()
    second = trainer(data, config, watch, tmp_path / "parts").fit("joint")
    assert "joint continues at epoch 3 of 5" in watch.said
    assert (second.ranker.version, second.epoch, second.curve) == (
        expected.ranker.version,
        expected.epoch,
        expected.curve,
    )
    for one in (expected, second):
        one.discard_checkpoint()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_score_of_several_networks_is_the_mean_of_their_scores(tmp_path):
    data, config = toy_data(), small(epochs=3)
    single = trainer(data, config).fit("joint")
    result = trainer(data, structs.replace(config, networks=3)).fit("joint")
    ranker = result.ranker
    ranker.save(tmp_path / "ranker")
    query = Query("q", "w1 w2", ("k1",))
    documents = [Document(f"d{i}", text=f"w{i} w{i + 1}", categories=(f"k{i}",)) for i in range(8)]

    def scores(*networks):
        of_networks = replace(ranker, networks=list(networks))
        return of_networks.score(of_networks.encode_query(query), of_networks.encode_documents(documents))

    by_network = np.array([scores(network) for network in ranker.networks])
    np.testing.assert_allclose(scores(*ranker.networks), by_network.mean(axis=0), atol=2e-3)
    np.testing.assert_array_equal(by_network[0], scores(*single.ranker.networks))
    assert min(np.std(by_network, axis=0)) > 1e-3  # their seeds differ
    loaded = CnnRanker.load(tmp_path / "ranker")
    np.testing.assert_array_equal(scores(*loaded.networks), scores(*ranker.networks))
    assert np.linalg.norm(ranker.encode_query(query)) == pytest.approx(1, abs=1e-6)
    assert result.remarks[-1].startswith("joint has 3 of 3 networks")


@pytest.mark.parametrize("epochs_of_second", [0, 1])
def test_an_interruption_keeps_the_networks_until_then_and_the_training_continues(epochs_of_second, tmp_path):
    """It is interrupted in the second of three networks, which is kept if it was measured."""
    data, config = toy_data(), small(epochs=2, batch=8, networks=3)
    expected = trainer(data, config, folder=tmp_path / "whole").fit("text")
    watch = Watch(at=(config.epochs + epochs_of_second) * EACH + 1)
    first = trainer(data, config, watch, tmp_path / "parts").fit("text")
    assert first.interrupted
    assert len(first.ranker.networks) == 1 + epochs_of_second
    assert first.dev >= trainer(data, structs.replace(config, networks=1)).fit("text").dev
    second = trainer(data, config, folder=tmp_path / "parts").fit("text")
    assert second.ranker.version == expected.ranker.version
    for result in (expected, second):
        result.discard_checkpoint()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_mlp_has_one_network():
    with pytest.raises(UsageError, match="needs --head cosine"):
        CnnConfig.of(head="mlp", networks=2)


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("meta", Document("d", text="w"), "no document has categories; train `text` only"),
        ("joint", Document("d", text="w"), "no document has categories; train `text` only"),
        ("text", Document("d", categories=("c",)), "the documents have no words"),
        ("joint", Query("q", "?!", ("k",)), "the queries have no words"),
    ],
)
def test_missing_texts_or_categories_are_refused(name, record, message):
    corpus = Corpus.read([record] * 20)
    sides = ["documents"] if isinstance(record, Document) else ["queries", "query_text"]
    data = toy_data(same_language=False, **dict.fromkeys(sides, corpus))
    with pytest.raises(TrainingError, match=message):
        trainer(data, small(epochs=1)).fit(name)


def test_dev_queries_without_results_are_refused():
    bare = [replace(one, candidates=ints([]), scores=np.ones(0)) for one in toy_data().dev]
    with pytest.raises(TrainingError, match="no dev query retrieves anything"):
        trainer(toy_data(dev=bare), small()).fit("text")
    # Training queries can use other negatives.
    for source in get_args(sampling.Negatives):
        assert trainer(toy_data(train=bare), small(sampling=source, epochs=1)).fit("text").epoch


def test_presets_set_the_defaults():
    paper = CnnConfig.of("paper", hidden=["3200,3200"])
    assert (paper.head, paper.hidden, paper.width, paper.epoch_by) == ("mlp", (3200, 3200), 4, "pool-random")
    assert (CnnConfig.of().head, CnnConfig.of("paper", head="cosine").head) == ("cosine", "cosine")


def test_two_languages_have_two_vocabularies():
    data = toy_data(same_language=False)
    ranker = trainer(data, small(epochs=1)).fit("text").ranker
    (network,) = ranker.networks
    query, document = network.query[0].vocabulary, network.document[0].vocabulary
    assert {*query.names} == {f"v{i}" for i in range(20)}
    assert {*document.names} == {f"w{i}" for i in range(20)}
    (network,) = trainer(toy_data(), small(epochs=1)).fit("text").ranker.networks
    assert network.query[0].vocabulary is network.document[0].vocabulary
