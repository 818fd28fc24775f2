"""Word vectors by an SVD of co-occurrences. They replace gensim, which has no wheel for the newest Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CONTEXT_POWER = 0.75
"""Smoothing of the counts of contexts, as in word2vec (Levy et al. 2015)."""

NOISE = 1e-3
"""Standard deviation of the noise in each vector, in lengths of the mean vector."""


def cooccurrence_vectors(
    texts: Callable[[], Iterable[Sequence[str]]], *, size: int, min_count: int, window: int, seed: int
) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64]]:
    """Return words by descending frequency, their counts (n,), and their vectors (n, size).

    Skip-gram with negative sampling factorizes a shifted matrix of pointwise mutual information (Levy and
    Goldberg 2014). This function factorizes the positive part of that matrix by a truncated SVD, and weights
    each axis by the root of its singular value (Levy et al. 2015).

    Words in the same contexts would get the same vector, for example all children of a category that have
    no other neighbor. So each vector gets a little noise, as a random start gives the vectors of word2vec.

    texts: returns the word lists; it is called twice.
    min_count: words with fewer occurrences get no vector.
    window: neighbors on each side. A neighbor at distance d counts (window + 1 - d) / window.
    seed: of the start vector of the SVD and of the noise.
    """
    from scipy.sparse.linalg import svds

    frequencies = Counter(word for text in texts() for word in text)
    words = [word for word, count in frequencies.most_common() if count >= min_count]
    counts = np.array([frequencies[word] for word in words], dtype=np.int64)
    if len(words) < 2:
        return words, counts, np.ones((len(words), size))
    information = positive_information(_cooccurrences(texts(), words, window))
    axes = min(size, len(words) - 1)
    random = np.random.default_rng(seed)
    start = random.standard_normal(len(words))
    left_vectors, singular_values, _ = svds(information, k=axes, v0=start)
    vectors = np.zeros((len(words), size))
    # The largest singular value is the last one.
    vectors[:, :axes] = left_vectors[:, ::-1] * np.sqrt(np.maximum(singular_values[::-1], 0.0))
    noise_length = NOISE * np.linalg.norm(vectors, axis=1).mean()
    vectors += random.standard_normal(vectors.shape) * noise_length / np.sqrt(size)
    return words, counts, vectors


def positive_information(cooccurrences: csr_matrix) -> csr_matrix:
    """Return max(0, log(p(word, context) / (p(word) p(context)))) for the stored cells of (n, n) weights."""
    from scipy.sparse import csr_matrix

    cells = cooccurrences.tocoo()
    word_weights = np.asarray(cooccurrences.sum(axis=1)).ravel()
    context_weights = np.asarray(cooccurrences.sum(axis=0)).ravel() ** CONTEXT_POWER
    expected = word_weights[cells.row] * context_weights[cells.col] / max(context_weights.sum(), 1e-12)
    information = np.maximum(np.log(cells.data / expected), 0.0)
    return csr_matrix((information, (cells.row, cells.col)), shape=cells.shape)


def _cooccurrences(texts: Iterable[Sequence[str]], words: Sequence[str], window: int) -> csr_matrix:
    """Return the weights of words that are neighbors in a text, as (n, n). Other words are skipped."""
    from scipy.sparse import coo_matrix, csr_matrix

    numbers = {word: number for number, word in enumerate(words)}
    tokens: list[int] = []
    for text in texts:
        tokens.extend(numbers[word] for word in text if word in numbers)
        tokens.extend([-1] * window)  # no neighbors across texts
    flat = np.array(tokens, dtype=np.int64)
    total = csr_matrix((len(words), len(words)))
    for distance in range(1, window + 1):
        words_before = flat[:-distance]
        words_after = flat[distance:]
        inside = (words_before >= 0) & (words_after >= 0)
        weights = np.full(int(inside.sum()), (window + 1 - distance) / window)
        cells = (words_before[inside], words_after[inside])
        total = total + coo_matrix((weights, cells), shape=total.shape).tocsr()
    return total + total.T
