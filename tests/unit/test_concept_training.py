"""Batches of pairs, and the training of ``concept``: what it learns, and that it goes on where it stopped."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.concept.batches import LabeledTexts, PairSampler
from rerank.rankers.concept.config import concept_config
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.concept.task import Concepts, ConceptTask
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import LabeledPair

TOPICS = 5


def pairs(first=0, size=6):
    """All pairs of a topic are related; each text is unrelated to some of other topics."""
    rng = np.random.default_rng(first)
    found = []
    for topic in range(TOPICS):
        names = [f"t{topic}-{first + i}" for i in range(size)]
        found += [LabeledPair(a, b, True) for i, a in enumerate(names) for b in names[:i]]
        for a in names * 2:
            other = (topic + rng.integers(1, TOPICS)) % TOPICS
            found.append(LabeledPair(a, f"t{other}-{first + rng.integers(size)}", False))
    return list({pair.key: pair for pair in found}.values())


TRAIN, DEV = pairs(), pairs(first=6)


def concepts(encoder, train=TRAIN, dev=DEV):
    """Texts of which half the words are their topic's."""
    graph = ConceptGraph.of(train, dev)
    ids = Concepts.ids_of(graph, dev)
    texts = []
    for name in ids:
        topic, number = name[1:].split("-")
        rng = np.random.default_rng((int(topic), int(number)))
        words = [int(topic) * 4 + w for w in rng.integers(4, size=4)] + list(rng.integers(32, 40, size=4))
        texts.append(" ".join(f"w{w}" for w in words))
    tokens = [np.array(one, dtype=np.int32) for one in encoder.tokens(texts)]
    return Concepts(graph, ids, tokens, dev)


SMALL = {"batch": 15, "rate": 2e-3, "queue": 12, "precision": "fp32", "average": False}


def trainer(tiny, checkpoint=None, progress=None, train=TRAIN, dev=DEV, **changes):
    if changes.get("objective") == "classifier" or changes.get("moco") is False:
        changes = {"queue": None, **changes}
    config = concept_config(**{**SMALL, "model": tiny, **changes})
    encoder = TextEncoder.load(tiny, longest=16)
    return ConceptTask(concepts(encoder, train, dev), encoder, config, progress, checkpoint)


def state_of(one):
    whole = one.state()
    return {name: tensor.clone() for name, tensor in whole.items()}


# ----------------------------------------------------------------------------------------------- batches


def labeled():
    graph = ConceptGraph.of(TRAIN)
    ends = np.concatenate((graph.related, graph.unrelated))
    related = np.repeat([True, False], [len(graph.related), len(graph.unrelated)])
    return LabeledTexts(graph.component, ends[:, 0], ends[:, 1], related)


def sampler(batch=15, seed=0):
    return PairSampler(labeled(), lambda one: np.array([one], dtype=np.int32), batch, seed)


def test_a_batch_has_its_texts_once_and_all_labeled_pairs():
    of = labeled()
    known = {(min(a, b), max(a, b)): r for a, b, r in zip(of.first.tolist(), of.second.tolist(), of.related)}
    for drawn in sampler().epoch(0):
        texts = drawn.documents
        assert len(set(texts.tolist())) == len(texts) <= 15
        assert [one.tolist() for one in drawn.tokens] == [[one] for one in texts.tolist()]
        np.testing.assert_array_equal(drawn.component, of.component[texts])
        found = np.sort(np.stack((texts[drawn.first], texts[drawn.second]), axis=1), axis=1)
        assert [known[a, b] for a, b in found.tolist()] == drawn.related.tolist()
        assert len(found) == len({*map(tuple, found.tolist())})
        assert len(found) == sum(set(pair) <= set(texts.tolist()) for pair in known)


def test_every_pair_weighs_the_same_in_expectation():
    of, total = labeled(), Counter()
    one = sampler()
    for epoch in range(100):
        for drawn in one.epoch(epoch):
            texts = drawn.documents
            for a, b, weight in zip(texts[drawn.first], texts[drawn.second], drawn.weight.tolist()):
                total[min(a, b), max(a, b)] += weight
    assert len(total) == len(of.first)
    weights = np.array([*total.values()]) / np.mean([*total.values()])
    assert weights[of.related.argsort()].std() < 0.35
    assert np.percentile(weights, (5, 95)) == pytest.approx([1, 1], abs=0.5)


def test_batches_are_the_same_for_the_same_seed_wherever_one_begins():
    one = sampler()
    whole, rest = list(one.epoch(2)), list(sampler().epoch(2, 1))
    assert len(whole) == one.steps() == len(rest) + 1
    for mine, theirs in zip(rest, whole[1:]):
        for field in ("documents", "first", "second", "weight"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(theirs, field))
    other = next(sampler(seed=1).epoch(2))
    assert other.documents.tolist() != whole[0].documents.tolist()


def test_either_of_a_pair_comes_first():
    turned = [
        float((drawn.documents[drawn.first] < drawn.documents[drawn.second]).mean())
        for epoch in range(20)
        for drawn in sampler().epoch(epoch)
    ]
    assert np.mean(turned) == pytest.approx(0.5, abs=0.05)


# ---------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("objective", ["graph-component", "classifier"])
def test_it_learns_which_texts_are_related(tiny, objective):
    fit = trainer(tiny, objective=objective, epochs=6).fit()
    untrained, kept = fit.history[0].measures["AUC"], max(m.measures["AUC"] for m in fit.history)
    assert kept > max(0.8, untrained + 0.05)
    assert fit.best > 0


def test_without_pairs_to_measure_by_the_last_step_is_kept(tiny):
    fit = trainer(tiny, dev=[], steps=3).fit()
    assert (fit.best, fit.history[-1].measures) == (3, {})


def test_beta_zero_is_the_classifier_to_the_bit(tiny):
    changes = {"steps": 5, "queue": None}
    one, other = trainer(tiny, beta=0, **changes), trainer(tiny, objective="classifier", **changes)
    assert one.fit().history == other.fit().history
    ours, theirs = state_of(one), state_of(other)
    assert all(
        torch.equal(ours[f"loss.classifier.{name}"], theirs[f"loss.classifier.{name}"])
        for name in ("apart", "bias")
    )
    mine, its = one.encoder.model.state_dict(), other.encoder.model.state_dict()
    assert all(torch.equal(tensor, its[name]) for name, tensor in mine.items())


def test_nothing_that_is_measured_by_is_learned_from(tiny):
    mixed = [*TRAIN, *DEV[:9]]
    one = trainer(tiny, train=mixed, hops=30, ratio=3.0)
    graph, kept = one.concepts.graph, {pair.key for pair in DEV}
    assert graph.counts.withheld == 9
    names = [one.concepts.ids[i] for i in range(len(graph.ids))]
    for drawn in (batch for epoch in range(4) for batch in one.sampler.epoch(epoch)):
        ends = zip(drawn.documents[drawn.first].tolist(), drawn.documents[drawn.second].tolist())
        assert not {tuple(sorted((names[a], names[b]))) for a, b in ends} & kept
        assert drawn.documents.max() < len(graph.ids)
    assert (one.objective.components.component[len(graph.ids) :] == -1).all()


class Stop(Progress):
    """Ctrl-C after so many steps."""

    def __init__(self, at):
        self.left = at

    def advance(self, count=1):
        pass

    def show(self, **values):
        if "loss" in values:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


@pytest.mark.parametrize("at", [4, 7])
def test_an_interrupted_training_goes_on_to_the_same_result(tiny, tmp_path, at):
    """Four steps are an epoch; checkpoints are written after steps 3 and 6. Head, momentum encoder and queue
    are the same, too.
    """
    short = {"steps": 9, "every": 3, "patience": 50}
    whole = trainer(tiny, **short)
    history = whole.fit().history
    broken = trainer(tiny, tmp_path / "checkpoint", Stop(at), **short)
    assert broken.fit().interrupted
    again = trainer(tiny, tmp_path / "checkpoint", **short)
    assert again.fit().history == history
    mine, theirs = state_of(again), state_of(whole)
    assert {
        f"loss.{name}"
        for name in ("classifier.apart", "components.centroids", "momentum.slow.0", "momentum.keys")
    } <= mine.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def test_the_upper_layers_alone(tiny, tmp_path):
    """What does not learn is computed once, and has no copy in the momentum encoder."""
    short = {"steps": 4, "every": 2, "train_layers": 1}
    one = trainer(tiny, **short)
    one.fit()
    assert len(one.objective.momentum.slow) == 16
    assert one.objective.memory < trainer(tiny, steps=1).objective.memory
    broken = trainer(tiny, tmp_path / "checkpoint", Stop(3), **short)
    assert broken.fit().interrupted
    again = trainer(tiny, tmp_path / "checkpoint", **short)
    again.fit()
    mine, theirs = state_of(again), state_of(one)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"queue": 500},
            "500 keys is longer than 30 texts to learn from; give --queue 30 or less",
        ),
        ({"train": TRAIN[:15] + TRAIN[15:21]}, "the related pairs make 1 component"),
    ],
)
def test_settings_that_do_not_go_with_the_pairs(tiny, changes, message):
    with pytest.raises(TrainingError, match=message):
        trainer(tiny, **changes)


def test_batches_without_a_related_pair(tiny):
    lone = [LabeledPair(f"t{i % 5}-{i}", f"t{i % 5}-{i + 5}", True) for i in range(5)]
    none = [LabeledPair(f"t{i % 5}-{i}", f"t{(i + 1) % 5}-{i + 1}", False) for i in range(60)]
    with pytest.raises(TrainingError, match="no batch of 2 texts had a related pair; raise --batch"):
        trainer(tiny, train=[*lone[:2], *none], batch=2, steps=3, every=1, queue=8).fit()


def test_the_head_is_the_one_that_was_kept(tiny):
    one = trainer(tiny, steps=6, every=2)
    fit = one.fit()
    measured = one.evaluator.measure(one.vectors)
    kept = next(m for m in fit.history if m.step == fit.best)
    assert measured["AUC"] == pytest.approx(kept.measures["AUC"], abs=1e-6)
    assert one.head() is not None
