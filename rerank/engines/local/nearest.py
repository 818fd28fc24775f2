"""Exact search for the largest inner products with a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import simsimd
from numpy.typing import NDArray

from rerank.arrays import passage_cosines, passage_counts, split_passages

Rows = NDArray[np.int64]
Scores = NDArray[np.floating[Any]]
Float32 = NDArray[np.float32]
Ids = Callable[[Rows], list[str]]

_BLOCK = 1024  # vectors multiplied together, in cache
_CELLS = 16_000_000  # scores that are held at a time
_FEW = 8  # fewer queries are rounded to the type of the rows, which then need no conversion
_ROUNDING = 1e-5  # maximum error of a float32 product of unit vectors

for _lossy in ("sapphire", "sve_f16"):  # they add up in half precision
    simsimd.disable_capability(_lossy)


def nearest(
    matrix: NDArray[Any], queries: Float32, depth: int, passages: int, dead: Rows, ids: Ids
) -> Iterator[Rows]:
    """Yield the rows of the ``depth`` best products above 0 per query, ascending. Ties: smallest ids.

    matrix: (n, width) features. queries: (Q, E). dead: excluded rows.
    passages: maximum vectors of a feature, compared by largest cosine with a query of length 1; 0: one
        vector.
    """
    together = max(1, _CELLS // max(len(matrix), 1))
    for begin in range(0, len(queries), together):
        some = queries[begin : begin + together]
        approximate, coding, rounding = _approximate(matrix, some, passages)
        for query, scores, lost in zip(some, approximate, coding):
            scores[dead] = -np.inf
            rows, left, found, error = np.arange(len(matrix)), depth, list[Rows](), lost + rounding
            # Only scores near the cut need more digits.
            for vector in (query, query.astype(np.float64)):
                cut = max(np.partition(scores, -left)[-left] if len(scores) > left else 0.0, 0.0)
                found.append(rows[scores > cut + 2 * error])
                rows, left = rows[np.abs(scores - cut) <= 2 * error], left - len(found[-1])
                scores, error = _products(matrix[rows], vector, passages), rounding
            scores = scores.astype(np.float32)  # equal documents get equal scores
            positive = scores > 0
            found.append(best(rows[positive], scores[positive], left, ids)[0])
            yield np.sort(np.concatenate(found))


def best(rows: Rows, scores: NDArray[Any], depth: int, ids: Ids) -> tuple[Rows, NDArray[Any]]:
    """Return the ``depth`` best rows and their scores, unordered. Ties: smallest ids."""
    if len(rows) > depth:
        cut = np.partition(scores, -depth)[-depth] if depth else np.inf
        above, ties = np.flatnonzero(scores > cut), np.flatnonzero(scores == cut)
        if len(above) + len(ties) > depth:
            names = ids(rows[ties])
            ties = ties[sorted(range(len(ties)), key=names.__getitem__)[: depth - len(above)]]
        kept = np.concatenate([above, ties])
        rows, scores = rows[kept], scores[kept]
    return rows, scores


def _approximate(
    matrix: NDArray[Any], queries: Float32, passages: int
) -> tuple[Float32, NDArray[np.float64], float]:
    """(Q, n) products, or largest cosines that are at least 0.

    Also (Q,) bounds of errors of rounded queries, and one of float32 sums.
    """
    lengths = np.linalg.norm(queries, axis=1)
    scores, longest = np.zeros((len(queries), len(matrix)), np.float32), 1.0
    coded = len(queries) < _FEW and matrix.dtype == (np.int8 if passages else np.float16)
    codes, lost = queries, np.zeros(len(queries))
    if coded:
        steps = np.maximum(np.abs(queries).max(axis=1, keepdims=True), 1e-30) / (127 if passages else 1)
        codes = (np.rint(queries / steps) if passages else queries / steps).astype(matrix.dtype)
        lost = np.linalg.norm(queries - codes * steps, axis=1).astype(np.float64)
    size = max(1, _BLOCK // max(passages, 1))
    for begin in range(0, len(matrix), size):
        vectors, part = matrix[begin : begin + size], scores[:, begin : begin + size]
        if passages:
            counts = passage_counts(vectors, passages)[:, None]
            most = max(int(counts.max()), 1)
            # Contiguous copies are multiplied several times faster.
            vectors = np.ascontiguousarray(split_passages(vectors, passages)[:, :most])
            vectors = vectors.reshape(-1, queries.shape[1])
        if coded:
            products = np.asarray(simsimd.cdist(codes, vectors, "cos" if passages else "dot"), np.float32)
            squares = np.ones(1) if passages else np.asarray(simsimd.dot(vectors, vectors))
            products = 1 - products if passages else products * steps
        else:
            vectors = vectors.astype(np.float32, copy=False)
            products, squares = codes @ vectors.T, np.einsum("ij,ij->i", vectors, vectors)
            if passages:
                products /= np.maximum(np.sqrt(squares), 1e-9)
        if passages:
            products *= (np.arange(most) < counts).reshape(-1)
            products = products.reshape(len(queries), -1, most).max(axis=2, initial=0)
        else:
            longest = max(longest, float(squares.max()) ** 0.5)
        part[:] = products
    rounding = _ROUNDING * longest * max(float(lengths.max(initial=0)), 1e-30)
    return scores, lost * (2 if passages else longest), rounding


def _products(features: NDArray[Any], query: Scores, passages: int) -> Scores:
    """(n,) products, or largest cosines, in the precision of the query."""
    if passages:
        cosines: Scores = passage_cosines(query, features, passages).max(axis=1, initial=0)
        return cosines
    products: Scores = features.astype(query.dtype) @ query
    return products
