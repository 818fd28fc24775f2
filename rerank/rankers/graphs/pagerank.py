"""Documents ranked by personalized PageRank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    Row = tuple[NDArray[np.integer], NDArray[np.floating]]
    """Columns and values of a row; columns that are not listed are 0."""

ALPHA = 0.15
"""Restart probability a."""
EXACT = 6_000
"""Up to this number of documents the matrix is inverted (8 bytes x N^2 of memory); above, rows are pushed."""
ROWS = 256
"""Rows that are pushed, or read from the inverse, at once."""
TIES = 16
"""Scores with the same first TIES binary digits are ties."""
MAX_LINKS = 2_000_000
"""Links that are followed for one document. The scores of a document that needs more are less precise."""


def top_pagerank(
    adjacency: csr_matrix,
    k: int = 64,
    *,
    tolerance: float = 1e-3,
    seed: int = 0,
    exact: int = EXACT,
    progress: Callable[[int], object] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return k best other documents: positions and scores, (N, k), padded with -1 and 0.

        P = a (1 - (1 - a) A')^-1,   A' = A diag(1 / s),   s_j = sum_i A_ij

    (Raman et al. 2021, equation 1); a: restart probability. Row i ranks documents for i and penalizes hubs.

    adjacency: (N, N), symmetric, nonnegative, empty diagonal.
    tolerance: maximum error above ``exact`` documents.
    seed: order of ties.
    """
    size = adjacency.shape[0]
    hashes = np.random.default_rng(seed).permutation(size)
    ids = np.full((size, k), -1, dtype=np.int32)
    scores = np.zeros((size, k), dtype=np.float32)
    rows = _inverted(adjacency) if size <= exact else _pushed(adjacency, tolerance)
    for document, (columns, values) in enumerate(rows):
        others = (columns != document) & (values > 0)
        columns, values = _best(columns[others], values[others], k, hashes)
        ids[document, : len(columns)], scores[document, : len(columns)] = columns, values
        if progress is not None and (document % ROWS == ROWS - 1 or document == size - 1):
            progress(document % ROWS + 1)
    return ids, scores


def _best(
    columns: NDArray[np.integer], values: NDArray[np.floating], k: int, hashes: NDArray[np.integer]
) -> Row:
    """Return the k largest values, descending; ``hashes`` order ties."""
    if len(values) > k:
        largest = np.argpartition(values, -k)[-k:]
        columns, values = columns[largest], values[largest]
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.round(mantissa * 2.0**TIES), exponent)
    order = np.lexsort((hashes[columns], -rounded))
    return columns[order], values[order]


def _inverted(adjacency: csr_matrix) -> Iterator[Row]:
    """Yield exact rows by Cholesky decomposition (D^-1/2 (1 - (1 - a) A') D^1/2, D = diag(s))."""
    from scipy.linalg import lapack
    from scipy.sparse import diags, identity

    size = adjacency.shape[0]
    degrees = _degrees(adjacency)
    root = np.sqrt(np.where(degrees > 0, degrees, 1.0))
    scale = diags(1 / root)
    system = identity(size) - (1 - ALPHA) * (scale @ adjacency @ scale)
    factor, _ = lapack.dpotrf(system.toarray(order="F"), overwrite_a=1, clean=1)
    inverse, _ = lapack.dpotri(factor, overwrite_c=1)
    columns = np.arange(size)
    for begin in range(0, size, ROWS):
        some = slice(begin, begin + ROWS)
        block = np.maximum(inverse[some], inverse[:, some].T)  # one triangle is 0
        block *= ALPHA * root[some, None] / root
        for values in block:
            yield columns, values


def _pushed(adjacency: csr_matrix, tolerance: float) -> Iterator[Row]:
    """Yield lower bounds of rows, within the tolerance, by pushing."""
    from scipy.sparse import csr_matrix, diags

    degrees = _degrees(adjacency)
    inverse = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    step = (adjacency @ diags(inverse)).astype(np.float32).tocsr()
    links, size = np.diff(step.indptr), adjacency.shape[0]
    for begin in range(0, size, ROWS):
        count = min(ROWS, size - begin)
        seeds = (np.arange(count), np.arange(begin, begin + count))
        rest = csr_matrix((np.ones(count, np.float32), seeds), shape=(count, size))
        total, followed = csr_matrix(rest.shape, dtype=np.float32), np.zeros(count)
        while True:
            rows = np.repeat(np.arange(count), np.diff(rest.indptr))
            large = (rest.data > tolerance) & (followed[rows] < MAX_LINKS)
            if not large.any():
                break
            followed += np.bincount(rows[large], links[rest.indices[large]], minlength=count)
            pushed = csr_matrix((rest.data[large], (rows[large], rest.indices[large])), shape=rest.shape)
            total = total + pushed
            rest.data[large] = 0
            rest.eliminate_zeros()
            rest = rest + (pushed @ step) * np.float32(1 - ALPHA)
        total = ((total + rest) * np.float32(ALPHA)).tocsr()
        for begin_row, end_row in zip(total.indptr[:-1].tolist(), total.indptr[1:].tolist()):
            yield total.indices[begin_row:end_row], total.data[begin_row:end_row]


def _degrees(adjacency: csr_matrix) -> NDArray[np.float64]:
    degrees: NDArray[np.float64] = np.asarray(adjacency.sum(axis=0), dtype=np.float64).ravel()
    return degrees
