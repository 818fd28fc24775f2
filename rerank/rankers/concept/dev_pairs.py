"""Evaluation on labeled dev pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.evaluation.pairs import accuracy, auc, best_threshold, f1
from rerank.rankers.concept.head import Head
from rerank.rankers.encoder.batching import Encode


@dataclass
class DevPairs:
    """Labeled pairs.

    documents: (D,) positions.
    first, second: (P,) places in ``documents``.
    related: (P,) bool.
    head: current head; None: cosine.
    """

    documents: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    related: NDArray[np.bool_]
    head: Callable[[], Head | None]

    def measure(self, encode: Encode) -> dict[str, float]:
        """Return AUC (decides), threshold, accuracy, F1 and cosine AUC."""
        head, vectors = self.head(), encode(self.documents)
        scores = self.scores(vectors, head)
        threshold = best_threshold(scores, self.related)
        found = {
            "AUC": auc(scores, self.related),
            "threshold": threshold,
            "accuracy": accuracy(scores, self.related, threshold),
            "F1": f1(scores, self.related, threshold),
        }
        return found | ({"cosine AUC": auc(self.scores(vectors, None), self.related)} if head else {})

    def scores(self, vectors: NDArray[np.float32], head: Head | None) -> NDArray[np.float64]:
        """Return scores, (P,), of unit vectors, (D, E)."""
        a, b = vectors[self.first], vectors[self.second]
        return np.einsum("ij,ij->i", a, b).astype(np.float64) if head is None else head.relatedness(a, b)
