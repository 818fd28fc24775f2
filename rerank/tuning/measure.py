"""Measure all settings of a weight grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError
from rerank.common.progress import ignore_count
from rerank.documents.records import Qrels
from rerank.evaluation.ranks import RankMeasure
from rerank.stack.linear import Linear
from rerank.stack.normalize import LARGEST, normalize
from rerank.tuning.contenders import contenders
from rerank.tuning.grid import Grid
from rerank.tuning.score_table import ScoreRow, ScoreTable

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_STEP_SCORES = 32_768  # scores that are computed at once: they fit the cache of a core
_SORT_FROM = 96  # number of relevant candidates above which sorting is faster than counting


@dataclass(frozen=True, slots=True)
class TuningQuery:
    """A query that has relevant documents. It has n candidates, and m of them can reach the measured ranks.

    query:        its id.
    scores:       (n, S) raw scores of the candidates.
    rows:         (m,) rows of the candidates that can reach the measured ranks; see :func:`contenders`.
    positions:    (R,) positions of relevant candidates among these rows.
    grades:       (R,) their grades, above 0.
    ideal:        divisor of the measure, from the grades of all relevant documents of the query; see
        :meth:`rerank.evaluation.ranks.RankMeasure.ideal`.
    has_relevant: whether any candidate is relevant.
    signals:      S names of the columns.
    """

    query: str
    scores: Array
    rows: Integers
    positions: Integers
    grades: Array
    ideal: float
    has_relevant: bool
    signals: tuple[str, ...] = ()

    def values(self, ranks: Integers, measure: RankMeasure) -> Array:
        """Return the measure per setting, (G,), from the ranks of the R relevant candidates, (R, G)."""
        return measure.values(ranks, self.grades, ideal=self.ideal, depth=len(self.scores))


def judge(table: ScoreTable, qrels: Qrels, measure: RankMeasure) -> tuple[list[TuningQuery], int]:
    """Return the judged queries that have relevant documents, by id, and the number of the others.

    A query without a row in the table has no candidates.

    Raises InputError if none has a relevant document, or none was scored.
    """
    rows = {row.query: row for row in table.rows}
    missing = ScoreRow("", (), np.zeros((0, len(table.signals))))
    magnitudes = [np.abs(row.scores).max(axis=0, initial=0.0) for row in table.rows]
    largest = np.max(magnitudes, axis=0, initial=0.0).clip(max=LARGEST)  # (S,)
    judged: list[TuningQuery] = []
    for query in sorted(qrels):
        grades = qrels.relevant(query)
        if not grades:
            continue
        row = rows.get(query, missing)
        # A grade of 0 stands for all documents that are not relevant.
        grade_of_row = np.array([grades.get(id, 0) for id in row.ids], dtype=np.float64)
        rows_of_measure = contenders(row.scores, measure.depth, largest)
        positions = np.flatnonzero(grade_of_row[rows_of_measure])
        judged.append(
            TuningQuery(
                query=query,
                scores=row.scores,
                rows=rows_of_measure,
                positions=positions,
                grades=grade_of_row[rows_of_measure[positions]],
                ideal=measure.ideal(np.array(list(grades.values()), dtype=np.float64)),
                has_relevant=bool(grade_of_row.any()),
                signals=tuple(table.signals),
            )
        )
    if not judged:
        raise InputError("none of the judged queries has a relevant document; check the qrels")
    if rows.keys().isdisjoint(query.query for query in judged):
        raise InputError("no judged query was scored; check that the queries and the qrels belong together")
    return judged, len(qrels) - len(judged)


def query_values(query: TuningQuery, grid: Grid, measure: RankMeasure) -> Array:
    """Return the measure of one query for each of G settings, (G,).

    Documents with equal scores keep the order of their ids. A query without relevant candidates has 0.
    """
    result = np.zeros(len(grid))
    if not len(query.positions):
        return result
    normalized = normalize(query.scores, grid.normalization, grid.moments, query.signals)
    columns = np.ascontiguousarray(normalized[query.rows].T)  # (S, m)
    step = _settings_per_step(columns.shape[1])
    for start in range(0, len(grid), step):
        weights = grid.weights[start : start + step].T[:, :, None]  # (S, settings, 1)
        scores = columns[0] * weights[0]
        for column, weight in zip(columns[1:], weights[1:]):  # in the order of Linear.combine
            scores += column * weight
        ranks = ranks_of(scores, query.positions)
        result[start : start + step] = query.values(ranks, measure)
    return result


def _settings_per_step(candidates: int) -> int:
    """Return how many settings are measured at once, with this number of candidates each."""
    return max(1, _STEP_SCORES // candidates)


def estimated_means(
    queries: Sequence[TuningQuery],
    columns: Sequence[NDArray[np.float32]],
    weights: Array,
    measure: RankMeasure,
) -> Array:
    """Return the mean over queries for each of G settings, (G,), in single precision, which is faster.

    Documents with nearly equal scores may change places.

    columns: (S, m) normalized scores of the candidates of each query that can reach the measured ranks.
    weights: (G, S).
    """
    rounded_weights = weights.astype(np.float32)

    def values(query: TuningQuery, scores: NDArray[np.float32]) -> Array:
        if not len(query.positions):
            return np.zeros(len(weights))
        step = _settings_per_step(scores.shape[1])
        ranks: list[Integers] = []
        for start in range(0, len(weights), step):
            ranks.append(ranks_of(rounded_weights[start : start + step] @ scores, query.positions))
        return query.values(np.concatenate(ranks, axis=1), measure)

    return np.asarray(sum(map(values, queries, columns)) / len(queries))


def ranks_of(scores: NDArray[Any], positions: Integers) -> Integers:
    """Return the ranks of R of n documents, counted from 0, under each of G settings: (R, G).

    Documents with equal scores keep their order.

    scores:    (G, n) final scores.
    positions: (R,) columns of the documents.
    """
    if len(positions) > _SORT_FROM:
        order = np.argsort(-scores, axis=1, kind="stable")
        all_ranks = np.empty_like(order)
        np.put_along_axis(all_ranks, order, np.arange(scores.shape[1])[None, :], axis=1)
        return np.asarray(all_ranks[:, positions].T)
    if scores.shape[1] < len(scores):  # the longer axis is contiguous, for speed
        scores = np.asfortranarray(scores)
    ranks = np.empty((len(positions), len(scores)), dtype=np.int64)
    above = np.empty_like(scores, dtype=np.bool_)
    for rank, position in zip(ranks, positions.tolist()):
        score = scores[:, position, None]
        np.greater_equal(scores[:, :position], score, out=above[:, :position])
        np.greater(scores[:, position:], score, out=above[:, position:])
        rank[:] = above.view(np.uint8).sum(axis=1, dtype=np.uint32)  # faster than counting booleans
    return ranks


def grid_means(
    judged: Sequence[TuningQuery],
    grids: Sequence[Grid],
    measure: RankMeasure,
    progress: Callable[[int], object] = ignore_count,
) -> list[Array]:
    """Return the mean over the queries of each setting, (G,) for each grid.

    progress: called with 1 after each query.
    """
    totals = [np.zeros(len(grid)) for grid in grids]
    for query in judged:
        for total, grid in zip(totals, grids):
            total += query_values(query, grid, measure)
        progress(1)
    return [total / len(judged) for total in totals]


def values_by_query(judged: Sequence[TuningQuery], linear: Linear, measure: RankMeasure) -> dict[str, float]:
    """Return query id -> the measure with these weights of the signals that were scored."""
    grid = Grid(linear.normalization, np.array([linear.weights]), moments=linear.moments)
    return {query.query: float(query_values(query, grid, measure)[0]) for query in judged}
