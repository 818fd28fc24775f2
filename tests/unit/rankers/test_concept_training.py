"""The graph of labeled pairs, its batches, and the training of ``concept``."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch

from rerank.common.progress import SILENT
from rerank.documents.records import LabeledPair
from rerank.rankers.concept.batches import PairSampler
from rerank.rankers.concept.config import ConceptConfig
from rerank.rankers.concept.fit import ConceptTask
from rerank.rankers.concept.graph import ConceptGraph
from rerank.rankers.encoder.transformer import TextEncoder
from tests.support.progress import Watch

TOPICS = 5


def pairs(first=0, size=6):
    """Return pairs. Texts of one topic are related, and each text is unrelated to some others."""
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
    """Return a graph, and texts in which half of the words belong to their topic."""
    graph = ConceptGraph.from_pairs(train, dev)
    texts = []
    for name in graph.ids:
        topic, number = name[1:].split("-")
        rng = np.random.default_rng((int(topic), int(number)))
        words = [int(topic) * 4 + w for w in rng.integers(4, size=4)] + list(rng.integers(32, 40, size=4))
        texts.append(" ".join(f"w{w}" for w in words))
    return graph, [np.array(one, dtype=np.int32) for one in encoder.tokens(texts)]


SMALL = {"batch": 15, "rate": 2e-3, "queue": 12, "precision": "fp32", "average": False}


def trainer(tiny, checkpoint=None, progress=SILENT, train=TRAIN, dev=DEV, **changes):
    if changes.get("objective") == "classifier":
        changes = {"queue": None, **changes}
    config = ConceptConfig.of(**{**SMALL, "model": tiny, **changes})
    encoder = TextEncoder.load(tiny, longest=16)
    return ConceptTask(*concepts(encoder, train, dev), encoder, config, progress, checkpoint)


def state_of(one):
    return {name: tensor.clone() for name, tensor in one.model.state_dict().items()}


def labeled_pairs(related="", unrelated=""):
    found = [LabeledPair(*pair, True) for pair in related.split()]
    return found + [LabeledPair(*pair, False) for pair in unrelated.split()]


EXAMPLE_PAIRS = labeled_pairs("AB BC CD EF", "AE FG")
COMPONENT = [0, 0, 0, 0, 1, 1, -1]


def pair_names(graph, found):
    return " ".join(graph.ids[a] + graph.ids[b] for a, b in found.tolist())


def test_the_graph_does_not_depend_on_order_or_orientation():
    turned = [LabeledPair(b, a, related) for a, b, related in EXAMPLE_PAIRS]
    random.Random(1).shuffle(turned)
    for graph in (ConceptGraph.from_pairs(EXAMPLE_PAIRS), ConceptGraph.from_pairs(turned)):
        assert (graph.component.tolist(), graph.components) == (COMPONENT, 2)
        assert (pair_names(graph, graph.related), pair_names(graph, graph.unrelated)) == (
            "AB BC CD EF",
            "AE FG",
        )


def test_contradicting_pairs_are_counted_and_dropped():
    graph = ConceptGraph.from_pairs([*EXAMPLE_PAIRS, *labeled_pairs("DE BA AA", "ED DA")])
    assert graph.disagreeing == 1
    assert graph.component.tolist() == COMPONENT
    assert pair_names(graph, graph.unrelated) == "AD AE FG"


def test_dev_pairs_are_removed_from_the_graph():
    graph = ConceptGraph.from_pairs(EXAMPLE_PAIRS, labeled_pairs("CB AD", "BF XY"))
    assert graph.withheld == 1
    assert pair_names(graph, graph.related) == "AB CD EF"


@pytest.mark.parametrize("labels", [("", "AB"), ("AB", ""), ("", "")])
def test_graphs_without_edges_or_labels_are_valid(labels):
    assert ConceptGraph.from_pairs(labeled_pairs(*labels)).components == (labels[0] == "AB")


def sampler(batch=15, seed=0):
    return PairSampler(
        ConceptGraph.from_pairs(TRAIN), lambda one: np.array([one], dtype=np.int32), batch, seed
    )


def ends_of(drawn):
    """Return the pairs of a batch, with the smaller position first."""
    return [*map(tuple, np.sort(drawn.documents[drawn.ends], axis=1).tolist())]


def test_a_batch_has_each_text_once_and_all_labeled_pairs():
    graph = ConceptGraph.from_pairs(TRAIN)
    known = dict.fromkeys(map(tuple, graph.related.tolist()), 1.0)
    known |= dict.fromkeys(map(tuple, graph.unrelated.tolist()), 0.0)
    for drawn in sampler().epoch(0):
        texts = drawn.documents.tolist()
        assert len(set(texts)) == len(texts) <= 15
        assert [one.tolist() for one in drawn.anchor] == [[one] for one in texts]
        np.testing.assert_array_equal(drawn.component, graph.component[texts])
        actual = ends_of(drawn)
        assert [known[pair] for pair in actual] == drawn.related.tolist()
        assert len(actual) == len({*actual}) == sum({*pair} <= {*texts} for pair in known)


def test_every_pair_has_the_same_expected_weight():
    one, total, turned = sampler(), Counter(), []
    for epoch in range(100):
        for drawn in one.epoch(epoch):
            for pair, weight in zip(ends_of(drawn), drawn.weight.tolist()):
                total[pair] += weight
            turned += [a > b for a, b in drawn.documents[drawn.ends].tolist()]
    assert len(total) == len(one.pairs)
    weights = np.array([*total.values()]) / np.mean([*total.values()])
    assert weights.std() < 0.35
    assert np.percentile(weights, (5, 95)) == pytest.approx([1, 1], abs=0.5)
    assert np.mean(turned) == pytest.approx(0.5, abs=0.05)  # either text of a pair can be first


def test_equal_seeds_give_equal_batches_from_any_start():
    one = sampler()
    whole, rest = list(one.epoch(2)), list(sampler().epoch(2, 1))
    assert len(whole) == one.steps() == len(rest) + 1
    for mine, theirs in zip(rest, whole[1:]):
        for field in ("documents", "ends", "weight"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(theirs, field))
    assert not np.array_equal(next(sampler(seed=1).epoch(2)).documents, whole[0].documents)


@pytest.mark.parametrize("objective", ["graph-component", "classifier"])
def test_training_learns_which_texts_are_related(tiny, objective):
    fit = trainer(tiny, objective=objective, epochs=4).fit()
    untrained, kept = fit.history[0].measures["AUC"], max(m.measures["AUC"] for m in fit.history)
    assert kept > max(0.8, untrained + 0.05)
    assert fit.best > 0


def test_without_dev_pairs_the_last_step_is_kept(tiny):
    fit = trainer(tiny, dev=[], steps=3).fit()
    assert (fit.best, fit.history[-1].measures) == (3, {})


def test_dev_pairs_are_not_in_batches(tiny):
    one = trainer(tiny, train=[*TRAIN, *DEV[:9]])
    graph, kept = one.graph, {pair.key for pair in DEV}
    assert graph.withheld == 9
    for drawn in one.sampler.epoch(0):
        assert drawn.documents.max() < len(graph.component)
        assert not {(graph.ids[a], graph.ids[b]) for a, b in ends_of(drawn)} & kept


@pytest.mark.parametrize(("at", "layers"), [(4, 0), (7, 1)])
def test_an_interrupted_training_resumes_to_the_same_result(tiny, tmp_path, at, layers):
    """An epoch has four steps, and checkpoints are written after steps 3 and 6. Head, momentum encoder
    and queue are equal, and so are the weights.
    """
    short = {"steps": at + 1, "every": 3, "patience": 50, "train_layers": layers}
    whole = trainer(tiny, **short)
    history = whole.fit().history
    broken = trainer(tiny, tmp_path / "checkpoint", Watch(at=at), **short)
    assert broken.fit().interrupted
    again = trainer(tiny, tmp_path / "checkpoint", **short)
    assert again.fit().history == history
    assert len(whole.objective.contrasts[1].slow) == (16 if layers else 39)  # frozen layers have no copy
    mine, theirs = state_of(again), state_of(whole)
    assert {part for name in mine for part in name.split(".")} >= {"apart", "centroids", "slow", "keys"}
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def test_a_long_queue_contains_each_text_at_most_once(tiny):
    assert len(trainer(tiny, queue=500).objective.contrasts[1].keys) == 30


def test_the_head_belongs_to_the_kept_step(tiny):
    one = trainer(tiny, steps=6, every=2)
    fit = one.fit()
    measured = one.evaluate()
    kept = next(m for m in fit.history if m.step == fit.best)
    assert measured["AUC"] == pytest.approx(kept.measures["AUC"], abs=1e-6)
