"""What relates documents: their links, the categories they share, or a third document that links to both."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rerank.graph.links import LinkGraph
from rerank.records import Document

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Relation = Literal["links", "categories", "cocitation"]

PAIRS = 10_000_000
"""Pairs of documents that shared categories or links may give: those of the smallest groups are taken."""


def relation_graph(documents: Iterable[Document], structure_from: Relation = "links") -> LinkGraph:
    """Read a relation between documents as they stream by.

    links:      as :meth:`LinkGraph.of`.
    categories: documents that share one. A category of n documents adds 1 / (n - 1) to each pair of them
                (Newman 2001, "Scientific collaboration networks II"), so each category of a document relates
                it to others by 1 in sum: rare ones count more. One that more than half of the documents have
                is left out.
    cocitation: documents that are linked by the same third one; weighted by the number of such documents.

    At most PAIRS pairs are made: categories, or linking documents, that would give more are left out, the
    largest first, and counted in ``LinkGraph.left_out``.

    >>> documents = [Document("a", categories=("x", "y")), Document("b", categories=("x", "y")),
    ...              Document("c", categories=("y",)), Document("d"), Document("e"), Document("f")]
    >>> relation_graph(documents, "categories").adjacency.toarray()[:3, :3].tolist()
    [[0.0, 1.5, 0.5], [1.5, 0.0, 0.5], [0.5, 0.5, 0.0]]
    >>> documents = [Document("a", links=("b", "c")), Document("b"), Document("c")]
    >>> relation_graph(documents, "cocitation").pairs().tolist()
    [[1, 2]]
    """
    if structure_from == "links":
        return LinkGraph.of(documents)
    if structure_from == "cocitation":
        graph = LinkGraph.of(documents)
        sizes = np.diff(graph.adjacency.indptr)
        kept = _affordable(sizes)
        adjacency = _shared(graph.adjacency.T.tocsr(), kept.astype(np.float64))
        return LinkGraph(graph.ids, adjacency, graph.counts, int((~kept & (sizes > 1)).sum()))
    from scipy.sparse import csr_matrix

    number: dict[str, int] = {}
    ids: list[str] = []
    rows, columns = array("i"), array("i")
    for document in documents:
        for category in dict.fromkeys(document.categories):
            rows.append(len(ids))
            columns.append(number.setdefault(category, len(number)))
        ids.append(document.id)
    members = csr_matrix(
        (np.ones(len(rows)), (np.frombuffer(rows, dtype=np.int32), np.frombuffer(columns, dtype=np.int32))),
        shape=(len(ids), len(number)),
    )
    sizes = np.bincount(members.indices, minlength=len(number))
    kept = (sizes <= len(ids) / 2) & _affordable(sizes)
    weights = np.where(kept, 1 / np.maximum(sizes - 1, 1), 0.0)
    return LinkGraph(ids, _shared(members, weights), left_out=int((~kept & (sizes > 1)).sum()))


def _affordable(sizes: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which groups are taken: from the smallest on, all of a size or none, as long as PAIRS are enough."""
    counts = np.bincount(sizes) if len(sizes) else np.zeros(1, dtype=np.int64)
    size = np.arange(len(counts))
    total = np.cumsum(counts * (size * (size - 1) // 2))
    fits: NDArray[np.bool_] = (total <= PAIRS)[sizes]
    return fits


def _shared(members: csr_matrix, weights: NDArray[np.float64]) -> csr_matrix:
    """(N, G) members of groups, (G,) weights -> (N, N) sums of the weights of the groups that two share."""
    from scipy.sparse import diags, triu

    taken = members[:, weights > 0]
    upper = triu(taken @ diags(weights[weights > 0]) @ taken.T, k=1, format="csr")
    both = (upper + upper.T).astype(np.float32).tocsr()  # symmetric to the last digit
    both.sort_indices()
    return both
