"""Combiners: signal scores -> the final score and its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CASES = ("given", "inferred", "none")
"""Sources of a query's categories: the query, its first candidates, or none."""


@dataclass(frozen=True)
class Combined:
    """Final scores of one query's n candidates.

    final:      (n,).
    normalized: (n, S) normalized scores.
    parts:      (n, S) contributions to ``final``.
    """

    final: Array
    normalized: Array
    parts: Array


class Combiner(ABC):
    """Combines the scores of S signals."""

    signals: tuple[str, ...]

    @abstractmethod
    def combine(self, scores: NDArray[Any]) -> Combined:
        """Combine one query's raw (n, S) scores. Raises TrainingError for a non-finite score."""

    @abstractmethod
    def for_case(self, case: str) -> Combiner:
        """Return the combiner for a category case."""

    @abstractmethod
    def shares(self) -> dict[str, float]:
        """Return signal weights."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return all cases as JSON values."""

    @abstractmethod
    def relevance(self, final: Array) -> Array:
        """Map final scores to [0, 1] in the same order."""
