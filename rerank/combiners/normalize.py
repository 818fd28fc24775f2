"""Normalization of scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError

Array = NDArray[np.float64]

TRIED = ("min-max", "z-score", "none")
"""Methods to try if the first stages of rerank find all candidates."""

PER_QUERY = ("min-max", "z-score", "rank")
"""Methods that ignore the scale of scores, to try if other searches can find candidates."""

NORMALIZATIONS = (*PER_QUERY, "none")
"""All methods; see :func:`normalize`."""

NOISE = 1e-6
"""Largest relative difference of a constant signal: in fp32, equal documents can differ in the last bits."""


def normalize(scores: NDArray[Any], method: str) -> Array:
    """Normalize one query's scores per column: (n, S) -> (n, S) float64.

        min-max   (x - min) / (max - min); 0 if constant
        z-score   (x - mean) / population standard deviation; 0 if constant
        rank      share of other candidates with lower scores; ties count half
        none      x

    Columns are constant if max - min is at most ``NOISE`` times the largest magnitude. Scores must be finite.
    Candidate order does not change the result.
    Raises UsageError for an unknown method.
    """
    # A copy with one row per signal: the caller's memory layout must not change the result.
    columns: Array = np.array(np.asarray(scores).T, dtype=np.float64, order="C")  # (S, n)
    if method not in NORMALIZATIONS:
        raise UsageError(f"unknown normalization {method!r}; choose one of {', '.join(NORMALIZATIONS)}")
    if method == "none" or columns.size == 0:
        return np.transpose(columns)
    low, high = columns.min(axis=1), columns.max(axis=1)
    constant = high - low <= NOISE * np.maximum(np.abs(low), np.abs(high))
    columns[constant] = 0.0
    each = {"min-max": _min_max, "z-score": _z_score, "rank": _rank}[method]
    return np.transpose(np.array([each(column) for column in columns]))


def _min_max(column: Array) -> Array:
    low, high = column.min(), column.max()
    return (column - low) / (high - low) if high > low else np.zeros_like(column)


def _z_score(column: Array) -> Array:
    """Sums of sorted numbers are equal for any order."""
    ordered = np.sort(column)
    mean = ordered.sum() / len(column)
    deviation = math.sqrt(((ordered - mean) ** 2).sum() / len(column))
    return (column - mean) / deviation if deviation > 0 else np.zeros_like(column)


def _rank(column: Array) -> Array:
    """Differences within the noise are ties."""
    largest = float(np.abs(column).max())
    steps = np.rint(column / (NOISE * largest)) if largest else column
    ordered = np.sort(steps)
    # Ties count half.
    below = (np.searchsorted(ordered, steps, "left") + np.searchsorted(ordered, steps, "right") - 1) / 2
    shares: Array = below / (len(column) - 1) if ordered[0] < ordered[-1] else np.zeros_like(column)
    return shares
