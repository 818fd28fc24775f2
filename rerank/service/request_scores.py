"""BM25 and tf-idf of documents that are not in the collection."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import TermStatistics

K1 = 1.2
B = 0.75

Array = NDArray[np.float64]


class LexicalScorer:
    """Scores n documents by their terms.

    documents:  the terms of each document.
    statistics: of the collection, so that the score of a document does not depend on the other documents.
        None: the documents themselves are the collection.

    >>> LexicalScorer([["wolf", "pup"], ["fox"]]).score("tfidf", ["fox"]).tolist()
    [0.0, 1.0]
    """

    def __init__(self, documents: Sequence[Sequence[str]], statistics: TermStatistics | None = None) -> None:
        numbers: dict[str, int] = {}
        terms = [numbers.setdefault(term, len(numbers)) for document in documents for term in document]
        lengths = [len(document) for document in documents]
        rows = np.repeat(np.arange(len(documents)), lengths)
        width = max(len(numbers), 1)
        pairs, counts = np.unique(rows * width + np.array(terms, np.int64), return_counts=True)
        self._numbers = numbers
        self._lengths = np.array(lengths, np.float64)
        self._rows, self._terms = np.divmod(pairs, width)
        self._counts = counts.astype(np.float64)
        frequencies = np.bincount(self._terms, minlength=len(numbers))
        if statistics is None:
            mean_length = float(self._lengths.mean()) if lengths else 0.0
            statistics = TermStatistics(len(documents), mean_length, {})
        for term in statistics.frequencies.keys() & numbers.keys():
            frequencies[numbers[term]] = statistics.frequencies[term]
        self._statistics = statistics
        self._frequencies = frequencies.clip(0, max(statistics.documents, 1))

    def score(self, signal: str, query: Sequence[str]) -> Array:
        """Return (n,) scores by ``bm25`` or ``tfidf``; 0: no shared term. query: terms."""
        weights = np.zeros(len(self._numbers))
        for term, count in Counter(query).items():
            if term in self._numbers:
                weights[self._numbers[term]] = count
        n = len(self._lengths)
        if not weights.any():
            return np.zeros(n)
        parts = self._bm25(weights) if signal == "bm25" else self._tfidf(weights, Counter(query))
        return np.bincount(self._rows, parts, n).astype(np.float64)

    def _bm25(self, query: Array) -> Array:
        documents = self._statistics.documents
        idf = np.log(1 + (documents - self._frequencies + 0.5) / (self._frequencies + 0.5))
        length = (self._lengths / max(self._statistics.mean_length, 1e-9))[self._rows]
        saturated = self._counts * (K1 + 1) / (self._counts + K1 * (1 - B + B * length))
        parts: Array = (query * idf)[self._terms] * saturated * self._statistics.bm25_scale
        return parts

    def _tfidf(self, query: Array, counts: Mapping[str, int]) -> Array:
        """query: (terms,) counts of the documents' terms in the query. counts: of all terms of the query."""
        idf = self._inverse_frequency(self._frequencies)
        weights = (1 + np.log(self._counts)) * idf[self._terms]
        norms = np.sqrt(np.bincount(self._rows, weights * weights, len(self._lengths)))
        vector = np.where(query > 0, (1 + np.log(np.maximum(query, 1))) * idf, 0)
        squares = float(vector @ vector)
        for term, count in counts.items():  # terms of the collection that these documents do not have
            frequency = self._statistics.frequencies.get(term, 0)
            if term not in self._numbers and frequency:
                squares += float((1 + math.log(count)) * self._inverse_frequency(np.array(frequency))) ** 2
        parts: Array = weights / norms[self._rows] * (vector / math.sqrt(squares))[self._terms]
        return parts

    def _inverse_frequency(self, frequencies: NDArray[np.int64]) -> Array:
        return np.log((1 + self._statistics.documents) / (1 + frequencies)) + 1
