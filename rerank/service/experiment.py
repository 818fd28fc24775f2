"""The experiment of a workspace: the results of two stacks, interleaved on one page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rerank.config_file import ExperimentSettings
from rerank.errors import UsageError
from rerank.evaluation.interleaving import (
    MOST_DRAFTED,
    NO_TEAM,
    draft_best,
    draw_coins,
    draw_share,
    team_letters,
)
from rerank.scoring.pipeline import SearchResult
from rerank.scoring.scorer import ReadDocuments, ScoringResult, StageTimer
from rerank.scoring.second_phase import rank_scored
from rerank.service.schemas import HookBody, RetrieveBody
from rerank.stack.linear import Linear
from rerank.stack.ranking import Hit, Ranking
from rerank.stack.stack import Stack

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
    sources: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def __getitem__(self, position: int) -> Hit:
        """Return a hit with the explanation of the stack that chose it."""
        index = range(len(self))[position]
        hit = self.rankings[self.sources[index]][self.positions[index]]
        return replace(hit, score=float(self.scores[index]), rank=index + 1)


@dataclass(frozen=True)
class CandidatePool:
    """n candidates of two stacks, in first-stage order.

    ids:      n ids.
    scorable: (n,) bool, m of them True.
    found_by: retriever -> (n,) whether it found a candidate.
    scored:   the scores of the m candidates.
    rows:     (n,) their rows in the pool that :meth:`of_retrievers` selected from.
    """

    ids: list[str]
    scorable: NDArray[np.bool_]
    found_by: Mapping[str, NDArray[np.bool_]]
    scored: ScoringResult
    rows: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))

    def of_retrievers(self, names: Collection[str]) -> CandidatePool:
        """Return the candidates that one of these retrievers found, with their rows in this pool."""
        found_by = {name: is_found for name, is_found in self.found_by.items() if name in names}
        is_selected = np.zeros(len(self.ids), np.bool_)
        for is_found in found_by.values():
            is_selected |= is_found
        rows = np.flatnonzero(is_selected)
        if len(rows) == len(self.ids):
            return replace(self, rows=rows, found_by=found_by)

        ids = [self.ids[row] for row in rows.tolist()]
        scorable = self.scorable[rows]
        scored_ids = [ids[position] for position in np.flatnonzero(scorable).tolist()]
        scored = replace(self.scored, ids=scored_ids, raw=self.scored.raw[is_selected[self.scorable]])
        found_by = {name: is_found[rows] for name, is_found in found_by.items()}
        return CandidatePool(ids, scorable, found_by, scored, rows)


@dataclass(frozen=True)
class Experiment:
    """Two stacks that rank the same candidates.

    name, share: see :class:`rerank.config_file.ExperimentSettings`.
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

    def rank(
        self, coins: bytes, pool: CandidatePool, timer: StageTimer, read_documents: ReadDocuments
    ) -> Interleaving:
        """Rank the candidates by both stacks, and interleave the rankings.

        A stack ranks only candidates that its retrievers found.
        """
        rankings: list[Ranking] = []
        rows: list[NDArray[np.intp]] = []
        for stack, columns in zip(self.arms, self._columns):
            own = pool.of_retrievers(self._names(stack))
            scored = replace(own.scored, raw=own.scored.raw[:, columns])
            ranking = rank_scored(stack.for_case(scored.case), scored, timer, read_documents)
            rankings.append(ranking.with_unscored(own.ids, own.scorable, own.found_by))
            rows.append(own.rows)
        return interleave((rankings[0], rankings[1]), (rows[0], rows[1]), coins)

    def rank_answer(
        self, coins: bytes, answer: SearchResult, timer: StageTimer, read_documents: ReadDocuments
    ) -> SearchResult:
        """Return the answer of ``joint`` with the interleaved ranking."""
        ranking = answer.ranking
        ids = np.empty(len(ranking), object)
        ids[ranking.order] = ranking.ids
        scorable = np.ones(len(ids), np.bool_) if ranking.scored is None else ranking.scored
        scored = ScoringResult(answer.ids, answer.raw, answer.query, answer.inferred)
        pool = CandidatePool(ids.tolist(), scorable, ranking.retrieved_by, scored)
        return replace(answer, stack=self.arms[0], ranking=self.rank(coins, pool, timer, read_documents))

    @staticmethod
    def _names(stack: Stack) -> set[str]:
        return {retriever.partition(":")[0] for retriever in stack.retrievers}

    @cached_property
    def _columns(self) -> list[list[int]]:
        """The columns of each stack among the signals of ``joint``."""
        columns = {name: column for column, name in enumerate(self.joint.signals)}
        return [[columns[name] for name in stack.signals] for stack in self.arms]


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
    rankings: tuple[Ranking, Ranking], rows: tuple[NDArray[np.intp], NDArray[np.intp]], coins: bytes
) -> Interleaving:
    """Return the interleaved ranking of two rankings.

    rows: the row in a common pool of each candidate of a ranking.
    """
    a, b = rankings
    sources, positions = draft_best(a.ids[:MOST_DRAFTED], b.ids[:MOST_DRAFTED], coins)
    teams = team_letters(sources)
    rows_by_rank = (rows[0][a.order], rows[1][b.order])
    order = [int(rows_by_rank[source][position]) for source, position in zip(sources, positions)]
    ids = [rankings[source].ids[position] for source, position in zip(sources, positions)]
    pool_size = 1 + max(int(rows_of_ranking.max(initial=-1)) for rows_of_ranking in rows)
    is_placed = np.zeros(pool_size, np.bool_)
    is_placed[order] = True
    for source, ranking in enumerate(rankings):
        remaining = np.flatnonzero(~is_placed[rows_by_rank[source]])
        remaining_rows = rows_by_rank[source][remaining]
        is_placed[remaining_rows] = True
        remaining_positions = remaining.tolist()
        ids += [ranking.ids[position] for position in remaining_positions]
        order += remaining_rows.tolist()
        sources += [source] * len(remaining_positions)
        positions += remaining_positions
    return Interleaving(
        ids=ids,
        scores=descending(a.scores, len(order)),
        order=np.array(order, np.intp),
        signals=a.signals,
        raw=a.raw,
        normalized=a.normalized,
        weighted=a.weighted,
        relevance=a.relevance if b.relevance is not None else None,
        late=a.late or b.late,
        teams=teams.ljust(len(order), NO_TEAM),
        rankings=rankings,
        sources=sources,
        positions=positions,
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
