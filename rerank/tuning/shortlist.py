"""Coarse-to-fine search for weights, if the full grid is too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rerank.common.values import items_not_in
from rerank.tuning.grid import compositions, count_compositions

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Setting = tuple[int, ...]

COARSE = 300  # most settings of the first grid
BEAM = 6  # settings whose neighbors are measured


def shortlist(n_signals: int, parts: int, measure: Callable[[Integers], Array], size: int) -> Integers:
    """Return the settings to measure on all queries: (K, n_signals) integers, rows sum to ``parts``.

    The search starts with a coarse grid, and then moves parts between signals in smaller and smaller steps.
    It returns the best settings, the best one without each signal, and each signal without others.

    parts:   weights are multiples of 1 / parts.
    measure: (G, n_signals) integer weights -> (G,) values, which may be estimates.
    size:    number of best settings.
    """
    search = _WeightSearch(n_signals, measure)
    coarse_settings = compositions(n_signals, _coarse_parts(n_signals)).tolist()
    search.measure(_rounded(setting, parts) for setting in coarse_settings)
    single_signals = list(map(tuple, (np.eye(n_signals, dtype=np.int64) * parts).tolist()))
    search.measure(single_signals)

    step_sizes = {max(parts // 10, 1), max(parts // 20, 1), 1}
    for step in sorted(step_sizes, reverse=True):
        search.climb(BEAM, step)
        for signal in range(n_signals):
            search.climb(2, step, absent=signal)

    settings = search.best(size)
    for signal in range(n_signals):
        settings += search.best(1, absent=signal)
    settings += single_signals
    return np.array(list(dict.fromkeys(settings)), dtype=np.int64)


def _coarse_parts(n_signals: int) -> int:
    """Return the parts of the finest even grid of at most COARSE settings."""
    for parts in (5, 4, 3, 2):
        if count_compositions(n_signals, parts) <= COARSE:
            return parts
    return 1


class _WeightSearch:
    """Measured settings, and the steps of the search from the best ones.

    values: setting -> its value.
    """

    def __init__(self, n_signals: int, measure: Callable[[Integers], Array]) -> None:
        self.n_signals = n_signals
        self.values: dict[Setting, float] = {}
        self._measure = measure

    def measure(self, settings: Iterable[Setting]) -> None:
        """Measure the settings that have no value yet."""
        new = items_not_in(dict.fromkeys(settings), self.values)
        if new:
            self.values.update(zip(new, self._measure(np.array(new, dtype=np.int64)).tolist()))

    def best(self, count: int, absent: int | None = None) -> list[Setting]:
        """Return at most ``count`` best settings, best first.

        absent: position of a signal that must have no weight.
        """
        allowed = list(self.values)
        if absent is not None:
            allowed = [setting for setting in allowed if not setting[absent]]
        return sorted(allowed, key=lambda setting: (-self.values[setting], setting))[:count]

    def climb(self, width: int, step: int, absent: int | None = None) -> None:
        """Measure the neighbors of the ``width`` best settings until these stay the same.

        step:   number of parts that move from one signal to another.
        absent: position of a signal that must have no weight.
        """
        beam: list[Setting] = []
        best = self.best(width, absent)
        while best != beam:
            beam = best
            neighbors: list[Setting] = []
            for setting in beam:
                neighbors += _neighbors(setting, step, absent)
            self.measure(neighbors)
            best = self.best(width, absent)


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
