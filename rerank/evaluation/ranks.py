"""Measures from ranks of relevant documents, for tuning and early stopping."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankMeasure:
    """nDCG, RR or AP as in trec_eval. Only nDCG uses grades.

    cutoff: number of ranks; None: all. cut: measured documents per ranking; None: all.

    >>> ranks = np.array([[0, 1], [2, 0]])  # of two documents under two settings
    >>> RankMeasure.parse("AP").values(ranks, np.array([1.0, 1.0]), ideal=2.0, depth=3).round(3).tolist()
    [0.833, 1.0]
    """

    kind: str
    cutoff: int | None = None
    cut: int | None = None

    @classmethod
    def parse(cls, text: str, cut: int | None = None) -> RankMeasure:
        """Parse ``nDCG``, ``RR@10`` and similar. Raises UsageError for other text.

        >>> str(RankMeasure.parse("nDCG@10"))
        'nDCG@10'
        """
        match = re.fullmatch(r"(nDCG|RR|AP)(?:@([1-9][0-9]{0,8}))?", text)
        if match is None:
            raise UsageError(
                f"weights cannot be tuned for {text!r}; use nDCG, RR or AP, or a cut-off as in nDCG@10"
            )
        return cls(match[1], int(match[2]) if match[2] else None, cut)

    def __str__(self) -> str:
        return self.kind if self.cutoff is None else f"{self.kind}@{self.cutoff}"

    @property
    def depth(self) -> int | None:
        """The number of ranks that have a value; None: all."""
        ends = [end for end in (self.cutoff, self.cut) if end is not None]
        return min(ends, default=None)

    def ideal(self, grades: NDArray[Any]) -> float:
        """Return the value of the best ranking, which is the divisor of other values.

        grades: (R,) of all R relevant documents of a query, above 0.
        """
        if self.kind == "RR":
            return 1.0
        if self.kind == "AP":
            return float(len(grades))
        best = np.sort(grades)[::-1]
        return float((best * _worth(True, self.cutoff, len(best))).sum())

    def values(self, ranks: NDArray[Any], grades: NDArray[Any], *, ideal: float, depth: int) -> Array:
        """Return values of G settings, (G,), from ranks (R, G) of R relevant documents, from 0.

        grades: (R,), above 0. ideal: from :meth:`ideal`. depth: ranked documents.
        """
        worth = _worth(self.kind == "nDCG", self.depth, depth)
        if self.kind == "RR":
            gains = worth[ranks.min(axis=0)]
        elif self.kind == "AP":
            relevant_so_far = np.arange(1, len(ranks) + 1)[:, None]
            gains = (worth[np.sort(ranks, axis=0)] * relevant_so_far).sum(axis=0)
        else:
            gains = (worth[ranks] * grades[:, None]).sum(axis=0)
        return np.asarray(gains / ideal, dtype=np.float64)


@lru_cache(maxsize=256)
def _worth(logarithmic: bool, cutoff: int | None, depth: int) -> Array:
    """Return the discount of each rank, (depth,); 0 after the cutoff."""
    ranks = np.arange(1, depth + 1, dtype=np.float64)
    worth = 1.0 / (np.log2(ranks + 1.0) if logarithmic else ranks)
    if cutoff is not None:
        worth[cutoff:] = 0.0
    worth.flags.writeable = False
    return worth


NDCG = RankMeasure("nDCG")
"""Without a cut-off: gain = grade, discount = log2(rank + 1)."""
