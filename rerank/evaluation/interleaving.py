"""Interleaving: one page from two rankings, and the statistics of the clicks on such pages."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rerank.documents.text import query_key

NO_TEAM = "-"
"""The letter of a document without a team."""

TEAMS = ("A", "B")

MOST_DRAFTED = 100
"""Documents that are drafted at most, because a draft of 1,000 documents takes 1 ms."""

_TURNS = ((0, 1), (1, 0))
"""The teams of a turn, by its coin."""

_Z_TWO_SIDED = 1.959963984540054
"""Quantile of the normal distribution for an interval of 95 %."""

_Z_POWER = 0.8416212335729143
"""Quantile for a power of 80 %."""

_PRIOR = 5
"""Wins and losses that the prior of :func:`anytime_p` assumes: most differences are small."""


@dataclass(frozen=True, slots=True)
class Draft:
    """n documents of two rankings, in the order of the page.

    teams:     n letters: A, B, or - for documents without a team, whose clicks do not count.
    rankings:  (n,) the ranking of each document: 0 or 1.
    positions: (n,) its position in that ranking.
    """

    teams: str
    rankings: list[int]
    positions: list[int]


def draw_share(experiment: str, client: str) -> float:
    """Return a number from 0 to 1, always the same for a client of an experiment.

    >>> draw_share("new stack", "c1") == draw_share("new stack", "c1") != draw_share("new stack", "c2")
    True
    """
    return int.from_bytes(_hash(8, "share", experiment, client), "big") / 2**64


def draw_coins(experiment: str, client: str, text: str) -> bytes:
    """Return random bytes for :func:`team_draft`, always the same for a client, an experiment and a query.

    So all pages of a search, and its reloads, are parts of the same draft. Upper case and spaces of the
    query do not matter.

    >>> draw_coins("new stack", "c1", "Grey  wolf") == draw_coins("new stack", "c1", "grey wolf")
    True
    """
    return _hash(MOST_DRAFTED // 2, "draft", experiment, client, query_key(text))


def _hash(size: int, *parts: str) -> bytes:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=size).digest()


def team_draft(a: Sequence[Hashable], b: Sequence[Hashable], coins: bytes) -> Draft:
    """Interleave two rankings by team draft (Radlinski, Kurup and Joachims 2008, algorithm 2).

    The team with fewer documents picks its best document that is not on the page yet. With equal numbers,
    the next coin decides: A picks if it is even. After one ranking has ended, or after MOST_DRAFTED
    documents, the remaining documents of A follow, then the remaining documents of B, both without a team.
    If only one team picked in the last turn, its document has no team: both teams have equal numbers.

    a, b: distinct documents, best first. coins: one random byte for two documents.

    >>> draft = team_draft(["x", "y", "z"], ["y", "w", "x"], bytes([0, 1]))
    >>> draft.teams, draft.rankings, draft.positions
    ('AB--', [0, 1, 1, 0], [0, 0, 1, 2])
    """
    rankings, positions = draft_best(a, b, coins)
    best = {(a, b)[ranking][position] for ranking, position in zip(rankings, positions)}
    teams = team_letters(rankings)
    for ranking, documents in enumerate((a, b)):
        remaining = [i for i, document in enumerate(documents) if document not in best]
        best.update(documents)
        rankings += [ranking] * len(remaining)
        positions += remaining
    return Draft(teams.ljust(len(rankings), NO_TEAM), rankings, positions)


def draft_best(a: Sequence[Hashable], b: Sequence[Hashable], coins: bytes) -> tuple[list[int], list[int]]:
    """Return ranking and position of the documents that :func:`team_draft` drafts, in the order of the page.

    Only the first MOST_DRAFTED documents of a ranking can be among them.
    """
    teams: list[int] = []
    for coin in coins[: MOST_DRAFTED // 2]:
        teams += _TURNS[coin & 1]
    rankings: list[int] = []
    positions: list[int] = []
    page: dict[Hashable, None] = {}
    remaining = (enumerate(a), enumerate(b))
    for team in teams:
        for pick in remaining[team]:
            if pick[1] not in page:
                break
        else:  # the ranking has ended
            break
        position, document = pick
        page[document] = None
        rankings.append(team)
        positions.append(position)
    end = min(_count_until_all(a, page), _count_until_all(b, page))
    return rankings[:end], positions[:end]


def _count_until_all(documents: Sequence[Hashable], page: dict[Hashable, None]) -> int:
    """Return the length of the shortest beginning of the page that has all documents, else of the page."""
    has_all = page.keys() >= set(documents)
    if len(documents) >= len(page) or not has_all:
        return len(page)
    count_at = {document: count for count, document in enumerate(page, 1)}
    counts = [count_at[document] for document in documents]
    return max(counts, default=0)


def team_letters(rankings: Sequence[int]) -> str:
    """Return the teams of drafted documents, without the document of an incomplete turn.

    >>> team_letters([0, 1, 1])
    'AB'
    """
    return "".join(map(TEAMS.__getitem__, rankings[: len(rankings) // 2 * 2]))


def wilson_interval(wins: int, losses: int) -> tuple[float, float]:
    """Return the interval of 95 % for the share of wins (Wilson 1927).

    >>> [round(bound, 3) for bound in wilson_interval(60, 40)]
    [0.502, 0.691]
    """
    count = wins + losses
    if not count:
        return 0.0, 1.0
    share = wins / count
    spread = _Z_TWO_SIDED**2 / count
    center = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(center - half, 0.0), min(center + half, 1.0)


def anytime_p(wins: int, losses: int) -> float:
    """Return the p-value of wins and losses that is valid at any number of looks.

    It is the inverse of a Bayes factor, whose prior of the share of wins is Beta(5, 5) (Ville's inequality:
    if both rankers are equal, the factor ever exceeds 20 with a probability below 5 %).

    >>> round(anytime_p(8, 0), 4), round(anytime_p(20, 5), 4)
    (0.1918, 0.062)
    """
    log_factor = (wins + losses) * math.log(2)
    log_factor += _log_beta(wins + _PRIOR, losses + _PRIOR) - _log_beta(_PRIOR, _PRIOR)
    return min(1.0, math.exp(-log_factor)) if log_factor > 0 else 1.0


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def sessions_needed(wins: int, losses: int, undecided: int = 0) -> int | None:
    """Return how many sessions a test needs in all, for a power of 80 % at 5 %.

    The share of wins and the share of sessions without a winner are assumed to stay as they are. Returns
    None without wins and losses, or with equal numbers.

    >>> sessions_needed(60, 40), sessions_needed(33, 27, 40)
    (194, 1304)
    """
    decided = wins + losses
    if wins == losses:
        return None
    share = wins / decided
    deviation = _Z_TWO_SIDED * 0.5 + _Z_POWER * math.sqrt(share * (1 - share))
    sessions = (deviation / (share - 0.5)) ** 2
    return round(sessions * (decided + undecided) / decided)
