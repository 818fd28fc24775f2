"""Neighbours by hops: how many links lie between two documents, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.neighbours.base import Neighbourhood, Neighbours
from rerank.rankers.graphs.links import Direction, LinkGraph
from rerank.settings import setting


@dataclass(frozen=True)
class Hops(Neighbourhood):
    """The documents that the fewest links lead to; what equal intimacy would be if only distance counted."""

    related: int = setting(64, "related documents of each, at most; 0: all within the hops", low=0)
    farthest: int = setting(3, "hops to a related document, at most", low=1)
    direction: Direction = setting("sym", "links both ways, as given, or turned round")

    def find(
        self,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Neighbours:
        """Search breadth first; scores are 1 / hops, and of equally far documents those to keep are drawn."""
        links = graph.matrix(self.direction)
        rng = np.random.default_rng((seed, 7))
        rows, ids, scores = [], [], []
        seen = np.zeros(len(usable), np.bool_)
        for document in np.flatnonzero(usable).tolist():
            near = [np.array([document])]
            seen[document] = True
            frontier, left = near[0], self.related or len(usable)
            for hop in range(1, self.farthest + 1):
                reached = np.unique(links[frontier].indices)
                frontier = reached[~seen[reached]]
                seen[frontier] = True
                near.append(frontier)
                found = rng.permutation(frontier[usable[frontier]])[:left]
                rows += [document] * len(found)
                ids += found.tolist()
                scores += [1 / hop] * len(found)
                left -= len(found)
                if not (left and len(frontier)):
                    break
            seen[np.concatenate(near)] = False
            if progress is not None:
                progress(1)
        return Neighbours.of(rows, ids, scores, usable)
