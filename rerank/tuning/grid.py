"""The settings a stack's weights are chosen from, and a form of them that is quick to add up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.stack.stack import PARTS, Stack

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

RAW_PARTS = 1000
RAW_LEVELS = (0, 1, 3, 10, 30, 100, 300, 1000)
"""The logarithmic grid for raw scores, in thousandths; see :func:`weight_grid`."""

SAME = 1e-12
"""Means this close are one value: they differ by the order of additions alone."""

_TOO_MANY = 250_000  # settings of one grid


def compositions(n_signals: int, parts: int = PARTS) -> Integers:
    """Return every way to deal ``parts`` out to ``n_signals``: (G, n_signals) integers, rows sum to parts.

    Rows are in descending lexicographic order, so the first one gives everything to the first signal.
    G = (parts + n_signals - 1) choose (n_signals - 1): 21 for two signals, 231 for three, 1,771 for four.

    Raises UsageError when there would be more than 250,000.

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
    # Stars and bars: the parts lie between n_signals - 1 bars among parts + n_signals - 1 places.
    places = parts + n_signals - 1
    chosen = list(itertools.combinations(range(places), n_signals - 1))
    bars = np.array(chosen, dtype=np.int64).reshape(len(chosen), n_signals - 1)
    left = np.full((len(bars), 1), -1, dtype=np.int64)
    right = np.full((len(bars), 1), places, dtype=np.int64)
    dealt: Integers = np.diff(np.concatenate([left, bars, right], axis=1), axis=1) - 1
    descending: Integers = np.flip(dealt, axis=0).copy()
    return descending


def weight_grid(normalisation: str, n_signals: int, parts: int = PARTS) -> tuple[Integers, Integers]:
    """Return the settings that are tried for a normalisation: weights (G, S), and their parts (G,).

    The compositions of ``parts``; for ``none``, a logarithmic grid beside them. Raw scores of different
    signals differ by orders of magnitude (bm25 reaches 50, a cosine 1), so the best weights of raw scores
    lie close to 0, between the points of an even grid. Each weight there is one of 0, 1, 3, 10, 30, 100, 300,
    1000 thousandths and one of them is 1000 (the scale of all weights does not matter): 169 more settings for
    three signals, less those that an even composition already is.

    >>> weights, parts = weight_grid("none", 2)
    >>> len(weights), weights[-1].tolist(), int(parts[-1])
    (33, [1, 1000], 1000)
    """
    even = compositions(n_signals, parts)
    denominators = np.full(len(even), parts, dtype=np.int64)
    if normalisation != "none":
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


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive settings whose weights move in even steps: views of the weighted scores, not copies.

    rows: the settings, as rows of a block of combined scores; levels: per signal, rows of its table.
    """

    rows: slice
    levels: tuple[slice, ...]


class Grid:
    """A weight grid, prepared for combining: each signal's distinct weights, and the runs of settings."""

    def __init__(self, normalisation: str, weights: Integers, parts: Integers) -> None:
        self.normalisation = normalisation
        self.weights = weights  # (G, S)
        self.parts = parts  # (G,)
        values = weights / parts[:, None]  # rounded once, as in Stack.weight_values
        self.levels: list[Array] = []  # per signal: its distinct weights, ascending
        self._at = np.empty_like(weights)  # (G, S) index of each weight among the signal's levels
        for signal in range(weights.shape[1]):
            levels, at = np.unique(values[:, signal], return_inverse=True)
            self.levels.append(levels)
            self._at[:, signal] = at.reshape(-1)
        self._blocks: dict[int, list[tuple[int, int, list[Run]]]] = {}

    def blocks(self, height: int) -> list[tuple[int, int, list[Run]]]:
        """Cut the settings into blocks of ``height``: (first, one past the last, runs) of each."""
        if height not in self._blocks:
            self._blocks[height] = [
                (start, min(start + height, len(self)), _runs(self._at[start : start + height]))
                for start in range(0, len(self), height)
            ]
        return self._blocks[height]

    def __len__(self) -> int:
        return len(self.weights)

    def share(self, setting: int) -> tuple[Fraction, ...]:
        """Return each signal's part of the whole weight."""
        row = self.weights[setting].tolist()
        return tuple(Fraction(weight, sum(row)) for weight in row)

    def choose(self, values: Array, first: int | None) -> int:
        """Return the best of the settings; ``first`` is the column of the first stage, if it has one.

        Ties: more weight on the first stage, then nearest to equal weights, then the first signals first.
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
        """Return the grid that has just this setting."""
        return Grid(self.normalisation, self.weights[[setting]], self.parts[[setting]])

    def stack(self, setting: int, signals: Sequence[str], **fields: Any) -> Stack:
        """Return a setting as a stack; ``fields`` are the stack's remaining ones."""
        return Stack(
            signals=tuple(signals),
            weights=tuple(self.weights[setting].tolist()),
            parts=int(self.parts[setting]),
            normalisation=self.normalisation,
            **fields,
        )


def _runs(at: Integers) -> list[Run]:
    """Cut rows of level indices (G, S) into as few runs of a constant step as going forward finds."""
    runs = []
    rows = at.tolist()
    start = 0
    while start < len(rows):
        end = start + 1
        steps = [0] * at.shape[1]
        if end < len(rows):
            steps = [after - before for before, after in zip(rows[start], rows[end])]
            while end < len(rows) and [b - a for a, b in zip(rows[end - 1], rows[end])] == steps:
                end += 1
        levels = []
        for first, step in zip(rows[start], steps):
            stop = first + step * (end - start)
            if step == 0:
                levels.append(slice(first, first + 1))
            else:
                levels.append(slice(first, stop if stop >= 0 else None, step))
        runs.append(Run(slice(start, end), tuple(levels)))
        start = end
    return runs
