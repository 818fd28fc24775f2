"""Documents ranked by personalized PageRank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.progress import ignore_count

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    Row = tuple[NDArray[np.integer], NDArray[np.floating]]
    """Columns and values of a row; columns that are not listed are 0."""

ALPHA = 0.15
"""Restart probability a."""
MAX_DOCUMENTS = 10_000
"""Maximum number of documents: the matrix is inverted, which takes 8 bytes x N^2 of memory."""
ROWS = 256
"""Rows that are read from the inverse at once."""
TIES = 16
"""Scores with the same first TIES binary digits are ties."""


def top_pagerank(
    adjacency: csr_matrix,
    k: int = 64,
    *,
    seed: int = 0,
    progress: Callable[[int], object] = ignore_count,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the k best other documents of each of N documents, by personalized PageRank.

    Returns their positions, (N, k), padded with -1, and their scores, (N, k), padded with 0. The matrix is

        P = a (1 - (1 - a) A')^-1,   A' = A diag(1 / s),   s_j = sum_i A_ij

    (Raman et al. 2021, equation 1) with the restart probability a. Its row i ranks the documents for i, and
    penalizes documents with many links.

    adjacency: (N, N), symmetric and nonnegative, with an empty diagonal.
    seed: decides the order of ties.

    Raises UsageError for more than MAX_DOCUMENTS documents.
    """
    size = adjacency.shape[0]
    if size > MAX_DOCUMENTS:
        raise UsageError(
            f"PageRank reads at most {MAX_DOCUMENTS:,} documents, because its matrix must fit into memory;"
            " leave out --objective quintuplet and --preset paper, or ingest fewer documents"
        )
    hashes = np.random.default_rng(seed).permutation(size)
    ids = np.full((size, k), -1, dtype=np.int32)
    scores = np.zeros((size, k), dtype=np.float32)
    for document, (columns, values) in enumerate(_inverted(adjacency)):
        is_other = (columns != document) & (values > 0)
        columns, values = _best(columns[is_other], values[is_other], k, hashes)
        ids[document, : len(columns)] = columns
        scores[document, : len(columns)] = values
        if document % ROWS == ROWS - 1 or document == size - 1:
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


def _degrees(adjacency: csr_matrix) -> NDArray[np.float64]:
    degrees: NDArray[np.float64] = np.asarray(adjacency.sum(axis=0), dtype=np.float64).ravel()
    return degrees
