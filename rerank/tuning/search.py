"""Finding a stack's weights: every setting of a grid is measured on the development queries.

The grid is searched on a :class:`ScoreTable`: what each signal gave each candidate of each query. Kuwa et al.
(2020, sections 5.4.1 and 5.4.2) add scores linearly, with weights from a grid search on dev. How fine it is
and how scores are normalised they do not say; steps of 0.05 and the normalisations tried are ours.

    grid.py         the settings
    measuring.py    the measure of all of them at once
    landscape.py    what all of them reached, to be drawn
    this file       the choice, cross-validation, and the report on both
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.evaluation.ranks import RankMeasure
from rerank.records import Qrels
from rerank.results import plain
from rerank.scoring.table import ScoreTable
from rerank.stack.normalise import TRIED
from rerank.stack.stack import PARTS, Stack
from rerank.tuning.grid import SAME, Grid, weight_grid
from rerank.tuning.landscape import Landscape, landscapes
from rerank.tuning.measuring import Judged, judge, ranges_of, sum_values
from rerank.wording import amount

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Best:
    """The best setting of one normalisation, and what it reached."""

    stack: str
    value: float


@dataclass(frozen=True)
class Flatness:
    """How many settings do almost as well: within ``within`` of the best, ``settings`` ``of`` all.

    shares: signal -> (lowest, highest) part of the whole weight that the signal has among them.
    """

    within: float
    settings: int
    of: int
    shares: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Tuned:
    """The chosen stack, and how sure the choice is. Values are means over ``queries`` queries.

    stack:              the chosen one; its ``tuned`` holds all of this in JSON values.
    measure:            what the weights were chosen by, for example nDCG@10.
    value:              what it reached.
    first_stage_value:  what the first stage alone reached: never more than ``value`` where it has a weight.
    queries:            judged queries with a relevant document: all of them count.
    without_candidates: how many of these retrieved nothing, and so count as 0.
    none_relevant:      judged queries without any relevant document: they are left out.
    settings:           how many settings were tried, over all normalisations.
    best:               normalisation -> its best.
    flatness:           of the chosen normalisation's grid, for 0.002 and 0.005.
    alone:              signal -> what it reached without the others.
    left_out:           signal -> the best that the others reached without it; empty for one signal.
    landscape:          what the settings of the chosen normalisation reached.
    """

    stack: Stack
    measure: str
    value: float
    first_stage_value: float
    queries: int
    without_candidates: int
    none_relevant: int
    settings: int
    best: Mapping[str, Best]
    flatness: tuple[Flatness, ...]
    alone: Mapping[str, float]
    left_out: Mapping[str, float]
    landscape: tuple[Landscape, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Fold:
    """One fold: the stack tuned on the others, what it reached there, and on this one's queries."""

    stack: str
    normalisation: str
    value: float
    held_out: float
    queries: int


@dataclass(frozen=True)
class CrossValidated:
    """Tuning measured on queries that the weights were not tuned on.

    value:             mean over all queries, each under the weights of the folds it is not in.
    first_stage_value: the first stage alone, on the same queries.
    per_query:         query id -> its out-of-fold value.
    folds:             one by one.
    final:             tuned on all queries; its own value is the optimistic one.
    """

    value: float
    first_stage_value: float
    folds: tuple[Fold, ...]
    per_query: Mapping[str, float] = field(repr=False)
    final: Tuned = field(repr=False)


@dataclass(frozen=True)
class Problem:
    """Everything the choice is made from, so that all who choose make it in the same way."""

    table: ScoreTable
    measure: RankMeasure
    judged: list[Judged]
    none_relevant: int
    grids: list[Grid]
    ranges: list[tuple[float, float]] | None
    first: int | None  # column of the first stage; None where it has no weight
    first_value: float | None  # of the first stage alone, where the grid does not hold it
    stack_fields: dict[str, Any] = field(default_factory=dict)

    def choose(self, means: Sequence[Array]) -> tuple[int, int]:
        """Return (normalisation, setting) of the best; ties go to the normalisation that is named first."""
        chosen = [grid.choose(values, self.first) for grid, values in zip(self.grids, means)]
        reached = [float(values[setting]) for values, setting in zip(means, chosen)]
        which = next(index for index, value in enumerate(reached) if value >= max(reached) - SAME)
        return which, chosen[which]

    def values(self, chosen: tuple[int, int], queries: Sequence[int] | Integers) -> Array:
        """What a setting of a normalisation reaches on some of the judged queries: (n,)."""
        which, setting = chosen
        left, each = [self.judged[index] for index in queries], range(len(queries))
        if not left:
            return np.zeros(0)
        only = [self.grids[which].only(setting)]
        (values,) = sum_values(self.table, left, only, self.measure, self.ranges, each)
        return values[:, 0]

    def alone(self, means: Sequence[Array], signal: int) -> float:
        """Return what one signal reaches without the others."""
        others = np.delete(self.grids[0].weights, signal, axis=1)
        return float(means[0][np.flatnonzero(~others.any(axis=1))[0]])

    def _first_stage_value(self, means: Sequence[Array]) -> float:
        if self.first is not None:
            return self.alone(means, self.first)
        assert self.first_value is not None
        return self.first_value

    def tuned(self, means: Sequence[Array]) -> Tuned:
        """Choose by the mean of every setting of each grid, and report."""
        which, setting = self.choose(means)
        grid, values = self.grids[which], means[which]
        signals = self.table.signals
        best = {}
        for one, reached in zip(self.grids, means):
            index = one.choose(reached, self.first)
            text = str(one.stack(index, signals, **self.stack_fields))
            best[one.normalisation] = Best(text, float(reached[index]))
        shares = grid.weights / grid.weights.sum(axis=1, keepdims=True)
        flatness = []
        for within in (0.002, 0.005):
            near = values >= values.max() - within - SAME
            lowest, highest = shares[near].min(axis=0).tolist(), shares[near].max(axis=0).tolist()
            ranges = dict(zip(signals, zip(lowest, highest)))
            flatness.append(Flatness(within, int(near.sum()), len(grid), ranges))
        left_out = {}
        for signal, name in enumerate(signals if len(signals) > 1 else ()):
            left_out[name] = max(
                float(reached[one.weights[:, signal] == 0].max()) for one, reached in zip(self.grids, means)
            )
        result = Tuned(
            stack=grid.stack(setting, signals, **self.stack_fields),
            measure=str(self.measure),
            value=float(values[setting]),
            first_stage_value=self._first_stage_value(means),
            queries=len(self.judged),
            without_candidates=sum(query.count == 0 for query in self.judged),
            none_relevant=self.none_relevant,
            settings=sum(map(len, self.grids)),
            best=best,
            flatness=tuple(flatness),
            alone={name: self.alone(means, signal) for signal, name in enumerate(signals)},
            left_out=left_out,
            landscape=landscapes(signals, grid, values, self.first),
        )
        return _with_record(result)


def tune(
    table: ScoreTable,
    qrels: Qrels,
    *,
    progress: Callable[[int], object] | None = None,
    **settings: Any,
) -> Tuned:
    """Try every setting of :func:`weight_grid` under every normalisation; return the best by mean.

    All judged queries with a relevant document count, those without candidates as 0. Settings that tie (to
    1e-12) are told apart so that every machine chooses the same: more weight on the first stage, then
    nearest to equal weights; between normalisations, the one named first. Where the first stage has a weight,
    it alone is one of the settings, so the choice is never worse than it on these queries.

    first_stage:    a signal of the table.
    signals:        those that get weights; nobody named: all of the table. Without the first stage among
                    them, candidates are sorted by the others alone.
    measure:        what is chosen by: nDCG (the default), RR or AP, or one with a cut-off: nDCG@10.
    cut:            how many documents of a ranking are measured; None: all candidates.
    normalisations: those that are tried; :data:`TRIED` by default.
    parts:          how fine the grid is; 20 by default.
    depth, versions, bounds: go into the stack (``bounds`` is also the range of each signal for the
        normalisation of that name).
    progress:       called with 1 for each query that is done.

    Raises UsageError when ``first_stage`` was not scored or the grid is too large, InputError when no judged
    query was scored or none has a relevant document.

    >>> rows = [("q1", ["a", "b", "c"], np.array([[0.9, 0.1], [0.5, 0.9], [0.1, 0.0]]))]
    >>> tuned = tune(ScoreTable.build(["bm25", "text"], rows), Qrels([("q1", "b", 1)]), first_stage="bm25")
    >>> str(tuned.stack), tuned.value, round(tuned.first_stage_value, 3)
    ('bm25*0.60 + text*0.40', 1.0, 0.631)
    """
    problem = problem_of(table, qrels, **settings)
    groups = [0] * len(problem.judged)
    sums = sum_values(
        problem.table, problem.judged, problem.grids, problem.measure, problem.ranges, groups, progress
    )
    return problem.tuned([total[0] / len(problem.judged) for total in sums])


def cross_validate(
    table: ScoreTable,
    qrels: Qrels,
    *,
    folds: int = 5,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
    **settings: Any,
) -> CrossValidated:
    """Tune on all folds but one, measure on that one, for each; and tune on everything for the final stack.

    Queries are dealt to ``folds`` folds of almost equal size at random, by ``seed``. Every setting is
    measured once per query, so this costs little more than :func:`tune`, whose arguments and errors are the
    same.

    Raises UsageError also for fewer than 2 folds, and for more folds than queries.
    """
    problem = problem_of(table, qrels, **settings)
    n = len(problem.judged)
    if not 2 <= folds <= n:
        raise UsageError(
            f"{amount(n, 'judged quer[y|ies]')} cannot be dealt to {amount(folds, 'fold[|s]')}; take 2 to {n}"
        )
    groups = np.empty(n, dtype=np.int64)
    groups[np.random.default_rng(seed).permutation(n)] = np.arange(n) % folds
    sums = sum_values(
        problem.table,
        problem.judged,
        problem.grids,
        problem.measure,
        problem.ranges,
        groups.tolist(),
        progress,
    )

    per_query: dict[str, float] = {}
    results = []
    for fold in range(folds):
        inside = np.flatnonzero(groups == fold).tolist()
        means = [np.delete(total, fold, axis=0).sum(axis=0) / (n - len(inside)) for total in sums]
        which, setting = problem.choose(means)
        grid = problem.grids[which]
        left = [problem.judged[index].query for index in inside]
        held_out = dict(zip(left, problem.values((which, setting), inside).tolist()))
        per_query.update(held_out)
        results.append(
            Fold(
                stack=str(grid.stack(setting, problem.table.signals, **problem.stack_fields)),
                normalisation=grid.normalisation,
                value=float(means[which][setting]),
                held_out=math.fsum(held_out.values()) / len(held_out),
                queries=len(held_out),
            )
        )
    final = problem.tuned([total.sum(axis=0) / n for total in sums])
    return CrossValidated(
        value=math.fsum(per_query.values()) / n,
        first_stage_value=final.first_stage_value,
        per_query={query.query: per_query[query.query] for query in problem.judged},
        folds=tuple(results),
        final=final,
    )


def problem_of(
    table: ScoreTable,
    qrels: Qrels,
    *,
    first_stage: str,
    signals: Sequence[str] = (),
    measure: str = "nDCG",
    cut: int | None = None,
    normalisations: Sequence[str] = TRIED,
    parts: int = PARTS,
    depth: int = 1000,
    versions: Mapping[str, str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
) -> Problem:
    """Make ready to choose; arguments and errors are those of :func:`tune`."""
    if first_stage not in table.signals:
        raise UsageError(
            f"the first stage {first_stage} was not scored; there are {', '.join(table.signals)}"
        )
    if not normalisations:
        raise UsageError("name one normalisation at least")
    by = RankMeasure.parse(measure, cut)
    whole, table = table, table.only(signals or table.signals)
    stack_fields: dict[str, Any] = {
        "first_stage": first_stage,
        "depth": depth,
        "versions": {name: version for name, version in (versions or {}).items() if name in table.signals},
        "bounds": {name: pair for name, pair in (bounds or {}).items() if name in table.signals},
    }
    grids = []
    for normalisation in dict.fromkeys(normalisations):
        weights, denominators = weight_grid(normalisation, len(table.signals), parts)
        grid = Grid(normalisation, weights, denominators)
        grid.stack(0, table.signals, **stack_fields)  # refuses what no stack can be, before the long work
        grids.append(grid)
    ranges = ranges_of(table.signals, normalisations, bounds)
    judged, none_relevant = judge(table, qrels, by)
    first, first_value = None, None
    if first_stage in table.signals:
        first = table.signals.index(first_stage)
    else:
        alone = [Grid("none", *weight_grid("none", 1))]
        (sums,) = sum_values(whole.only([first_stage]), judged, alone, by, None, [0] * len(judged))
        first_value = float(sums[0, 0]) / len(judged)
    return Problem(table, by, judged, none_relevant, grids, ranges, first, first_value, stack_fields)


def _with_record(tuned: Tuned) -> Tuned:
    """Put the result, in JSON values of 6 digits, into the stack's own ``tuned``."""
    record = {name: rounded(plain(value)) for name, value in vars(tuned).items() if name != "stack"}
    return replace(tuned, stack=replace(tuned.stack, tuned=record))


def rounded(value: Any) -> Any:
    """JSON values with numbers of 6 digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value
