"""Normalization of scores: the signals of a stack have other scales, so raw scores cannot be added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError

Array = NDArray[np.float64]

FITTED = "fitted"
"""The method whose statistics come from the dev candidates, so that no other candidate changes a score."""

TRIED = ("min-max", "z-score", "none", FITTED)
"""Methods to try if the first stages of rerank find all candidates; ``none`` only for many queries."""

PER_QUERY = ("min-max", "z-score", "rank")
"""Methods that ignore the scale of scores, to try if other searches can find candidates."""

NORMALIZATIONS = (*PER_QUERY, "none", FITTED)
"""All methods; see :func:`normalize`."""

NOISE = 1e-6
"""Largest relative difference of a constant signal: in fp32, equal documents can differ in the last bits."""

EXACT = "field:"
"""Prefix of signals that are stored numbers, such as dates: they have no noise."""

LARGEST = 1e100
"""Largest magnitude of a score in a sum: larger ones count as this one, so that sums stay finite."""


class Moments(NamedTuple):
    """Mean and population standard deviation of a signal's scores."""

    mean: float
    deviation: float

    @classmethod
    def from_scores(cls, scores: NDArray[Any]) -> Moments:
        """Return the moments of (n,) scores. Without scores, both are 0.

        Sums of sorted numbers are equal for any order of the scores.
        """
        if not len(scores):
            return cls(0.0, 0.0)
        ordered = np.sort(np.asarray(scores, dtype=np.float64).clip(-LARGEST, LARGEST))
        mean = float(ordered.sum()) / len(ordered)
        variance = float(((ordered - mean) ** 2).sum()) / len(ordered)
        return cls(mean, math.sqrt(variance))


def normalize(
    scores: NDArray[Any], method: str, moments: Sequence[Moments] = (), signals: Sequence[str] = ()
) -> Array:
    """Normalize one query's scores per column: (n, S) -> (n, S) float64.

        min-max   (x - min) / (max - min); 0 if constant
        z-score   (x - mean) / population standard deviation; 0 if constant
        rank      share of other candidates with lower scores; ties count half
        none      x
        fitted    (x - mean) / deviation, with S stored ``moments``; 0 if the deviation is 0

    The differences of a computed score up to ``NOISE`` times the largest magnitude of its column are noise: a
    column with only such differences is constant. Values of ``field:`` signals are exact.

    scores: must be finite. Their order does not change the result.
    signals: S names of the columns; without them, all columns are computed scores.

    Raises UsageError for an unknown method.
    """
    # A copy with one row per signal: the caller's memory layout must not change the result.
    columns: Array = np.array(np.asarray(scores).T, dtype=np.float64, order="C")  # (S, n)
    check_normalization(method)
    if columns.size == 0:
        return np.transpose(columns)
    if method == "none":
        return np.transpose(columns.clip(-LARGEST, LARGEST))
    if method == FITTED:
        normalized = list(map(_fitted, columns.clip(-LARGEST, LARGEST), moments))
        return np.transpose(np.array(normalized))
    noise = _remove_noise(columns, signals)
    if method == "rank":
        normalized = list(map(_rank, columns, noise.tolist()))
    elif method == "min-max":
        normalized = list(map(_min_max, columns))
    else:
        normalized = list(map(_z_score, columns))
    return np.transpose(np.array(normalized))


def _remove_noise(columns: Array, signals: Sequence[str]) -> Array:
    """Set the scores of constant signals to 0, in place, and return the noise of each signal, (S,).

    columns: (S, n) scores. Extreme ones are divided by the largest, which the methods for a query ignore.
    """
    largest = np.abs(columns).max(axis=1)
    # Differences and squares of extreme numbers are not finite or 0.
    extreme = (largest > LARGEST) | ((largest > 0) & (largest < 1 / LARGEST))
    columns[extreme] /= largest[extreme, None]
    largest[extreme] = 1.0
    noise: Array = NOISE * largest
    if signals:
        noise[[name.startswith(EXACT) for name in signals]] = 0.0
    columns[columns.max(axis=1) - columns.min(axis=1) <= noise] = 0.0
    return noise


def check_normalization(method: str) -> None:
    """Raise UsageError for a normalization that is not among :data:`NORMALIZATIONS`."""
    if method not in NORMALIZATIONS:
        raise UsageError(f"unknown normalization {method!r}; choose one of {', '.join(NORMALIZATIONS)}")


def _fitted(column: Array, moments: Moments) -> Array:
    mean, deviation = moments
    return (column - mean) / deviation if deviation > 0 else np.zeros_like(column)


def _min_max(column: Array) -> Array:
    low = column.min()
    spread = column.max() - low
    return (column - low) / spread if spread > 0 else np.zeros_like(column)


def _z_score(column: Array) -> Array:
    return _fitted(column, Moments.from_scores(column))


def _rank(column: Array, noise: float) -> Array:
    """Differences within the noise are ties."""
    steps = np.rint(column / noise) if noise else column
    ordered = np.sort(steps)
    # Ties count half.
    below = (np.searchsorted(ordered, steps, "left") + np.searchsorted(ordered, steps, "right") - 1) / 2
    shares: Array = below / (len(column) - 1) if ordered[0] < ordered[-1] else np.zeros_like(column)
    return shares
