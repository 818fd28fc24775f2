"""The numbers of the report that no library has in this shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of a box: whiskers, box and median."""
BINS = 40
"""Columns of a histogram."""


def nearer(near: NDArray[np.floating], far: NDArray[np.floating]) -> float | None:
    """Probability that one of ``near`` is below one of ``far``; equal counts half (area under the ROC curve).

    (n,), (m,) -> 0 to 1, None where either is empty.

    >>> nearer(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    0.625
    """
    if not len(near) or not len(far):
        return None
    ranked = np.sort(far)
    below = len(far) - np.searchsorted(ranked, near, side="right")
    same = np.searchsorted(ranked, near, side="right") - np.searchsorted(ranked, near, side="left")
    return float((below + same / 2).mean() / len(far))


def quantiles(values: NDArray[np.floating]) -> list[float] | None:
    """Quantiles SHARES, linear between neighbours; None of nothing.

    >>> quantiles(np.arange(101.0))
    [5.0, 25.0, 50.0, 75.0, 95.0]
    """
    return [float(q) for q in np.quantile(values, SHARES)] if len(values) else None


def histogram(values: NDArray[np.floating], edges: NDArray[np.floating]) -> list[float]:
    """Share of the values in each bin; what lies outside is in the first or the last one."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return [float(c) for c in counts / max(1, len(values))]


@dataclass(frozen=True)
class Order:
    """How well distances keep an order that is known.

    sets:        how often documents of one anchor, one of each group, were put in order.
    correlation: mean rank correlation (Spearman) of group and distance within a set.
    exact, one_off, farther: share of the documents whose place is that of their group, the one beside it, or
    another; chance_exact, chance_one_off: what a random order gives.
    """

    sets: int
    correlation: float
    exact: float
    one_off: float
    farther: float
    chance_exact: float
    chance_one_off: float


def order_kept(sets: NDArray[Any], groups: NDArray[np.integer], values: NDArray[np.floating]) -> Order | None:
    """Compare the order of distances with that of the groups, set by set; each has a group at most once.

    sets, groups, values: (P,) which set, which group (0 is to be the nearest), distance. Sets of fewer than
    two are left out; None where all are.

    >>> order_kept(np.array([0, 0, 0]), np.array([0, 1, 2]), np.array([0.2, 0.1, 0.9])).exact.__round__(3)
    0.333
    """
    correlations: list[float] = []
    errors: list[NDArray[np.int64]] = []
    sizes: list[int] = []
    by_set = np.argsort(sets, kind="stable")
    for members in np.split(by_set, np.flatnonzero(np.diff(sets[by_set])) + 1):
        size = len(members)
        if size < 2:
            continue
        wanted, found = _places(groups[members]), _places(values[members])
        assert len(np.unique(groups[members])) == size, "a set has a group twice"
        correlations.append(float(np.corrcoef(wanted, found)[0, 1]) if np.ptp(found) else 0.0)
        errors.append(np.ceil(np.abs(wanted - found)).astype(np.int64))
        sizes.append(size)
    if not errors:
        return None
    wrong = np.concatenate(errors)
    n = np.array(sizes, dtype=np.float64)
    return Order(
        sets=len(sizes),
        correlation=float(np.mean(correlations)),
        exact=float((wrong == 0).mean()),
        one_off=float((wrong == 1).mean()),
        farther=float((wrong > 1).mean()),
        chance_exact=float(len(n) / n.sum()),
        chance_one_off=float((2 * (n - 1) / n).sum() / n.sum()),
    )


def _places(values: NDArray[Any]) -> NDArray[np.float64]:
    """Rank of each value from 0, the mean rank among equal ones."""
    from scipy.stats import rankdata

    ranks: NDArray[np.float64] = rankdata(values) - 1
    return ranks
