"""What is near to what: draws of structural positives and negatives, level by level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rerank.graph.intimacy import Axis, top_intimacy
from rerank.graph.levels import level_size, levels
from rerank.graph.links import Direction, LinkGraph

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Sampling = Literal["hierarchical", "row"]

TRIES = 50
"""Draws of a document that is not related, before the anchor goes without."""
REDRAWS = 10
"""Draws of another pair where the two are as intimate as each other."""
TIE = 2e-5
"""Relative difference of intimacy below which two documents are as near as each other."""


@dataclass(frozen=True)
class Draw:
    """A structural positive and negative of an anchor: positions of documents, and the level (from 1).

    Level 0, with both -1: the anchor has none.
    """

    anchor: int
    level: int
    positive: int
    negative: int


@dataclass(frozen=True)
class Structure:
    """The related documents of each of N documents, nearest first.

    indptr, ids: those of document i are ``ids[indptr[i]:indptr[i + 1]]``; scores: their intimacy.
    usable:      (N,) bool: documents with text. Only those are related to any.
    grey:        how many of the last of them are no positives: they are only kept out of the negatives.
    most_levels: levels above this are not drawn; None: all.
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    usable: NDArray[np.bool_]
    grey: int = 0
    most_levels: int | None = None

    @classmethod
    def of(
        cls,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        sampling: Sampling = "hierarchical",
        most: int = 64,
        grey: int = 0,
        alpha: float = 0.15,
        axis: Axis = "row",
        direction: Direction = "sym",
        tolerance: float = 1e-3,
        most_levels: int | None = None,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Structure:
        """Rank by intimacy the ``most`` (and ``grey`` more) nearest documents of each.

        ``row`` takes the linked documents alone, all on one level: what the paper calls naive.
        """
        adjacency = graph.matrix(direction)
        if sampling == "row":
            rows = adjacency.tocoo()
            kept = usable[rows.row] & usable[rows.col]
            return cls._flat(rows.row[kept], rows.col[kept], rows.data[kept], usable, 0, 1)
        found = top_intimacy(
            adjacency, most + grey, alpha=alpha, axis=axis, tolerance=tolerance, seed=seed, progress=progress
        )
        there = (found.ids >= 0) & usable[:, None] & usable[found.ids]
        rows, columns = np.nonzero(there)
        return cls._flat(
            rows, found.ids[rows, columns], found.scores[rows, columns], usable, grey, most_levels
        )

    @classmethod
    def _flat(
        cls,
        rows: NDArray[np.integer],
        ids: NDArray[np.integer],
        scores: NDArray[np.floating],
        usable: NDArray[np.bool_],
        grey: int,
        most_levels: int | None,
    ) -> Structure:
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(usable)))))
        return cls(
            indptr.astype(np.int64),
            ids.astype(np.int32),
            scores.astype(np.float32),
            usable,
            grey,
            most_levels,
        )

    def near(self, document: int) -> NDArray[np.int32]:
        """All documents that are no negatives of this one, nearest first."""
        return self.ids[self.indptr[document] : self.indptr[document + 1]]

    def related(self, document: int) -> int:
        """n_i: how many of :meth:`near` are positives."""
        return max(0, len(self.near(document)) - self.grey) if self.grey else len(self.near(document))

    def matrix(self) -> csr_matrix:
        """(N, N) bool-like CSR of :meth:`near`."""
        from scipy.sparse import csr_matrix

        size = len(self.usable)
        return csr_matrix((np.ones(len(self.ids), np.int8), self.ids, self.indptr), shape=(size, size))

    def draw(self, anchor: int, rng: np.random.Generator) -> Draw:
        """Draw level, positive and negative (Raman et al. 2021, equations 2 and 3).

        Where the two are as intimate as each other, others are drawn, at most REDRAWS times.
        """
        count = self.related(anchor)
        top = levels(count)
        if self.most_levels is not None:
            top = min(top, self.most_levels)
        nothing = Draw(anchor, 0, -1, -1)
        if not top:
            return nothing
        near = self.near(anchor)
        scores = self.scores[self.indptr[anchor] : self.indptr[anchor + 1]]
        least = 1
        for _ in range(REDRAWS):
            level = int(rng.integers(least, top + 1))
            size = level_size(count, level)
            positive = int(rng.integers(size))
            if level == 1:
                other = self._unrelated(anchor, near, rng)
                if other >= 0:
                    return Draw(anchor, 1, int(near[positive]), other)
                least = 2
                if top < 2:
                    return nothing
                continue
            negative = int(rng.integers(size, level_size(count, level - 1)))
            if scores[positive] - scores[negative] > TIE * scores[positive]:
                return Draw(anchor, level, int(near[positive]), int(near[negative]))
        return nothing

    def _unrelated(self, anchor: int, near: NDArray[np.int32], rng: np.random.Generator) -> int:
        for drawn in rng.integers(len(self.usable), size=TRIES).tolist():
            if drawn != anchor and self.usable[drawn] and drawn not in near:
                return int(drawn)
        return -1
