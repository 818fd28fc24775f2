"""S2Net (Yih, Toutanova, Platt, Meek: Learning Discriminative Projections. CoNLL 2011) and L-BFGS."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Matrix = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]
TermVectors: TypeAlias = "csr_matrix | Matrix"
"""(n, V) vectors of n texts with V terms, CSR or dense."""

Objective = Callable[[Matrix], tuple[float, Matrix]]
"""A matrix, (V, k) -> its loss and its gradient, (V, k)."""

BLOCK = 256
"""Rows of the similarity matrix that are computed at once."""


@dataclass(frozen=True)
class Comparisons:
    """The columns that the partner of each row is compared with.

    Rows are the queries of N pairs, and columns are M documents.

    target:   (N,) the column of each row's partner.
    left_out: (N, M) CSR; its entries are columns that are not compared, among them the partner.
    weight:   (N,) the weights of the rows; their sum is 1.
    worse:    (N, M) CSR; a row with entries is only compared with these columns, which are judged worse.
    """

    target: Integers
    left_out: csr_matrix
    weight: NDArray[np.float64]
    worse: csr_matrix

    def weights(
        self, begin: int, end: int
    ) -> tuple[NDArray[np.float64], tuple[Integers, Integers], NDArray[np.float64]]:
        """Return the weights of the comparisons of rows ``begin`` to ``end``.

        Returns the weight of each comparison of a row, (rows,); the row and the column of each comparison
        with a document that is judged worse, two times (W,); and the additional weight of these, (W,).
        """
        weight = self.weight[begin:end]
        worse = self.worse[begin:end]
        compared = worse.shape[1] - np.diff(self.left_out.indptr[begin : end + 1])
        share = weight / np.maximum(compared, 1)
        counts = np.diff(worse.indptr)
        share = np.where(counts > 0, 0.0, share)
        rows, columns = worse.nonzero()
        additional = (weight / np.maximum(counts, 1))[rows]
        return share, (rows, columns), additional

    def within(self, rows: Integers) -> tuple[Integers, Comparisons]:
        """Return the columns that some rows refer to, ascending, and the comparisons with only these."""
        worse = self.worse[rows]
        columns = np.union1d(self.target[rows], worse.indices)
        target = np.searchsorted(columns, self.target[rows])
        left_out = self.left_out[rows][:, columns]
        return columns, Comparisons(target, left_out, self.weight[rows], worse[:, columns])


def entries(lists: Sequence[Sequence[int]], columns: int) -> Any:
    """Return a CSR matrix, (N, columns) bool, with entries in these columns of each of N rows."""
    from scipy.sparse import csr_matrix

    ends = np.cumsum([0, *map(len, lists)])
    flat = np.fromiter(chain.from_iterable(lists), np.int64, ends[-1])
    return csr_matrix((np.ones(len(flat), np.bool_), flat, ends), (len(lists), columns))


def pairwise_logistic(
    queries: Matrix, documents: Matrix, comparisons: Comparisons, gamma: float, block: int = BLOCK
) -> tuple[float, Matrix, Matrix]:
    """Return the loss log(1 + exp(-gamma * difference)) of cosines, and its gradients.

    It is equation 2 of Yih et al. 2011:

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
        share, worse, additional = comparisons.weights(begin, end)
        loss_of_rows = np.log1p(odds).sum(axis=1, dtype=np.float64)
        loss += float(share @ loss_of_rows + additional @ np.log1p(odds[worse]))
        odds /= odds + 1  # the logistic function of gamma * (S_ij - S_i,target)
        added = gamma * additional * odds[worse]
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
        queries: TermVectors,
        documents: TermVectors,
        comparisons: Comparisons,
        *,
        gamma: float = 10.0,
        epsilon: float = 1e-6,
        block: int = BLOCK,
    ) -> None:
        self.queries = queries
        self.documents = documents
        self.comparisons = comparisons
        self.queries_t = _transpose(queries)
        self.documents_t = _transpose(documents)
        self.gamma = gamma
        self.epsilon = epsilon
        self.block = block
        everything = slice(None)
        self.parts: list[tuple[Integers | slice, Integers | slice, Comparisons]] = [
            (everything, everything, comparisons)
        ]

    def compare_within(self, parts: Sequence[Integers]) -> None:
        """Compare the pairs only with the documents of their part. Each part is a set of rows."""
        self.parts = [(rows, *self.comparisons.within(rows)) for rows in parts]

    def __call__(self, matrix: Matrix) -> tuple[float, Matrix]:
        """Return the loss of a matrix, (V, k), and its gradient, (V, k)."""
        query, query_length = self._project(self.queries, matrix)
        document, document_length = self._project(self.documents, matrix)
        to_query = np.zeros_like(query)
        to_document = np.zeros_like(document)
        loss = 0.0
        for rows, columns, comparisons in self.parts:
            part_loss, to_rows, to_columns = pairwise_logistic(
                query[rows], document[columns], comparisons, self.gamma, self.block
            )
            loss += part_loss
            to_query[rows] += to_rows
            to_document[columns] += to_columns
        gradient: Matrix = self.queries_t @ _through(query, query_length, to_query)
        gradient += self.documents_t @ _through(document, document_length, to_document)
        return loss, gradient

    def _project(self, texts: TermVectors, matrix: Matrix) -> tuple[Matrix, Matrix]:
        """Return the projected texts, scaled to length 1, and their lengths before."""
        projected = texts @ matrix
        length = np.sqrt(np.einsum("ij,ij->i", projected, projected) + self.epsilon**2)[:, None]
        return projected / length, length


def _transpose(vectors: TermVectors) -> TermVectors:
    return vectors.T if isinstance(vectors, np.ndarray) else vectors.T.tocsr()


def _through(unit: Matrix, length: Matrix, to_unit: Matrix) -> Matrix:
    """Return the gradient by projected rows, from the gradient by rows of length 1."""
    back: Matrix = (to_unit - np.einsum("ij,ij->i", to_unit, unit)[:, None] * unit) / length
    return back


def anchored(objective: Objective, anchor: Matrix, beta: float) -> Objective:
    """Return an objective with the additional loss beta / 2 |A - anchor|^2 (Yih et al. 2011, section 3.2)."""

    def loss(matrix: Matrix) -> tuple[float, Matrix]:
        value, gradient = objective(matrix)
        away = matrix - anchor
        return value + beta / 2 * float(np.vdot(away, away)), gradient + matrix.dtype.type(beta) * away

    return loss


SUFFICIENT = 1e-4
"""Constant of the first weak Wolfe condition, a sufficient decrease (Nocedal, Wright 2006, section 3.1)."""
CURVATURE = 0.9
"""Constant of the second weak Wolfe condition, on the curvature."""
LONGEST_SEARCH = 20
"""Maximum number of steps of a line search."""
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
        step = _search(objective, point, loss, slope, direction, length)
        if step is None:
            if not pairs:
                return
            pairs.clear()
            continue
        new_point, new_loss, new_gradient = step
        moved = new_point - point
        turned = new_gradient - gradient
        curvature = _dot(moved, turned)
        if curvature > 0:
            pairs.append((moved, turned, curvature))
        gained = loss - new_loss
        point = new_point
        loss = new_loss
        gradient = new_gradient
        yield point, loss
        if gained <= LEAST_GAIN * max(abs(loss), gained):
            return


def _search(
    objective: Objective, point: Matrix, loss: float, slope: float, direction: Matrix, length: float
) -> tuple[Matrix, float, Matrix] | None:
    """Search along a direction for a point that satisfies the weak Wolfe conditions.

    Returns the point with its loss and gradient. If no point satisfies both conditions, returns the last one
    that satisfies the first; None without such a point.

    slope:  of the loss at ``point`` along the direction.
    length: of the first step.
    """
    best = None
    low = 0.0
    high = np.inf
    for _ in range(LONGEST_SEARCH):
        new_point = point + direction * point.dtype.type(length)
        new_loss, new_gradient = objective(new_point)
        if not new_loss <= loss + SUFFICIENT * length * slope:  # also when it is NaN
            high = length
        else:
            best = (new_point, new_loss, new_gradient)
            if _dot(new_gradient, direction) >= CURVATURE * slope:
                break
            low = length
        length = (low + high) / 2 if np.isfinite(high) else 2 * length
    return best


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
