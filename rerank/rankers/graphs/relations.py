"""Relations between documents."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Literal

import numpy as np

from rerank.rankers.graphs.citation_graph import CitationGraph
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.links import LinkGraph, join_members
from rerank.records import Document

Relation = Literal["links", "categories", "cocitation"]


def relation_graph(documents: Iterable[Document], structure_from: Relation = "links") -> LinkGraph:
    """Read a relation of streamed documents.

    links: see :meth:`LinkGraph.of`.
    categories: one of n documents adds 1 / (n - 1) per pair (Newman 2001, "Scientific collaboration
        networks II"). Categories of over half the documents are excluded.
    cocitation: see :class:`CitationGraph`. Without citations: counts of documents that link to both.

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
        return CitationGraph.of(Citations.of(documents))
    from scipy.sparse import csr_matrix

    ids: list[str] = []
    number: dict[str, int] = {}
    rows, columns = array("i"), array("i")
    for document in documents:
        for category in dict.fromkeys(document.categories):
            rows.append(len(ids))
            columns.append(number.setdefault(category, len(number)))
        ids.append(document.id)
    members = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(ids), len(number)))
    sizes = np.bincount(members.indices, minlength=len(number))
    weights = np.where(sizes <= len(ids) / 2, 1 / np.maximum(sizes - 1, 1), 0.0)
    adjacency, left_out = join_members(members, weights)
    return LinkGraph(ids, adjacency, left_out=left_out)
