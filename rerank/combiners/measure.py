"""Measure all settings of a weight grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.combiners.grid import Grid
from rerank.combiners.normalize import normalize
from rerank.combiners.score_table import ScoreTable
from rerank.errors import InputError
from rerank.evaluation.ranks import RankMeasure
from rerank.records import Qrels
from rerank.text import plural

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

_HEIGHT = 64  # settings per step: their scores fit the cache of a core
_SORT_FROM = 96  # number of relevant candidates above which sorting is faster than counting


@dataclass(frozen=True, slots=True)
class Judged:
    """A query with relevant documents."""

    query: str
    row: int  # in the table; -1: not in the table
    count: int  # candidates
    positions: Integers  # (R,) of relevant candidates
    grades: Array  # (R,) of relevant candidates
    ideal: float  # of all relevant documents; see RankMeasure


def judge(table: ScoreTable, qrels: Qrels, measure: RankMeasure) -> tuple[list[Judged], int]:
    """Return judged queries with relevant documents, by id, and the number of others.

    Raises InputError if none has a relevant document, or none was scored.
    """
    rows = {query: row for row, query in enumerate(table.query_ids)}
    judged: list[Judged] = []
    none_relevant = 0
    for query in sorted(qrels):
        grades = qrels.relevant(query)
        if not grades:
            none_relevant += 1
            continue
        row = rows.get(query, -1)
        candidates = table.document_ids[row] if row >= 0 else ()
        found = [(position, grades[id]) for position, id in enumerate(candidates) if id in grades]
        judged.append(
            Judged(
                query=query,
                row=row,
                count=len(candidates),
                positions=np.array([position for position, _ in found], dtype=np.int64),
                grades=np.array([grade for _, grade in found], dtype=np.float64),
                ideal=measure.ideal(np.array(list(grades.values()), dtype=np.float64)),
            )
        )
    if not judged:
        raise InputError("none of the judged queries has a relevant document; check the qrels")
    if all(query.row < 0 for query in judged):
        raise InputError(
            f"of {plural(len(judged), 'judged quer[y|ies]')} none was scored; "
            "check that the queries and the qrels are of the same set"
        )
    return judged, none_relevant


def query_values(
    raw: Array,
    query: Judged,
    grid: Grid,
    measure: RankMeasure,
) -> Array:
    """Return one query's measure per setting: raw (n, S) -> (G,). Ties keep the order of ids."""
    result = np.zeros(len(grid))
    columns = normalize(raw, grid.normalization).T  # (S, n)
    # (levels, n) for each signal. A setting adds one row of each, in the order of Linear.combine.
    weighted = [np.outer(levels, column) for levels, column in zip(grid.levels, columns)]
    for start in range(0, len(grid), _HEIGHT):
        at = grid.at[start : start + _HEIGHT].T  # (S, settings)
        scores = weighted[0][at[0]]
        for table, places in zip(weighted[1:], at[1:]):
            scores += table[places]
        ranks = ranks_of(scores, query.positions)
        result[start : start + _HEIGHT] = measure.values(
            ranks, query.grades, ideal=query.ideal, depth=len(raw)
        )
    return result


def ranks_of(scores: Array, positions: Integers) -> Integers:
    """Return ranks from 0 of the documents at R positions: scores (G, n) -> (R, G)."""
    if len(positions) > _SORT_FROM:
        order = np.argsort(-scores, axis=1, kind="stable")
        places = np.empty_like(order)
        np.put_along_axis(places, order, np.arange(scores.shape[1])[None, :], axis=1)
        return np.asarray(places[:, positions].T)
    ranks = np.empty((len(positions), len(scores)), dtype=np.int64)
    above = np.empty(scores.shape, dtype=np.bool_)
    for rank, position in zip(ranks, positions.tolist()):
        own = scores[:, position, None]
        np.greater_equal(scores[:, :position], own, out=above[:, :position])
        np.greater(scores[:, position:], own, out=above[:, position:])
        rank[:] = above.view(np.uint8).sum(axis=1, dtype=np.uint32)  # faster than counting booleans
    return ranks


def sum_values(
    table: ScoreTable,
    judged: Sequence[Judged],
    grids: Sequence[Grid],
    measure: RankMeasure,
    groups: Sequence[int],
    progress: Callable[[int], object] | None = None,
) -> list[Array]:
    """Return sums per group and setting, one array per grid: (groups, G). groups: one per judged query."""
    totals = [np.zeros((max(groups) + 1, len(grid))) for grid in grids]
    for query, group in zip(judged, groups):
        if len(query.positions):
            raw = table.scores[query.row, : query.count]
            for total, grid in zip(totals, grids):
                total[group] += query_values(raw, query, grid, measure)
        if progress is not None:
            progress(1)
    return totals
