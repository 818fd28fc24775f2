"""Weight settings to choose from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rerank.combiners.linear import PARTS, Linear
from rerank.errors import UsageError

Array = NDArray[np.float64]
Bounds = Mapping[str, tuple[float, float]]
Integers = NDArray[np.int64]

RAW_PARTS = 1000
RAW_LEVELS = (0, 1, 3, 10, 30, 100, 300, 1000)
"""The logarithmic grid for raw scores, in thousandths; see :func:`weight_grid`."""

SAME = 1e-12
"""Means this close are equal: only the order of additions differs."""

_TOO_MANY = 250_000  # settings of one grid


def compositions(n_signals: int, parts: int = PARTS) -> Integers:
    """Return all ways to split ``parts``: (G, n_signals) integers in descending lexicographic order.

    G = (parts + n_signals - 1) choose (n_signals - 1).

    Raises UsageError for more than 250,000 rows.

    >>> compositions(2, 2).tolist(), len(compositions(3))
    ([[2, 0], [1, 1], [0, 2]], 231)
    """
    if n_signals < 1 or parts < 1:
        raise UsageError("a weight grid needs one signal and one part at least")
    if math.comb(parts + n_signals - 1, n_signals - 1) > _TOO_MANY:
        raise UsageError(
            f"{n_signals} signals in steps of 1/{parts} make more than {_TOO_MANY:,} settings; "
            "take fewer signals or a coarser step"
        )
    # Stars and bars: n_signals - 1 bars in parts + n_signals - 1 places separate the parts.
    places = parts + n_signals - 1
    chosen = list(itertools.combinations(range(places), n_signals - 1))
    bars = np.array(chosen, dtype=np.int64).reshape(len(chosen), n_signals - 1)
    left = np.full((len(bars), 1), -1, dtype=np.int64)
    right = np.full((len(bars), 1), places, dtype=np.int64)
    dealt: Integers = np.diff(np.concatenate([left, bars, right], axis=1), axis=1) - 1
    descending: Integers = np.flip(dealt, axis=0).copy()
    return descending


def weight_grid(normalization: str, n_signals: int, parts: int = PARTS) -> tuple[Integers, Integers]:
    """Return settings for a normalization: weights (G, S), and their parts (G,).

    ``none`` adds a logarithmic grid of :data:`RAW_LEVELS`, because raw scores differ by orders of magnitude.

    >>> weights, parts = weight_grid("none", 2)
    >>> len(weights), weights[-1].tolist(), int(parts[-1])
    (33, [1, 1000], 1000)
    """
    even = compositions(n_signals, parts)
    denominators = np.full(len(even), parts, dtype=np.int64)
    if normalization != "none":
        return even, denominators
    levels = RAW_LEVELS if len(RAW_LEVELS) ** n_signals <= _TOO_MANY else RAW_LEVELS[::2] + RAW_LEVELS[-1:]
    seen = {_direction(row) for row in even.tolist()}
    raw = []
    for row in sorted(itertools.product(levels, repeat=n_signals), reverse=True):
        if max(row) == RAW_PARTS and _direction(row) not in seen:
            seen.add(_direction(row))
            raw.append(row)
    if not raw:
        return even, denominators
    return (
        np.concatenate([even, np.array(raw, dtype=np.int64)]),
        np.concatenate([denominators, np.full(len(raw), RAW_PARTS, dtype=np.int64)]),
    )


def _direction(row: Sequence[int]) -> tuple[int, ...]:
    divisor = math.gcd(*row)
    return tuple(weight // divisor for weight in row)


class Grid:
    """Weight settings for one normalization.

    weights: (G, S) integers. parts: (G,) how many make 1.
    levels:  distinct weights per signal, ascending. at: (G, S) positions in ``levels``.
    """

    def __init__(self, normalization: str, weights: Integers, parts: Integers) -> None:
        self.normalization, self.weights, self.parts = normalization, weights, parts
        values = weights / parts[:, None]  # rounded once, as in Linear.values
        found = [np.unique(column, return_inverse=True) for column in values.T]
        self.levels: list[Array] = [levels for levels, _ in found]
        self.at: Integers = np.stack([at.reshape(-1) for _, at in found], axis=1)

    def __len__(self) -> int:
        return len(self.weights)

    def share(self, setting: int) -> tuple[Fraction, ...]:
        """Return each signal's share of the weight."""
        row = self.weights[setting].tolist()
        return tuple(Fraction(weight, sum(row)) for weight in row)

    def choose(self, values: Array, first: int | None) -> int:
        """Return the best setting. first: column of the first stage, or None.

        Ties: most weight on the first stage, then closest to equal weights, then earlier signals.
        """
        tied = np.flatnonzero(values >= values.max() - SAME).tolist()
        if len(tied) == 1:
            return int(tied[0])
        equal = Fraction(1, self.weights.shape[1])

        def preference(setting: int) -> tuple[Fraction, Fraction, tuple[Fraction, ...]]:
            shares = self.share(setting)
            own = Fraction(0) if first is None else shares[first]
            return own, -sum(((share - equal) ** 2 for share in shares), Fraction(0)), shares

        return int(max(tied, key=preference))

    def only(self, setting: int) -> Grid:
        """Return a grid with one setting."""
        return Grid(self.normalization, self.weights[[setting]], self.parts[[setting]])

    def linear(self, setting: int, signals: Sequence[str], bounds: Bounds) -> Linear:
        """Return a setting as a combiner. bounds: signal -> range."""
        weights = tuple(self.weights[setting].tolist())
        return Linear(tuple(signals), weights, int(self.parts[setting]), self.normalization, bounds)
