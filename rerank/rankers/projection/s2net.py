"""S2Net: a projection matrix learned so that a text's partner outscores every other text.

W. Yih, K. Toutanova, J. C. Platt, C. Meek: Learning Discriminative Projections for Text Similarity Measures.
CoNLL 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

BLOCK = 256
"""Rows of the similarity matrix that are held at once; more did not make the products faster."""
MOST_GAMMA = 40.0
"""Cosines differ by 2 at most, and exp(2 gamma) must be a number in single precision."""


@dataclass(frozen=True)
class Comparisons:
    """The columns that each row's partner is compared with: all others, except some.

    target:   (N,) column of each row's partner.
    left_out: for each row, the columns that it is not compared with; its partner is one of them.
    weight:   (N,) share of each row in the loss; the shares sum to 1.
    worse:    for each row, the columns that were judged worse than its partner.
    judged:   weight of these together in a row that has some; all columns of the row share the rest.

    A row that is compared with nothing adds nothing.
    """

    target: Integers
    left_out: Sequence[Integers]
    weight: NDArray[np.float64]
    worse: Sequence[Integers]
    judged: float = 0.0

    @classmethod
    def of(
        cls,
        target: Integers,
        left_out: Sequence[Integers] | None = None,
        weight: NDArray[np.float64] | None = None,
        worse: Sequence[Integers] | None = None,
        judged: float = 0.0,
    ) -> Comparisons:
        """Fill in defaults: only the partner is left out, and all rows weigh the same."""
        nothing = [target[:0]] * len(target)
        rests = nothing if left_out is None else left_out
        sets = [np.union1d(rest, target[i : i + 1]) for i, rest in enumerate(rests)]
        share = np.ones(len(target)) if weight is None else weight
        return cls(target, sets, share / share.sum(), worse if worse and judged else nothing, judged)

    def weights(
        self, begin: int, end: int, columns: int
    ) -> tuple[NDArray[np.float64], tuple[Integers, Integers], NDArray[np.float64]]:
        """Return the weights of the comparisons of rows ``begin`` to ``end`` with ``columns`` columns.

        (rows,) weight of a comparison with any column; the places (row, column) of the columns judged worse;
        and the additional weight of each of these places.
        """
        weight = self.weight[begin:end]
        share = weight / np.maximum(columns - _lengths(self.left_out[begin:end]), 1)
        counts = _lengths(self.worse[begin:end])
        share = np.where(counts > 0, (1 - self.judged) * share, share)
        places = _places(self.worse[begin:end])
        return share, places, (self.judged * weight / np.maximum(counts, 1))[places[0]]

    def with_nearest(self, rows: Matrix, columns: Matrix, count: int, block: int = BLOCK) -> Comparisons:
        """Add each row's ``count`` nearest columns that it is compared with to those judged worse.

        rows, columns: (N, k) and (M, k) of length 1.

        >>> unit = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> nearest = Comparisons.of(np.arange(3), judged=0.5).with_nearest(unit, unit, 1)
        >>> [columns.tolist() for columns in nearest.worse]
        [[2], [2], [1]]
        """
        worse = []
        for begin in range(0, len(rows), block):
            cosines = rows[begin : begin + block] @ columns.T
            for row, scores in enumerate(cosines, begin):
                scores[self.left_out[row]] = -np.inf
                near = np.argpartition(-scores, min(count, len(scores)) - 1)[:count]
                worse.append(np.union1d(near[scores[near] > -np.inf], self.worse[row]))
        return replace(self, worse=worse)

    def within(self, rows: Integers) -> tuple[Integers, Comparisons]:
        """Return the distinct partners of some rows, and the comparisons of these rows among them."""
        worse = [self.worse[row] for row in rows.tolist()]
        columns = np.unique(np.concatenate((self.target[rows], *worse)))
        left_out = [_positions(columns, self.left_out[row]) for row in rows.tolist()]
        worse = [_positions(columns, one) for one in worse]
        target = np.searchsorted(columns, self.target[rows])
        return columns, Comparisons(target, left_out, self.weight[rows], worse, self.judged)


def _lengths(lists: Sequence[Integers]) -> Integers:
    return np.array([len(one) for one in lists], dtype=np.int64)


def _places(lists: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Lists of columns, one for each row, as (row, column) of every entry."""
    flat = np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int64)
    return np.repeat(np.arange(len(lists)), _lengths(lists)), flat


def _positions(columns: Integers, some: Integers) -> Integers:
    """Positions of some numbers among the ascending ``columns``; absent numbers are dropped."""
    at = np.minimum(np.searchsorted(columns, some), len(columns) - 1)
    kept: Integers = at[columns[at] == some]
    return kept


def pairwise_logistic(
    queries: Matrix, documents: Matrix, comparisons: Comparisons, gamma: float, block: int = BLOCK
) -> tuple[float, Matrix, Matrix]:
    """Loss and gradients of log(1 + exp(-gamma * difference)) of cosines (Yih et al. 2011, equation 2).

    queries, documents: (N, k) and (M, k) rows of length 1; S = queries @ documents.T.

        L = sum_i weight_i / n_i sum_j log(1 + exp(gamma (S_ij - S_i,target_i)))

    over the n_i columns j that row i is compared with. If m_i of them were judged worse, a row has
    (1 - judged) of that, and judged times the mean over those m_i. Returns L, dL/dqueries (N, k),
    dL/ddocuments (M, k).
    At most three blocks of ``block`` x M numbers are held.

    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> columns = np.array([[1.0, 0.0], [0.5**0.5, 0.5**0.5]])
    >>> loss, _, _ = pairwise_logistic(rows, columns, Comparisons.of(np.array([0, 1])), 10.0)
    >>> round(loss, 8)
    0.02646167
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
        odds[_places(comparisons.left_out[begin:end])] = 0.0
        share, worse, more = comparisons.weights(begin, end, len(documents))
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
    """The loss of a projection matrix A and its gradient, in matrix form; call it with A (V, k).

    queries, documents: (N, V) and (M, V) sparse term vectors (CSR) of one dtype; row i of ``queries`` belongs
        to row ``comparisons.target[i]`` of ``documents``.
    gamma:     of :func:`pairwise_logistic`.
    epsilon:   lengths are sqrt(|g|^2 + epsilon^2), so that a text without known terms has cosine 0.

    With P, Q the projected rows, P^, Q^ the same of length 1 and W = dL/d(P^ Q^T), the gradient is
    X^T (W Q^ - diag(r) P^) / |P| + Y^T (W^T P^ - diag(c) Q^) / |Q|; r and c are the row sums of the products
    W Q^ o P^ and W^T P^ o Q^. Only blocks of W are formed, never all pairs of texts.
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
        self.queries, self.documents = queries, documents
        self.queries_t, self.documents_t = queries.T.tocsr(), documents.T.tocsr()
        self.gamma, self.epsilon, self.block = gamma, epsilon, block
        self.given = self.comparisons = comparisons
        self.compare_within(None)

    def compare_within(self, parts: Sequence[Integers] | None) -> None:
        """Compare rows only within each of these sets of rows: fewer products, another loss. None: all."""
        self.parts: list[tuple[Any, Any, Comparisons]] = [(slice(None), slice(None), self.comparisons)]
        if parts is not None:
            self.parts = [(rows, *self.comparisons.within(rows)) for rows in parts]

    def weigh_nearest(self, matrix: Matrix, count: int) -> None:
        """Count the ``count`` columns nearest to each row by ``matrix`` as judged worse.

        Afterwards all rows are compared; call :meth:`compare_within` again for parts.
        """
        rows, columns = (self._project(side, matrix)[0] for side in (self.queries, self.documents))
        self.comparisons = self.given.with_nearest(rows, columns, count, self.block)
        self.compare_within(None)

    def __call__(self, matrix: Matrix) -> tuple[float, Matrix]:
        """(V, k) -> the loss and its gradient (V, k)."""
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
        """Return the projected texts with length 1, and their lengths before."""
        projected = texts @ matrix
        length = np.sqrt(np.einsum("ij,ij->i", projected, projected) + self.epsilon**2)[:, None]
        return projected / length, length


def _through(unit: Matrix, length: Matrix, to_unit: Matrix) -> Matrix:
    """Gradient by the unit rows -> gradient by the projected rows."""
    back: Matrix = (to_unit - np.einsum("ij,ij->i", to_unit, unit)[:, None] * unit) / length
    return back


def anchored(objective: Any, anchor: Matrix, beta: float) -> Any:
    """Add beta / 2 |A - anchor|^2 to a loss (Yih et al. 2011, section 3.2)."""

    def loss(matrix: Matrix) -> tuple[float, Matrix]:
        value, gradient = objective(matrix)
        away = matrix - anchor
        return value + beta / 2 * float(np.vdot(away, away)), gradient + matrix.dtype.type(beta) * away

    return loss
