"""The experiment of a workspace: the results of two stacks, interleaved on one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.values import items_at
from rerank.evaluation.interleaving import (
    MOST_DRAFTED,
    NO_TEAM,
    draft_best,
    draw_coins,
    draw_share,
    team_letters,
)
from rerank.scoring.candidate_pool import CandidatePool, RankPool, rank_pool
from rerank.scoring.scorer import ReadDocuments, ScoringResult
from rerank.scoring.timer import StageTimer
from rerank.service.schemas import HookBody, RetrieveBody
from rerank.stack.linear import Linear
from rerank.stack.ranking import Hit, Ranking
from rerank.stack.stack import Stack
from rerank.workspace.config_file import ExperimentSettings

FIRST_STAGE = "first stage"
"""The name of the stack that keeps the order of the first stage."""


def can_take_part(body: HookBody | RetrieveBody) -> bool:
    """Whether a search through the hook can take part in an experiment.

    It cannot if it names a stack, if it keeps the order of the first stage, or if hits are removed. Both
    calls of a search must agree: the stack of the experiment retrieves for the ranking of the experiment.
    """
    names_stack = body.rerank is not None and body.rerank.stack is not None
    return not names_stack and not body.shadow and body.min_score is None


@dataclass(frozen=True)
class Interleaving(Ranking):
    """The interleaved ranking of two stacks. The scores of A, in descending order, are its scores.

    teams:     n letters: A, B or -.
    rankings:  of A and B.
    sources:   (n,) the ranking of each document: 0 or 1.
    positions: (n,) its position there.
    """

    teams: str = ""
    rankings: tuple[Ranking, ...] = ()
    sources: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    positions: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))

    @property
    def is_calibrated(self) -> bool:
        """Whether both rankings have probabilities of relevance."""
        return all(ranking.is_calibrated for ranking in self.rankings)

    def explain(self, index: int, score: float, rank: int) -> Hit:
        """Return a hit with the explanation of the stack that chose it."""
        ranking = self.rankings[int(self.sources[index])]
        return ranking.explain(int(self.positions[index]), score, rank)


@dataclass(frozen=True)
class Experiment:
    """Two stacks that rank the same candidates.

    name, share: see :class:`rerank.workspace.config_file.ExperimentSettings`.
    arms:  the stacks A and B.
    joint: a stack with the signals, retrievers and versions of both. Only its raw scores are used.
    """

    name: str
    share: float
    arms: tuple[Stack, Stack]
    joint: Stack

    @classmethod
    def load(cls, settings: ExperimentSettings, find_stack: Callable[[str], Stack]) -> Experiment:
        """Read both stacks. Raises UsageError if they cannot be compared, and the errors of ``find_stack``.

        find_stack: returns the stack that a text names.
        """
        if settings.a == settings.b:
            raise UsageError(f"[experiment]: a and b are both {settings.a!r}; name two stacks")
        if settings.a == FIRST_STAGE:
            b = find_stack(settings.b)
            a = _first_stage_of(b)
        elif settings.b == FIRST_STAGE:
            a = find_stack(settings.a)
            b = _first_stage_of(a)
        else:
            a = find_stack(settings.a)
            b = find_stack(settings.b)
        if a.first_stage != b.first_stage:
            raise UsageError(
                f"[experiment]: the first stage of a is {a.first_stage}, and of b {b.first_stage}; both need"
                " the same one"
            )
        for name in a.versions.keys() & b.versions.keys():
            if a.versions[name] != b.versions[name]:
                raise UsageError(
                    f"[experiment]: a uses {name} {a.versions[name]}, and b {b.versions[name]}; train one of"
                    " them under another name"
                )
        return cls(settings.name, settings.share, (a, b), _joint(a, b))

    def to_json(self, ranking: Interleaving) -> dict[str, str]:
        """Return the name of the experiment and the teams of the ranking, for answers."""
        return {"name": self.name, "teams": ranking.teams}

    def coins(self, client: str | None, text: str) -> bytes | None:
        """Return the random bytes of the draft of a search, or None if it is not in the experiment.

        client: its id. Without an id, each text is a client.
        """
        subject = client or " ".join(text.lower().split())
        if draw_share(self.name, subject) >= self.share:
            return None
        return draw_coins(self.name, subject, text)

    def rank_with(self, coins: bytes) -> RankPool:
        """Return :meth:`rank` with these coins, for the query path with the stack ``joint``."""

        def rank(_: Stack, pool: CandidatePool, timer: StageTimer, read_documents: ReadDocuments) -> Ranking:
            return self.rank(coins, pool, timer, read_documents)

        return rank

    def rank(
        self, coins: bytes, pool: CandidatePool, timer: StageTimer, read_documents: ReadDocuments
    ) -> Interleaving:
        """Rank the candidates by both stacks, and interleave the rankings.

        A stack ranks only candidates that its retrievers found.
        """
        rankings: list[Ranking] = []
        rows_by_rank: list[NDArray[np.intp]] = []
        for stack, columns, retrievers in zip(self.arms, self._columns, self._retrievers):
            rows = pool.rows_of(retrievers)
            stack_pool = pool if rows is None else pool.select(rows, retrievers)
            scored = stack_pool.scored
            raw = scored.raw[:, columns]
            stack_scored = ScoringResult(scored.ids, raw, scored.query, scored.inferred)
            stack_pool = replace(stack_pool, scored=stack_scored)
            ranking = rank_pool(stack, stack_pool, timer, read_documents)
            rankings.append(ranking)
            rows_by_rank.append(ranking.order if rows is None else rows[ranking.order])
        return interleave(pool.ids, (rankings[0], rankings[1]), (rows_by_rank[0], rows_by_rank[1]), coins)

    @cached_property
    def _retrievers(self) -> list[set[str]]:
        """The names of the retrievers of each stack."""
        return [{retriever.partition(":")[0] for retriever in stack.retrievers} for stack in self.arms]

    @cached_property
    def _columns(self) -> list[list[int]]:
        """The columns of each stack among the signals of ``joint``."""
        columns = {name: column for column, name in enumerate(self.joint.signals)}
        return [items_at(columns, stack.signals) for stack in self.arms]


def _first_stage_of(stack: Stack) -> Stack:
    """Return the stack that keeps the order of the first stage of another one."""
    combiner = Linear((stack.first_stage,), (1.0,), "none")
    return Stack(combiner, stack.first_stage, stack.depth, search=stack.search)


def _joint(a: Stack, b: Stack) -> Stack:
    """Return a stack with the signals, retrievers and versions of both."""
    signals = tuple(dict.fromkeys((*a.signals, *b.signals)))
    retrieve = tuple(dict.fromkeys((*a.retrievers, *b.retrievers)))
    return Stack(
        Linear(signals, (1.0,) * len(signals), "none"),
        a.first_stage,
        max(a.depth, b.depth),
        retrieve,
        {**a.versions, **b.versions},
        a.search,
    )


def interleave(
    ids: Sequence[str],
    rankings: tuple[Ranking, Ranking],
    rows_by_rank: tuple[NDArray[np.intp], NDArray[np.intp]],
    coins: bytes,
) -> Interleaving:
    """Return the interleaved ranking of two rankings.

    ids:          n ids of a common pool.
    rows_by_rank: of each ranking, the rows of its documents in the pool, best first.
    """
    a, b = rankings
    best = [rows[:MOST_DRAFTED].tolist() for rows in rows_by_rank]
    drafted_sources, drafted_positions = draft_best(best[0], best[1], coins)
    drafted_rows = [best[source][position] for source, position in zip(drafted_sources, drafted_positions)]
    is_placed = np.zeros(len(ids), np.bool_)
    is_placed[drafted_rows] = True
    order = [np.array(drafted_rows, np.intp)]
    sources = [np.array(drafted_sources, np.intp)]
    positions = [np.array(drafted_positions, np.intp)]
    for source, rows in enumerate(rows_by_rank):
        remaining = np.flatnonzero(~is_placed[rows])
        is_placed[rows] = True
        order.append(rows[remaining])
        sources.append(np.full(len(remaining), source))
        positions.append(remaining)
    count = sum(map(len, order))
    return Interleaving(
        candidates=ids,
        scores=descending(a.scores, count),
        order=np.concatenate(order),
        signals=a.signals,
        raw=a.raw,
        normalized=a.normalized,
        weighted=a.weighted,
        late=a.late or b.late,
        teams=team_letters(drafted_sources).ljust(count, NO_TEAM),
        rankings=rankings,
        sources=np.concatenate(sources),
        positions=np.concatenate(positions),
    )


def descending(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return ``count`` scores, each below the one before it also in single precision.

    Otherwise OpenSearch could change the order of documents with equal scores.

    scores: (m,) descending. The last one is repeated and then lowered.

    >>> lowered = descending(np.array([2.0, 2.0, 1.0]), 4)
    >>> bool((np.diff(lowered.astype(np.float32)) < 0).all()), lowered.round(5).tolist()
    (True, [2.0, 2.0, 1.0, 1.0])
    """
    padded = np.full(count, scores[-1] if len(scores) else 0.0, np.float32)
    padded[: len(scores)] = scores[:count]
    bits = padded.view(np.int32).astype(np.int64)
    keys = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)  # in the order of the numbers
    steps = np.arange(count)
    keys = np.minimum.accumulate(keys + steps) - steps
    lowered = np.where(keys < 0, -keys | -0x80000000, keys).astype(np.int32)
    return lowered.view(np.float32).astype(np.float64)
