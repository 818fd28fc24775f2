"""The related documents of each document, with scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.links import LinkGraph

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TRIES = 50
"""Draws of a document that is not related, before the anchor goes without."""


@dataclass(frozen=True)
class Neighbours:
    """The related documents of each of N documents, nearest first.

    indptr, ids: those of document i are ``ids[indptr[i]:indptr[i + 1]]``; scores: how near they are.
    usable:      (N,) bool: documents with text. Only those are related to any.
    most:        so many of them, at most, are positives; the others are only kept out of the negatives. None:
                 all.

    >>> found = Neighbours.of([0, 0, 1], [1, 2, 0], [0.5, 0.25, 0.5], np.ones(3, bool))
    >>> found.near(0).tolist(), found.related(2)
    ([1, 2], 0)
    """

    indptr: NDArray[np.int64]
    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    usable: NDArray[np.bool_]
    most: int | None = None

    @classmethod
    def of(
        cls,
        rows: NDArray[np.integer] | list[int],
        ids: NDArray[np.integer] | list[int],
        scores: NDArray[np.floating] | list[float],
        usable: NDArray[np.bool_],
        most: int | None = None,
    ) -> Neighbours:
        """From documents in increasing order, each with one that is related to it, and its score."""
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=len(usable)))))
        return cls(
            indptr.astype(np.int64),
            np.asarray(ids, dtype=np.int32),
            np.asarray(scores, dtype=np.float32),
            usable,
            most,
        )

    def near(self, document: int) -> NDArray[np.int32]:
        """All documents that are no negatives of this one, nearest first."""
        return self.ids[self.indptr[document] : self.indptr[document + 1]]

    def scores_of(self, document: int) -> NDArray[np.float32]:
        """How near each of :meth:`near` is."""
        return self.scores[self.indptr[document] : self.indptr[document + 1]]

    def related(self, document: int) -> int:
        """n_i: how many of :meth:`near` are positives."""
        count = int(self.indptr[document + 1] - self.indptr[document])
        return count if self.most is None else min(count, self.most)

    @property
    def paired(self) -> NDArray[np.bool_]:
        """(N,) whether a document has any of :meth:`near`."""
        found: NDArray[np.bool_] = np.diff(self.indptr) > 0
        return found

    def unrelated(self, document: int, rng: np.random.Generator) -> int:
        """Draw a document with text that is none of :meth:`near`; -1: none was found in TRIES draws."""
        near = self.near(document)
        for drawn in rng.integers(len(self.usable), size=TRIES).tolist():
            if drawn != document and self.usable[drawn] and drawn not in near:
                return int(drawn)
        return -1

    def matrix(self) -> csr_matrix:
        """(N, N) bool-like CSR of :meth:`near`."""
        from scipy.sparse import csr_matrix

        size = len(self.usable)
        return csr_matrix((np.ones(len(self.ids), np.int8), self.ids, self.indptr), shape=(size, size))


class Neighbourhood:
    """A way to find neighbours; subclasses are dataclasses of its settings.

    from_graph: it needs related documents in the graph.
    """

    from_graph: ClassVar[bool] = True

    def find(
        self,
        graph: LinkGraph,
        usable: NDArray[np.bool_],
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> Neighbours:
        """Neighbours of the graph's N documents. usable: (N,) bool, those with text; others have none.

        progress: is told of each document that is done.
        """
        raise NotImplementedError
