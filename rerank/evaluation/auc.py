"""Area under the ROC curve of rankings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RankingAUC:
    """Share of a query's (relevant, irrelevant) document pairs in the right order.

    Grades from ``rel`` up are relevant. Unjudged documents are ignored; documents not retrieved share the
    last place. Ties count half. Unlike Yih et al. 2011, section 4.2, each query has its own curve.

    >>> auc = RankingAUC.parse("AUC")
    >>> auc.value(["a", "x", "b"], {"a": 2, "b": 0, "c": 1})  # c is not ranked, x not judged
    0.5
    """

    rel: int = 1

    @classmethod
    def parse(cls, text: str) -> RankingAUC | None:
        """Parse ``AUC`` or ``AUC(rel=2)``; None for other text.

        >>> str(RankingAUC.parse("AUC(rel=2)")), RankingAUC.parse("AP")
        ('AUC(rel=2)', None)
        """
        match = re.fullmatch(r"AUC(?:\(rel=([1-9][0-9]{0,8})\))?", text.strip())
        return cls(int(match[1] or 1)) if match else None

    def __str__(self) -> str:
        return "AUC" if self.rel == 1 else f"AUC(rel={self.rel})"

    def value(self, ids: Sequence[str], judged: Mapping[str, int]) -> float:
        """Return the AUC of a ranking, best first; NaN without relevant or irrelevant documents."""
        place = {id: rank for rank, id in enumerate(ids)}
        ranks = np.array([place.get(id, len(ids)) for id in judged])
        relevant = np.array([grade >= self.rel for grade in judged.values()], np.bool_)
        if relevant.all() or not relevant.any():
            return float("nan")
        above, below = ranks[relevant][:, None], ranks[~relevant]
        return float(((above < below) + 0.5 * (above == below)).mean())
