"""Link graph of a collection."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.records import Document

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from rerank.records import Qrels

PAIRS = 10_000_000
"""Pairs of documents that groups may give."""


@dataclass(frozen=True)
class LinkCounts:
    """Link counts.

    links: distinct, directed, within the collection.
    self_links, duplicates, unknown: excluded.
    judged: excluded pairs relevant to one query.
    """

    links: int = 0
    self_links: int = 0
    duplicates: int = 0
    unknown: int = 0
    judged: int = 0


@dataclass(frozen=True)
class LinkGraph:
    """Documents and links.

    ids: N, in input order.
    adjacency: (N, N) CSR, links of i in row i; 1 or positive weight.
    left_out: groups too large to relate.

    >>> documents = [Document("a", links=("b", "b", "a", "x")), Document("b"), Document("c", links=("a",))]
    >>> graph = LinkGraph.of(documents)
    >>> graph.counts
    LinkCounts(links=2, self_links=1, duplicates=1, unknown=1, judged=0)
    >>> graph.matrix().toarray().astype(int).tolist()
    [[0, 1, 1], [1, 0, 0], [1, 0, 0]]
    """

    ids: list[str]
    adjacency: csr_matrix
    counts: LinkCounts = field(default_factory=LinkCounts)
    left_out: int = 0

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

        unknown, loops = targets < 0, sources == targets
        kept = ~(unknown | loops)
        shape = (len(ids), len(ids))
        ones = np.ones(int(kept.sum()), dtype=np.float32)
        adjacency = csr_matrix((ones, (sources[kept], targets[kept])), shape=shape)
        adjacency.sum_duplicates()
        adjacency.data[:] = 1.0
        counts = LinkCounts(
            adjacency.nnz, int(loops.sum()), int(kept.sum()) - adjacency.nnz, int(unknown.sum())
        )
        return cls(ids, adjacency, counts)

    def matrix(self) -> csr_matrix:
        """Symmetric adjacency, (N, N)."""
        return self.adjacency.maximum(self.adjacency.T).tocsr()

    def pairs(self) -> NDArray[np.int32]:
        """Distinct sorted pairs, (E, 2), a < b."""
        from scipy.sparse import triu

        upper = triu(self.matrix(), format="csr").tocoo()
        return np.stack((upper.row, upper.col), axis=1).astype(np.int32)

    def without(self, pairs: NDArray[np.integer]) -> LinkGraph:
        """Drop links between pairs, (E, 2), in both directions."""
        from scipy.sparse import csr_matrix

        ones = np.ones(len(pairs), dtype=np.float32)
        gone = csr_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=self.adjacency.shape)
        gone = gone + gone.T
        gone.data[:] = 1  # also for a pair that is given twice, or in both orders
        rest = (self.adjacency - self.adjacency.multiply(gone)).tocsr()
        rest.eliminate_zeros()
        return replace(self, adjacency=rest, counts=replace(self.counts, links=rest.nnz))

    def hold_out(self, share: float, seed: int) -> tuple[LinkGraph, NDArray[np.int32]]:
        """Return the graph without held-out pairs, and the pairs, (H, 2).

        >>> documents = [Document("a", links=("b", "c")), Document("b", links=("a",)), Document("c")]
        >>> graph = LinkGraph.of(documents)
        >>> rest, held = graph.hold_out(0.5, seed=0)
        >>> len(held), rest.matrix().nnz
        (1, 2)
        """
        pairs = self.pairs()
        count = round(share * len(pairs))
        held = pairs[np.sort(np.random.default_rng(seed).permutation(len(pairs))[:count])]
        return self.without(held), held


def join_members(members: csr_matrix, weights: NDArray[np.float64]) -> tuple[csr_matrix, int]:
    """Return summed weights of common groups, (N, N), and the number of excluded groups.

    members: (N, G). Smallest groups first, up to PAIRS pairs; weights above 0 only.
    """
    from scipy.sparse import diags, triu

    sizes = np.bincount(members.indices, minlength=members.shape[1])
    counts = np.bincount(sizes, minlength=1)
    size = np.arange(len(counts))
    taken = (weights > 0) & (np.cumsum(counts * (size * (size - 1) // 2)) <= PAIRS)[sizes]
    some = members[:, taken]
    upper = triu(some @ diags(weights[taken]) @ some.T, k=1, format="csr")
    both = (upper + upper.T).astype(np.float32).tocsr()  # symmetric to the last digit
    both.sort_indices()
    return both, int((~taken & (sizes > 1)).sum())


def judged_together(graph: LinkGraph, judgments: Iterable[Qrels]) -> NDArray[np.int32]:
    """Return sorted linked pairs relevant to one query, (P, 2).

    Training on them leaks judgments made from links.

    >>> graph = LinkGraph.of([Document("a", links=("b", "c")), Document("b"), Document("c")])
    >>> judged_together(graph, [{"q": {"a": 2, "b": 1, "c": 0}}]).tolist()
    [[0, 1]]
    """
    from scipy.sparse import csr_matrix

    place = {id: i for i, id in enumerate(graph.ids)}
    rows: list[int] = []
    columns: list[int] = []
    queries = 0
    for qrels in judgments:
        for grades in qrels.values():
            relevant = [place[id] for id, grade in grades.items() if grade > 0 and id in place]
            rows += relevant
            columns += [queries] * len(relevant)
            queries += 1
    ones = np.ones(len(rows), dtype=np.int32)
    relevant_to = csr_matrix((ones, (rows, columns)), shape=(len(graph.ids), max(queries, 1)))
    pairs = graph.pairs()
    both = relevant_to[pairs[:, 0]].multiply(relevant_to[pairs[:, 1]])
    return pairs[np.asarray(both.sum(axis=1)).ravel() > 0]
