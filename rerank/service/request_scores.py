"""BM25 and tf-idf within the documents of one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

K1, B = 1.2, 0.75

Array = NDArray[np.float64]


class LexicalScorer:
    """Scores n documents. documents: their terms.

    >>> LexicalScorer([["wolf", "pup"], ["fox"]]).score("tfidf", ["fox"]).tolist()
    [0.0, 1.0]
    """

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        numbers: dict[str, int] = {}
        terms = [numbers.setdefault(term, len(numbers)) for one in documents for term in one]
        lengths = [len(one) for one in documents]
        rows, width = np.repeat(np.arange(len(documents)), lengths), max(len(numbers), 1)
        pairs, counts = np.unique(rows * width + np.array(terms, np.int64), return_counts=True)
        self._numbers, self._lengths = numbers, np.array(lengths, np.float64)
        self._rows, self._terms = np.divmod(pairs, width)
        self._counts = counts.astype(np.float64)
        self._frequency = np.bincount(self._terms, minlength=len(numbers))  # documents with each term

    def score(self, signal: str, query: Sequence[str]) -> Array:
        """(n,) scores by ``bm25`` or ``tfidf``; 0: no shared term. query: terms."""
        weights = np.zeros(len(self._numbers))
        for term, count in Counter(query).items():
            if term in self._numbers:
                weights[self._numbers[term]] = count
        n = len(self._lengths)
        if not weights.any():
            return np.zeros(n)
        parts = self._bm25(weights) if signal == "bm25" else self._tfidf(weights)
        return np.bincount(self._rows, parts, n).astype(np.float64)

    def _bm25(self, query: Array) -> Array:
        idf = np.log(1 + (len(self._lengths) - self._frequency + 0.5) / (self._frequency + 0.5))
        length = (self._lengths / self._lengths.mean())[self._rows]
        saturated = self._counts * (K1 + 1) / (self._counts + K1 * (1 - B + B * length))
        parts: Array = (query * idf)[self._terms] * saturated
        return parts

    def _tfidf(self, query: Array) -> Array:
        idf = np.log((1 + len(self._lengths)) / (1 + self._frequency)) + 1
        weights = (1 + np.log(self._counts)) * idf[self._terms]
        norms = np.sqrt(np.bincount(self._rows, weights * weights, len(self._lengths)))
        vector = np.where(query > 0, (1 + np.log(np.maximum(query, 1))) * idf, 0)
        parts: Array = weights / norms[self._rows] * (vector / np.linalg.norm(vector))[self._terms]
        return parts
