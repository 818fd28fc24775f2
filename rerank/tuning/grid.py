"""Weight settings to choose from: a grid of G settings has (G, S) weights for S signals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.stack.linear import DECIMALS, Linear
from rerank.stack.normalize import Moments

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

PARTS = 20
"""By default, weights are twentieths."""

RAW_PARTS = 1000
RAW_LEVELS = (0, 1, 3, 10, 30, 100, 300, 1000)
"""The logarithmic grid for raw scores, in thousandths; see :func:`weight_grid`."""

SAME = 1e-12
"""Means this close are equal: only the order of additions differs."""

SHARE_TOLERANCE = 1e-9
"""A share of the weight may be lower by this much, because sums of floats are rounded."""

MAX_SETTINGS = 250_000
"""Most settings of a complete grid."""


@dataclass(frozen=True)
class GridLimits:
    """Which weights may be chosen.

    parts:       weights are multiples of 1 / parts.
    column:      the column of the first stage among the signals, or None if it is not a signal.
    least_share: smallest share of the weight for the first stage.
    """

    parts: int = PARTS
    column: int | None = None
    least_share: float = 0.0

    def allows(self, shares: Array) -> NDArray[np.bool_]:
        """Return which settings may be chosen, (G,).

        shares: (G, S) weights of the settings, divided by their sum.
        """
        if self.column is None:
            return np.ones(len(shares), np.bool_)
        return np.asarray(shares[:, self.column] >= self.least_share - SHARE_TOLERANCE)


def compositions(n_signals: int, parts: int = PARTS) -> Integers:
    """Return all ways to split ``parts``: (G, n_signals) integers in descending lexicographic order.

    G is :func:`count_compositions`.
    """
    # Stars and bars: n_signals - 1 bars in parts + n_signals - 1 positions separate the parts.
    n_positions = parts + n_signals - 1
    combinations = list(itertools.combinations(range(n_positions), n_signals - 1))
    bars = np.array(combinations, dtype=np.int64).reshape(len(combinations), n_signals - 1)
    ascending: Integers = np.diff(bars, axis=1, prepend=-1, append=n_positions) - 1
    descending: Integers = ascending[::-1].copy()
    return descending


def count_compositions(n_signals: int, parts: int = PARTS) -> int:
    """Return G, the number of rows of :func:`compositions`.

    >>> count_compositions(3), len(compositions(3))
    (231, 231)
    """
    return math.comb(parts + n_signals - 1, n_signals - 1)


def weight_grid(normalization: str, n_signals: int, parts: int = PARTS) -> Array:
    """Return the complete grid of a normalization: (G, S) weights.

    First come the :func:`compositions`. The normalization ``none`` adds a logarithmic grid of
    :data:`RAW_LEVELS`, because raw scores differ by orders of magnitude.
    """
    even = compositions(n_signals, parts)
    if normalization != "none":
        return even / parts
    raw = _logarithmic_settings(n_signals)
    directions = set(map(_direction, even.tolist()))
    raw = [setting for setting in raw if _direction(setting) not in directions]
    return np.concatenate([even / parts, np.reshape(raw, (-1, n_signals)) / RAW_PARTS])


def _logarithmic_settings(n_signals: int) -> list[tuple[int, ...]]:
    """Return settings of :data:`RAW_LEVELS` with different proportions, in descending order.

    The largest weight of each is RAW_PARTS, so that no proportions come twice.
    """
    levels: Sequence[int] = RAW_LEVELS
    if len(levels) ** n_signals > MAX_SETTINGS:
        levels = RAW_LEVELS[::2] + RAW_LEVELS[-1:]
    settings = itertools.product(sorted(levels, reverse=True), repeat=n_signals)
    return [setting for setting in settings if max(setting) == RAW_PARTS]


def _direction(setting: Sequence[int]) -> tuple[int, ...]:
    """Return the setting with the same proportions in the smallest whole numbers."""
    divisor = math.gcd(*setting)
    return tuple(weight // divisor for weight in setting)


class Grid:
    """Weight settings for one normalization.

    weights: (G, S), rounded as in Linear.
    spread:  (S,) standard deviations of the normalized scores, to compare weights of raw scores.
    moments: of each signal, only for the normalization ``fitted``.
    """

    def __init__(
        self,
        normalization: str,
        weights: Array,
        spread: Array | float = 1.0,
        moments: Sequence[Moments] = (),
    ) -> None:
        self.normalization = normalization
        self.weights = weights.round(DECIMALS) + 0.0  # never -0.0
        self.spread = spread
        self.moments = tuple(moments)

    def __len__(self) -> int:
        return len(self.weights)

    def robust_setting(self, values: Array, tolerance: float) -> int:
        """Return the position of a setting among the best ones that noise would not change.

        It is the closest to the mean of all settings whose value is at most ``tolerance`` below the best.

        values: (G,) mean of the measure for each setting.
        """
        return self.closest(self.effects()[values >= values.max() - tolerance].mean(axis=0))

    def effects(self) -> Array:
        """Return the weights as if all signals had the same spread, (G, S). Rows sum to 1."""
        effects = self.weights * self.spread
        return np.asarray(effects / effects.sum(axis=1, keepdims=True))

    def closest(self, effects: Array) -> int:
        """Return the position of the setting with the most similar effects.

        effects: (S,), a row of :meth:`effects` or a mean of rows.
        """
        return int(np.abs(self.effects() - effects).sum(axis=1).round(DECIMALS).argmin())

    def choose(self, values: Array, first: int | None) -> int:
        """Return the position of the best setting.

        Ties: most weight on the first stage, then closest to equal weights, then earlier signals.

        values: (G,) mean of the measure for each setting.
        first:  column of the first stage, or None if it has no weight.
        """
        tied = np.flatnonzero(values >= values.max() - SAME)
        shares = self.weights[tied] / self.weights[tied].sum(axis=1, keepdims=True)
        uneven = ((shares - 1 / shares.shape[1]) ** 2).sum(axis=1)
        lead = np.zeros(len(tied)) if first is None else shares[:, first]
        preferences = np.column_stack([lead, -uneven, shares]).round(DECIMALS).tolist()
        return int(tied[preferences.index(max(preferences))])

    def select(self, settings: Integers) -> Grid:
        """Return the grid with only the settings at these (K,) positions."""
        return Grid(self.normalization, self.weights[settings], self.spread, self.moments)

    def linear(self, setting: int, signals: Sequence[str]) -> Linear:
        """Return the setting at this position as a combiner of these signals."""
        weights = tuple(self.weights[setting].tolist())
        return Linear(tuple(signals), weights, self.normalization, self.moments)
