"""Team draft, and the statistics of interleaving. Values by hand, and simulated users."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.errors import UsageError
from rerank.documents.records import Query
from rerank.evaluation.interleaving import (
    MOST_DRAFTED,
    Draft,
    anytime_p,
    draw_coins,
    draw_share,
    sessions_needed,
    team_draft,
    wilson_interval,
)
from rerank.scoring.candidate_pool import CandidatePool
from rerank.scoring.scorer import ScoringResult
from rerank.scoring.timer import StageTimer
from rerank.service.experiment import Experiment, descending, interleave
from rerank.stack.stack import Stack
from rerank.workspace.config_file import ExperimentSettings

A, B = bytes([0]), bytes([1])
"""Coins with which each team picks first in every turn."""


def page(a, b, draft: Draft) -> list[str]:
    return [(a, b)[ranking][position] for ranking, position in zip(draft.rankings, draft.positions)]


@pytest.mark.parametrize(
    ("a", "b", "coins", "documents", "teams"),
    [
        ("abc", "bca", A * 2, "abc", "AB-"),
        ("abcd", "bdca", A * 2, "abcd", "ABAB"),
        ("abcd", "bdca", B * 2, "badc", "BABA"),
        ("abcd", "abcd", A + B, "abcd", "ABBA"),
        ("ab", "xyz", A * 3, "axbyz", "AB---"),  # A ends within the second turn
        ("", "xy", A, "xy", "--"),
        ("", "", A, "", ""),
    ],
)
def test_drafts_by_hand(a, b, coins, documents, teams):
    draft = team_draft(a, b, coins)
    assert "".join(page(a, b, draft)) == documents
    assert draft.teams == teams


rankings = st.lists(st.integers(0, 200), unique=True, max_size=150)


@given(a=rankings, b=rankings, coins=st.binary(min_size=50, max_size=50))
def test_a_draft_is_fair_and_complete(a, b, coins):
    draft = team_draft(a, b, coins)
    documents = page(a, b, draft)
    assert sorted(documents) == sorted({*a, *b})
    drafted = draft.teams.rstrip("-")
    assert "-" not in drafted
    assert len(drafted) <= MOST_DRAFTED
    assert len(drafted) % 2 == 0
    for begin in range(0, len(drafted), 2):  # both teams pick once in each turn
        assert {*drafted[begin : begin + 2]} == {"A", "B"}
    for index, team in enumerate(drafted):  # a team picks its best document that is not on the page yet
        ranking = a if team == "A" else b
        assert documents[index] == next(one for one in ranking if one not in documents[:index])


@given(documents=rankings, coins=st.binary(min_size=50, max_size=50))
def test_equal_rankings_give_the_same_page(documents, coins):
    assert page(documents, documents, team_draft(documents, documents, coins)) == documents


def test_coins_depend_on_experiment_client_and_text():
    keys = [("e", "c", "wolf"), ("f", "c", "wolf"), ("e", "d", "wolf"), ("e", "c", "owl"), ("e", "cw", "olf")]
    assert len({draw_coins(*key) for key in keys}) == len(keys)
    assert draw_coins("e", "c", " Grey\tWOLF ") == draw_coins("e", "c", "grey wolf")
    assert draw_coins("e", "c", "e\u0301lan") == draw_coins("e", "c", "\u00e9lan")  # composed accents
    assert draw_coins("e", "\ud800", "wolf")  # half of a pair of surrogates, from JSON


def test_shares_and_coins_are_uniform():
    """Standard deviations: 0.005 of 4,000 shares, 0.008 of 4,000 first coins."""
    shares = [draw_share("e", f"client {i}") for i in range(4000)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.mean(np.array(shares) < 0.1) == pytest.approx(0.1, abs=0.02)
    first = [draw_coins("e", f"client {i}", "wolf")[0] & 1 for i in range(4000)]
    assert np.mean(first) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("wins", "losses", "p"), [(8, 0, 0.1918), (20, 5, 0.0620), (60, 40, 0.5360), (120, 80, 0.0997)]
)
def test_anytime_p_by_hand(wins, losses, p):
    assert anytime_p(wins, losses) == pytest.approx(p, abs=5e-5)
    assert anytime_p(losses, wins) == pytest.approx(p, abs=5e-5)


def test_anytime_p_of_few_and_of_many_sessions():
    assert anytime_p(0, 0) == anytime_p(1, 1) == 1.0
    assert 0 <= anytime_p(10**6, 0) < 1e-300
    assert anytime_p(10**6, 10**6) == 1.0


def test_wilson_interval_equals_statistics_by_hand():
    assert wilson_interval(60, 40) == pytest.approx((0.5020, 0.6906), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=5e-5)


def test_sessions_needed_by_hand():
    assert sessions_needed(60, 40) == 194
    assert sessions_needed(40, 60) == 194
    assert sessions_needed(33, 27, undecided=40) == 1304
    assert sessions_needed(5, 5) is None
    assert sessions_needed(0, 0) is None


def draft_teams(a: list[int], b: list[int], rng: np.random.Generator) -> tuple[list[int], str]:
    draft = team_draft(a, b, rng.bytes(50))
    return [
        (a, b)[ranking][position] for ranking, position in zip(draft.rankings, draft.positions)
    ], draft.teams


def simulate(
    a: list[int], b: list[int], relevant: set[int], sessions: int, rng: np.random.Generator
) -> list[int]:
    """Return the winner of each session: 1 for B, -1 for A, 0 for none.

    Users examine rank r with probability 1/r, and click 80 % of the relevant hits and 10 % of the others.
    """
    winners = []
    for _ in range(sessions):
        documents, teams = draft_teams(a, b, rng)
        clicks = [0, 0]
        for rank, (document, team) in enumerate(zip(documents[:10], teams), 1):
            if rng.random() < 1 / rank * (0.8 if document in relevant else 0.1):
                clicks[team == "B"] += 1
        winners.append(int(np.sign(clicks[1] - clicks[0])))
    return winners


EQUAL = ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [3, 4, 2, 0, 1, 5, 9, 8, 7, 6, 11, 10])
"""Two rankings with the relevant documents 0 and 3 at the ranks 1 and 4."""


def test_false_alarms_of_equal_rankers_with_thirty_looks():
    """Below 5 %, with 30 looks at 40 sessions each. A binomial test at each look would exceed 5 %."""
    rng = np.random.default_rng(0)
    winners = np.array(simulate(*EQUAL, {0, 3}, 4000, rng))
    alarms = fixed_alarms = 0
    experiments = 400
    for _ in range(experiments):
        sample = rng.choice(winners, 1200) * rng.choice([-1, 1], 1200)  # exactly equal rankers
        looks = [sample[: 40 * look] for look in range(1, 31)]
        counts = [(int((one > 0).sum()), int((one < 0).sum())) for one in looks]
        alarms += any(anytime_p(*count) < 0.05 for count in counts)
        fixed_alarms += any(
            not (wilson_interval(*count)[0] <= 0.5 <= wilson_interval(*count)[1]) for count in counts
        )
    assert alarms / experiments < 0.05
    assert fixed_alarms / experiments > 0.1  # why the interval must be read only once


def test_equal_rankers_win_equally_often():
    """The draft itself prefers no ranking: 2,000 sessions, three standard deviations."""
    winners = np.array(simulate(*EQUAL, {0, 3}, 2000, np.random.default_rng(1)))
    decided = int((winners != 0).sum())
    assert decided > 500
    assert abs(winners.sum()) < 3 * decided**0.5


def test_a_better_ranker_wins():
    a, b = [9, 8, 7, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 9, 8, 7, 3, 4, 5, 6]
    winners = np.array(simulate(a, b, {0, 1}, 600, np.random.default_rng(2)))
    assert anytime_p(int((winners > 0).sum()), int((winners < 0).sum())) < 0.05
    assert winners.sum() > 0


@pytest.mark.parametrize("share", [0.6, 0.7])
def test_power_of_the_sessions_needed(share):
    """With as many sessions, the interval excludes one half in 80 % of experiments."""
    count = sessions_needed(round(1000 * share), round(1000 * (1 - share)))
    wins = np.random.default_rng(3).binomial(count, share, 3000)
    power = np.mean([wilson_interval(int(one), count - int(one))[0] > 0.5 for one in wins])
    assert power == pytest.approx(0.8, abs=0.05)


@given(
    scores=st.lists(st.floats(-1e6, 1e6, width=32), max_size=30).map(lambda one: sorted(one, reverse=True)),
    more=st.integers(0, 5),
)
def test_scores_descend_in_single_precision(scores, more):
    found = descending(np.array(scores), len(scores) + more)
    assert (np.diff(found.astype(np.float32)) < 0).all()
    np.testing.assert_allclose(found[: len(scores)], scores, rtol=1e-4, atol=1e-30)


def load(a: str, b: str) -> Experiment:
    return Experiment.load(ExperimentSettings("e", a, b), Stack.parse)


def test_an_experiment_needs_two_different_stacks():
    with pytest.raises(UsageError, match="are both 'bm25'"):
        load("bm25", "bm25")
    with pytest.raises(UsageError, match="first stage of a is bm25, and of b tfidf"):
        load("bm25", "tfidf")
    assert load("first stage", "tfidf*0.5 + text*0.5").arms[0].signals == ("tfidf",)
    assert load("bm25*0.5 + text*0.5", "bm25*0.5 + meta*0.5").joint.signals == ("bm25", "text", "meta")


def test_a_stack_ranks_only_the_documents_of_its_own_retrievers():
    """B also retrieves by text: v. The document x has no features, so it keeps its position for both.

    A ranks u x w. B ranks v x u w: by text, without x.
    """

    def find(text: str) -> Stack:
        return replace(Stack.parse(text), retrieve=("bm25", "text:5"))

    experiment = Experiment.load(ExperimentSettings("e", "first stage", "bm25*0.1 + text*0.9"), find)
    assert experiment.joint.retrieve == ("bm25", "text:5")
    raw = np.array([[3.0, 0.2], [1.0, 0.1], [0.0, 0.9]])
    pool = CandidatePool(
        ["u", "x", "w", "v"],
        np.array([True, False, True, True]),
        {"bm25": np.array([1, 1, 1, 0], bool), "text": np.array([1, 0, 0, 1], bool)},
        ScoringResult(["u", "w", "v"], raw, Query("q", "words")),
    )
    ranking = experiment.rank(A * 50, pool, StageTimer(), lambda ids: [None] * len(ids))
    assert [one.ids for one in ranking.rankings] == [["u", "x", "w"], ["v", "x", "u", "w"]]
    assert ranking.rankings[0].scores.tolist() == [3.0, 3.0, 1.0]  # x has the score of the one before
    assert (ranking.ids, ranking.teams) == (["u", "v", "x", "w"], "ABAB")
    assert ranking.order.tolist() == [0, 3, 1, 2]
    assert [hit.rank for hit in ranking] == [1, 2, 3, 4]
    assert [*ranking[1].signals] == ["bm25", "text"]
    assert ranking[0].found_by == ("bm25",)  # A does not use `text`, which also found it
    assert ranking[1].found_by == ("text",)


@given(
    a=st.permutations(range(130)),
    b=st.permutations(range(130)),
    size_b=st.integers(0, 130),
    coins=st.binary(min_size=50, max_size=50),
)
def test_the_service_drafts_as_the_plain_algorithm(a, b, size_b, coins):
    """A retrieved the documents 0 to 129, B only ``size_b`` of them."""
    rankings = []
    rows = []
    for documents in (a, [one for one in b if one < size_b]):
        own = np.sort(np.array(documents, np.intp))
        scores = np.zeros((len(own), 1))
        scores[np.searchsorted(own, documents), 0] = -np.arange(len(own))
        rankings.append(Stack.parse("bm25").rank([f"{one:03}" for one in own], scores))
        rows.append(own[rankings[-1].order])
    ids = [f"{one:03}" for one in range(130)]
    ranking = interleave(ids, (rankings[0], rankings[1]), (rows[0], rows[1]), coins)
    draft = team_draft(rankings[0].ids, rankings[1].ids, coins)
    assert ranking.teams == draft.teams
    assert (ranking.sources.tolist(), ranking.positions.tolist()) == (draft.rankings, draft.positions)
    assert ranking.ids == [rankings[source].ids[i] for source, i in zip(draft.rankings, draft.positions)]
    assert [f"{row:03}" for row in ranking.order] == ranking.ids
