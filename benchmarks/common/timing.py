"""Measure durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def seconds_of(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that an action takes, in wall time or by another clock."""
    begin = clock()
    action()
    return clock() - begin


def p50(action: Callable[[], object], times: int) -> float:
    """Return the median milliseconds of several runs of an action."""
    return 1000 * median(seconds_of(action) for _ in range(times))
