"""Sparse tf-idf vectors of words and letter sequences, and the projection rankers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged, single_precision
from rerank.documents.records import Document, Query
from rerank.documents.text import words
from rerank.rankers.base import ArrayRanker, check_width
from rerank.rankers.training.data import LONGEST_TEXT, Corpus

LONGEST_CACHED = 64  # characters of a word
CHUNK_TEXTS = 16_384
"""Texts whose terms are counted together, to limit the memory."""
REMEMBERED = 200_000
"""Words whose terms are cached."""


def terms_of(word: str, letters: int) -> Iterator[str]:
    """Yield a word and its sequences of ``letters`` letters (0: none); < and > mark its ends.

    >>> list(terms_of("cats", 4))
    ['cats', '<cat', 'cats', 'ats>']
    >>> list(terms_of("of", 4)), list(terms_of("cats", 0))
    (['of', '<of>'], ['cats'])
    """
    yield word
    if letters:
        marked = f"<{word}>"
        for begin in range(len(marked) - letters + 1):
            yield marked[begin : begin + letters]


@dataclass
class Terms:
    """The V terms of a vocabulary, with their inverse document frequency.

    names:   the terms.
    idf:     (V,) ln(N / df) of each term.
    letters: the length of the letter sequences that are also terms; 0: only words are terms.
    longest: the number of words that are read per text.
    """

    names: list[str]
    idf: NDArray[np.float32]
    letters: int
    longest: int
    _columns: Callable[[str], list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {name: column for column, name in enumerate(self.names)}
        letters = self.letters

        def columns(word: str) -> list[int]:
            return [index[term] for term in terms_of(word, letters) if term in index]

        cached_columns = lru_cache(REMEMBERED)(columns)
        # Long words of users must not fill the memory.
        self._columns = lambda word: cached_columns(word) if len(word) <= LONGEST_CACHED else columns(word)

    def vector(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the columns of the known terms of a text, ascending, and their weights (1 + ln tf) idf.

        The weights have length 1. A text without known terms gives empty arrays.
        """
        occurrences: list[int] = []
        for word in words(text)[: self.longest]:
            occurrences += self._columns(word)
        columns, counts = np.unique(np.array(occurrences, dtype=np.int64), return_counts=True)
        weights = ((1.0 + np.log(counts)) * self.idf[columns]).astype(np.float32)
        length = float(np.sqrt(weights @ weights))
        if not length:
            return columns[:0], weights[:0]
        return columns, weights / np.float32(length)


def fit_terms(corpora: Iterable[Corpus], letters: int, limit: int) -> Terms:
    """Choose at most ``limit`` terms, which the most texts have. The idf is ln(N / df).

    Terms in every text are left out, and terms in only one text, unless all terms are.

    letters: see :class:`Terms`.
    """
    index: dict[str, int] = {}
    frequency = np.zeros(0, dtype=np.int64)
    texts = 0
    for corpus in corpora:
        for word in corpus.words:
            for term in terms_of(word, letters):
                index.setdefault(term, len(index))
        texts += len(corpus.tokens)
        frequency = np.concatenate((frequency, np.zeros(len(index) - len(frequency), dtype=np.int64)))
        for counts in _counts(corpus, index, letters):
            frequency += np.bincount(counts.indices, minlength=len(index))
    names = np.array(list(index), dtype=object)
    useful = (frequency >= 2) & (frequency < texts)
    if not useful.any():
        useful = (frequency >= 1) & ((frequency < texts) | (texts == 1))
    names = names[useful]
    frequency = frequency[useful]
    order = np.lexsort((names.astype(str), -frequency))[:limit]
    idf = np.log(max(texts, 2) / frequency[order]).astype(np.float32)
    return Terms(names[order].tolist(), idf, letters, LONGEST_TEXT)


def term_matrix(terms: Terms, corpus: Corpus) -> Any:
    """Return the term vectors of n texts as CSR, (n, V) float32. Rows have length 1 or are empty."""
    from scipy.sparse import csr_matrix, vstack

    index = dict(zip(terms.names, range(len(terms.names))))
    chunks = [_weighted(terms, counts) for counts in _counts(corpus, index, terms.letters)]
    return vstack(chunks, "csr") if chunks else csr_matrix((0, len(index)), dtype=np.float32)


def _weighted(terms: Terms, counts: Any) -> Any:
    """Return the term vectors of texts by their counts of terms, CSR (n, V) float32."""
    from scipy.sparse import csr_matrix

    weights = (1.0 + np.log(counts.data)) * terms.idf[counts.indices]
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    lengths = np.sqrt(np.bincount(rows, np.square(weights, dtype=np.float64), minlength=counts.shape[0]))
    data = (weights / lengths[rows]).astype(np.float32)
    return csr_matrix((data, counts.indices, counts.indptr), shape=counts.shape)


def _counts(corpus: Corpus, index: Mapping[str, int], letters: int) -> Iterator[Any]:
    """Yield how often each text has each term, CSR (m, V) for CHUNK_TEXTS texts at a time.

    It is the product of two matrices: texts by words, and words by terms.
    """
    from scipy.sparse import csr_matrix

    def matrix(rows: Ragged, columns: int) -> Any:
        counts = np.ones(len(rows.flat), np.float32)
        return csr_matrix((counts, rows.flat, rows.offsets), shape=(len(rows), columns))

    columns = []
    for word in corpus.words:
        columns.append([index[term] for term in terms_of(word, letters) if term in index])
    terms_by_word = matrix(Ragged.from_lists(columns), len(index))
    for begin in range(0, len(corpus.tokens), CHUNK_TEXTS):
        texts = corpus.tokens.take(np.arange(begin, min(begin + CHUNK_TEXTS, len(corpus.tokens))))
        counts = (matrix(texts, len(columns)) @ terms_by_word).tocsr()
        counts.sort_indices()
        yield counts


@dataclass(kw_only=True, repr=False)
class Projection(ArrayRanker):
    """Cosine of projected term vectors (Yih et al. 2011, section 3.1). Features: k fp16 numbers.

    query, document: matrices (V, k), possibly one object.
    """

    family: ClassVar[str] = "projection"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # type: ignore[misc]
    retrieves = True

    terms: Terms
    query: NDArray[np.float16]
    document: NDArray[np.float16]

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """Return the projected vectors, (n, k) fp16, of length 1; 0 without known terms."""
        vectors = np.zeros((len(documents), self.document.shape[1]), dtype=np.float16)
        for row, document in enumerate(documents):
            vectors[row] = self.project(document.content, self.document)
        return vectors

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """Return the projected vector, (k,), of length 1; 0 without known terms."""
        return self.project(query.text, self.query)

    def project(self, text: str, matrix: NDArray[np.float16]) -> NDArray[np.float32]:
        """Return A^T f of a text with the term vector f, (k,), of length 1; zeros without known terms.

        matrix: A, (V, k).
        """
        columns, weights = self.terms.vector(text)
        projected: NDArray[np.float32] = weights @ single_precision(matrix[columns])
        length = float(np.sqrt(projected @ projected))
        return projected / np.float32(length) if length > 0 else projected

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the (n,) cosines in [-1, 1]; 0 without known terms.

        Raises WorkspaceError if the features are not k numbers wide.
        """
        check_width(self, features, len(query))
        cosines: NDArray[np.float64] = (single_precision(features) @ query).astype(np.float64)
        return np.clip(cosines, -1.0, 1.0)  # fp16 lengths are 1 only nearly

    def content(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str] | str], dict[str, Any]]:
        terms = self.terms
        arrays: dict[str, NDArray[Any]] = {"query": self.query, "idf": terms.idf}
        if self.document is not self.query:
            arrays["document"] = self.document
        return arrays, {"terms": terms.names}, {"letters": terms.letters, "longest": terms.longest}

    @classmethod
    def fields_of(
        cls, arrays: Mapping[str, NDArray[Any]], vocabularies: dict[str, Any], record: dict[str, Any]
    ) -> dict[str, Any]:
        terms = Terms(vocabularies["terms"], arrays["idf"], record["letters"], record["longest"])
        query = arrays["query"]
        document = arrays.get("document", query)
        for matrix in (query, document):
            if not len(terms.names) == len(terms.idf) == len(matrix) or matrix.ndim != 2:
                raise ValueError(f"a matrix of {matrix.shape} does not fit {len(terms.names)} names")
        return {"terms": terms, "query": query, "document": document}
