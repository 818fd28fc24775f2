"""Triplets of co-citation networks: the worked example, and what holds of all that is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from rerank.errors import UsageError
from rerank.rankers.dense import triplets
from rerank.rankers.dense.triplets import Strategy, TripletSampler
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


def drawn(network, key, **options):
    found = TripletSampler(network, Strategy(**options)).draw([network.at(key)])
    return "".join(network.names(found.positive)), found


def names(network, sampler, key):
    return set(
        network.names(np.concatenate([sampler.draw([network.at(key)], e).negative for e in range(20)]))
    )


def test_targets_and_negatives_of_the_worked_example(worked):
    easy, hard = TripletSampler(worked, Strategy()), TripletSampler(worked, Strategy(hard=2))
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


@pytest.mark.parametrize(("short", "positives"), [("fill", "bbbbb"), ("fewer", "b"), ("skip", "")])
def test_a_target_with_fewer_neighbours_than_triplets(worked, short, positives):
    found, triplets = drawn(worked, "c", short=short)
    assert found == positives
    assert triplets.without == (not positives)


def test_a_coarser_level_where_the_finer_has_nobody():
    network = CoCitations.of([("x", [*X, Mention("f", 0, 0, 5)]), ("z", [Mention("g", 0, 0, 0)])])
    assert drawn(network, "f")[0] == ""
    found, triplets = drawn(network, "f", coarser=True)
    assert set(found) <= set("abc")
    assert set(triplets.level.tolist()) == {2}


@pytest.mark.parametrize("strategy", ["random", "sentence", "paragraph", "section", "document"])
@pytest.mark.parametrize("hard", [0, 3])
@pytest.mark.parametrize("popular", [False, True])
def test_what_holds_of_every_triplet(large, strategy, hard, popular):
    sampler = TripletSampler(large, Strategy(strategy=strategy, hard=hard, popular=popular), seed=3)
    found = sampler.draw()
    assert len(found) > 100
    level, widest = sampler.strategy.level, sampler.strategy.widest
    for target, positive, negative, is_hard in zip(found.target, found.positive, found.negative, found.hard):
        assert len({target, positive, negative}) == 3
        assert large.related(target, positive, level)
        assert large.related(target, negative, widest) == is_hard
        if is_hard:
            assert not large.related(target, negative, level)
    assert found.hard.any() == (hard > 0 and level != widest)


def test_the_same_seed_gives_the_same_and_parts_are_independent(large):
    sampler = TripletSampler(large, Strategy(), seed=1)
    whole, again = sampler.draw(), TripletSampler(large, Strategy(), seed=1).draw()
    targets = sampler.targets()
    parts = [sampler.draw(part) for part in np.array_split(targets, 3)]
    for name in ("target", "positive", "negative", "level", "hard"):
        assert (getattr(whole, name) == getattr(again, name)).all()
        assert (getattr(whole, name) == np.concatenate([getattr(part, name) for part in parts])).all()
    other = TripletSampler(large, Strategy(), seed=2).draw()
    assert len(other.positive) != len(whole.positive) or (other.positive != whole.positive).any()
    assert (sampler.draw(epoch=1).positive != whole.positive).any()


def test_no_hard_ones_is_the_plain_strategy_to_the_bit(large):
    plain, none = (TripletSampler(large, one).draw() for one in (Strategy(), Strategy(hard=0)))
    assert (plain.negative == none.negative).all()


def test_random_by_nodes_and_section_are_one_distribution(large):
    counts = [
        np.bincount(
            np.concatenate(
                [TripletSampler(large, Strategy(strategy=one), seed=s).draw().positive for s in range(4)]
            ),
            minlength=len(large),
        )
        for one in ("random", "section")
    ]
    table = np.array(counts)[:, np.sum(counts, axis=0) > 10]
    assert chi2_contingency(table).pvalue > 0.001


def test_references_without_text_and_direct_citations_are_left_out(large):
    usable = np.arange(len(large)) % 3 > 0
    target = int(TripletSampler(large, Strategy(), usable).targets()[0])
    far = [
        n for n in range(len(large)) if usable[n] and not large.related(target, n, "section") and n != target
    ]
    sampler = TripletSampler(large, Strategy(), usable, {target: far[:-2]})
    found = sampler.draw()
    assert usable[np.concatenate((found.target, found.positive, found.negative))].all()
    assert set(sampler.draw([target]).negative.tolist()) == set(far[-2:])


def test_more_hard_ones_than_triplets():
    with pytest.raises(UsageError, match="6 hard negatives are more than the 5 triplets"):
        Strategy(hard=6)


@pytest.mark.parametrize("strategy", ["sentence", "section", "document"])
def test_targets_with_many_mentions_draw_the_same(large, monkeypatch, strategy):
    """Whether a target's neighbours are listed, or each reference that is drawn is looked at."""
    sampler = TripletSampler(large, Strategy(strategy=strategy), direct={3: [5, 6]})
    listed = sampler.draw()
    monkeypatch.setattr(triplets, "LISTED", 0)
    looked_at = sampler.draw()
    for name in ("target", "positive", "negative", "level", "hard"):
        assert np.array_equal(getattr(listed, name), getattr(looked_at, name))
