"""Draws of ``dense``, corruption of anchors, and losses, on graphs and numbers computed by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.rankers.dense.losses import (
    Contrastive,
    Quintuplet,
    SemanticLoss,
    TripletLoss,
    distance,
    nearest_negative,
)
from rerank.rankers.dense.neighbors import by_pagerank
from rerank.rankers.dense.quintuplets import Vocabulary
from rerank.rankers.graphs.links import LinkGraph
from tests.support.data import quintuplet_vectors

G2 = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
"""The graph of the hand-computed examples. Documents 5 and 6 have no links."""


def neighbors(edges=G2, size=7, usable=None, **options):
    graph = LinkGraph.from_edges([str(i) for i in range(size)], *np.array(edges).T.reshape(2, -1))
    return by_pagerank(graph, np.ones(size, bool) if usable is None else np.array(usable), **options)


def draws(of, anchor, count=300):
    rng = np.random.default_rng(0)
    return [of.draw(anchor, rng) for _ in range(count)]


def test_documents_are_drawn_with_the_expected_frequency():
    """Anchor 3 of G2: positives 4, 2, {0, 1}. Negatives of level 1 are the isolated documents 5 and 6."""
    actual = draws(neighbors(), 3, 12_000)
    positive = Counter(d.positive for d in actual)
    negative = Counter(d.negative for d in actual)
    expected = {4: 7 / 12, 2: 1 / 4, 0: 1 / 12, 1: 1 / 12}
    assert {d: positive[d] / len(actual) for d in expected} == pytest.approx(expected, abs=0.01)
    expected = {2: 1 / 3, 0: 1 / 6, 1: 1 / 6, 5: 1 / 6, 6: 1 / 6}
    assert {d: negative[d] / len(actual) for d in expected} == pytest.approx(expected, abs=0.01)
    assert Counter(d.level for d in actual).keys() == {1, 2, 3}


def test_equally_near_documents_are_not_compared():
    """Documents 0 and 1 are equally near to anchor 2 of G2. Level 3 would compare them with each other."""
    assert {d.level for d in draws(neighbors(), 2, 2000)} == {1, 2}


def test_the_related_limit_makes_other_documents_negatives():
    actual = draws(neighbors(related=2), 3, 3000)
    assert {(d.level, d.positive) for d in actual} == {(1, 4), (1, 2), (2, 4)}
    assert {d.negative for d in actual if d.level == 1} == {0, 1, 5, 6}


def test_isolated_documents_have_level_zero_and_pairs_level_one():
    assert {d.level for d in draws(neighbors(), 5, 50)} == {0}
    pair = neighbors([(0, 1)], 4)
    assert {(d.level, d.positive) for d in draws(pair, 0, 200)} == {(1, 1)}
    assert {d.negative for d in draws(pair, 0, 200)} == {2, 3}


def test_a_single_component_has_no_first_level():
    assert {d.level for d in draws(neighbors(size=5), 3, 2000)} == {2, 3}
    assert {d.level for d in draws(neighbors([(0, 1)], 2), 0, 50)} == {0}


def test_documents_without_text_are_never_drawn():
    found = neighbors(usable=[True, True, False, True, True, True, False])
    for anchor in (0, 3):
        assert not {d.positive for d in draws(found, anchor, 1000)} & {2, 6}
        assert not {d.negative for d in draws(found, anchor, 1000)} & {2, 6}


WORDS = Vocabulary(np.arange(10, 60, dtype=np.int32), mask=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(10, 59), min_size=1, max_size=80), st.booleans(), st.integers(0, 50))
def test_corruption_replaces_a_quarter_of_the_tokens(tokens, masked, seed):
    before = np.array(tokens, dtype=np.int32)
    words = replace(WORDS, mask=3 if masked else None)
    after = words.corrupt(before, np.random.default_rng(seed))
    assert (before != after).sum() == max(1, round(0.25 * len(tokens)))
    new = after[before != after]
    assert masked or 3 not in new
    assert before.tolist() == tokens


@pytest.mark.parametrize(
    ("level", "loss"),
    [(1, 0.65), (2, 0.15)],
)
def test_the_quintuplet_loss_matches_values_by_hand(level, loss):
    """The distances are 5 and 6 to the structural pair, and 1 and 1.2 to the semantic pair."""
    assert Quintuplet()(quintuplet_vectors(level)).item() == pytest.approx(loss, abs=1e-9)


def test_the_quintuplet_gradients_match_values_by_hand():
    given = quintuplet_vectors()
    Quintuplet()(given).backward()
    assert given.anchor.grad.tolist() == [pytest.approx([-0.8, 0.6]), pytest.approx([0, -0.5])]
    assert given.positive.grad[0].tolist() == pytest.approx([0.3, 0.4])
    assert given.negative.grad[0].tolist() == pytest.approx([0, -0.5])
    assert given.corrupted.grad[0].tolist() == pytest.approx([0.5, 0])
    total = sum(t.grad.sum(dim=0) for t in (given.anchor, given.positive, given.negative, given.corrupted))
    assert total.tolist() == pytest.approx([0, 0], abs=1e-12)
    assert not given.positive.grad[1].any()


def changed(of, **changes):
    return SimpleNamespace(**{**vars(of), **changes})


@pytest.mark.parametrize("kind", [Contrastive, Quintuplet, SemanticLoss, TripletLoss])
def test_gradients_of_dense_losses_match_finite_differences(kind):
    rng = np.random.default_rng(1)
    size, width = 5, 4
    starts = [torch.tensor(rng.normal(size=(size, width)), requires_grad=True) for _ in range(4)]
    level = torch.tensor([1, 2, 3, 0, 1])
    near = torch.eye(size, dtype=torch.bool)
    near_positive = torch.zeros(size, size, dtype=torch.bool)
    near_positive[0, 1] = True

    def loss(*parts):
        texts = dict(zip(("anchor", "positive", "negative", "corrupted"), parts))
        return kind()(SimpleNamespace(**texts, level=level, near=near, near_positive=near_positive))

    assert torch.autograd.gradcheck(loss, starts, eps=1e-6, atol=1e-5)


def test_margins_depend_on_the_level_only_with_by_level():
    """All distances are equal, so the losses are the margins."""
    origin, near = torch.zeros(4, 2), torch.eye(4, dtype=torch.bool)
    for level, margin in ((1, 2), (2, 1), (3, 2 / 3), (4, 0.5)):
        given = SimpleNamespace(
            anchor=origin, positive=origin, negative=origin, level=torch.full((4,), level), near=near
        )
        assert TripletLoss(2.0, by_level=True)(given).item() == pytest.approx(margin)
        assert TripletLoss(2.0)(given).item() == 2


def test_equal_vectors_have_a_finite_gradient():
    a = torch.zeros(3, requires_grad=True)
    distance(a, torch.zeros(3)).backward()
    assert torch.isfinite(a.grad).all()
    given = quintuplet_vectors(positive=[[0.0, 0.0], [0.0, 0.0]])
    Quintuplet()(given).backward()
    assert torch.isfinite(given.anchor.grad).all()


def test_the_hardest_negative_matches_the_one_by_hand():
    """Distances to anchor 0: its positive .3, a related text .35, other texts .4 and .9."""
    anchors = torch.tensor([[0.0], [0.05], [0.1], [0.3], [0.35], [0.4], [0.9]])
    near = torch.zeros(7, 7, dtype=torch.bool)
    near[:, :4] = True
    near[0, 4] = True
    chosen, valid = nearest_negative(anchors, near)
    assert (int(chosen[0]), bool(valid[0])) == (5, True)
    near[0, 4] = False
    assert int(nearest_negative(anchors, near)[0][0]) == 4
    near[0] = True
    assert not nearest_negative(anchors, near)[1][0]


def test_the_softmax_loss_matches_values_by_hand():
    """Anchor 0 has cosines 1 and 0 with the two positives. Anchor 1 has no pair."""
    given = quintuplet_vectors(anchor=[[1.0, 0], [0, 1.0]], positive=[[2.0, 0], [0, 3.0]])
    two = changed(given, level=torch.tensor([1, 2]))
    expected = -math.log(math.exp(2) / (math.exp(2) + 1))
    assert Contrastive(0.5)(two).item() == pytest.approx(expected)
    masked = changed(two, near_positive=torch.ones(2, 2, dtype=torch.bool))
    assert Contrastive(0.5)(masked).item() == pytest.approx(0)
    assert Contrastive(0.5)(given).item() == pytest.approx(0)  # the other positive belongs to no text
