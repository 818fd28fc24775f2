"""Are the relevant documents of a query near to each other?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from rerank.common.values import items_at, items_in
from rerank.documents.records import Qrels

SAMPLE = 500
"""Most queries whose relevant documents are compared."""


def relevant_neighbor_share(
    ids: Sequence[str], vectors: NDArray[np.float32], qrels: Qrels, neighbors: int, seed: int = 0
) -> float:
    """Return the share of relevant documents among the documents that are nearest to a relevant one.

    This is the nearest-neighbor test of Voorhees (1985): the mean over queries of the mean over their
    relevant documents. A query with one relevant document counts 0.

    ids: of N documents. vectors: (N, E), of length 1. qrels: at most SAMPLE of these queries are drawn.
    neighbors: number of nearest documents; fewer if there are not so many others.

    >>> import numpy as np
    >>> vectors = np.array([[1, 0], [0.8, 0.6], [0, 1]])
    >>> relevant_neighbor_share(["a", "b", "c"], vectors, Qrels([("q", "a", 1), ("q", "c", 1)]), neighbors=1)
    0.0
    >>> relevant_neighbor_share(["a", "b", "c"], vectors, Qrels([("q", "a", 1), ("q", "b", 1)]), neighbors=2)
    0.5
    """
    count = min(neighbors, len(ids) - 1)
    if count < 1:
        return 0.0
    rows = {id: row for row, id in enumerate(ids)}
    queries = sorted(qrels)
    drawn = np.random.default_rng(seed).permutation(len(queries))[:SAMPLE]
    shares: list[float] = []
    for query in items_at(queries, drawn.tolist()):
        relevant = items_at(rows, items_in(qrels.relevant(query), rows))
        if relevant:
            shares.append(_share_near(np.array(relevant), vectors, count))
    return fmean(shares) if shares else 0.0


def _share_near(relevant: NDArray[np.int64], vectors: NDArray[np.float32], count: int) -> float:
    """Return the share of these rows among the ``count`` rows that are nearest to each of them."""
    cosines = vectors[relevant] @ vectors.T
    cosines[np.arange(len(relevant)), relevant] = -np.inf  # not itself
    nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    return float(np.isin(nearest, relevant).mean())
