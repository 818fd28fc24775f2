"""Compute the verdict on a claim from the mean difference over seeds and its standard error.

For each seed, the result files contain the mean difference over the queries and the p-value of a paired
randomization test. They contain no values per query. The standard error of a seed is its difference divided
by the normal quantile of p. All seeds share their queries. Therefore the standard error of the mean over
seeds is at most the mean of the standard errors. This module uses this bound, so p is also an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf
from statistics import NormalDist, fmean

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "not decided"
SAME_DIRECTION, OTHER_DIRECTION = "not tested (same direction)", "not tested (other direction)"
NOTHING_LEARNED, NO_DATA, NOT_RUN = "nothing was learned", "no data", "not run yet"
SIGNIFICANT = 0.05
MARGIN = 0.01
"""Smaller differences count as no difference. For a measure near 1: a tenth of the distance to 1."""

_NORMAL = NormalDist()
_ONE_SIDED = _NORMAL.inv_cdf(1 - SIGNIFICANT)


@dataclass(frozen=True)
class Difference:
    """The mean difference over seeds.

    error:  upper bound of the standard error. Infinite if no p-value gives a standard error. None if a seed
            has no test.
    margin: smaller differences count as no difference.
    """

    mean: float
    error: float | None
    margin: float = MARGIN

    @property
    def p(self) -> float | None:
        """Return the two-sided p-value, or None without a test."""
        if self.error is None:
            return None
        return 1.0 if isinf(self.error) or not self.mean else 2 * _NORMAL.cdf(-abs(self.mean) / self.error)

    def above(self) -> str:
        """Return the verdict on a claim that this difference is positive."""
        if self.error is None:
            return untested(self.mean > 0)
        if self._significant():
            return HOLDS if self.mean > 0 else FAILS
        return FAILS if self._within_margin() else UNDECIDED

    def below(self) -> str:
        """Return the verdict on a claim that this difference is negative."""
        return replace(self, mean=-self.mean).above()

    def keeps(self) -> str:
        """Return the verdict on a claim that the measure does not drop."""
        if self.error is None:
            return untested(self.mean >= 0)
        if self._significant() and self.mean < 0:
            return FAILS
        return HOLDS if self.mean - _ONE_SIDED * self.error > -self.margin else UNDECIDED

    def equal(self) -> str:
        """Return the verdict on a claim that both sides are equal."""
        if self.error is None:
            return untested(abs(self.mean) < MARGIN)
        if self._significant():
            return FAILS
        return HOLDS if self._within_margin() else UNDECIDED

    def _significant(self) -> bool:
        return self.p is not None and self.p < SIGNIFICANT

    def _within_margin(self) -> bool:
        return self.error is not None and abs(self.mean) + _ONE_SIDED * self.error < self.margin


def difference(
    deltas: Sequence[float], ps: Sequence[float | None], baseline: float | None = None
) -> Difference:
    """Return the difference over several seeds, from the mean difference and p-value of each seed.

    baseline: value of the measure before the difference. It lowers the margin for measures near 1.
    A p-value of 1 gives no standard error. Such a seed uses the largest standard error of the other seeds.
    """
    mean = fmean(deltas)
    margin = MARGIN if baseline is None else min(MARGIN, (1 - baseline) / 10)
    tested = [p for p in ps if p is not None]
    if len(tested) < len(ps) or not tested:
        return Difference(mean, None, margin)
    errors = [_error(delta, p) for delta, p in zip(deltas, tested, strict=True)]
    largest = max((error for error in errors if error is not None), default=inf)
    return Difference(mean, fmean(largest if error is None else error for error in errors), margin)


def _error(delta: float, p: float) -> float | None:
    quantile = _NORMAL.inv_cdf(1 - p / 2)
    return abs(delta) / quantile if delta and quantile > 0 else None


def untested(right: bool) -> str:
    """Return the verdict without a p-value, from the direction only."""
    return SAME_DIRECTION if right else OTHER_DIRECTION


def all_of(verdicts: Iterable[str]) -> str:
    """Return the verdict on a claim with several parts."""
    found = {*verdicts}
    order = (NOT_RUN, FAILS, UNDECIDED, OTHER_DIRECTION, SAME_DIRECTION)
    return next((one for one in order if one in found), HOLDS)
