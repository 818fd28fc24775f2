"""Compact values of a weight grid, for plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.combiners.grid import compositions

OTHERS = "the others"
"""All signals but two, with the best of their settings."""


@dataclass(frozen=True)
class WeightSurface:
    """Values over the shares of two or three signals, in even steps from 0 to 1.

    signals: the last may be :data:`OTHERS`.
    rows:    for two signals, one row over the first share; for three, a row per first share, over the second.

    >>> WeightSurface(("bm25", "text"), ("0.5 0.75 0.25",)).points()
    [((0.0, 1.0), 0.5), ((0.5, 0.5), 0.75), ((1.0, 0.0), 0.25)]
    """

    signals: tuple[str, ...]
    rows: tuple[str, ...]

    def points(self) -> list[tuple[tuple[float, ...], float]]:
        """Return (signal shares, value) pairs."""
        values = [list(map(float, row.split())) for row in self.rows]
        if len(self.signals) == 2:
            steps = len(values[0]) - 1
            return [((i / steps, 1 - i / steps), value) for i, value in enumerate(values[0])]
        steps = len(values) - 1
        return [
            ((i / steps, j / steps, (steps - i - j) / steps), value)
            for i, row in enumerate(values)
            for j, value in enumerate(row)
        ]


def surfaces(
    signals: Sequence[str], parts: int, values: NDArray[np.float64], first: int | None
) -> tuple[WeightSurface, ...]:
    """Return the surfaces of the values of ``weight_grid``. first: column of the first stage, or None.

    Two signals give a line, three a triangle; more give triangles of the first stage, one signal, and the
    rest.

    >>> compositions(3, 2).tolist()
    [[2, 0, 0], [1, 1, 0], [1, 0, 1], [0, 2, 0], [0, 1, 1], [0, 0, 2]]
    >>> surfaces(["bm25", "text", "meta"], 2, np.arange(6) / 10, 0)[0].rows
    ('0.5000 0.4000 0.3000', '0.2000 0.1000', '0.0000')
    """
    weights = compositions(len(signals), parts)
    values = values[: len(weights)]  # raw scores also have finer settings
    count = len(signals)
    if count < 2:
        return ()
    if count == 2:
        line = values[np.argsort(weights[:, 0])]
        return (WeightSurface(tuple(signals), (_row(line),)),)
    lead = first or 0
    pairs = [(0, 1)] if count == 3 else [(lead, i) for i in range(count) if i != lead]
    found = []
    for a, b in pairs:
        best = np.full((parts + 1, parts + 1), -np.inf)
        np.maximum.at(best, (weights[:, a], weights[:, b]), values)
        third = signals[2] if count == 3 else OTHERS
        rows = tuple(_row(best[i, : parts + 1 - i]) for i in range(parts + 1))
        found.append(WeightSurface((signals[a], signals[b], third), rows))
    return tuple(found)


def _row(values: NDArray[np.float64]) -> str:
    return " ".join(f"{value:.4f}" for value in values.tolist())
