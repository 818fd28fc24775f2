"""Link graph of a collection."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.documents.records import Document
from rerank.rankers.base import content_hash

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MAX_SHARED = 100
"""A category of more documents relates too many of them."""


@dataclass(frozen=True)
class LinkGraph:
    """The links between N documents, or their shared categories.

    ids:     the ids of the documents, in input order.
    matrix:  (N, N) CSR, symmetric: how often one of two documents links to the other, or the number of
        categories that they share.
    unknown: the number of links to ids that no document has.
    """

    ids: list[str]
    matrix: csr_matrix
    unknown: int = 0

    @classmethod
    def from_documents(cls, documents: Iterable[Document]) -> LinkGraph:
        """Read a stream of documents once. This keeps the ids and about 8 bytes per link."""
        number: dict[str, int] = {}  # of every id, also of linked ones, in order of mention
        position: dict[int, int] = {}  # number of an id -> position of its document
        ids: list[str] = []
        sources = array("i")
        targets = array("i")
        for document in documents:
            position[number.setdefault(document.id, len(number))] = len(ids)
            for link in document.links:
                sources.append(len(ids))
                targets.append(number.setdefault(link, len(number)))
            ids.append(document.id)
        position_of = np.full(len(number), -1, dtype=np.int32)
        position_of[list(position)] = list(position.values())
        rows = np.frombuffer(sources, dtype=np.int32)
        columns = position_of[np.frombuffer(targets, dtype=np.int32)]
        return cls.from_edges(ids, rows, columns)

    @classmethod
    def from_categories(cls, documents: Iterable[Document]) -> LinkGraph:
        """Relate documents by shared categories, which at most MAX_SHARED documents have."""
        from scipy.sparse import csr_matrix, diags

        number: dict[str, int] = {}
        ids: list[str] = []
        columns = array("i")
        ends = array("q", [0])
        for document in documents:
            ids.append(document.id)
            for name in dict.fromkeys(document.categories):
                columns.append(number.setdefault(name, len(number)))
            ends.append(len(columns))
        memberships = np.ones(len(columns), dtype=np.float32)
        shape = (len(ids), len(number))
        members = csr_matrix((memberships, np.array(columns), np.array(ends)), shape)
        members = members[:, np.asarray(members.sum(axis=0)).ravel() <= MAX_SHARED]
        shared = members @ members.T
        matrix = (shared - diags(shared.diagonal(), dtype=np.float32)).tocsr()
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return cls(ids, matrix)

    @classmethod
    def from_edges(
        cls, ids: list[str], sources: NDArray[np.integer], targets: NDArray[np.integer]
    ) -> LinkGraph:
        """Build the graph from E links, as positions of both ends, (E,) and (E,). Target -1 is unknown."""
        from scipy.sparse import csr_matrix

        unknown = targets < 0
        valid = ~unknown & (sources != targets)
        ends = (sources[valid], targets[valid])
        weights = np.ones(len(ends[0]), dtype=np.float32)
        directed = csr_matrix((weights, ends), shape=(len(ids), len(ids)))
        return cls(ids, directed.maximum(directed.T).tocsr(), int(unknown.sum()))

    def pairs(self) -> NDArray[np.int32]:
        """Return the linked pairs, (E, 2), each once and sorted, with the smaller position first."""
        from scipy.sparse import triu

        upper = triu(self.matrix, format="csr").tocoo()
        return np.stack((upper.row, upper.col), axis=1).astype(np.int32)

    def near(self, documents: NDArray[np.integer]) -> csr_matrix:
        """Return the rows of n documents in the matrix, (n, N)."""
        return self.matrix[documents]

    def digest(self) -> str:
        """Return a hash of ids and linked pairs."""
        return content_hash(self.ids, (self.matrix.indptr, self.matrix.indices, self.matrix.data))

    def hold_out(self, share: float, seed: int) -> tuple[LinkGraph, NDArray[np.int32]]:
        """Return the graph without a random share of the linked pairs, and these pairs, (H, 2)."""
        from scipy.sparse import csr_matrix

        pairs = self.pairs()
        count = round(share * len(pairs))
        rows = np.sort(np.random.default_rng(seed).permutation(len(pairs))[:count])
        ends = np.concatenate((pairs[rows], pairs[rows, ::-1])).T
        held_out = csr_matrix((np.ones(2 * count, dtype=np.float32), tuple(ends)), shape=self.matrix.shape)
        training = (self.matrix - self.matrix.multiply(held_out)).tocsr()
        training.eliminate_zeros()
        return replace(self, matrix=training), pairs[rows]
