"""Coarse-to-fine search for weights, if the full grid is too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rerank.tuning.grid import compositions

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Setting = tuple[int, ...]

COARSE = 300  # most settings of the first grid
BEAM = 6  # settings whose neighbors are measured


def shortlist(n_signals: int, parts: int, measure: Callable[[Integers], Array], kept: int) -> Integers:
    """Return settings to measure on all queries: (K, n_signals), rows sum to ``parts``.

    measure: (G, n_signals) integer weights -> (G,) values.

    Starts with a coarse grid, then moves parts between signals in smaller steps. Keeps the ``kept`` best
    settings, the best without each signal, and single signals.
    """
    values: dict[Setting, float] = {}

    def measured(settings: Iterable[Setting]) -> None:
        new = [one for one in dict.fromkeys(settings) if one not in values]
        if new:
            values.update(zip(new, measure(np.array(new, dtype=np.int64)).tolist()))

    def best(count: int, absent: int | None = None) -> list[Setting]:
        allowed = (one for one in values if absent is None or not one[absent])
        return sorted(allowed, key=lambda one: (-values[one], one))[:count]

    def climb(width: int, step: int, absent: int | None = None) -> None:
        beam: list[Setting] = []
        while (found := best(width, absent)) != beam:
            beam = found
            measured(one for setting in beam for one in _neighbors(setting, step, absent))

    # The finest even grid of at most COARSE settings.
    steps = next((n for n in (5, 4, 3, 2) if math.comb(n + n_signals - 1, n) <= COARSE), 1)
    measured(_rounded(one, parts) for one in compositions(n_signals, steps).tolist())
    singles = [tuple(parts * (i == signal) for i in range(n_signals)) for signal in range(n_signals)]
    measured(singles)
    for step in sorted({max(parts // 10, 1), max(parts // 20, 1), 1}, reverse=True):
        climb(BEAM, step)
        for signal in range(n_signals):
            climb(2, step, signal)
    without = [one for signal in range(n_signals) for one in best(1, signal)]
    return np.array(list(dict.fromkeys((*best(kept), *without, *singles))), dtype=np.int64)


def _rounded(setting: Setting, parts: int) -> Setting:
    """Scale to ``parts``; the largest weight gets the remainder."""
    total = sum(setting)
    scaled = [weight * parts // total for weight in setting]
    scaled[scaled.index(max(scaled))] += parts - sum(scaled)
    return tuple(scaled)


def _neighbors(setting: Sequence[int], step: int, absent: int | None) -> Iterable[Setting]:
    for giver, weight in enumerate(setting):
        for taker in range(len(setting)):
            if weight and taker not in (giver, absent):
                moved = list(setting)
                amount = min(step, weight)
                moved[giver] -= amount
                moved[taker] += amount
                yield tuple(moved)
