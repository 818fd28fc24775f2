"""Grid search for weights on development queries (Kuwa et al. 2020, sections 5.4.1 and 5.4.2).

Step size, normalizations and the average for few queries are ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.combiners.grid import PARTS, compositions, shortlist
from rerank.combiners.linear import DECIMALS, Linear
from rerank.combiners.measure import Judged, estimated_means, grid_means, judge, values_by_query
from rerank.combiners.normalize import PER_QUERY, TRIED, normalize
from rerank.combiners.score_table import ScoreTable
from rerank.errors import UsageError
from rerank.evaluation.ranks import RankMeasure
from rerank.records import Qrels
from rerank.results import plain

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

SAME = 1e-12
"""Means this close are equal: only the order of additions differs."""

FULL, MOST = 250, 250_000
"""Grids up to FULL, three signals in twentieths, are always measured completely; above MOST never."""
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


def tune(
    table: ScoreTable,
    qrels: Qrels,
    *,
    first_stage: str,
    signals: Sequence[str] = (),
    measure: str = "nDCG",
    cut: int | None = None,
    normalizations: Sequence[str] = TRIED,
    parts: int = PARTS,
    progress: Callable[[int], object] | None = None,
) -> TuningResult:
    """Return the best setting over all normalizations, by mean over judged queries with a relevant document.

    With fewer than :data:`FEW` queries, returns the setting closest to the mean of all good ones, because the
    best one would fit the noise. Queries without candidates count as 0. Ties (to 1e-12) prefer more weight on
    the first stage, then weights closest to equal, then the first normalization. On these queries the result
    is at least as good as a first stage that is a signal.

    first_stage: a signal of the table. signals: these get weights; default: all.
    measure: nDCG, RR or AP, optionally with a cutoff. cut: measured documents per ranking; None: all.
    normalizations: methods to try. parts: weight steps are 1 / parts. progress: called with 1 per query.

    Raises UsageError for an unscored ``first_stage``, InputError if no judged query was scored or has a
    relevant document.

    >>> rows = [("q1", ["a", "b", "c"], np.array([[0.9, 0.1], [0.5, 0.9], [0.1, 0.0]]))]
    >>> tuned = tune(ScoreTable.build(["bm25", "text"], rows), Qrels([("q1", "b", 1)]), first_stage="bm25")
    >>> str(tuned.combiner), tuned.value, round(tuned.first_stage_value, 3)
    ('bm25*0.60 + text*0.40', 1.0, 0.631)
    """
    by, chosen = RankMeasure.parse(measure, cut), table.only(signals or table.signals)
    judged, none_relevant = judge(chosen, qrels, by)
    grids = {name: _settings(chosen, judged, name, by, parts) for name in normalizations}
    first = 0.0
    if first_stage not in chosen.signals:
        alone, _ = judge(table.only([first_stage]), qrels, by)
        first = fmean(values_by_query(alone, Linear((first_stage,), (1.0,), "none"), by).values())
    means = grid_means(judged, grids, by, progress)
    single, ablation = _by_signal(grids, means, chosen.signals)
    lowest = max(first, *single.values())
    best, combiner, value = _choose(grids, means, chosen.signals, first_stage, len(judged), lowest)
    return TuningResult(
        combiner=combiner,
        measure=str(by),
        value=value,
        first_stage_value=single.get(first_stage, first),
        queries=len(judged),
        without_candidates=sum(not len(query.scores) for query in judged),
        none_relevant=none_relevant,
        settings=sum(map(len, grids.values())),
        best=best,
        single_signal=single,
        ablation=ablation,
        per_query=values_by_query(judged, combiner, by),
    )


def _by_signal(
    grids: Mapping[str, Array], means: Mapping[str, Array], signals: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return signal -> value without the others, and -> best value without it, if there are several."""
    weights, values = next(iter(grids.values())), next(iter(means.values()))
    single = {name: float(values[weights[:, i] == 1][0]) for i, name in enumerate(signals)}
    ablation = {
        name: max(float(means[one][weights[:, i] == 0].max()) for one, weights in grids.items())
        for i, name in enumerate(signals)
        if len(signals) > 1
    }
    return single, ablation


def _choose(
    grids: Mapping[str, Array],
    means: Mapping[str, Array],
    signals: tuple[str, ...],
    first_stage: str,
    queries: int,
    lowest: float,
) -> tuple[dict[str, BestSetting], Linear, float]:
    """Return the best setting of each normalization, and the chosen one with its value.

    Ties: the first normalization. Few queries get an average that is not below ``lowest``.
    """

    def combiner(name: str, setting: int) -> Linear:
        return Linear(signals, tuple(grids[name][setting].tolist()), name)

    column = signals.index(first_stage) if first_stage in signals else None
    chosen = {name: _best_setting(weights, means[name], column) for name, weights in grids.items()}
    best = {name: BestSetting(str(combiner(name, n)), float(means[name][n])) for name, n in chosen.items()}
    highest = max(one.value for one in best.values())
    name = next(name for name, one in best.items() if one.value >= highest - SAME)
    setting = chosen[name]
    if queries < FEW and highest > lowest + SAME:
        middle = _middle_setting(grids[name], means[name], NOISE / math.sqrt(queries))
        setting = middle if means[name][middle] >= lowest else setting
    return best, combiner(name, setting), float(means[name][setting])


def _best_setting(weights: Array, values: Array, first: int | None) -> int:
    """Return the number of the best setting. values: (G,). first: column of the first stage, or None.

    Ties: most weight on the first stage, then closest to equal weights, then earlier signals.
    """
    tied = np.flatnonzero(values >= values.max() - SAME)
    shares = weights[tied]
    uneven = ((shares - 1 / shares.shape[1]) ** 2).sum(axis=1)
    lead = np.zeros(len(tied)) if first is None else shares[:, first]
    preferences = np.column_stack([lead, -uneven, shares]).round(DECIMALS).tolist()
    return int(tied[preferences.index(max(preferences))])


def _middle_setting(weights: Array, values: Array, within: float) -> int:
    """Return the number of the setting closest to the mean of all at most ``within`` below the best."""
    mean = weights[values >= values.max() - within].mean(axis=0)
    return int(np.abs(weights - mean).sum(axis=1).round(DECIMALS).argmin())


def _settings(
    table: ScoreTable, judged: Sequence[Judged], normalization: str, measure: RankMeasure, parts: int
) -> Array:
    """Return all settings, or a shortlist from some queries: (G, S), each with the sum 1.

    Raises UsageError for an unknown normalization.
    """
    if normalization not in PER_QUERY:
        raise UsageError(f"unknown normalization {normalization!r}; choose one of {', '.join(PER_QUERY)}")
    count, candidates = len(table.signals), sum(len(row.ids) for row in table.rows)
    settings = math.comb(parts + count - 1, count - 1)
    if settings <= FULL or (settings <= MOST and settings * candidates <= WORK):
        return np.round(compositions(count, parts) / parts, DECIMALS)
    queries = [query for query in judged if len(query.positions)]
    if not queries:
        return np.eye(count)
    kept = KEPT if len(queries) <= SAMPLE else KEPT_OF_SAMPLE
    if len(queries) > SAMPLE:
        chosen = np.random.default_rng(0).choice(len(queries), SAMPLE, replace=False)
        queries = [queries[index] for index in sorted(chosen.tolist())]
    columns = [
        np.ascontiguousarray(normalize(query.scores, normalization).T, np.float32) for query in queries
    ]

    def measured(settings: Integers) -> Array:
        return estimated_means(queries, columns, settings / parts, measure)

    return np.round(shortlist(count, parts, measured, kept) / parts, DECIMALS)
