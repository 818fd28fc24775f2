"""How large a first stage's scores were where a stack was tuned, and whether others are like them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

RECORD = "first_stage_scores"
"""Where a tuned stack's record has its scale."""

_APART = 2.0  # a score so many times beyond what all but a hundredth of the tuning queries had
_LEAST, _FEW = 10, 0.05  # so many searches of another scale, and such a share of all, are no chance
_DIGITS = 6


@dataclass(frozen=True)
class Scale:
    """The best first-stage scores of the queries that a stack was tuned on.

    low, middle, high: their 1st, 50th and 99th percentiles.

    >>> scale = Scale.of([8.0, 10.0, 12.0])
    >>> scale.fits(5.0), scale.fits(0.9), scale.fits(200.0)
    (True, False, False)
    """

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, best: Iterable[float]) -> Scale | None:
        """Of the best score of each query; None where no query has candidates."""
        values = np.array(list(best), np.float64)
        if not len(values):
            return None
        return cls(*(float(f"{value:.{_DIGITS}g}") for value in np.percentile(values, [1, 50, 99])))

    @classmethod
    def recorded(cls, tuned: Mapping[str, Any]) -> Scale | None:
        """What a stack's record says; None for one that says nothing."""
        found = tuned.get(RECORD)
        names = cls.__dataclass_fields__
        if not isinstance(found, Mapping) or not all(isinstance(found.get(n), (int, float)) for n in names):
            return None
        return cls(**{name: float(found[name]) for name in names})

    def fits(self, best: float) -> bool:
        """Whether a query with this best score could be one of those that the stack was tuned on."""
        return self.low / _APART <= best <= self.high * _APART


def strange(same: int, other: int) -> bool:
    """Whether so many searches of another scale, beside those of the same one, are more than chance.

    >>> strange(0, 9), strange(90, 10), strange(990, 10)
    (False, True, False)
    """
    return other >= _LEAST and other > _FEW * (same + other)
