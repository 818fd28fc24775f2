"""Exact search for the largest inner products with a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import simsimd
from numpy.typing import NDArray

from rerank.common.arrays import passage_cosines, passage_counts, single_precision, split_passages

Rows = NDArray[np.int64]
Scores = NDArray[np.floating[Any]]
Float32 = NDArray[np.float32]
Ids = Callable[[Rows], list[str]]

_BLOCK = 1024  # vectors multiplied together, in cache
_CELLS = 16_000_000  # scores that are held at a time
_FEW = 8  # fewer queries are rounded to the type of the rows, which then need no conversion
_GROUPS_PER_RESULT = 16  # with fewer groups, more rows have to be compared
_ROUNDING = 1e-5  # maximum error of a float32 product of unit vectors

for _lossy in ("sapphire", "sve_f16"):  # they add up in half precision
    simsimd.disable_capability(_lossy)


def nearest(
    matrix: NDArray[Any], queries: Float32, depth: int, passages: int, dead: Rows, ids: Ids
) -> Iterator[Rows]:
    """Yield, for each query, the ascending rows of the ``depth`` largest products above 0.

    Of equal products, the rows with the smallest ids are taken.

    matrix:   (n, width) features.
    queries:  (Q, E) vectors.
    passages: the largest number of vectors in a feature; the one with the largest cosine counts, and queries
        have length 1. 0 if a feature is one vector.
    dead:     rows that are left out.
    """
    task = _Task(matrix, depth, passages, ids)
    batch_size = max(1, _CELLS // max(len(matrix), 1))
    for begin in range(0, len(queries), batch_size):
        batch = queries[begin : begin + batch_size]
        approximate = _passage_cosines(matrix, batch, passages) if passages else _dot_products(matrix, batch)
        for query, scores, coding_error in zip(batch, approximate.scores, approximate.coding_errors):
            scores[dead] = -np.inf
            errors = (coding_error + approximate.rounding_error, approximate.rounding_error)
            yield _select(task, query, scores, errors)


class SingleSearch:
    """Searches one matrix of float16 vectors for single queries, in half the time of :func:`nearest`.

    It computes the length of the longest row only once, so the matrix must not change. A local engine does
    not use it: an encoding can write into its mapped matrix. Without an index, such a matrix has less than
    :data:`rerank.engines.approximate.MIN_ROWS` rows, so a search would be faster by at most 0.6 ms if a row
    has 128 numbers.
    """

    def __init__(self, matrix: NDArray[Any]) -> None:
        self.matrix = matrix
        self._longest = 1.0
        for begin in range(0, len(matrix), _BLOCK):
            rows = matrix[begin : begin + _BLOCK]
            squares = np.asarray(simsimd.dot(rows, rows))
            self._longest = max(self._longest, float(squares.max()) ** 0.5)

    def nearest(self, query: Float32, depth: int, dead: Rows, ids: Ids) -> Rows:
        """Return the same rows as :func:`nearest` for one query."""
        if not len(self.matrix):
            return np.empty(0, np.int64)
        queries = query[None, :]
        coded = _code(queries, np.float16, 1)
        scores = np.asarray(simsimd.cdist(coded.codes, self.matrix, "dot"), np.float32)[0] * coded.steps[0]
        scores[dead] = -np.inf
        rounding_error = _rounding_error(queries) * self._longest
        coding_error = float(coded.errors[0]) * self._longest
        task = _Task(self.matrix, depth, 0, ids)
        return _select(task, query, scores, (coding_error + rounding_error, rounding_error))


def products(features: NDArray[Any], query: Float32, passages: int) -> Float32:
    """Return (n,) inner products of rows with a query, or largest cosines, rounded to single precision."""
    return _scores_of(features, query.astype(np.float64), passages).astype(np.float32)


class _Task(NamedTuple):
    """The rows and options of :func:`nearest`."""

    matrix: NDArray[Any]
    depth: int
    passages: int
    ids: Ids


def _select(task: _Task, query: Float32, scores: Float32, errors: tuple[float, float]) -> Rows:
    """Return the ascending rows of the ``depth`` largest products, from approximate scores.

    scores: (n,). errors: how far these scores, and products in single precision, can be from the exact ones.
    """
    selected: list[Rows] = []
    rows = np.arange(len(task.matrix))
    remaining = task.depth
    vectors: tuple[Scores, Scores] = (query, query.astype(np.float64))
    # Only scores near the cut need more digits.
    for vector, error in zip(vectors, errors):
        cut = max(np.partition(scores, -remaining)[-remaining] if len(scores) > remaining else 0.0, 0.0)
        certain = rows[scores > cut + 2 * error]
        selected.append(certain)
        remaining -= len(certain)
        rows = rows[np.abs(scores - cut) <= 2 * error]
        scores = _scores_of(task.matrix[rows], vector, task.passages)
    scores = scores.astype(np.float32)  # equal documents get equal scores
    positive = scores > 0
    last_rows, _ = best(rows[positive], scores[positive], remaining, task.ids)
    return np.sort(np.concatenate([*selected, last_rows]))


def best(rows: Rows, scores: NDArray[Any], depth: int, ids: Ids) -> tuple[Rows, NDArray[Any]]:
    """Return the ``depth`` best rows and their scores, unordered. Ties: smallest ids."""
    if len(rows) > depth:
        cut = np.partition(scores, -depth)[-depth] if depth else np.inf
        above = np.flatnonzero(scores > cut)
        ties = np.flatnonzero(scores == cut)
        if len(above) + len(ties) > depth:
            ids_of_ties = ids(rows[ties])
            by_id = sorted(range(len(ties)), key=ids_of_ties.__getitem__)
            ties = ties[by_id[: depth - len(above)]]
        selected = np.concatenate([above, ties])
        return rows[selected], scores[selected]
    return rows, scores


def positive_rows(scores: NDArray[Any], depth: int) -> Rows:
    """Return ascending rows with a score above 0: all of the ``depth`` best ones and their ties, and others.

    The rows are divided into groups. Each of the ``depth`` groups with the largest maxima has a row with
    at least the smallest of these maxima, so smaller scores are not among the best. This reads the scores
    without sorting them, in a fifth of the time.

    scores: (n,), not negative.
    """
    groups = _GROUPS_PER_RESULT * max(depth, 1)
    group_size = len(scores) // groups
    threshold = 0.0
    if group_size > 1:
        # Group i has the rows i, i + groups, i + 2 * groups, ...: their maxima are vector operations.
        maxima = scores[: groups * group_size].reshape(group_size, groups).max(axis=0)
        threshold = float(np.partition(maxima, -max(depth, 1))[-max(depth, 1)])
    # A comparison and its True values are found faster than the nonzero numbers of an array.
    return np.flatnonzero(scores >= threshold if threshold > 0 else scores > 0)


class _Approximate(NamedTuple):
    """Scores of all rows, and how far they can be from the exact ones.

    scores:         (Q, n) float32.
    coding_errors:  (Q,) largest error that the coding of a query causes.
    rounding_error: largest error of float32 sums.
    """

    scores: Float32
    coding_errors: NDArray[np.float64]
    rounding_error: float


def _dot_products(matrix: NDArray[Any], queries: Float32) -> _Approximate:
    """Return the products of queries and rows.

    A few queries are rounded to the type of float16 rows, which is four times as fast as converting the rows.
    """
    scores = np.zeros((len(queries), len(matrix)), np.float32)
    longest = 1.0
    is_coded = len(queries) < _FEW and matrix.dtype == np.float16
    coded = _code(queries, np.float16, 1) if is_coded else None
    for begin in range(0, len(matrix), _BLOCK):
        rows = matrix[begin : begin + _BLOCK]
        if coded is not None:
            products = np.asarray(simsimd.cdist(coded.codes, rows, "dot"), np.float32) * coded.steps
            squares = np.asarray(simsimd.dot(rows, rows))
        else:
            rows = single_precision(rows)
            products = queries @ rows.T
            squares = np.einsum("ij,ij->i", rows, rows)
        scores[:, begin : begin + _BLOCK] = products
        longest = max(longest, float(squares.max()) ** 0.5)
    coding_errors = np.zeros(len(queries)) if coded is None else coded.errors * longest
    return _Approximate(scores, coding_errors, _rounding_error(queries) * longest)


def _passage_cosines(matrix: NDArray[Any], queries: Float32, passages: int) -> _Approximate:
    """Return the largest cosine of each query with the vectors of a row; 0 if all are negative.

    A few queries are rounded to the type of int8 rows, which is three times as fast as converting the rows.
    """
    scores = np.zeros((len(queries), len(matrix)), np.float32)
    is_coded = len(queries) < _FEW and matrix.dtype == np.int8
    coded = _code(queries, np.int8, 127) if is_coded else None
    block = max(1, _BLOCK // passages)
    for begin in range(0, len(matrix), block):
        rows = matrix[begin : begin + block]
        counts = passage_counts(rows, passages)[:, None]
        max_count = max(int(counts.max()), 1)
        # Contiguous copies are multiplied several times faster.
        vectors = np.ascontiguousarray(split_passages(rows, passages)[:, :max_count])
        vectors = vectors.reshape(-1, queries.shape[1])
        if coded is not None:
            cosines = 1 - np.asarray(simsimd.cdist(coded.codes, vectors, "cos"), np.float32)
        else:
            vectors = vectors.astype(np.float32, copy=False)
            squares = np.einsum("ij,ij->i", vectors, vectors)
            cosines = queries @ vectors.T
            cosines /= np.maximum(np.sqrt(squares), 1e-9)
        cosines *= (np.arange(max_count) < counts).reshape(-1)
        by_row = cosines.reshape(len(queries), -1, max_count)
        scores[:, begin : begin + block] = by_row.max(axis=2, initial=0)
    coding_errors = np.zeros(len(queries)) if coded is None else coded.errors * 2
    return _Approximate(scores, coding_errors, _rounding_error(queries))


class _Coded(NamedTuple):
    """Queries in the type of the rows: codes * steps is almost the query.

    codes: (Q, E). steps: (Q, 1). errors: (Q,) length of the difference.
    """

    codes: NDArray[Any]
    steps: Float32
    errors: NDArray[np.float64]


def _code(queries: Float32, dtype: type[np.generic], largest_code: int) -> _Coded:
    steps = np.maximum(np.abs(queries).max(axis=1, keepdims=True), 1e-30) / largest_code
    codes = queries / steps
    if dtype == np.int8:
        codes = np.rint(codes)
    codes = codes.astype(dtype)
    errors = np.linalg.norm(queries - codes * steps, axis=1)
    return _Coded(codes, steps, errors.astype(np.float64))


def _rounding_error(queries: Float32) -> float:
    """Return the largest error of a float32 product with a vector of length 1."""
    lengths = np.linalg.norm(queries, axis=1)
    return _ROUNDING * max(float(lengths.max(initial=0)), 1e-30)


def _scores_of(features: NDArray[Any], query: Scores, passages: int) -> Scores:
    """Return (n,) products, or largest cosines, in the precision of the query."""
    if passages:
        cosines: Scores = passage_cosines(query, features, passages).max(axis=1, initial=0)
        return cosines
    if features.dtype == np.float16:
        features = single_precision(features)
    products: Scores = features.astype(query.dtype, copy=False) @ query
    return products
