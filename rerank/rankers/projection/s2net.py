"""S2Net (Yih, Toutanova, Platt, Meek: Learning Discriminative Projections. CoNLL 2011) and L-BFGS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

BLOCK = 256
"""Rows of the similarity matrix that are computed at once."""


@dataclass(frozen=True)
class Comparisons:
    """The columns that each row's partner is compared with.

    target:   (N,) partner of each row.
    left_out: (N, M) CSR; entries are columns not compared, including the partner.
    weight:   (N,) weights of rows; sum 1.
    worse:    (N, M) CSR; entries are columns judged worse than the partner.
    judged:   share of ``worse`` in a row's weight.
    """

    target: Integers
    left_out: Any
    weight: NDArray[np.float64]
    worse: Any
    judged: float = 0.0

    def weights(
        self, begin: int, end: int
    ) -> tuple[NDArray[np.float64], tuple[Integers, Integers], NDArray[np.float64]]:
        """Weights of rows ``begin`` to ``end``.

        (rows,) weight per comparison; (row, column) judged worse; their additional weights.
        """
        weight, worse = self.weight[begin:end], self.worse[begin:end]
        compared = worse.shape[1] - np.diff(self.left_out.indptr[begin : end + 1])
        share = weight / np.maximum(compared, 1)
        counts = np.diff(worse.indptr)
        share = np.where(counts > 0, (1 - self.judged) * share, share)
        places = worse.nonzero()
        return share, places, (self.judged * weight / np.maximum(counts, 1))[places[0]]

    def within(self, rows: Integers) -> tuple[Integers, Comparisons]:
        """Distinct columns of some rows, and comparisons among them."""
        worse = self.worse[rows]
        columns = np.union1d(self.target[rows], worse.indices)
        target = np.searchsorted(columns, self.target[rows])
        left_out = self.left_out[rows][:, columns]
        return columns, Comparisons(target, left_out, self.weight[rows], worse[:, columns], self.judged)


def entries(lists: Sequence[Sequence[int]], columns: int) -> Any:
    """CSR matrix, (N, columns) bool, with entries in these columns of each row."""
    from scipy.sparse import csr_matrix

    ends = np.cumsum([0, *map(len, lists)])
    flat = np.fromiter(chain.from_iterable(lists), np.int64, ends[-1])
    return csr_matrix((np.ones(len(flat), np.bool_), flat, ends), (len(lists), columns))


def pairwise_logistic(
    queries: Matrix, documents: Matrix, comparisons: Comparisons, gamma: float, block: int = BLOCK
) -> tuple[float, Matrix, Matrix]:
    """Loss and gradients of log(1 + exp(-gamma * difference)) of cosines (Yih et al. 2011, equation 2).

    queries, documents: (N, k), (M, k) rows of length 1; S = queries @ documents.T.

        L = sum_i weight_i / n_i sum_j log(1 + exp(gamma (S_ij - S_i,target_i)))

    over n_i compared columns. Returns L, dL/dqueries (N, k), dL/ddocuments (M, k). Memory: three blocks of
    ``block`` x M.
    """
    loss = 0.0
    to_queries = np.empty_like(queries)
    to_documents = np.zeros_like(documents)
    for begin in range(0, len(queries), block):
        end = min(begin + block, len(queries))
        rows = np.arange(end - begin)
        target = comparisons.target[begin:end]
        odds = queries[begin:end] @ documents.T
        odds -= odds[rows, target][:, None]
        odds *= gamma
        np.exp(odds, out=odds)
        odds[comparisons.left_out[begin:end].nonzero()] = 0.0
        share, worse, more = comparisons.weights(begin, end)
        loss += float(share @ np.log1p(odds).sum(axis=1, dtype=np.float64) + more @ np.log1p(odds[worse]))
        odds /= odds + 1  # the logistic function of gamma * (S_ij - S_i,target)
        added = gamma * more * odds[worse]
        odds *= (gamma * share).astype(odds.dtype)[:, None]
        odds[worse] += added.astype(odds.dtype)
        odds[rows, target] = -odds.sum(axis=1)
        to_queries[begin:end] = odds @ documents
        to_documents += odds.T @ queries[begin:end]
    return loss, to_queries, to_documents


class S2Net:
    """Loss and gradient of a projection matrix A (V, k).

    queries, documents: (N, V), (M, V), CSR or dense, of one dtype.
    gamma:     of :func:`pairwise_logistic`.
    epsilon:   lengths are sqrt(|g|^2 + epsilon^2).

    With projected rows P, Q, unit rows P^, Q^ and W = dL/d(P^ Q^T), the gradient is
    X^T (W Q^ - diag(r) P^) / |P| + Y^T (W^T P^ - diag(c) Q^) / |Q|; r, c: row sums of W Q^ o P^, W^T P^ o Q^.
    """

    def __init__(
        self,
        queries: Any,
        documents: Any,
        comparisons: Comparisons,
        *,
        gamma: float = 10.0,
        epsilon: float = 1e-6,
        block: int = BLOCK,
    ) -> None:
        self.queries, self.documents, self.comparisons = queries, documents, comparisons
        dense = isinstance(queries, np.ndarray)
        self.queries_t, self.documents_t = (
            side.T if dense else side.T.tocsr() for side in (queries, documents)
        )
        self.gamma, self.epsilon, self.block = gamma, epsilon, block
        self.parts: list[tuple[Any, Any, Comparisons]] = [(slice(None), slice(None), comparisons)]

    def compare_within(self, parts: Sequence[Integers]) -> None:
        """Compare only within each set of rows."""
        self.parts = [(rows, *self.comparisons.within(rows)) for rows in parts]

    def __call__(self, matrix: Matrix) -> tuple[float, Matrix]:
        """(V, k) -> loss, gradient (V, k)."""
        query, query_length = self._project(self.queries, matrix)
        document, document_length = self._project(self.documents, matrix)
        to_query, to_document = np.zeros_like(query), np.zeros_like(document)
        loss = 0.0
        for rows, columns, comparisons in self.parts:
            part, to_rows, to_columns = pairwise_logistic(
                query[rows], document[columns], comparisons, self.gamma, self.block
            )
            loss += part
            to_query[rows] += to_rows
            to_document[columns] += to_columns
        gradient: Matrix = self.queries_t @ _through(query, query_length, to_query)
        gradient += self.documents_t @ _through(document, document_length, to_document)
        return loss, gradient

    def _project(self, texts: Any, matrix: Matrix) -> tuple[Matrix, Matrix]:
        """Projected texts of length 1, and original lengths."""
        projected = texts @ matrix
        length = np.sqrt(np.einsum("ij,ij->i", projected, projected) + self.epsilon**2)[:, None]
        return projected / length, length


def _through(unit: Matrix, length: Matrix, to_unit: Matrix) -> Matrix:
    """Gradient by unit rows -> gradient by projected rows."""
    back: Matrix = (to_unit - np.einsum("ij,ij->i", to_unit, unit)[:, None] * unit) / length
    return back


def anchored(objective: Any, anchor: Matrix, beta: float) -> Any:
    """Add beta / 2 |A - anchor|^2 to a loss (Yih et al. 2011, section 3.2)."""

    def loss(matrix: Matrix) -> tuple[float, Matrix]:
        value, gradient = objective(matrix)
        away = matrix - anchor
        return value + beta / 2 * float(np.vdot(away, away)), gradient + matrix.dtype.type(beta) * away

    return loss


Objective = Callable[[Matrix], tuple[float, Matrix]]

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""Constants of the weak Wolfe conditions (Nocedal, Wright 2006, section 3.1)."""
LONGEST_SEARCH = 20
LEAST_GAIN = 1e-9
"""Share of the loss that an iteration must gain; less is rounding."""


def minimize(objective: Objective, start: Matrix, *, memory: int = 10) -> Iterator[tuple[Matrix, float]]:
    """Yield points and losses of L-BFGS with a weak Wolfe line search (Nocedal, Wright 2006, algorithm 7.5).

    objective: point -> (loss, gradient), same shape and dtype.
    memory:    pairs of differences; uses 2 * memory + 5 copies of ``start``.

    Ends if no step reduces the loss.
    """
    point = start
    loss, gradient = objective(point)
    pairs: deque[tuple[Matrix, Matrix, float]] = deque(maxlen=memory)
    while True:
        direction = _direction(gradient, pairs)
        slope = _dot(gradient, direction)
        length = 1.0 if pairs else 1.0 / max(_dot(gradient, gradient) ** 0.5, 1e-30)
        if not slope < 0:
            return
        found = None
        low, high = 0.0, np.inf
        for _ in range(LONGEST_SEARCH):
            there = point + direction * point.dtype.type(length)
            there_loss, there_gradient = objective(there)
            if not there_loss <= loss + SUFFICIENT * length * slope:  # also when it is NaN
                high = length
            else:
                found = there, there_loss, there_gradient
                if _dot(there_gradient, direction) >= CURVATURE * slope:
                    break
                low = length
            length = (low + high) / 2 if np.isfinite(high) else 2 * length
        if found is None:
            if not pairs:
                return
            pairs.clear()
            continue
        there, there_loss, there_gradient = found
        moved, turned = there - point, there_gradient - gradient
        curvature = _dot(moved, turned)
        if curvature > 0:
            pairs.append((moved, turned, curvature))
        gained = loss - there_loss
        point, loss, gradient = there, there_loss, there_gradient
        yield point, loss
        if gained <= LEAST_GAIN * max(abs(loss), gained):
            return


def _direction(gradient: Matrix, pairs: deque[tuple[Matrix, Matrix, float]]) -> Matrix:
    """Return -H * gradient (Nocedal, Wright 2006, algorithm 7.4)."""
    direction = -gradient
    shares = []
    for moved, turned, curvature in reversed(pairs):
        share = _dot(moved, direction) / curvature
        shares.append(share)
        direction -= turned * direction.dtype.type(share)
    if pairs:
        _, turned, curvature = pairs[-1]
        direction *= direction.dtype.type(curvature / _dot(turned, turned))
    for (moved, turned, curvature), share in zip(pairs, reversed(shares)):
        direction += moved * direction.dtype.type(share - _dot(turned, direction) / curvature)
    return direction


def _dot(a: Matrix, b: Matrix) -> float:
    return float(np.vdot(a, b))
