"""Exact search for the largest inner products with a vector: by bytes, and near the cut by floats.

The result is exact unless a byte error exceeds six standard deviations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import simsimd
from numpy.typing import NDArray

from rerank.arrays import passage_cosines, split_passages, to_float32

Rows = NDArray[np.int64]
Float32 = NDArray[np.float32]

_BLOCK = 1024  # rows converted together, in cache
_CELLS = 16_000_000  # scores that are held at a time
_BATCH = 8  # minimum number of queries for a common product
_ROUNDING = 1e-5  # maximum error of a float32 product of unit vectors
_SIGMAS = 4.5  # of each of two errors, added up: about six of both together
_SIGMAS_ALONE = 6.4  # of one


class Codes:
    """Features with one byte per number: n (width + 8) bytes.

    bytes: (n, width) int8. scales: (n,), row = bytes * scale. lengths: (n,).
    """

    def __init__(self, width: int) -> None:
        self.bytes: NDArray[np.int8] = np.empty((0, width), np.int8)
        self.scales: Float32 = np.empty(0, np.float32)
        self.lengths: Float32 = np.empty(0, np.float32)

    def extend(self, matrix: NDArray[Any]) -> None:
        """Add the new rows of the matrix."""
        known = len(self.scales)
        fresh = np.empty((len(matrix) - known, self.bytes.shape[1]), np.int8)
        scales, lengths = np.empty(len(fresh), np.float32), np.empty(len(fresh), np.float32)
        for begin in range(0, len(fresh), _BLOCK):
            end = min(begin + _BLOCK, len(fresh))
            block = to_float32(matrix[known + begin : known + end])
            largest = np.maximum(block.max(axis=1), -block.min(axis=1))
            scales[begin:end] = largest / 127
            lengths[begin:end] = np.sqrt(np.einsum("ij,ij->i", block, block))
            fresh[begin:end] = np.rint(block * (127 / np.where(largest > 0, largest, 1))[:, None])
        self.bytes = np.concatenate([self.bytes, fresh]) if known else fresh
        self.scales = np.concatenate([self.scales, scales]) if known else scales
        self.lengths = np.concatenate([self.lengths, lengths]) if known else lengths

    def product(self, vector: Float32, count: int) -> tuple[Float32, Float32]:
        """(count,) approximate products of the first rows, and (count,) error bounds."""
        step = np.float32(np.abs(vector).max(initial=0.0) / 127)
        if step == 0:
            return np.zeros(count, np.float32), _constant(0.0, count)
        sums = _byte_products(np.rint(vector / step).astype(np.int8), self.bytes[:count])
        sums *= self.scales[:count]
        sums *= step
        # Rounding is off by up to half a step, evenly spread: by step**2 / 12 in the square, on both sides.
        length = np.float32(_SIGMAS / 12**0.5 * float(np.sqrt(vector @ vector)))
        half = step * np.float32(_SIGMAS / 12**0.5)
        errors = self.scales[:count] * length
        errors += self.lengths[:count] * half
        return sums, errors


class Vectors:
    """Searches features of one version."""

    def __init__(self, width: int) -> None:
        self._codes = Codes(width)
        self._searched = False
        self._mutex = threading.Lock()

    def top(
        self, matrix: NDArray[Any], queries: Float32, depth: int, dead: Rows, ids: Callable[[Rows], list[str]]
    ) -> Iterator[Rows]:
        """Yield the rows of the ``depth`` best products above 0 per query. Ties: smallest ids.

        matrix: (n, width), append-only. queries: (Q, width). dead: excluded rows.
        """
        together = max(1, _CELLS // max(len(matrix), 1))
        for begin in range(0, len(queries), together):
            some = queries[begin : begin + together]
            if len(some) < _BATCH:
                for vector in some:
                    yield self._best(matrix, vector, *self._one(matrix, vector), depth, dead, ids)
            else:
                for vector, scores in zip(some, self._many(matrix, some)):
                    errors = _rounding(vector, len(matrix))
                    yield self._best(matrix, vector, scores, errors, depth, dead, ids)

    def _one(self, matrix: NDArray[Any], vector: Float32) -> tuple[Float32, Float32]:
        """(n,) scores and errors; the first search computes no codes."""
        with self._mutex:
            if not self._searched:
                self._searched = True
                return self._many(matrix, vector[None])[0], _rounding(vector, len(matrix))
            if len(self._codes.scales) < len(matrix):
                self._codes.extend(matrix)
        return self._codes.product(vector, len(matrix))

    def _many(self, matrix: NDArray[Any], queries: Float32) -> Float32:
        """(Q, n) products."""
        scores = np.empty((len(queries), len(matrix)), np.float32)
        for begin in range(0, len(matrix), _BLOCK):
            end = begin + _BLOCK
            scores[:, begin:end] = queries @ to_float32(matrix[begin:end]).T
        return scores

    def _products(self, features: NDArray[Any], vector: NDArray[Any]) -> NDArray[Any]:
        """(n,) products in the vector's precision."""
        numbers = to_float32(features) if vector.dtype == np.float32 else features.astype(vector.dtype)
        products: NDArray[Any] = numbers @ vector
        return products

    def _best(
        self,
        matrix: NDArray[Any],
        vector: Float32,
        scores: Float32,
        errors: Float32,
        depth: int,
        dead: Rows,
        ids: Callable[[Rows], list[str]],
    ) -> Rows:
        scores[dead] = -np.inf
        sure, doubtful = _divide(scores, depth, errors)
        parts = [sure]
        left = depth - len(sure)
        if len(doubtful) and left > 0:
            better = self._products(matrix[doubtful], vector)
            sure, rest = _divide(better, left, _rounding(vector, len(better)))
            parts.append(doubtful[sure])
            left, doubtful = left - len(sure), doubtful[rest]
        if len(doubtful) and left > 0:
            # Rounded, so that equal documents get equal scores.
            exact = self._products(matrix[doubtful], vector.astype(np.float64)).astype(np.float32)
            doubtful, exact = doubtful[exact > 0], exact[exact > 0]
            names = ids(doubtful)
            order = sorted(range(len(names)), key=lambda i: (-exact[i], names[i]))
            parts.append(doubtful[order[:left]])
        return np.sort(np.concatenate(parts))


class PassageVectors(Vectors):
    """Searches features with several vectors by largest cosine.

    Lengths need 4 n F bytes.
    """

    def __init__(self, passages: int) -> None:
        self._passages = passages
        self._inverse: Float32 = np.empty((0, passages), np.float32)  # 1 / length, 0 where there is none
        self._mutex = threading.Lock()

    def _lengths(self, matrix: NDArray[Any]) -> Float32:
        """(n, F) reciprocal lengths; 0: no vector."""
        with self._mutex:
            known = len(self._inverse)
            if known < len(matrix):
                fresh = np.zeros((len(matrix) - known, self._passages), np.float32)
                for begin, end in self._steps(known, len(matrix)):
                    vectors = split_passages(matrix[begin:end], self._passages).astype(np.float32)
                    squares = np.einsum("nfe,nfe->nf", vectors, vectors)
                    squares[np.arange(self._passages) >= matrix[begin:end, -1:]] = 0
                    np.divide(1, np.sqrt(squares), out=fresh[begin - known : end - known], where=squares > 0)
                self._inverse = np.concatenate([self._inverse, fresh])
            return self._inverse[: len(matrix)]

    def _steps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        step = max(1, _BLOCK // self._passages)
        return ((first, min(first + step, end)) for first in range(begin, end, step))

    def _one(self, matrix: NDArray[Any], vector: Float32) -> tuple[Float32, Float32]:
        """(n,) largest cosines, at least 0, and errors."""
        if matrix.dtype != np.int8:
            return self._many(matrix, vector[None])[0], _rounding(vector, len(matrix))
        inverse = self._lengths(matrix)
        scores = np.zeros(len(matrix), np.float32)
        step = np.float32(np.abs(vector).max(initial=0.0) / 127)
        if step == 0:
            return scores, _constant(0.0, len(matrix))
        code = np.rint(vector / step).astype(np.int8)
        for begin, end in self._steps(0, len(matrix)):
            most = int(matrix[begin:end, -1].max())
            if not most:
                continue
            # Contiguous copies are multiplied several times faster.
            vectors = np.ascontiguousarray(matrix[begin:end, : most * len(code)]).reshape(-1, len(code))
            products = _byte_products(code, vectors).reshape(-1, most)
            products *= inverse[begin:end, :most]
            np.max(products, axis=1, initial=0, out=scores[begin:end])
        scores *= step
        return scores, _constant(float(step) * _SIGMAS_ALONE / 12**0.5 + _ROUNDING, len(matrix))

    def _many(self, matrix: NDArray[Any], queries: Float32) -> Float32:
        """(Q, n) largest cosines."""
        inverse = self._lengths(matrix)
        scores = np.zeros((len(queries), len(matrix)), np.float32)
        for begin, end in self._steps(0, len(matrix)):
            most = int(matrix[begin:end, -1].max())
            if most:
                vectors = split_passages(matrix[begin:end], self._passages)[:, :most].astype(np.float32)
                vectors *= inverse[begin:end, :most, None]
                products = queries @ vectors.reshape(-1, queries.shape[1]).T
                np.max(products.reshape(len(queries), -1, most), axis=2, initial=0, out=scores[:, begin:end])
        return scores

    def _products(self, features: NDArray[Any], vector: NDArray[Any]) -> NDArray[Any]:
        """(n,) largest cosines in the vector's precision."""
        largest: NDArray[Any] = passage_cosines(vector, features, self._passages).max(axis=1, initial=0)
        return largest


def _byte_products(vector: NDArray[np.int8], rows: NDArray[np.int8]) -> Float32:
    """(n,) exact products."""
    products: Float32 = np.asarray(simsimd.cdist(vector[None], rows, "dot", out_dtype="float32"))[0]
    return products


def _constant(error: float, count: int) -> Float32:
    return np.broadcast_to(np.float32(error), (count,))


def _rounding(vector: Float32, count: int) -> Float32:
    return _constant(_ROUNDING * max(float(np.sqrt(vector @ vector)), 1e-30), count)


def _divide(scores: Float32, depth: int, errors: Float32) -> tuple[Rows, Rows]:
    """Positions certainly among the ``depth`` best, and possible ones."""
    positions = np.arange(len(scores))
    sample, place = scores[::16] - errors[::16], depth // 8 + 32
    if place < len(sample):  # about 2 * depth scores remain
        bound = np.partition(sample, len(sample) - place)[len(sample) - place]
        few = np.flatnonzero(scores >= bound - errors.max())
        if np.count_nonzero(scores[few] - errors[few] >= bound) >= depth:
            positions, errors = few, errors[few]
    low = scores[positions] - errors
    high = scores[positions] + errors
    floor = ceiling = 0.0  # bounds of the lowest selected score
    if len(positions) > depth:
        at = len(positions) - depth
        floor = max(float(np.partition(low, at)[at]), 0.0)
        ceiling = max(float(np.partition(high, at)[at]), 0.0)
    certain = low > ceiling
    return positions[certain], positions[(high >= floor) & ~certain]
