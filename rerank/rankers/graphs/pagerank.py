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
    """Return the k best other documents of each of N documents, by personalized PageRank.

    Returns their positions, (N, k), padded with -1, and their scores, (N, k), padded with 0. The matrix is

        P = a (1 - (1 - a) A')^-1,   A' = A diag(1 / s),   s_j = sum_i A_ij

    (Raman et al. 2021, equation 1) with the restart probability a. Its row i ranks the documents for i, and
    penalizes documents with many links.

    adjacency: (N, N), symmetric and nonnegative, with an empty diagonal.
    tolerance: the maximum error of a score, if there are more than ``exact`` documents.
    seed: decides the order of ties.
    """
    size = adjacency.shape[0]
    hashes = np.random.default_rng(seed).permutation(size)
    ids = np.full((size, k), -1, dtype=np.int32)
    scores = np.zeros((size, k), dtype=np.float32)
    rows = _inverted(adjacency) if size <= exact else _pushed(adjacency, tolerance)
    for document, (columns, values) in enumerate(rows):
        is_other = (columns != document) & (values > 0)
        columns, values = _best(columns[is_other], values[is_other], k, hashes)
        ids[document, : len(columns)] = columns
        scores[document, : len(columns)] = values
        if progress is not None and (document % ROWS == ROWS - 1 or document == size - 1):
            progress(document % ROWS + 1)
    return ids, scores


def _best(
    columns: NDArray[np.integer], values: NDArray[np.floating], k: int, hashes: NDArray[np.integer]
) -> Row:
    """Return the k largest values, descending; ``hashes`` order ties."""
    if len(values) > k:
        largest = np.argpartition(values, -k)[-k:]
        columns = columns[largest]
        values = values[largest]
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
        rows = slice(begin, begin + ROWS)
        block = np.maximum(inverse[rows], inverse[:, rows].T)  # one triangle is 0
        block *= ALPHA * root[rows, None] / root
        for values in block:
            yield columns, values


def _pushed(adjacency: csr_matrix, tolerance: float) -> Iterator[Row]:
    """Yield lower bounds of rows, within the tolerance, by pushing."""
    from scipy.sparse import csr_matrix, diags

    degrees = _degrees(adjacency)
    inverse = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    step = (adjacency @ diags(inverse)).astype(np.float32).tocsr()
    links = np.diff(step.indptr)
    size = adjacency.shape[0]
    for begin in range(0, size, ROWS):
        count = min(ROWS, size - begin)
        seeds = (np.arange(count), np.arange(begin, begin + count))
        residual = csr_matrix((np.ones(count, np.float32), seeds), shape=(count, size))
        total = csr_matrix(residual.shape, dtype=np.float32)
        followed = np.zeros(count)
        while True:
            rows = np.repeat(np.arange(count), np.diff(residual.indptr))
            large = (residual.data > tolerance) & (followed[rows] < MAX_LINKS)
            if not large.any():
                break
            followed += np.bincount(rows[large], links[residual.indices[large]], minlength=count)
            pushed = csr_matrix(
                (residual.data[large], (rows[large], residual.indices[large])), shape=residual.shape
            )
            total = total + pushed
            residual.data[large] = 0
            residual.eliminate_zeros()
            residual = residual + (pushed @ step) * np.float32(1 - ALPHA)
        total = ((total + residual) * np.float32(ALPHA)).tocsr()
        for begin_row, end_row in zip(total.indptr[:-1].tolist(), total.indptr[1:].tolist()):
            yield total.indices[begin_row:end_row], total.data[begin_row:end_row]


def _degrees(adjacency: csr_matrix) -> NDArray[np.float64]:
    degrees: NDArray[np.float64] = np.asarray(adjacency.sum(axis=0), dtype=np.float64).ravel()
    return degrees
