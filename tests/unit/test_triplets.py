"""Triplets of co-citation networks: the worked example, and what holds of all that is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.rankers.dense import triplets
from rerank.rankers.dense.triplets import TripletSampler
from rerank.rankers.graphs.cocitation import CoCitations, Mention
from tests.unit.test_cocitation import X, Y


@pytest.fixture(scope="module")
def worked():
    return CoCitations.of([("X", X), ("Y", Y)])


@pytest.fixture(scope="module")
def large():
    """60 papers of 3 sections of 2 paragraphs of 2 sentences that cite 1 to 4 of 150 references."""
    rng = np.random.default_rng(0)
    papers = []
    for paper in range(60):
        found = []
        for sentence in range(12):
            for ref in rng.zipf(1.6, size=rng.integers(1, 5)) % 150:
                found.append(Mention(f"r{ref}", sentence // 4, sentence // 2, sentence))
        papers.append((f"p{paper}", found))
    return CoCitations.of(papers)


def names(network, sampler, key):
    return set(
        network.names(np.concatenate([sampler.draw([network.at(key)], e).negative for e in range(20)]))
    )


def test_targets_and_negatives_of_the_worked_example(worked):
    easy, hard = TripletSampler(worked), TripletSampler(worked, hard=2)
    assert sorted(worked.names(easy.targets())) == list("abcde")
    assert easy.draw([worked.at("a")]).crowded == 1  # all others are near
    assert not len(easy.draw([worked.at("a")]))
    assert [names(worked, easy, key) for key in "bcde"] == [{"e"}, {"e"}, {"e"}, {"b", "c", "d"}]
    assert [names(worked, hard, key) for key in "bcde"] == [
        {"e"},  # no hard one, although X has c in another sentence: Y has it in the same
        {"a", "d", "e"},
        {"a", "c", "e"},
        {"b", "c", "d"},
    ]
    assert hard.draw([worked.at("b")]).easier == 2


def test_a_target_with_fewer_neighbors_than_triplets(worked):
    found = TripletSampler(worked).draw([worked.at("c")])
    assert network_names(worked, found.positive) == "bbbbb"


def network_names(network, refs):
    return "".join(network.names(refs))


@pytest.mark.parametrize("strategy", ["sentence", "paragraph", "section", "document"])
@pytest.mark.parametrize("hard", [0, 3])
def test_what_holds_of_every_triplet(large, strategy, hard):
    sampler = TripletSampler(large, strategy, hard, seed=3)
    found = sampler.draw()
    assert len(found) > 100
    level, widest = sampler.level, sampler.widest
    for target, positive, negative, is_hard in zip(found.target, found.positive, found.negative, found.hard):
        assert len({target, positive, negative}) == 3
        assert large.related(target, positive, level)
        assert large.related(target, negative, widest) == is_hard
        if is_hard:
            assert not large.related(target, negative, level)
    assert found.hard.any() == (hard > 0 and level != widest)


def test_the_same_seed_gives_the_same_and_parts_are_independent(large):
    sampler = TripletSampler(large, seed=1)
    whole, again = sampler.draw(), TripletSampler(large, seed=1).draw()
    targets = sampler.targets()
    parts = [sampler.draw(part) for part in np.array_split(targets, 3)]
    for name in ("target", "positive", "negative", "level", "hard"):
        assert (getattr(whole, name) == getattr(again, name)).all()
        assert (getattr(whole, name) == np.concatenate([getattr(part, name) for part in parts])).all()
    other = TripletSampler(large, seed=2).draw()
    assert len(other.positive) != len(whole.positive) or (other.positive != whole.positive).any()
    assert (sampler.draw(epoch=1).positive != whole.positive).any()


def test_references_without_text_and_direct_citations_are_left_out(large):
    usable = np.arange(len(large)) % 3 > 0
    target = int(TripletSampler(large, usable=usable).targets()[0])
    far = [
        n for n in range(len(large)) if usable[n] and not large.related(target, n, "section") and n != target
    ]
    sampler = TripletSampler(large, usable=usable, direct={target: far[:-2]})
    found = sampler.draw()
    assert usable[np.concatenate((found.target, found.positive, found.negative))].all()
    assert set(sampler.draw([target]).negative.tolist()) == set(far[-2:])


@pytest.mark.parametrize("strategy", ["sentence", "section", "document"])
def test_targets_with_many_mentions_draw_the_same(large, monkeypatch, strategy):
    """Whether a target's neighbors are listed, or each reference that is drawn is looked at."""
    sampler = TripletSampler(large, strategy, direct={3: [5, 6]})
    listed = sampler.draw()
    monkeypatch.setattr(triplets, "LISTED", 0)
    looked_at = sampler.draw()
    for name in ("target", "positive", "negative", "level", "hard"):
        assert np.array_equal(getattr(listed, name), getattr(looked_at, name))
