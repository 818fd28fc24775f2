"""What relates documents: their links, the categories they share, or a third document that links to both."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np

from rerank.rankers.graphs.citation_graph import PAIRS, WEIGHTS, CitationGraph, Streamed, affordable, shared
from rerank.rankers.graphs.citations import Citations
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document

Relation = Literal["links", "categories", "cocitation"]


def relation_graph(
    documents: Iterable[Document],
    structure_from: Relation = "links",
    *,
    weights: tuple[float, ...] = WEIGHTS,
) -> LinkGraph:
    """Read a relation between documents as they stream by.

    links:      as :meth:`LinkGraph.of`.
    categories: documents that share one. A category of n documents adds 1 / (n - 1) to each pair of them
                (Newman 2001, "Scientific collaboration networks II"), so each category of a document relates
                it to others by 1 in sum: rare ones count more. One that more than half of the documents have
                is left out.
    cocitation: texts that are cited by the same document, those that are no documents included; ``weights``
                are those of a sentence, paragraph, section and document that cites both (see
                :class:`rerank.rankers.graphs.citation_graph.CitationGraph`). Of documents of which only the
                links are known, the number that link to both.

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
        ids: list[str] = []

        def noted() -> Iterator[Document]:
            for document in documents:
                ids.append(document.id)
                yield document

        return CitationGraph.of(ids, Citations.of(Streamed(noted())), weights=weights, most=PAIRS)
    from scipy.sparse import csr_matrix

    names: list[str] = []
    number: dict[str, int] = {}
    rows, columns = array("i"), array("i")
    for document in documents:
        for category in dict.fromkeys(document.categories):
            rows.append(len(names))
            columns.append(number.setdefault(category, len(number)))
        names.append(document.id)
    members = csr_matrix(
        (np.ones(len(rows)), (np.frombuffer(rows, dtype=np.int32), np.frombuffer(columns, dtype=np.int32))),
        shape=(len(names), len(number)),
    )
    sizes = np.bincount(members.indices, minlength=len(number))
    kept = (sizes <= len(names) / 2) & affordable(sizes, PAIRS)
    each = np.where(kept, 1 / np.maximum(sizes - 1, 1), 0.0)
    return LinkGraph(names, shared(members, each), left_out=int((~kept & (sizes > 1)).sum()))
