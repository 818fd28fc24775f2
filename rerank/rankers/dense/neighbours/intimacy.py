"""Neighbours by intimacy: personalised PageRank in the graph (Raman et al. 2021, equation 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError, setting_hint
from rerank.rankers.dense.neighbours.base import Neighbourhood, Neighbours
from rerank.rankers.graphs.links import Direction, LinkGraph
from rerank.rankers.graphs.pagerank import Axis, top_intimacy
from rerank.settings import setting
from rerank.wording import amount

ALL = 10_000
"""Documents of a collection for which all that are reachable can be kept."""


@dataclass(frozen=True)
class Intimacy(Neighbourhood):
    """The most intimate documents of each."""

    related: int = setting(64, "related documents of each, at most; 0: all that are reachable", low=0)
    grey: int = setting(0, "so many more are neither positives nor negatives", low=0)
    alpha: float = setting(0.15, "restart probability of the intimacy", above=0, high=1)
    axis: Axis = setting("row", "of the intimacy matrix; column favours documents with many links")
    tolerance: float = setting(1e-3, "largest error of the intimacy in large components", above=0)
    direction: Direction = setting("sym", "links both ways, as given, or turned round")

    def unread(self) -> dict[str, str]:
        """Settings that have no effect."""
        return {} if self.related else {"grey": setting_hint("related", 0)}

    def find(
        self,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Neighbours:
        """Rank by intimacy. Raises UsageError where all reachable documents would be too many."""
        if not self.related and len(usable) > ALL:
            raise UsageError(
                f"of {amount(len(usable), 'document[|s]')} not all related ones can be kept; give"
                f" {setting_hint('related')}, for example 64"
            )
        count = self.related + self.grey if self.related else max(1, len(usable) - 1)
        found = top_intimacy(
            graph.matrix(self.direction),
            count,
            alpha=self.alpha,
            axis=self.axis,
            tolerance=self.tolerance,
            seed=seed,
            progress=progress,
        )
        there = (found.ids >= 0) & usable[:, None] & usable[found.ids]
        rows, columns = np.nonzero(there)
        return Neighbours.of(
            rows, found.ids[rows, columns], found.scores[rows, columns], usable, self.related or None
        )
