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

BLOCK = 256
"""Rows of the similarity matrix that are held at once; more made the products no faster."""
LOSSES = ("logistic", "squared")
MOST_GAMMA = 40.0
"""Cosines differ by 2 at most, and exp(2 gamma) must be a number in single precision."""


@dataclass(frozen=True)
class Comparisons:
    """Which columns each row's partner is compared with: all others, less some.

    target:  (N,) column of each row's partner.
    offsets, left_out: the columns that row i is not compared with are left_out[offsets[i] : offsets[i + 1]].
    weight:  (N,) share of each row in the loss; the shares sum to 1.
    label:   (N,) what the cosine of a row and its partner should be; only the squared loss reads it.
    worse:   columns that were judged, and as worse than the row's partner: those of row i are
        worse[worse_offsets[i] : worse_offsets[i + 1]]. None: there are none.
    judged:  what these weigh together in a row that has some; all that it is compared with has the rest.

    A row that is compared with nothing adds nothing.
    """

    target: NDArray[np.int64]
    offsets: NDArray[np.int64]
    left_out: NDArray[np.int64]
    weight: NDArray[np.float64]
    label: NDArray[np.float64]
    worse_offsets: NDArray[np.int64] | None = None
    worse: NDArray[np.int64] | None = None
    judged: float = 0.0

    @classmethod
    def of(
        cls,
        target: NDArray[np.int64],
        left_out: list[NDArray[np.int64]] | None = None,
        weight: NDArray[np.float64] | None = None,
        label: NDArray[np.float64] | None = None,
        worse: list[NDArray[np.int64]] | None = None,
        judged: float = 0.0,
    ) -> Comparisons:
        """Pack lists; by default only the partner is left out, all rows weigh the same, and labels are 1."""
        count = len(target)
        rests = [target[:0]] * count if left_out is None else left_out
        sets = [np.union1d(rest, target[i : i + 1]) for i, rest in enumerate(rests)]
        offsets = np.concatenate(([0], np.cumsum([len(one) for one in sets]))).astype(np.int64)
        share = np.ones(count) if weight is None else weight
        flat = np.concatenate(sets) if sets else np.zeros(0)
        labels = np.ones(count) if label is None else label
        packed = cls(target, offsets, flat.astype(np.int64), share / share.sum(), labels, judged=judged)
        if worse is None or not judged:
            return packed
        worse_offsets, worse_flat = _packed(worse)
        return replace(packed, worse_offsets=worse_offsets, worse=worse_flat)

    def parts(
        self, begin: int, end: int, columns: int
    ) -> tuple[NDArray[np.float64], tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]:
        """What each comparison of some rows with ``columns`` columns weighs.

        (rows,) of one with any column; the places of those with what was judged worse, and what each of these
        weighs beside.
        """
        weight = self.weight[begin:end]
        share = weight / np.maximum(columns - np.diff(self.offsets[begin : end + 1]), 1)
        if self.worse_offsets is None or self.worse is None:
            nothing = np.zeros(0, np.int64)
            return share, (nothing, nothing), np.zeros(0)
        counts = np.diff(self.worse_offsets[begin : end + 1])
        share = np.where(counts > 0, (1 - self.judged) * share, share)
        rows = np.repeat(np.arange(end - begin), counts)
        flat = self.worse[self.worse_offsets[begin] : self.worse_offsets[end]]
        beside = self.judged * weight / np.maximum(counts, 1)
        return share, (rows, flat), beside[rows]

    def with_nearest(self, rows: Matrix, columns: Matrix, count: int, block: int = BLOCK) -> Comparisons:
        """Take each row's ``count`` nearest columns that it is compared with for judged worse, too.

        rows, columns: (N, k) and (M, k) of length 1.

        >>> unit = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> Comparisons.of(np.arange(3), judged=0.5).with_nearest(unit, unit, 1).worse.tolist()
        [2, 2, 1]
        """
        found = _lists(self.worse_offsets, self.worse, np.arange(len(self.target)))
        worse = []
        for begin in range(0, len(rows), block):
            cosines = rows[begin : begin + block] @ columns.T
            for row, scores in enumerate(cosines, begin):
                scores[self.left_out[self.offsets[row] : self.offsets[row + 1]]] = -np.inf
                near = np.argpartition(-scores, min(count, len(scores)) - 1)[:count]
                near = near[scores[near] > -np.inf].astype(np.int64)
                worse.append(np.union1d(near, found[row]) if found else np.sort(near))
        offsets, flat = _packed(worse)
        return replace(self, worse_offsets=offsets, worse=flat)

    def reversed(self) -> Comparisons:
        """Compare each row's partner with the rows: row i's partner belongs to row i, and not to the others.

        Left out for row i are the rows that its partner is left out for, or belongs to.
        """
        owners = np.repeat(np.arange(len(self.target)), np.diff(self.offsets))
        order = np.argsort(self.left_out, kind="stable")
        begin, end = (np.searchsorted(self.left_out[order], self.target, side=s) for s in ("left", "right"))
        left_out = [owners[order[b:e]] for b, e in zip(begin.tolist(), end.tolist())]
        return Comparisons.of(np.arange(len(self.target)), left_out, self.weight, self.label)

    def within(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Comparisons]:
        """Return the distinct partners of some rows, and the comparisons of these rows among them."""
        worse = _lists(self.worse_offsets, self.worse, rows)
        columns = np.unique(np.concatenate((self.target[rows], *worse)))
        offsets, left_out = _packed(_places(columns, _lists(self.offsets, self.left_out, rows)))
        worse_offsets, worse_flat = _packed(_places(columns, worse)) if worse else (None, None)
        target = np.searchsorted(columns, self.target[rows])
        weight, label = self.weight[rows], self.label[rows]
        return columns, Comparisons(
            target, offsets, left_out, weight, label, worse_offsets, worse_flat, self.judged
        )


def _packed(lists: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lists as (offsets, one flat list)."""
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in lists]))).astype(np.int64)
    return offsets, np.concatenate([np.zeros(0, np.int64), *lists]).astype(np.int64)


def _lists(
    offsets: NDArray[np.int64] | None, flat: NDArray[np.int64] | None, rows: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The lists of some rows; none where nothing is packed."""
    if offsets is None or flat is None:
        return []
    return [flat[offsets[row] : offsets[row + 1]] for row in rows.tolist()]


def _places(columns: NDArray[np.int64], lists: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Where the numbers of each list are among ``columns``, ascending; those that are not there fall out."""
    found = []
    for one in lists:
        at = np.minimum(np.searchsorted(columns, one), len(columns) - 1)
        found.append(at[columns[at] == one])
    return found


def pairwise_logistic(
    queries: Matrix, documents: Matrix, comparisons: Comparisons, gamma: float, block: int = BLOCK
) -> tuple[float, Matrix, Matrix]:
    """Loss and gradients of log(1 + exp(-gamma * difference)) of cosines (Yih et al. 2011, equation 2).

    queries, documents: (N, k) and (M, k) rows of length 1; S = queries @ documents.T.

        L = sum_i weight_i / n_i sum_j log(1 + exp(gamma (S_ij - S_i,target_i)))

    over the n_i columns j that row i is compared with. Where m_i of them were judged worse, a row has
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
    offsets = comparisons.offsets
    for begin in range(0, len(queries), block):
        end = min(begin + block, len(queries))
        rows = np.arange(end - begin)
        target = comparisons.target[begin:end]
        odds = queries[begin:end] @ documents.T
        odds -= odds[rows, target][:, None]
        odds *= gamma
        np.exp(odds, out=odds)
        lengths = np.diff(offsets[begin : end + 1])
        odds[np.repeat(rows, lengths), comparisons.left_out[offsets[begin] : offsets[end]]] = 0.0
        share, worse, beside = comparisons.parts(begin, end, len(documents))
        loss += float(share @ np.log1p(odds).sum(axis=1, dtype=np.float64) + beside @ np.log1p(odds[worse]))
        odds /= odds + 1  # the logistic function of gamma * (S_ij - S_i,target)
        more = gamma * beside * odds[worse]
        odds *= (gamma * share).astype(odds.dtype)[:, None]
        odds[worse] += more.astype(odds.dtype)
        odds[rows, target] = -odds.sum(axis=1)
        to_queries[begin:end] = odds @ documents
        to_documents += odds.T @ queries[begin:end]
    return loss, to_queries, to_documents


def squared_error(
    queries: Matrix, documents: Matrix, comparisons: Comparisons, block: int = BLOCK
) -> tuple[float, Matrix, Matrix]:
    """Loss and gradients of the squared difference of cosines and labels (Yih et al. 2011, section 3.2).

        L = sum_i weight_i / 2 ((label_i - S_i,target_i)^2 + 1 / n_i sum_j S_ij^2)

    with the arguments, columns j, what was judged worse, and results of :func:`pairwise_logistic`. What a row
    is compared with has the label 0, and weighs together as much as its partner; otherwise the many would
    drown the one.

    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> columns = np.array([[0.8, 0.6], [0.0, 1.0]])
    >>> loss, _, _ = squared_error(rows, columns, Comparisons.of(np.array([0, 1])))
    >>> round(loss, 8)  # (0.2^2 + 0^2) / 4 + (0^2 + 0.6^2) / 4
    0.1
    """
    loss = 0.0
    to_queries = np.empty_like(queries)
    to_documents = np.zeros_like(documents)
    offsets = comparisons.offsets
    for begin in range(0, len(queries), block):
        end = min(begin + block, len(queries))
        rows = np.arange(end - begin)
        target = comparisons.target[begin:end]
        cosines = queries[begin:end] @ documents.T
        missing = comparisons.label[begin:end] - cosines[rows, target]
        lengths = np.diff(offsets[begin : end + 1])
        cosines[np.repeat(rows, lengths), comparisons.left_out[offsets[begin] : offsets[end]]] = 0.0
        weight = comparisons.weight[begin:end]
        share, worse, beside = comparisons.parts(begin, end, len(documents))
        squares = np.einsum("ij,ij->i", cosines, cosines).astype(np.float64)
        loss += float(weight @ np.square(missing) + share @ squares + beside @ np.square(cosines[worse])) / 2
        more = beside * cosines[worse]
        cosines *= share.astype(cosines.dtype)[:, None]
        cosines[worse] += more.astype(cosines.dtype)
        cosines[rows, target] = -weight * missing
        to_queries[begin:end] = cosines @ documents
        to_documents += cosines.T @ queries[begin:end]
    return loss, to_queries, to_documents


class S2Net:
    """The loss of a projection matrix A and its gradient, in matrix form; call it with A (V, k).

    queries, documents: (N, V) and (M, V) sparse term vectors (CSR) of one dtype; row i of ``queries`` belongs
        to row ``comparisons.target[i]`` of ``documents``. Two matrices are one, over twice the columns.
    loss:      ``logistic``: :func:`pairwise_logistic` with ``gamma``, or ``squared``: :func:`squared_error`.
    tanh:      project by g = tanh(A^T f), not by the linear g = A^T f (equation 1 and the remark on it).
    both:      also compare each row's query with the queries of the other rows.
    epsilon:   lengths are sqrt(|g|^2 + epsilon^2), so that a text without known terms has cosine 0.

    With P, Q the projected rows, P^, Q^ the same of length 1 and W = dL/d(P^ Q^T), the gradient is
    X^T (W Q^ - diag(r) P^) / |P| + Y^T (W^T P^ - diag(c) Q^) / |Q|; r and c are the row sums of the products
    W Q^ o P^ and W^T P^ o Q^. Nothing is formed per pair of texts but blocks of W.
    """

    def __init__(
        self,
        queries: Any,
        documents: Any,
        comparisons: Comparisons,
        *,
        loss: str = "logistic",
        gamma: float = 10.0,
        tanh: bool = False,
        both: bool = False,
        epsilon: float = 1e-6,
        block: int = BLOCK,
    ) -> None:
        self.queries, self.documents = queries, documents
        self.queries_t, self.documents_t = queries.T.tocsr(), documents.T.tocsr()
        self.loss, self.gamma, self.tanh, self.epsilon, self.block = loss, gamma, tanh, epsilon, block
        self.given = comparisons
        self.directions = [comparisons, comparisons.reversed()] if both else [comparisons]
        self.target = comparisons.target
        self.compare_within([np.arange(len(self.target))])

    def compare_within(self, parts: Sequence[NDArray[np.int64]]) -> None:
        """Compare rows, from now on, only within each of these sets of rows: fewer products, another loss."""
        everything = len(parts) == 1 and len(parts[0]) == len(self.target)
        self.parts = [
            [(slice(None), slice(None), one)] if everything else [(rows, *one.within(rows)) for rows in parts]
            for one in self.directions
        ]

    def weigh_nearest(self, matrix: Matrix, count: int) -> None:
        """Find the ``count`` columns that are nearest to each row by ``matrix``; they weigh as judged worse.

        What is compared within parts is to be said anew.
        """
        rows, columns = (self._project(side, matrix)[0] for side in (self.queries, self.documents))
        self.directions[0] = self.given.with_nearest(rows, columns, count, self.block)
        self.compare_within([np.arange(len(self.target))])

    def __call__(self, matrix: Matrix) -> tuple[float, Matrix]:
        """(V, k) -> the loss and its gradient (V, k)."""
        query, query_length = self._project(self.queries, matrix)
        document, document_length = self._project(self.documents, matrix)
        to_query, to_document = np.zeros_like(query), np.zeros_like(document)
        loss = 0.0
        for rows, columns, comparisons in self.parts[0]:
            found = self._compare(query[rows], document[columns], comparisons)
            loss += found[0]
            to_query[rows] += found[1]
            to_document[columns] += found[2]
        if len(self.parts) > 1:
            partner = document[self.target]
            to_partner = np.zeros_like(partner)
            for rows, columns, comparisons in self.parts[1]:
                found = self._compare(partner[rows], query[columns], comparisons)
                loss += found[0]
                to_partner[rows] += found[1]
                to_query[columns] += found[2]
            np.add.at(to_document, self.target, to_partner)
        gradient = self.queries_t @ self._through(query, query_length, to_query)
        gradient += self.documents_t @ self._through(document, document_length, to_document)
        return loss, gradient

    def _compare(
        self, rows: Matrix, columns: Matrix, comparisons: Comparisons
    ) -> tuple[float, Matrix, Matrix]:
        if self.loss == "squared":
            return squared_error(rows, columns, comparisons, self.block)
        return pairwise_logistic(rows, columns, comparisons, self.gamma, self.block)

    def _project(self, texts: Any, matrix: Matrix) -> tuple[Matrix, Matrix]:
        projected = texts @ matrix
        if self.tanh:
            np.tanh(projected, out=projected)
        length = np.sqrt(np.einsum("ij,ij->i", projected, projected) + self.epsilon**2)[:, None]
        return projected / length, length

    def _through(self, unit: Matrix, length: Matrix, to_unit: Matrix) -> Matrix:
        """Gradient by the unit rows -> gradient by the projected rows."""
        back: Matrix = (to_unit - np.einsum("ij,ij->i", to_unit, unit)[:, None] * unit) / length
        if self.tanh:
            back *= 1 - (unit * length) ** 2
        return back
