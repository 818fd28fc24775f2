"""Link graph of a collection."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.base import content_hash
from rerank.records import Document

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class LinkGraph:
    """Linked documents.

    ids: N, in input order.
    matrix: (N, N) CSR, symmetric: 1 if one of two documents links to the other.
    unknown: links to ids that no document has.
    """

    ids: list[str]
    matrix: csr_matrix
    unknown: int = 0

    @classmethod
    def of(cls, documents: Iterable[Document]) -> LinkGraph:
        """Read streamed documents; keeps ids and about 8 bytes per link."""
        number: dict[str, int] = {}
        """Of every id that was mentioned, in order of mention."""
        position: dict[int, int] = {}
        ids: list[str] = []
        sources, targets = array("i"), array("i")
        for document in documents:
            position[number.setdefault(document.id, len(number))] = len(ids)
            for link in document.links:
                sources.append(len(ids))
                targets.append(number.setdefault(link, len(number)))
            ids.append(document.id)
        place = np.full(len(number), -1, dtype=np.int32)
        place[list(position)] = list(position.values())
        rows = np.frombuffer(sources, dtype=np.int32)
        columns = place[np.frombuffer(targets, dtype=np.int32)]
        return cls.from_edges(ids, rows, columns)

    @classmethod
    def from_edges(
        cls, ids: list[str], sources: NDArray[np.integer], targets: NDArray[np.integer]
    ) -> LinkGraph:
        """Build from (E,) positions; target -1 is unknown."""
        from scipy.sparse import csr_matrix

        unknown = targets < 0
        kept = ~unknown & (sources != targets)
        ends = np.stack((sources[kept], targets[kept]))
        both = np.concatenate((ends, ends[::-1]), axis=1)
        ones = np.ones(both.shape[1], dtype=np.float32)
        matrix = csr_matrix((ones, both), shape=(len(ids), len(ids)))
        matrix.sum_duplicates()
        matrix.data[:] = 1.0
        return cls(ids, matrix, int(unknown.sum()))

    def pairs(self) -> NDArray[np.int32]:
        """Distinct sorted pairs, (E, 2), a < b."""
        from scipy.sparse import triu

        upper = triu(self.matrix, format="csr").tocoo()
        return np.stack((upper.row, upper.col), axis=1).astype(np.int32)

    def near(self, documents: NDArray[np.integer]) -> csr_matrix:
        """Return the rows of n documents, (n, N)."""
        return self.matrix[documents]

    def digest(self) -> str:
        """Return a hash of ids and linked pairs."""
        return content_hash(self.ids, (self.matrix.indptr, self.matrix.indices))

    def hold_out(self, share: float, seed: int) -> tuple[LinkGraph, NDArray[np.int32]]:
        """Return the graph without held-out pairs, and the pairs, (H, 2)."""
        pairs = self.pairs()
        count = round(share * len(pairs))
        held = np.sort(np.random.default_rng(seed).permutation(len(pairs))[:count])
        rest = LinkGraph.from_edges(self.ids, *np.delete(pairs, held, axis=0).T)
        return replace(rest, unknown=self.unknown), pairs[held]
