"""Scored candidates, before a stack ranks them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from rerank.common.values import items_at, only
from rerank.scoring.scorer import ReadDocuments, ScoringResult
from rerank.scoring.second_phase import rank_scored
from rerank.scoring.timer import StageTimer
from rerank.stack.ranking import Ranking
from rerank.stack.stack import Stack


@dataclass(frozen=True)
class CandidatePool:
    """n candidates in first-stage order.

    ids:          n ids.
    scorable:     (n,) bool, m of them True.
    retrieved_by: retriever -> (n,) whether it found a candidate. If it has all retrievers, at least one of
        them found each candidate.
    scored:       the scores of the m candidates.
    """

    ids: list[str]
    scorable: NDArray[np.bool_]
    retrieved_by: Mapping[str, NDArray[np.bool_]]
    scored: ScoringResult

    def rows_of(self, retrievers: Collection[str]) -> NDArray[np.intp] | None:
        """Return the rows of the candidates that one of these retrievers found; None: of all candidates."""
        if self.retrieved_by.keys() <= set(retrievers):
            return None
        is_selected = np.zeros(len(self.ids), np.bool_)
        for name in self.retrieved_by.keys() & set(retrievers):
            is_selected |= self.retrieved_by[name]
        return np.flatnonzero(is_selected)

    def select(self, rows: NDArray[np.intp], retrievers: Collection[str]) -> CandidatePool:
        """Return the candidates of some rows, as these retrievers found them."""
        ids = items_at(self.ids, rows.tolist())
        scorable = self.scorable[rows]
        scored_ids = list(compress(ids, scorable.tolist()))
        scored_rows = (np.cumsum(self.scorable) - 1)[rows[scorable]]
        scored = ScoringResult(
            scored_ids, self.scored.raw[scored_rows], self.scored.query, self.scored.inferred
        )
        selected = only(self.retrieved_by, retrievers)
        retrieved_by = {name: is_found[rows] for name, is_found in selected.items()}
        return CandidatePool(ids, scorable, retrieved_by, scored)


RankPool = Callable[[Stack, CandidatePool, StageTimer, ReadDocuments], Ranking]
"""Ranks the candidates of a pool. The stack has the signals of its scores, in their order."""


def rank_pool(stack: Stack, pool: CandidatePool, timer: StageTimer, read_documents: ReadDocuments) -> Ranking:
    """Return all candidates in the order of a stack. Candidates without scores keep their position."""
    stack = stack.for_case(pool.scored.case)
    ranking = rank_scored(stack, pool.scored, timer, read_documents)
    return ranking.with_unscored(pool.ids, pool.scorable, pool.retrieved_by)
