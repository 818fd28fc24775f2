"""Grid search for weights on development queries (Kuwa et al. 2020, sections 5.4.1 and 5.4.2).

Step size, normalizations and the average for few queries are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.progress import ignore_count
from rerank.common.results import to_json_value
from rerank.common.values import items_at, items_not_in
from rerank.documents.records import Qrels
from rerank.evaluation.ranks import RankMeasure
from rerank.evaluation.significance import Gain, gain_of
from rerank.stack.linear import Linear
from rerank.stack.normalize import FITTED, TRIED, Moments, normalize
from rerank.tuning.grid import (
    MAX_SETTINGS,
    PARTS,
    RAW_PARTS,
    SAME,
    Grid,
    GridLimits,
    count_compositions,
    weight_grid,
)
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
TRIED_WITH_FEW = tuple(items_not_in(TRIED, ["none"]))
"""The default normalizations with fewer queries."""
NOISE = 0.2
"""If the grid is too large for samples, the settings at most NOISE / sqrt(queries) below the best one are
averaged (benchmarks/decisions.md)."""
SAMPLES = 100
"""Samples with replacement."""
MAX_SAMPLE_VALUES = 20_000_000
"""Settings times queries up to which samples are measured: 160 MB."""


@dataclass(frozen=True)
class BestSetting:
    """The best setting of one normalization.

    stack: the weights as text.
    value: mean of the measure over the queries.
    """

    stack: str
    value: float


@dataclass(frozen=True)
class TuningResult:
    """The chosen weights, and how good they are. A value is a mean of the measure over the queries.

    combiner:           the chosen weights.
    fitted:             the best weights with the normalization ``fitted``, even if another one is chosen.
    measure:            its name, for example nDCG@10.
    value:              of the chosen weights.
    first_stage_value:  of the first stage. It is at most ``value`` if the first stage is a signal.
    queries:            number of judged queries with a relevant document.
    without_candidates: number of these queries that have no candidates. They count as 0.
    none_relevant:      number of the other judged queries, which are ignored.
    settings:           number of settings that were measured.
    best:               normalization -> its best setting.
    single_signal:      signal -> value of this signal without others.
    ablation:           signal -> best value without this signal.
    gain:               difference of the chosen weights from the first stage, with its 95 % interval.
    per_query:          query id -> value of the chosen weights. It is not in the record.
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
        """The value of the best setting of all normalizations."""
        return max(setting.value for setting in self.best.values())

    @property
    def averaged(self) -> bool:
        """Whether the chosen setting is a mean of settings, which is below the best one on these queries."""
        return self.value < self.best_value - SAME

    def record(self) -> dict[str, Any]:
        """Return the fields for the stack file as JSON values, with six decimals."""
        values = dict(vars(self))
        for name in ("combiner", "fitted", "per_query"):
            del values[name]
        return {name: _rounded(to_json_value(value)) for name, value in values.items()}


def _rounded(value: object) -> object:
    """Return a JSON value with numbers of six decimals."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {key: _rounded(member) for key, member in value.items()}
    if isinstance(value, list):
        return list(map(_rounded, value))
    return value


def tune(
    table: ScoreTable,
    qrels: Qrels,
    *,
    first_stage: str,
    signals: Sequence[str] = (),
    measure: str = "nDCG",
    cut: int | None = None,
    normalizations: Sequence[str] = (),
    least_share: float = 0.0,
    parts: int = PARTS,
    progress: Callable[[int], object] = ignore_count,
) -> TuningResult:
    """Return the best weights over all normalizations, by mean over judged queries with a relevant document.

    With fewer than :data:`FEW_QUERIES` queries, this is the setting closest to the mean of the winners of
    samples of the queries, because the best one would fit the noise. Queries without candidates count as 0.
    Ties (to 1e-12) prefer more weight on the first stage, then weights closest to equal, then the first
    normalization. On these queries the result is at least as good as a first stage that is a signal.

    table:          scores of the candidates of the queries.
    first_stage:    a signal of the table. The result is compared with it.
    signals:        the signals that get weights. Default: all signals of the table.
    measure:        nDCG, RR or AP, optionally with a cutoff: nDCG@10.
    cut:            number of documents of each ranking that are measured. Default: all.
    normalizations: the methods to try. Default: min-max, z-score, ``fitted``, and for many queries ``none``,
        which orders as ``fitted`` does, but also with weights of a thousandth, which few queries cannot
        compare.
    least_share:    smallest share of the weight for the first stage, from 0 to below 1. For raw scores, the
        share is of weight times spread.
    parts:          weights are multiples of 1 / parts.
    progress:       called with 1 after each query.

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
    limits = grid_limits(tuned_table.signals, first_stage, least_share, parts)
    tuning = _Tuning(tuned_table, judged, none_relevant, rank_measure, limits, first_stage, baseline)
    tried = TRIED if len(judged) >= FEW_QUERIES else TRIED_WITH_FEW
    return tuning.result(normalizations or tried, progress)


class Measured(NamedTuple):
    """The settings of one normalization, and their means over the queries, (G,)."""

    grid: Grid
    means: Array

    def within(self, limits: GridLimits) -> Measured:
        """Return the settings that may be chosen."""
        if not limits.least_share:
            return self
        settings = np.flatnonzero(limits.allows(self.grid.effects()))
        return Measured(self.grid.select(settings), self.means[settings])


@dataclass(frozen=True)
class _Tuning:
    """Scored and judged queries, and which weights may be chosen.

    none_relevant: number of judged queries without a relevant document.
    baseline:      query id -> value of the first stage.
    """

    table: ScoreTable
    judged: Sequence[TuningQuery]
    none_relevant: int
    measure: RankMeasure
    limits: GridLimits
    first_stage: str
    baseline: Mapping[str, float]

    def result(self, normalizations: Sequence[str], progress: Callable[[int], object]) -> TuningResult:
        """Measure the settings of these normalizations and of ``fitted``, and choose the best ones."""
        measured = self.measure_settings(dict.fromkeys((*normalizations, FITTED)), progress)
        single = _values_of_single_signals(measured[0], self.table.signals)
        allowed = [settings.within(self.limits) for settings in measured]
        candidates = [settings for settings in allowed if settings.grid.normalization in normalizations]
        fitted = [settings for settings in allowed if settings.grid.normalization == FITTED]
        first_stage_value = fmean(self.baseline.values())
        lowest = first_stage_value
        if not self.limits.least_share:
            lowest = max(first_stage_value, *single.values())
        combiner, value = self.choose(candidates, lowest)
        per_query = values_by_query(self.judged, combiner, self.measure)
        return TuningResult(
            combiner=combiner,
            fitted=self.choose(fitted, lowest=-math.inf)[0],
            measure=str(self.measure),
            value=value,
            first_stage_value=single.get(self.first_stage, first_stage_value),
            queries=len(self.judged),
            without_candidates=sum(not len(query.scores) for query in self.judged),
            none_relevant=self.none_relevant,
            settings=sum(len(settings.grid) for settings in candidates),
            best=self.best_settings(candidates),
            single_signal=single,
            ablation=_ablation(candidates, self.table.signals),
            per_query=per_query,
            gain=gain_of([value - self.baseline[query] for query, value in per_query.items()]),
        )

    def measure_settings(
        self, normalizations: Iterable[str], progress: Callable[[int], object]
    ) -> list[Measured]:
        """Return the settings of each normalization, also settings that may not be chosen."""
        grids: list[Grid] = []
        for normalization in normalizations:
            grids.append(candidate_grid(self.table, self.judged, normalization, self.measure, self.limits))
        return list(map(Measured, grids, grid_means(self.judged, grids, self.measure, progress)))

    def best_settings(self, measured: Sequence[Measured]) -> dict[str, BestSetting]:
        """Return normalization -> its best setting."""
        best: dict[str, BestSetting] = {}
        for grid, means in measured:
            position = grid.choose(means, self.limits.column)
            text = str(grid.linear(position, self.table.signals))
            best[grid.normalization] = BestSetting(text, float(means[position]))
        return best

    def choose(self, measured: Sequence[Measured], lowest: float) -> tuple[Linear, float]:
        """Return the chosen weights and their value. Ties: the first normalization.

        The average setting for few queries replaces the best one if its value is not below ``lowest``.
        """
        best = measured[0]
        position = 0
        highest = -math.inf
        for settings in measured:
            best_position = settings.grid.choose(settings.means, self.limits.column)
            if settings.means[best_position] > highest + SAME:
                best = settings
                position = best_position
                highest = float(settings.means[best_position])
        average = self._average_position(best) if highest > lowest + SAME else None
        if average is not None and best.means[average] >= lowest:
            position = average
        return best.grid.linear(position, self.table.signals), float(best.means[position])

    def _average_position(self, settings: Measured) -> int | None:
        """Return the setting closest to the mean of the winners of samples, or None for many queries."""
        grid = settings.grid
        n = len(self.judged)
        if n >= FEW_QUERIES:
            return None
        if n * len(grid) > MAX_SAMPLE_VALUES:
            return grid.robust_setting(settings.means, NOISE / math.sqrt(n))
        values = np.array([query_values(query, grid, self.measure) for query in self.judged])
        counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=SAMPLES)
        winners = [grid.choose(sample @ values / n, self.limits.column) for sample in counts]
        return grid.closest(grid.effects()[winners].mean(axis=0))


def grid_limits(
    signals: Sequence[str], first_stage: str, least_share: float, parts: int = PARTS
) -> GridLimits:
    """Return the limits of the weights of these signals.

    least_share: smallest share of the weight for the first stage, from 0 to below 1.
    parts: weights are multiples of 1 / parts.

    Raises UsageError for a share that the first stage cannot get.
    """
    if not 0 <= least_share < 1:
        raise UsageError(
            f"--least {least_share:g} is not a share; give a number from 0 to below 1, for example 0.3: the"
            f" smallest share of the weight for {first_stage}"
        )
    if first_stage in signals:
        return GridLimits(parts, signals.index(first_stage), least_share)
    if least_share:
        raise UsageError(
            f"--least {least_share:g} is for {first_stage}, which is not among the signals; add it, for"
            f" example --stack {','.join((first_stage, *signals))}"
        )
    return GridLimits(parts)


def _ablation(measured: Sequence[Measured], signals: Sequence[str]) -> dict[str, float]:
    """Return signal -> best mean without it, if a setting without it may be chosen; empty for one signal."""
    if len(signals) == 1:
        return {}
    values: dict[str, float] = {}
    for column, name in enumerate(signals):
        means_without = [means[grid.weights[:, column] == 0] for grid, means in measured]
        all_means = np.concatenate(means_without)
        if len(all_means):
            values[name] = float(all_means.max())
    return values


def _values_of_signal(table: ScoreTable, qrels: Qrels, measure: RankMeasure) -> dict[str, float]:
    """Return query id -> value of a table with one signal."""
    judged, _ = judge(table, qrels, measure)
    return values_by_query(judged, Linear(table.signals, (1.0,), "none"), measure)


def _values_of_single_signals(measured: Measured, signals: Sequence[str]) -> dict[str, float]:
    """Return signal -> mean of the setting in which only this signal has a weight."""
    values: dict[str, float] = {}
    for column, name in enumerate(signals):
        other_weights = np.delete(measured.grid.weights, column, axis=1)
        (positions,) = np.nonzero(~other_weights.any(axis=1))
        values[name] = float(measured.means[positions[0]])
    return values


def candidate_grid(
    table: ScoreTable,
    judged: Sequence[TuningQuery],
    normalization: str,
    measure: RankMeasure,
    limits: GridLimits,
) -> Grid:
    """Return the settings to measure for a normalization: all, or a shortlist if the grid is too large.

    A shortlist has only settings that the limits allow, except for those without a signal and with only one.

    table:  scores of all queries, for the size of the work and the moments.
    judged: the queries with a relevant document.
    """
    n_signals = len(table.signals)
    with_relevant = [query for query in judged if query.has_relevant]
    queries = _sample(with_relevant)
    moments = _moments(table, normalization)
    normalized = [normalize(query.scores, normalization, moments, query.signals) for query in queries]
    spread = _spread(normalized, normalization, n_signals)

    n_settings = count_compositions(n_signals, limits.parts)
    if _measures_all(table, n_settings):
        all_weights = weight_grid(normalization, n_signals, limits.parts)
        return Grid(normalization, all_weights, spread, moments)
    if not queries:
        single_signals = np.eye(n_signals)
        return Grid(normalization, single_signals, moments=moments)

    is_sample = len(queries) < len(with_relevant)
    size = SAMPLE_SHORTLIST_SIZE if is_sample else SHORTLIST_SIZE
    scaled = [scores / spread for scores in normalized]
    columns = [
        np.ascontiguousarray(scores[query.rows].T, np.float32) for scores, query in zip(scaled, queries)
    ]
    settings = _shortlist(queries, columns, measure, limits, size)
    if normalization == "none":
        return Grid(normalization, _raw_weights(settings / spread), spread)
    return Grid(normalization, settings / limits.parts, moments=moments)


def _spread(scores_of_queries: Sequence[Array], normalization: str, n_signals: int) -> Array:
    """Return the mean standard deviation of the raw scores of each signal, (S,).

    Raw scores differ by orders of magnitude. Normalized scores count as equally spread.
    """
    if normalization != "none" or not scores_of_queries:
        return np.ones(n_signals)
    deviations = [scores.std(axis=0) for scores in scores_of_queries]
    spread: Array = np.maximum(np.mean(deviations, axis=0), 1e-9)
    return spread


def _shortlist(
    queries: Sequence[TuningQuery],
    columns: Sequence[NDArray[np.float32]],
    measure: RankMeasure,
    limits: GridLimits,
    size: int,
) -> Integers:
    """Return the ``size`` best settings that a search finds, (size, S), in parts of ``limits.parts``.

    columns: see :func:`estimated_means`.
    """

    def measure_settings(settings: Integers) -> Array:
        weights = settings / limits.parts
        means = estimated_means(queries, columns, weights, measure)
        # Measures are at most 1, so each setting that may not be chosen comes after all others.
        return means - ~limits.allows(weights)

    n_signals = len(columns[0])
    return shortlist(n_signals, limits.parts, measure_settings, size)


def _raw_weights(weights: Array) -> Array:
    """Scale the largest weight of each setting to 1, and round the others up to RAW_PARTS parts."""
    scaled = weights * (RAW_PARTS / weights.max(axis=1, keepdims=True))
    rounded: Array = np.ceil(scaled - 1e-9) / RAW_PARTS
    return rounded


def _moments(table: ScoreTable, normalization: str) -> list[Moments]:
    """Return the moments of each signal over the candidates of all queries, if the normalization has them."""
    if normalization != FITTED:
        return []
    scores = np.concatenate([row.scores for row in table.rows])
    return list(map(Moments.from_scores, scores.T))


def _sample(queries: Sequence[TuningQuery]) -> Sequence[TuningQuery]:
    """Return all queries, or a random sample of SEARCH_QUERIES in their order."""
    if len(queries) <= SEARCH_QUERIES:
        return queries
    positions = np.random.default_rng(0).choice(len(queries), SEARCH_QUERIES, replace=False)
    return items_at(queries, sorted(positions.tolist()))


def _measures_all(table: ScoreTable, settings: int) -> bool:
    """Return whether a complete grid with this number of settings is small enough to measure."""
    if settings <= MAX_FULL_GRID:
        return True
    work = settings * sum(len(row.ids) for row in table.rows)
    return settings <= MAX_SETTINGS and work <= MAX_WORK
