"""nDCG of a stack with fewer candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.combiners.measure import Judged, judge
from rerank.combiners.score_table import ScoreTable
from rerank.errors import InputError
from rerank.evaluation.ranks import NDCG
from rerank.order import rank
from rerank.records import Qrels
from rerank.stack.stack import Stack

COUNTS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000, 2000, 5000, 10000)
"""Numbers of candidates to measure."""


@dataclass(frozen=True)
class DepthRow:
    """Mean nDCG at a number of candidates.

    weighted: the stack. plain: without its first stage's score. first_stage: its order. ceiling: best order.
    """

    candidates: int
    weighted: float
    plain: float | None
    first_stage: float
    ceiling: float


def by_depth(
    table: ScoreTable,
    stack: Stack,
    plain: Stack | None,
    first: str,
    qrels: Qrels,
) -> list[DepthRow]:
    """Rank the first 1, 2, 3, 5 ... candidates, normalized over those, and measure."""
    try:
        judged, _ = judge(table, qrels, NDCG)
    except InputError:  # no relevant documents
        return []
    deepest = int(table.counts.max(initial=0))
    counts = [count for count in COUNTS if count < deepest] + [deepest] * bool(deepest)
    sums = np.zeros((len(counts), 4))
    lead = table.signals.index(first)
    for query in judged:
        if not len(query.positions):
            continue
        scores, ids = table.scores[query.row, : query.count], table.document_ids[query.row]
        case = table.cases[query.row] if table.cases else ""
        order = rank(ids, scores[:, lead])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        before: NDArray[np.float64] | None = None
        for row, count in enumerate(counts):
            if count > query.count and before is not None:
                sums[row] += before
                continue
            kept = np.flatnonzero(place < count)
            inside = place[query.positions] < count
            before = np.zeros(4)
            if inside.any():
                at = np.searchsorted(kept, query.positions[inside])
                some, grades = scores[kept], query.grades[inside]
                for column, one in enumerate((stack, plain)):
                    if one is not None:
                        columns = [table.signals.index(name) for name in one.signals]
                        final = one.combiner.for_case(case).combine(some[:, columns]).final
                        before[column] = _value(final, at, grades, query)
                before[2] = _value(some[:, lead], at, grades, query)
                before[3] = NDCG.ideal(grades) / query.ideal
            sums[row] += before
    means = sums / len(judged)
    return [
        DepthRow(count, weighted, value if plain is not None else None, alone, ceiling)
        for count, (weighted, value, alone, ceiling) in zip(counts, means.tolist())
    ]


def _value(
    scores: NDArray[np.float64], at: NDArray[np.int64], grades: NDArray[np.float64], query: Judged
) -> float:
    own = scores[at][:, None]
    earlier = np.arange(len(scores)) < at[:, None]  # equal scores go by id
    ranks = ((scores > own) | ((scores == own) & earlier)).sum(axis=1)
    return float(NDCG.values(ranks[:, None], grades, ideal=query.ideal, depth=len(scores))[0])
