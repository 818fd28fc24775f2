"""Evaluation on held-out links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.evaluation.ranks import NDCG
from rerank.rankers.encoder.batching import Encode
from rerank.rankers.graphs.citations import CitationGraph
from rerank.rankers.graphs.links import LinkGraph

ANCHORS = 500
"""Maximum number of documents whose held-out links are searched."""


@dataclass(frozen=True)
class HeldOut:
    """Anchors and their pool.

    pool:    (P,) document positions.
    anchors: (A,) places in the pool.
    wanted:  (A, P) bool: held-out links.
    known:   (A, P) bool: unranked anchors and training links.
    """

    pool: NDArray[np.int64]
    anchors: NDArray[np.int64]
    wanted: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        graph: LinkGraph | CitationGraph,
        held: NDArray[np.int32],
        usable: NDArray[np.bool_],
        *,
        size: int,
        seed: int,
        anchors: int = ANCHORS,
    ) -> HeldOut:
        """Draw anchors and ``size`` documents, including their held-out links.

        graph:  without held-out pairs.
        held:   (H, 2) pairs.
        usable: (N,) bool: with text.
        """
        from scipy.sparse import csr_matrix

        rng = np.random.default_rng((seed, 1))
        held = held[usable[held].all(axis=1)]
        links = csr_matrix((np.ones(len(held)), (*held.T,)), shape=(len(usable), len(usable)))
        links = links + links.T
        count, ends = min(anchors, max(1, size // 2)), rng.permutation(np.unique(held))
        needed = np.union1d(ends[:count], links[ends[:count]].indices)
        if len(needed) > size:  # fewer anchors, so that their links fit
            count = max(1, int(count * size / len(needed)))
            needed = np.union1d(ends[:count], links[ends[:count]].indices)
        rest = np.setdiff1d(np.flatnonzero(usable), needed)
        extra = rng.permutation(rest)[: max(0, size - len(needed))]
        pool = np.sort(np.concatenate((needed, extra))).astype(np.int64)
        at = np.searchsorted(pool, np.sort(ends[:count]))
        rows = (links[pool[at]], graph.near(pool[at]))
        wanted, known = (one[:, pool].toarray() > 0 for one in rows)
        known[np.arange(len(at)), at] = True
        assert not (known & wanted).any(), "a held-out link is in the training graph"
        return cls(pool, at, wanted, known)

    def __call__(self, encode: Encode) -> dict[str, float]:
        """Return the mean NDCG of the anchors, which decides."""
        return {"NDCG": float(self.ndcg(encode(self.pool)).mean())}

    def ndcg(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return NDCG without cut-off, (A,). vectors: (P, E), unit length."""
        ndcg = np.zeros(len(self.anchors))
        for anchor, wanted in enumerate(self.ranked(vectors)):
            ranks = np.flatnonzero(wanted)[:, None]
            grades = np.ones(len(ranks))
            ndcg[anchor] = NDCG.values(ranks, grades, ideal=NDCG.ideal(grades), depth=len(wanted))[0]
        return ndcg

    def ranked(self, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Mark held-out links by rank, (A, P) bool. vectors: (P, E), unit length."""
        scores = vectors[self.anchors] @ vectors.T
        scores[self.known] = -np.inf
        return np.take_along_axis(self.wanted, np.argsort(-scores, axis=1, kind="stable"), axis=1)
