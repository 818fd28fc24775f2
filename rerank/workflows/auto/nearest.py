"""Are the relevant documents of a query near to each other?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from rerank.common.values import items_at
from rerank.documents.records import Qrels

SAMPLE = 500
"""Most queries that are looked at."""


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
    rows = {id: row for row, id in enumerate(ids)}
    queries = sorted(qrels)
    drawn = np.random.default_rng(seed).permutation(len(queries))[:SAMPLE]
    count = min(neighbors, len(ids) - 1)
    shares: list[float] = []
    for query in items_at(queries, drawn.tolist()):
        relevant = np.array([rows[id] for id in qrels.relevant(query) if id in rows], np.int64)
        if count > 0 and len(relevant):
            cosines = vectors[relevant] @ vectors.T
            cosines[np.arange(len(relevant)), relevant] = -np.inf
            nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
            shares.append(float(np.isin(nearest, relevant).mean()))
    return fmean(shares) if shares else 0.0
