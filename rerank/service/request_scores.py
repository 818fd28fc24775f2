"""BM25 and tf-idf of documents that come with the request: they are the whole collection.

The formulas are the local engine's, with the number of documents, their lengths and the documents that a
term is in counted over the request alone. So scores need no engine, and depend on nothing but the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

K1, B = 1.2, 0.75


class LexicalScorer:
    """How often each term occurs in each of n documents.

    documents: the terms of each, as ``rerank.text.analyzer`` gives them.

    >>> LexicalScorer([["wolf", "pup"], ["fox"]]).score("tfidf", ["fox"]).tolist()
    [0.0, 1.0]
    """

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        numbers: dict[str, int] = {}
        flat = [numbers.setdefault(term, len(numbers)) for terms in documents for term in terms]
        self._numbers = numbers
        self._lengths = np.array([len(terms) for terms in documents], np.float64)
        places = np.repeat(np.arange(len(documents)), [len(terms) for terms in documents])
        pairs, counts = np.unique(
            places * max(len(numbers), 1) + np.array(flat, np.int64), return_counts=True
        )
        self._documents, self._terms = np.divmod(pairs, max(len(numbers), 1))
        self._counts = counts.astype(np.float64)
        self._in = np.bincount(self._terms, minlength=len(numbers))  # documents that each term is in

    def score(self, signal: str, query: Sequence[str]) -> NDArray[np.float64]:
        """(n,) scores by ``bm25`` or ``tfidf``; 0 = no shared term. query: its terms."""
        asked = np.zeros(len(self._numbers))
        for term, count in Counter(query).items():
            if term in self._numbers:
                asked[self._numbers[term]] = count
        n = len(self._lengths)
        if not asked.any():
            return np.zeros(n)
        parts = self._bm25(asked) if signal == "bm25" else self._tfidf(asked)
        return np.bincount(self._documents, parts, n).astype(np.float64)

    def _bm25(self, asked: NDArray[np.float64]) -> NDArray[np.float64]:
        idf = np.log(1 + (len(self._lengths) - self._in + 0.5) / (self._in + 0.5))
        length = (self._lengths / self._lengths.mean())[self._documents]
        saturated = self._counts * (K1 + 1) / (self._counts + K1 * (1 - B + B * length))
        parts: NDArray[np.float64] = (asked * idf)[self._terms] * saturated
        return parts

    def _tfidf(self, asked: NDArray[np.float64]) -> NDArray[np.float64]:
        idf = np.log((1 + len(self._lengths)) / (1 + self._in)) + 1
        weights = (1 + np.log(self._counts)) * idf[self._terms]
        norms = np.sqrt(np.bincount(self._documents, weights * weights, len(self._lengths)))
        query = np.where(asked > 0, (1 + np.log(np.maximum(asked, 1))) * idf, 0)
        parts: NDArray[np.float64] = (
            weights / norms[self._documents] * (query / np.linalg.norm(query))[self._terms]
        )
        return parts
