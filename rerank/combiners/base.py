"""The interface of a combiner: the scores of all signals -> the final score and its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CASES = ("given", "inferred", "none")
"""The source of a query's categories: the query, its first candidates, or none. A combiner can treat the
queries of each case differently."""


@dataclass(frozen=True)
class Combined:
    """The final scores of one query's n candidates.

    final:      (n,).
    normalized: (n, S) the scores of the signals, made comparable.
    parts:      (n, S) what each signal contributes to the final score.
    """

    final: Array
    normalized: Array
    parts: Array


class Combiner(ABC):
    """Turns the scores of S signals into one score. Only a combiner knows its weights."""

    signals: tuple[str, ...]

    @abstractmethod
    def combine(self, scores: NDArray[Any]) -> Combined:
        """Combine the raw (n, S) scores of one query's candidates.

        Raises TrainingError for a score that is not finite.
        """

    @abstractmethod
    def for_case(self, case: str) -> Combiner:
        """Return the combiner of the queries of a case."""

    @abstractmethod
    def shares(self) -> dict[str, float]:
        """Return the weight of each signal, for tables."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Describe the combiner and its cases as JSON values."""

    @abstractmethod
    def relevance(self, final: Array) -> Array:
        """Map final scores to numbers from 0 to 1 in the same order, as ``/v1/rerank`` returns them."""
