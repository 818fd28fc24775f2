"""Grid search for weights on development queries (Kuwa et al. 2020, sections 5.4.1 and 5.4.2).

Step size, normalizations and the average for few queries are ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.evaluation.ranks import RankMeasure
from rerank.evaluation.significance import Gain, gain_of
from rerank.records import Qrels
from rerank.results import to_json_value
from rerank.stack.linear import Linear
from rerank.stack.normalize import FITTED, TRIED, Moments, normalize
from rerank.tuning.grid import MAX_SETTINGS, PARTS, RAW_PARTS, SAME, Grid, GridLimits, weight_grid
from rerank.tuning.measure import (
    TuningQuery,
    estimated_means,
    grid_means,
    judge,
    query_values,
    values_by_query,
)
from rerank.tuning.score_table import ScoreTable
from rerank.tuning.shortlist import shortlist

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Measured = tuple[Grid, Array]
"""Settings of a normalization, and their means over the queries."""

MAX_FULL_GRID = 250
"""Grids up to this size are always measured completely: three signals in twentieths."""
MAX_WORK = 300_000_000
"""Most settings times candidates of a complete larger grid: a second."""
SEARCH_QUERIES = 200
"""Queries for searching larger grids; all queries choose from the shortlist."""
SHORTLIST_SIZE = 40
"""Settings of a shortlist that comes from all queries."""
SAMPLE_SHORTLIST_SIZE = 12
"""Settings of a shortlist that comes from a sample of the queries; more would only cost time."""

FEW_QUERIES = 200
"""With fewer queries, the winners of samples of the queries are averaged."""
NOISE = 0.2
"""If the grid is too large for samples, the settings at most NOISE / sqrt(queries) below the best one are
averaged (benchmarks/decisions.md)."""
SAMPLES = 100
"""Samples with replacement."""
MAX_SAMPLE_VALUES = 20_000_000
"""Settings times queries up to which samples are measured: 160 MB."""


@dataclass(frozen=True)
class BestSetting:
    """The best setting of one normalization."""

    stack: str
    value: float


@dataclass(frozen=True)
class TuningResult:
    """The chosen weights. Values are means over queries.

    combiner:           chosen weights.
    fitted:             the best weights with the normalization ``fitted``, even if another one is chosen.
    measure:            for example nDCG@10.
    value:              of the chosen weights.
    first_stage_value:  at most ``value`` if the first stage is a signal.
    queries:            judged queries with a relevant document.
    without_candidates: number of these without candidates; count as 0.
    none_relevant:      number of other judged queries, ignored.
    settings:           number tried.
    best:               normalization -> best setting.
    single_signal:      signal -> its value without others.
    ablation:           signal -> best value without it.
    per_query:          query id -> value of the chosen weights; not in the record.
    gain:               over the first stage, with its 95 % interval.
    """

    combiner: Linear
    fitted: Linear
    measure: str
    value: float
    first_stage_value: float
    queries: int
    without_candidates: int
    none_relevant: int
    settings: int
    best: Mapping[str, BestSetting]
    single_signal: Mapping[str, float]
    ablation: Mapping[str, float]
    gain: Gain
    per_query: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def best_value(self) -> float:
        """The value of the best setting."""
        return max(setting.value for setting in self.best.values())

    @property
    def averaged(self) -> bool:
        """Whether a mean of settings was chosen that is below the best one."""
        return self.value < self.best_value - SAME

    def record(self) -> dict[str, Any]:
        """Return the fields for the stack file as JSON values."""
        omitted = ("combiner", "fitted", "per_query")
        values = {name: value for name, value in vars(self).items() if name not in omitted}
        return json.loads(json.dumps(to_json_value(values)), parse_float=lambda text: round(float(text), 6))  # type: ignore[no-any-return]


def tune(
    table: ScoreTable,
    qrels: Qrels,
    *,
    first_stage: str,
    signals: Sequence[str] = (),
    measure: str = "nDCG",
    cut: int | None = None,
    normalizations: Sequence[str] = TRIED,
    least: float = 0.0,
    parts: int = PARTS,
    progress: Callable[[int], object] | None = None,
) -> TuningResult:
    """Return the best setting over all normalizations, by mean over judged queries with a relevant document.

    With fewer than :data:`FEW_QUERIES` queries, returns the setting closest to the mean of the winners of
    samples of the queries, because the best one would fit the noise. Queries without candidates count as 0.
    Ties (to 1e-12) prefer more weight on the first stage, then weights closest to equal, then the first
    normalization. On these queries the result is at least as good as a first stage that is a signal.

    first_stage: a signal of the table. signals: these get weights; default: all.
    measure: nDCG, RR or AP, optionally with a cutoff. cut: measured documents per ranking; None: all.
    normalizations: methods to try. parts: weight steps are 1 / parts. progress: called with 1 per query.
    least: smallest share of the weight for the first stage. Raw scores are compared by weight times spread.

    Raises UsageError for an unscored ``first_stage`` or a share that it cannot get, InputError without scored
    or relevant documents.

    >>> rows = [("q1", ["a", "b", "c"], np.array([[0.9, 0.1], [0.5, 0.9], [0.1, 0.0]]))]
    >>> tuned = tune(ScoreTable.build(["bm25", "text"], rows), Qrels([("q1", "b", 1)]), first_stage="bm25")
    >>> str(tuned.combiner), tuned.value, round(tuned.first_stage_value, 3)
    ('bm25*0.60 + text*0.40', 1.0, 0.631)
    """
    rank_measure = RankMeasure.parse(measure, cut)
    tuned_table = table.select_signals(signals or table.signals)
    judged, none_relevant = judge(tuned_table, qrels, rank_measure)
    baseline = _values_of_signal(table.select_signals([first_stage]), qrels, rank_measure)
    limits = grid_limits(tuned_table.signals, first_stage, least, parts)
    tuning = _Tuning(tuned_table, judged, rank_measure, limits)
    single, candidates, fitted = tuning.measure_settings(normalizations, progress)
    first_stage_value = fmean(baseline.values())
    lowest = max(first_stage_value, *single.values()) if not least else first_stage_value
    best, combiner, value = tuning.choose(candidates, lowest)
    per_query = values_by_query(judged, combiner, rank_measure)
    return TuningResult(
        combiner=combiner,
        fitted=tuning.choose(fitted, lowest=-math.inf)[1],
        measure=str(rank_measure),
        value=value,
        first_stage_value=single.get(first_stage, first_stage_value),
        queries=len(judged),
        without_candidates=sum(not len(query.scores) for query in judged),
        none_relevant=none_relevant,
        settings=sum(len(grid) for grid, _ in candidates),
        best=best,
        single_signal=single,
        ablation=_ablation(candidates, tuned_table.signals),
        per_query=per_query,
        gain=gain_of([value - baseline[query] for query, value in per_query.items()]),
    )


@dataclass(frozen=True)
class _Tuning:
    """Scored and judged queries, and which weights may be chosen."""

    table: ScoreTable
    judged: Sequence[TuningQuery]
    measure: RankMeasure
    limits: GridLimits

    def measure_settings(
        self, normalizations: Sequence[str], progress: Callable[[int], object] | None
    ) -> tuple[dict[str, float], list[Measured], list[Measured]]:
        """Return signal -> its value without others, and the settings that may be chosen with their means.

        First the settings of these normalizations, then the settings of ``fitted``.
        """
        methods = dict.fromkeys((*normalizations, FITTED))
        grids = [
            candidate_grid(self.table, self.judged, method, self.measure, self.limits) for method in methods
        ]
        measured = list(zip(grids, grid_means(self.judged, grids, self.measure, progress)))
        single = dict(zip(self.table.signals, _single_signals(*measured[0])))
        allowed = [_restrict(grid, means, self.limits) for grid, means in measured]
        candidates = [pair for pair in allowed if pair[0].normalization in normalizations]
        return single, candidates, [pair for pair in allowed if pair[0].normalization == FITTED]

    def choose(
        self, measured: Sequence[Measured], lowest: float
    ) -> tuple[dict[str, BestSetting], Linear, float]:
        """Return the best setting of each normalization, and the chosen one with its value."""
        average = partial(_average_setting, self.judged, self.measure)
        return _choose(measured, self.table.signals, self.limits.column, lowest, average)


def grid_limits(signals: Sequence[str], first_stage: str, least: float, parts: int = PARTS) -> GridLimits:
    """Return the limits of weights. Raises UsageError for a share that the first stage cannot get."""
    if not 0 <= least < 1:
        raise UsageError(
            f"--least {least:g} is not a share; give a number from 0 to below 1, for example 0.3: the"
            f" smallest share of the weight for {first_stage}"
        )
    if first_stage in signals:
        return GridLimits(parts, signals.index(first_stage), least)
    if least:
        raise UsageError(
            f"--least {least:g} is for {first_stage}, which is not among the signals; add it, for example"
            f" --stack {','.join((first_stage, *signals))}"
        )
    return GridLimits(parts)


def _restrict(grid: Grid, means: Array, limits: GridLimits) -> Measured:
    """Return the settings that may be chosen, and their means."""
    if not limits.least:
        return grid, means
    settings = np.flatnonzero(limits.allows(grid.effects()))
    return grid.select(settings), means[settings]


def _ablation(measured: Sequence[Measured], signals: Sequence[str]) -> dict[str, float]:
    """Return signal -> best mean without it, if a setting without it may be chosen; empty for one signal."""
    if len(signals) == 1:
        return {}
    values = {}
    for column, name in enumerate(signals):
        without = [means[grid.weights[:, column] == 0] for grid, means in measured]
        best_means = [float(means.max()) for means in without if len(means)]
        if best_means:
            values[name] = max(best_means)
    return values


def _values_of_signal(table: ScoreTable, qrels: Qrels, measure: RankMeasure) -> dict[str, float]:
    """Return query id -> value of a table with one signal."""
    judged, _ = judge(table, qrels, measure)
    return values_by_query(judged, Linear(table.signals, (1.0,), "none"), measure)


def _single_signals(grid: Grid, means: Array) -> Iterator[float]:
    """Yield the mean of each signal without others."""
    for signal in range(grid.weights.shape[1]):
        other_weights = np.delete(grid.weights, signal, axis=1)
        yield float(means[np.flatnonzero(~other_weights.any(axis=1))[0]])


def _choose(
    measured: Sequence[Measured],
    signals: tuple[str, ...],
    column: int | None,
    lowest: float,
    average: Callable[[Grid, Array, int | None], int | None],
) -> tuple[dict[str, BestSetting], Linear, float]:
    """Return the best setting of each normalization, and the chosen one with its value.

    column: of the first stage. Ties: the first normalization. average: returns the average setting for few
    queries, else None. It replaces the best setting if it is not below ``lowest``.
    """
    best: dict[str, BestSetting] = {}
    best_grid = 0
    best_setting = 0
    highest = -math.inf
    for index, (grid, means) in enumerate(measured):
        setting = grid.choose(means, column)
        value = float(means[setting])
        best[grid.normalization] = BestSetting(str(grid.linear(setting, signals)), value)
        if value > highest + SAME:
            best_grid = index
            best_setting = setting
            highest = value
    grid, means = measured[best_grid]
    setting = best_setting
    average_setting = average(grid, means, column) if highest > lowest + SAME else None
    if average_setting is not None and means[average_setting] >= lowest:
        setting = average_setting
    return best, grid.linear(setting, signals), float(means[setting])


def _average_setting(
    judged: Sequence[TuningQuery], measure: RankMeasure, grid: Grid, means: Array, first: int | None
) -> int | None:
    """Return the setting closest to the mean of the winners of samples, or None for many queries.

    first: column of the first stage.
    """
    n = len(judged)
    if n >= FEW_QUERIES:
        return None
    if n * len(grid) > MAX_SAMPLE_VALUES:
        return grid.robust_setting(means, NOISE / math.sqrt(n))
    values = np.array([query_values(query, grid, measure) for query in judged])
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=SAMPLES)
    winners = [grid.choose(sample @ values / n, first) for sample in counts]
    return grid.closest(grid.effects()[winners].mean(axis=0))


def candidate_grid(
    table: ScoreTable,
    judged: Sequence[TuningQuery],
    normalization: str,
    measure: RankMeasure,
    limits: GridLimits | None = None,
) -> Grid:
    """Return the settings to measure for a normalization: all, or a shortlist if the grid is too large.

    A shortlist has only settings that the limits allow, except for those without a signal and with only one.
    """
    count = len(table.signals)
    limits = limits or GridLimits()
    parts = limits.parts
    with_relevant = [query for query in judged if len(query.positions)]
    queries = _sample(with_relevant)
    moments: list[Moments] = []
    if normalization == FITTED:
        scores = np.concatenate([row.scores for row in table.rows])
        moments = [Moments.from_scores(column) for column in scores.T]
    normalized = [normalize(query.scores, normalization, moments, query.signals) for query in queries]
    spread = np.ones(count)
    if normalization == "none" and normalized:  # raw scores differ by orders of magnitude
        spread = np.maximum(np.mean([scores.std(axis=0) for scores in normalized], axis=0), 1e-9)
    if _measures_all(table, math.comb(parts + count - 1, count - 1)):
        return Grid(normalization, weight_grid(normalization, count, parts), spread, moments)
    if not queries:
        return Grid(normalization, np.eye(count), moments=moments)
    columns = [np.ascontiguousarray((scores / spread).T, np.float32) for scores in normalized]

    def measure_settings(settings: Integers) -> Array:
        means = estimated_means(queries, columns, settings / parts, measure)
        # Measures are at most 1, so each setting that may not be chosen comes after all others.
        return means - ~limits.allows(settings / parts)

    size = SHORTLIST_SIZE if len(queries) == len(with_relevant) else SAMPLE_SHORTLIST_SIZE
    weights = shortlist(count, parts, measure_settings, size) / spread
    if normalization != "none":
        return Grid(normalization, weights / parts, moments=moments)
    thousandths = np.ceil(weights * (RAW_PARTS / weights.max(axis=1, keepdims=True)) - 1e-9)
    return Grid("none", thousandths / RAW_PARTS, spread)


def _sample(queries: Sequence[TuningQuery]) -> Sequence[TuningQuery]:
    """Return all queries, or a random sample of SEARCH_QUERIES in their order."""
    if len(queries) <= SEARCH_QUERIES:
        return queries
    positions = np.random.default_rng(0).choice(len(queries), SEARCH_QUERIES, replace=False)
    return [queries[position] for position in sorted(positions.tolist())]


def _measures_all(table: ScoreTable, settings: int) -> bool:
    """Whether a complete grid of so many settings is small enough to measure."""
    if settings <= MAX_FULL_GRID:
        return True
    work = settings * sum(len(row.ids) for row in table.rows)
    return settings <= MAX_SETTINGS and work <= MAX_WORK
