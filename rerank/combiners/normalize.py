"""Normalization of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError

Array = NDArray[np.float64]

FITTED = "fitted"
"""The method whose statistics come from the dev candidates, so that no other candidate changes a score."""

TRIED = ("min-max", "z-score", "none", FITTED)
"""Methods to try if the first stages of rerank find all candidates."""

PER_QUERY = ("min-max", "z-score", "rank")
"""Methods that ignore the scale of scores, to try if other searches can find candidates."""

NORMALIZATIONS = (*PER_QUERY, "none", FITTED)
"""All methods; see :func:`normalize`."""

NOISE = 1e-6
"""Largest relative difference of a constant signal: in fp32, equal documents can differ in the last bits."""


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
        ordered = np.sort(np.asarray(scores, dtype=np.float64))
        mean = float(ordered.sum()) / len(ordered)
        variance = float(((ordered - mean) ** 2).sum()) / len(ordered)
        return cls(mean, math.sqrt(variance))


def normalize(scores: NDArray[Any], method: str, moments: Sequence[Moments] = ()) -> Array:
    """Normalize one query's scores per column: (n, S) -> (n, S) float64.

        min-max   (x - min) / (max - min); 0 if constant
        z-score   (x - mean) / population standard deviation; 0 if constant
        rank      share of other candidates with lower scores; ties count half
        none      x
        fitted    (x - mean) / deviation, with S stored ``moments``; 0 if the deviation is 0

    Columns are constant if max - min is at most ``NOISE`` times the largest magnitude. Scores must be finite.
    Candidate order does not change the result.
    Raises UsageError for an unknown method.
    """
    # A copy with one row per signal: the caller's memory layout must not change the result.
    columns: Array = np.array(np.asarray(scores).T, dtype=np.float64, order="C")  # (S, n)
    check_normalization(method)
    if method == "none" or columns.size == 0:
        return np.transpose(columns)
    if method == FITTED:
        return np.transpose(np.array([_fitted(column, *each) for column, each in zip(columns, moments)]))
    low, high = columns.min(axis=1), columns.max(axis=1)
    constant = high - low <= NOISE * np.maximum(np.abs(low), np.abs(high))
    columns[constant] = 0.0
    each = {"min-max": _min_max, "z-score": _z_score, "rank": _rank}[method]
    return np.transpose(np.array([each(column) for column in columns]))


def check_normalization(method: str) -> None:
    """Raise UsageError for an unknown normalization."""
    if method not in NORMALIZATIONS:
        raise UsageError(f"unknown normalization {method!r}; choose one of {', '.join(NORMALIZATIONS)}")


def _fitted(column: Array, mean: float, deviation: float) -> Array:
    return (column - mean) / deviation if deviation > 0 else np.zeros_like(column)


def _min_max(column: Array) -> Array:
    low, high = column.min(), column.max()
    return (column - low) / (high - low) if high > low else np.zeros_like(column)


def _z_score(column: Array) -> Array:
    return _fitted(column, *Moments.from_scores(column))


def _rank(column: Array) -> Array:
    """Differences within the noise are ties."""
    largest = float(np.abs(column).max())
    steps = np.rint(column / (NOISE * largest)) if largest else column
    ordered = np.sort(steps)
    # Ties count half.
    below = (np.searchsorted(ordered, steps, "left") + np.searchsorted(ordered, steps, "right") - 1) / 2
    shares: Array = below / (len(column) - 1) if ordered[0] < ordered[-1] else np.zeros_like(column)
    return shares
