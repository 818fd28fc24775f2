"""Neighbours by links alone: what Raman et al. 2021 call naive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.neighbours.base import Neighbourhood, Neighbours
from rerank.rankers.graphs.links import Direction, LinkGraph
from rerank.settings import setting


@dataclass(frozen=True)
class Linked(Neighbourhood):
    """The documents that each is linked with; its row of the graph."""

    direction: Direction = setting("sym", "links both ways, as given, or turned round")

    def find(
        self,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Neighbours:
        """Read the rows; scores are the links' weights."""
        rows = graph.matrix(self.direction).tocoo()
        kept = usable[rows.row] & usable[rows.col]
        return Neighbours.of(rows.row[kept], rows.col[kept], rows.data[kept], usable)
