"""Search by all passages of a document (Raman, Shah, Veloso 2021, equation 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank.rankers.dense.ranker import decayed_sum
from rerank.rankers.dense.texts import Passages
from rerank.rankers.encoder.transformer import TextEncoder

MOST = 100
"""Maximum number of passages of a document, as in ``--preset paper``."""
SCORES = {"best 2": (2, True), "best 5": (5, True), "sum 5": (5, False)}
"""Score -> number of summed cosines, and whether their weights divide the sum. ``best 2`` is the default of
``dense``, ``best 5`` its preset ``paper``, ``sum 5`` the literal equation 6."""


@dataclass(frozen=True)
class Fragments:
    """Vectors of all passages.

    vectors: (P, E), unit length.
    owners:  (P,) document of each passage.
    places:  (P,) place of each passage in its document, from 0.
    counts:  (N,) number of passages of each document.
    """

    vectors: np.ndarray
    owners: np.ndarray
    places: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, passages: Passages, encoder: TextEncoder) -> Fragments:
        """Encode the passages of all documents."""
        starts = [passages.starts(document) for document in range(len(passages.tokens))]
        counts = np.array([len(some) for some in starts])
        pieces = [
            passages.get(document, start).tolist() for document, some in enumerate(starts) for start in some
        ]
        places = np.concatenate([np.arange(count) for count in counts])
        return cls(encoder.encode(pieces), np.repeat(np.arange(len(counts)), counts), places, counts)

    def first(self) -> np.ndarray:
        """Return the vector of the first passage of each document, (N, E); zeros without text."""
        found = np.zeros((len(self.counts), self.vectors.shape[1]), np.float32)
        begins = self.places == 0
        found[self.owners[begins]] = self.vectors[begins]
        return found

    def scores(self, queries: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scores of all documents by each of SCORES, (Q, N). queries: (Q, E), unit length."""
        most = max(best for best, _ in SCORES.values())
        found = {name: np.zeros((len(queries), len(self.counts)), np.float32) for name in SCORES}
        cosines = np.zeros((len(self.counts), max(most, int(self.counts.max(initial=1)))), np.float32)
        for row, query in enumerate(queries):
            cosines[self.owners, self.places] = self.vectors @ query
            highest = -np.partition(-cosines, most - 1, axis=1)[:, :most]
            for name, (best, divided) in SCORES.items():
                found[name][row] = decayed_sum(highest, self.counts, best=best, normalize=divided)
        return found
