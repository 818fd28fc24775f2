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
    ids: Sequence[str], vectors: NDArray[np.float32], qrels: Qrels, seed: int = 0
) -> float:
    """Return how often the nearest document of a relevant one is relevant to the same query.

    This is the nearest-neighbor test of Voorhees (1985) with one neighbor: the mean over queries of the share
    of their relevant documents. A query with one relevant document counts 0.

    ids: of N documents. vectors: (N, E), of length 1. qrels: at most SAMPLE of these queries are drawn.

    >>> import numpy as np
    >>> vectors = np.array([[1, 0], [0.8, 0.6], [0, 1]])
    >>> relevant_neighbor_share(["a", "b", "c"], vectors, Qrels([("q", "a", 1), ("q", "c", 1)]))
    0.0
    >>> relevant_neighbor_share(["a", "b", "c"], vectors, Qrels([("q", "a", 1), ("q", "b", 1)]))
    1.0
    """
    rows = {id: row for row, id in enumerate(ids)}
    queries = sorted(qrels)
    drawn = np.random.default_rng(seed).permutation(len(queries))[:SAMPLE]
    shares: list[float] = []
    for query in items_at(queries, drawn.tolist()):
        relevant = np.array([rows[id] for id in qrels.relevant(query) if id in rows], np.int64)
        if len(relevant):
            cosines = vectors[relevant] @ vectors.T
            cosines[np.arange(len(relevant)), relevant] = -np.inf
            shares.append(float(np.isin(cosines.argmax(axis=1), relevant).mean()))
    return fmean(shares) if shares else 0.0
