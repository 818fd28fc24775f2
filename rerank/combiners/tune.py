"""Grid search for weights on development queries (Kuwa et al. 2020, sections 5.4.1 and 5.4.2).

Step size, normalizations and the average for few queries are ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.combiners.grid import PARTS, RAW_PARTS, SAME, Grid, weight_grid
from rerank.combiners.linear import Linear
from rerank.combiners.measure import Judged, estimated_means, judge, sum_values
from rerank.combiners.normalize import TRIED, normalize
from rerank.combiners.score_table import ScoreTable
from rerank.combiners.shortlist import shortlist
from rerank.evaluation.ranks import RankMeasure
from rerank.records import Qrels
from rerank.results import plain

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

FULL = 250
"""Grids up to this size are always measured completely: three signals in twentieths."""
WORK = 300_000_000
"""Most settings times candidates of a complete larger grid: a second."""
SAMPLE = 200
"""Queries for searching larger grids; all queries choose from the shortlist."""
KEPT, KEPT_OF_SAMPLE = 40, 12
"""Settings of the shortlist, if it comes from all queries and if from a sample: more would only cost time."""

FEW, NOISE = 200, 0.2
"""With fewer than FEW queries, settings at most NOISE / sqrt(queries) below the best one are averaged.

With samples of a larger dev set, test nDCG@10 is up to 0.003 higher than with the best setting
(benchmarks/few_queries.py)."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of the weight search.

    first_stage:    a signal of the table.
    signals:        signals that get weights; empty: all.
    measure:        nDCG, RR or AP, optionally with a cutoff.
    cut:            measured documents per ranking; None: all.
    normalizations: methods to try.
    parts:          weight steps are 1 / parts.
    """

    first_stage: str
    signals: Sequence[str] = ()
    measure: str = "nDCG"
    cut: int | None = None
    normalizations: Sequence[str] = TRIED
    parts: int = PARTS


@dataclass(frozen=True)
class BestSetting:
    """The best setting of one normalization."""

    stack: str
    value: float


@dataclass(frozen=True)
class TuningResult:
    """The chosen weights. Values are means over queries.

    combiner:           chosen weights.
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
    """

    combiner: Linear
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
    per_query: Mapping[str, float] = field(default_factory=dict, repr=False)

    def record(self) -> dict[str, Any]:
        """Return the fields for the stack file as JSON values."""
        kept = {name: value for name, value in vars(self).items() if name not in ("combiner", "per_query")}
        return json.loads(json.dumps(plain(kept)), parse_float=lambda text: round(float(text), 6))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TuningProblem:
    """Inputs for tuning and cross-validation.

    table:       signals that get weights.
    first:       column of the first stage, or None.
    first_value: of a first stage without weight.
    """

    table: ScoreTable
    measure: RankMeasure
    judged: list[Judged]
    none_relevant: int
    grids: list[Grid]
    first: int | None
    first_value: float

    @classmethod
    def of(cls, table: ScoreTable, qrels: Qrels, options: TuneOptions) -> TuningProblem:
        """Prepare the choice. Raises the errors of :func:`tune`."""
        first = options.first_stage
        measure = RankMeasure.parse(options.measure, options.cut)
        chosen = table.only(options.signals or table.signals)
        signals = chosen.signals
        judged, none_relevant = judge(chosen, qrels, measure)
        grids = [
            _grid(chosen, judged, normalization, measure, options.parts)
            for normalization in dict.fromkeys(options.normalizations)
        ]
        value = 0.0
        if first not in signals:
            alone = [Grid("none", weight_grid("none", 1))]
            (sums,) = sum_values(table.only([first]), judged, alone, measure, [0] * len(judged))
            value = float(sums[0, 0]) / len(judged)
        column = signals.index(first) if first in signals else None
        return cls(chosen, measure, judged, none_relevant, grids, column, value)

    def sums(self, groups: Sequence[int], progress: Callable[[int], object] | None) -> list[Array]:
        """Return summed values per grid: (groups, G)."""
        return sum_values(self.table, self.judged, self.grids, self.measure, groups, progress)

    def choose(self, means: Sequence[Array], queries: int) -> tuple[int, int]:
        """Return the best (normalization, setting), or an average of good ones for few queries.

        Ties: the first normalization. An average is never below a single signal.
        """
        chosen = [grid.choose(values, self.first) for grid, values in zip(self.grids, means)]
        reached = [float(values[setting]) for values, setting in zip(means, chosen)]
        which = next(index for index, value in enumerate(reached) if value >= max(reached) - SAME)
        lowest = max(self.first_value, *self._single_signals(means[0]))
        if queries < FEW and reached[which] > lowest + SAME:
            middle = self.grids[which].middle(means[which], NOISE / math.sqrt(queries))
            if means[which][middle] >= lowest:
                return which, middle
        return which, chosen[which]

    def linear(self, which: int, setting: int) -> Linear:
        """Return a setting as a combiner."""
        return self.grids[which].linear(setting, self.table.signals)

    def values(self, chosen: tuple[int, int], queries: Sequence[int]) -> Array:
        """Return a setting's values on some judged queries: (n,)."""
        which, setting = chosen
        judged, only = [self.judged[index] for index in queries], [self.grids[which].only(setting)]
        (values,) = sum_values(self.table, judged, only, self.measure, range(len(judged)))
        return values[:, 0]

    def result(self, means: Sequence[Array]) -> TuningResult:
        """Choose by the means per grid."""
        which, setting = self.choose(means, len(self.judged))
        values, signals = means[which], self.table.signals
        best = {}
        for index, (one, reached) in enumerate(zip(self.grids, means)):
            top = one.choose(reached, self.first)
            best[one.normalization] = BestSetting(str(self.linear(index, top)), float(reached[top]))
        alone = dict(zip(signals, self._single_signals(means[0])))
        grids = list(zip(self.grids, means))
        without = {
            name: max(float(reached[grid.weights[:, signal] == 0].max()) for grid, reached in grids)
            for signal, name in enumerate(signals)
            if len(signals) > 1
        }
        each = self.values((which, setting), range(len(self.judged)))
        return TuningResult(
            combiner=self.linear(which, setting),
            measure=str(self.measure),
            value=float(values[setting]),
            first_stage_value=self.first_value if self.first is None else alone[signals[self.first]],
            queries=len(self.judged),
            without_candidates=sum(query.count == 0 for query in self.judged),
            none_relevant=self.none_relevant,
            settings=sum(map(len, self.grids)),
            best=best,
            single_signal=alone,
            ablation=without,
            per_query=dict(zip((query.query for query in self.judged), each.tolist())),
        )

    def _single_signals(self, means: Array) -> Iterator[float]:
        weights = self.grids[0].weights
        for signal in range(weights.shape[1]):
            others = np.delete(weights, signal, axis=1)
            yield float(means[np.flatnonzero(~others.any(axis=1))[0]])


def tune(
    table: ScoreTable, qrels: Qrels, *, progress: Callable[[int], object] | None = None, **options: Any
) -> TuningResult:
    """Return the best setting over all normalizations, by mean over judged queries with a relevant document.

    With fewer than :data:`FEW` queries, returns the setting closest to the mean of all good ones, because the
    best one would fit the noise. Queries without candidates count as 0. Ties (to 1e-12) prefer more weight on
    the first stage, then weights closest to equal, then the first normalization. On these queries the result
    is at least as good as a first stage that is a signal.

    options: fields of :class:`TuneOptions`. progress: called with 1 per query.

    Raises UsageError for an unscored ``first_stage`` or a grid that is too large, InputError if no judged
    query was scored or has a relevant document.

    >>> rows = [("q1", ["a", "b", "c"], np.array([[0.9, 0.1], [0.5, 0.9], [0.1, 0.0]]))]
    >>> tuned = tune(ScoreTable.build(["bm25", "text"], rows), Qrels([("q1", "b", 1)]), first_stage="bm25")
    >>> str(tuned.combiner), tuned.value, round(tuned.first_stage_value, 3)
    ('bm25*0.60 + text*0.40', 1.0, 0.631)
    """
    problem = TuningProblem.of(table, qrels, TuneOptions(**options))
    sums = problem.sums([0] * len(problem.judged), progress)
    return problem.result([total[0] / len(problem.judged) for total in sums])


def _grid(
    table: ScoreTable, judged: Sequence[Judged], normalization: str, measure: RankMeasure, parts: int
) -> Grid:
    """Return all settings, or a shortlist from some queries."""
    count = len(table.signals)
    queries = [query for query in judged if len(query.positions)]
    kept = KEPT if len(queries) <= SAMPLE else KEPT_OF_SAMPLE
    if len(queries) > SAMPLE:
        chosen = np.random.default_rng(0).choice(len(queries), SAMPLE, replace=False)
        queries = [queries[index] for index in sorted(chosen.tolist())]
    rows = [normalize(table.scores[query.row, : query.count], normalization) for query in queries]
    spread = np.ones(count)
    if normalization == "none" and rows:  # raw scores differ by orders of magnitude
        spread = np.maximum(np.mean([row.std(axis=0) for row in rows], axis=0), 1e-9)
    settings = math.comb(parts + count - 1, count - 1)
    if settings <= FULL or settings * int(table.counts.sum()) <= WORK:
        return Grid(normalization, weight_grid(normalization, count, parts), spread)
    if not queries:
        return Grid(normalization, np.eye(count))
    columns = [np.ascontiguousarray((row / spread).T, np.float32) for row in rows]

    def measured(settings: Integers) -> Array:
        return estimated_means(queries, columns, settings / parts, measure)

    weights = shortlist(count, parts, measured, kept) / spread
    if normalization != "none":
        return Grid(normalization, weights / parts)
    thousandths = np.ceil(weights * (RAW_PARTS / weights.max(axis=1, keepdims=True)) - 1e-9)
    return Grid("none", thousandths / RAW_PARTS, spread)
