"""Significance test over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import ttest_rel


def seeds_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t-test over seeds.

    A side with one value uses this value for all seeds. Returns None for fewer than two seeds, different
    numbers of seeds, or equal differences.
    """
    size = max(len(first), len(second))
    if size < 2 or not {len(first), len(second)} <= {1, size}:
        return None
    one, other = (np.full(size, of[0]) if len(of) == 1 else np.asarray(of) for of in (first, second))
    return float(ttest_rel(one, other).pvalue) if np.ptp(one - other) >= 1e-12 else None
