"""Term vectors of a corpus as a sparse matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rerank.rankers.projection.terms import Terms, terms_of
from rerank.rankers.training.data import LONGEST_TEXT, Corpus


def fit_terms(corpora: Iterable[Corpus], letters: int, most: int) -> Terms:
    """Choose ``most`` terms by document frequency; idf is ln(N / df).

    Skips terms in every text, or in one text unless all are.
    letters: see :class:`Terms`.

    >>> from rerank.records import Document
    >>> texts = ["red apple", "green apple", "a red car", "a car"]
    >>> fit_terms([Corpus.read(Document("", text=t) for t in texts)], 0, 3).names
    ['a', 'apple', 'car']
    """
    index: dict[str, int] = {}
    frequency = np.zeros(0, dtype=np.int64)
    texts = 0
    for corpus in corpora:
        for word in corpus.words:
            for term in terms_of(word, letters):
                index.setdefault(term, len(index))
        counts = _counts(corpus, index, letters)
        texts += counts.shape[0]
        frequency = np.concatenate((frequency, np.zeros(len(index) - len(frequency), dtype=np.int64)))
        frequency += np.bincount(counts.indices, minlength=len(index))
    names = np.array(list(index), dtype=object)
    kept = (frequency >= 2) & (frequency < texts)
    if not kept.any():
        kept = (frequency >= 1) & ((frequency < texts) | (texts == 1))
    names, frequency = names[kept], frequency[kept]
    order = np.lexsort((names.astype(str), -frequency))[:most]
    idf = np.log(max(texts, 2) / frequency[order]).astype(np.float32)
    return Terms(names[order].tolist(), idf, letters, LONGEST_TEXT)


def term_matrix(terms: Terms, corpus: Corpus) -> Any:
    """Term vectors of n texts: CSR (n, V) float32, rows of length 1 or empty."""
    from scipy.sparse import csr_matrix

    index = dict(zip(terms.names, range(len(terms.names))))
    counts = _counts(corpus, index, terms.letters)
    weights = (1.0 + np.log(counts.data)) * terms.idf[counts.indices]
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    lengths = np.sqrt(np.bincount(rows, np.square(weights, dtype=np.float64), minlength=counts.shape[0]))
    data = (weights / lengths[rows]).astype(np.float32)
    return csr_matrix((data, counts.indices, counts.indptr), shape=counts.shape)


def _counts(corpus: Corpus, index: Mapping[str, int], letters: int) -> Any:
    """Counts of terms, CSR (n, V): (texts by words) (words by terms)."""
    from scipy.sparse import csr_matrix

    known = [[index[term] for term in terms_of(word, letters) if term in index] for word in corpus.words]
    flat = np.array([term for terms in known for term in terms], dtype=np.int32)
    ends = np.concatenate(([0], np.cumsum([len(terms) for terms in known]))).astype(np.int64)
    words = csr_matrix((np.ones(len(flat), np.float32), flat, ends), shape=(len(known), len(index)))
    tokens, size = corpus.tokens, (len(corpus.tokens), len(known))
    texts = csr_matrix((np.ones(len(tokens.flat), np.float32), tokens.flat, tokens.offsets), shape=size)
    counts = (texts @ words).tocsr()
    counts.sort_indices()
    return counts
