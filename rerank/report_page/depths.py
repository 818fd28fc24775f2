"""nDCG of a stack with fewer candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank.combiners.measure import judge
from rerank.combiners.score_table import ScoreTable
from rerank.errors import InputError
from rerank.evaluation.ranks import NDCG
from rerank.records import Qrels
from rerank.stack.stack import Stack

COUNTS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 5000, 10000)
"""Numbers of candidates to measure."""


@dataclass(frozen=True)
class DepthRow:
    """Mean nDCG at a number of candidates.

    weighted: the stack. first_stage: its order. ceiling: best order.
    """

    candidates: int
    weighted: float
    first_stage: float
    ceiling: float


def by_depth(table: ScoreTable, stack: Stack, first: str, qrels: Qrels) -> list[DepthRow]:
    """Rank the first 1, 2, 3, 5 ... candidates, normalized over those, and measure."""
    try:
        judged, _ = judge(table, qrels, NDCG)
    except InputError:  # no relevant documents
        return []
    deepest = int(table.counts.max(initial=0))
    counts = [count for count in COUNTS if count < deepest] + [deepest] * bool(deepest)
    sums = np.zeros((len(counts), 3))
    lead, columns = table.signals.index(first), [table.signals.index(name) for name in stack.signals]
    for query in judged:
        scores = table.scores[query.row, : query.count]
        combiner = stack.combiner.for_case(table.cases[query.row] if table.cases else "")
        place = np.argsort(np.argsort(-scores[:, lead], kind="stable"))  # documents are in id order
        for row, count in enumerate(counts):
            kept, inside = np.flatnonzero(place < count), place[query.positions] < count
            if inside.any():
                at, grades = np.searchsorted(kept, query.positions[inside]), query.grades[inside]
                finals = combiner.combine(scores[kept][:, columns]).final, scores[kept, lead]
                ranks = [np.argsort(np.argsort(-final, kind="stable"))[at] for final in finals]
                values = NDCG.values(np.array(ranks).T, grades, ideal=query.ideal, depth=len(kept))
                sums[row] += (*values, NDCG.ideal(grades) / query.ideal)
    means = sums / len(judged)
    return [DepthRow(count, *values) for count, values in zip(counts, means.tolist())]
