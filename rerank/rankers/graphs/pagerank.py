"""Intimacy: personalised PageRank between documents (Raman et al. 2021, equation 1), top k of each.

    I = alpha (1 - (1 - alpha) A')^-1,   A' = A diag(1 / s),   s_j = sum_i A_ij

alpha is the probability of a restart. Row i of I ranks the other documents for document i. A is symmetric, so
it is ordinary PageRank from i divided by the target's degree, which keeps hubs down.
Connected components are handled one by one: the small ones exactly, the others by pushing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

EXACT = 8_192
"""Components up to this size are inverted (4 bytes x size^2 of memory, twice); above, pushed."""
DENSE_GUARD = 20_000
SEEDS = 256
"""Documents that push side by side."""
ROWS = 64
"""Rows of an inverse that are looked at together: they stay in the cache."""
DIRECT = 256
"""Matrices up to this size are inverted without elimination."""
TIES = 16
"""Scores that agree in so many binary digits are ties."""
DOUBLE = 1_024
"""Components up to this size are inverted in float64."""
FLOAT32 = 1e-6
"""What the inverse in float32 may be off by."""


@dataclass(frozen=True)
class Intimacy:
    """The most intimate documents of each document.

    ids:     (N, k) int32, positions by decreasing intimacy, filled up with -1.
    scores:  (N, k) float32, their intimacy, filled up with 0.
    reached: (N,) how many documents have any: at least as many as are listed.
    error:   no score is further from the true one than this; ``capped`` counts the documents that were
             stopped before that (their own error is larger).
    """

    ids: NDArray[np.int32]
    scores: NDArray[np.float32]
    reached: NDArray[np.int64]
    error: float
    capped: int = 0

    def related(self, document: int) -> NDArray[np.int32]:
        """Those of one document, without the filling."""
        row: NDArray[np.int32] = self.ids[document]
        return row[: int((row >= 0).sum())]


def dense_intimacy(adjacency: csr_matrix, alpha: float = 0.15) -> NDArray[np.float64]:
    """The whole (N, N) matrix by a dense inverse, in float64: for tests and small graphs.

    Raises UsageError above DENSE_GUARD documents.

    >>> from scipy.sparse import csr_matrix
    >>> dense_intimacy(csr_matrix([[0, 1], [1, 0]]), 0.5).round(4).tolist()
    [[0.6667, 0.3333], [0.3333, 0.6667]]
    """
    _check(alpha)
    size = adjacency.shape[0]
    if size > DENSE_GUARD:
        raise UsageError(f"a dense inverse of {size} documents is too large; use top_intimacy")
    inverse = np.linalg.inv(np.eye(size) - (1 - alpha) * _normalized(adjacency).toarray().astype(np.float64))
    return alpha * inverse


def top_intimacy(
    adjacency: csr_matrix,
    k: int = 64,
    *,
    alpha: float = 0.15,
    tolerance: float = 1e-3,
    max_pushes: int = 2_000_000,
    seed: int = 0,
    exact: int = EXACT,
    progress: Callable[[int], object] | None = None,
) -> Intimacy:
    """The k most intimate other documents of each document.

    adjacency: (N, N), symmetric, not negative, empty diagonal. tolerance: largest error of a score of a
    component of more than ``exact`` documents (of smaller ones: about 1e-6, the precision of float32).
    max_pushes: links a document follows at most; ``Intimacy.capped`` counts those that would need more.
    seed: orders ties.

    >>> from scipy.sparse import csr_matrix
    >>> line = csr_matrix([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    >>> top_intimacy(line, 2).ids.tolist()[0]
    [1, 2]
    """
    from scipy.sparse import csr_matrix as csr
    from scipy.sparse.csgraph import connected_components

    _check(alpha)
    size = adjacency.shape[0]
    degree = np.asarray(adjacency.sum(axis=0), dtype=np.float64).ravel()
    step = _normalized(adjacency).astype(np.float32)
    _, label = connected_components(adjacency, directed=False)
    members = np.argsort(label, kind="stable")
    sizes = np.bincount(label, minlength=1) if size else np.zeros(0, dtype=np.int64)
    hashed = np.random.default_rng(seed).permutation(size).astype(np.int32)
    ids = np.full((size, k), -1, dtype=np.int32)
    scores = np.zeros((size, k), dtype=np.float32)
    reached = np.zeros(size, dtype=np.int64)
    error, capped = 0.0, 0
    alone = sizes[label] == 1
    if progress is not None:
        progress(int(alone.sum()))
    starts = np.cumsum(sizes) - sizes
    for start, count in zip(starts.tolist(), sizes.tolist()):
        if count == 1:
            continue
        inside = members[start : start + count]
        part: csr_matrix = step if count == size else csr(step[inside][:, inside])
        rows: Iterator[_Rows]
        if count <= exact:
            order, rows = _exact(part, alpha, degree[inside])
            inside = inside[order]
        else:
            rows = _pushed(part, alpha, tolerance, max_pushes)
        hashes = hashed[inside]
        for found in rows:
            columns, values, many = found.top(k, hashes)
            at = inside[found.seeds]
            width = columns.shape[1]
            ids[at, :width] = np.where(columns >= 0, inside[columns], -1)
            scores[at, :width] = values
            reached[at] = many
            error, capped = max(error, found.error), capped + found.capped
            if progress is not None:
                progress(len(at))
    return Intimacy(ids, scores, reached, error, capped)


def _check(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise UsageError(f"restart probability {alpha} is not above 0 and at most 1")


def _normalized(adjacency: csr_matrix) -> csr_matrix:
    """A' = A diag(1 / s); columns without links stay zero."""
    from scipy.sparse import diags

    degree = np.asarray(adjacency.sum(axis=0), dtype=np.float64).ravel()
    inverse = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0)
    return (adjacency @ diags(inverse)).tocsr()


@dataclass(frozen=True)
class _Rows:
    """Scores of some documents: dense (n, N), or sparse as ``entries`` (row, column, score) sorted by row."""

    seeds: NDArray[np.int64]
    dense: NDArray[np.float32] | None
    sparse: Any = None
    error: float = 0.0
    capped: int = 0

    def top(
        self, k: int, hashed: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
        """(n, k) columns by decreasing score and hash, (n, k) scores, (n,) how many are above 0; -1 fills."""
        if self.dense is not None:
            return _top_dense(self.dense, self.seeds, k, hashed)
        return _top_sparse(self.sparse, self.seeds, k, hashed)


def _top_dense(
    scores: NDArray[np.float32], seeds: NDArray[np.int64], k: int, hashed: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    scores[np.arange(len(seeds)), seeds] = 0.0
    many = np.count_nonzero(scores > 0, axis=1)
    k = min(k, scores.shape[1] - 1)
    if k < scores.shape[1] - 1:
        chosen = np.argpartition(scores, -k, axis=1)[:, -k:]
    else:
        chosen = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    values = np.take_along_axis(scores, chosen, axis=1)
    order = np.lexsort((hashed[chosen], -_rounded(values)))[:, :k]
    chosen, values = np.take_along_axis(chosen, order, axis=1), np.take_along_axis(values, order, axis=1)
    return np.where(values > 0, chosen, -1).astype(np.int32), np.maximum(values, 0), many


def _top_sparse(
    scores: csr_matrix, seeds: NDArray[np.int64], k: int, hashed: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    ids = np.full((len(seeds), k), -1, dtype=np.int32)
    found = np.zeros((len(seeds), k), dtype=np.float32)
    many = np.zeros(len(seeds), dtype=np.int64)
    for row, seed in enumerate(seeds.tolist()):
        begin, end = scores.indptr[row], scores.indptr[row + 1]
        columns, values = scores.indices[begin:end], scores.data[begin:end]
        others = (columns != seed) & (values > 0)
        many[row] = int(others.sum())
        columns, values = columns[others], values[others]
        if len(values) > k:
            best = np.argpartition(values, -k)[-k:]
            columns, values = columns[best], values[best]
        order = np.lexsort((hashed[columns], -_rounded(values)))
        ids[row, : len(order)], found[row, : len(order)] = columns[order], values[order]
    return ids, found, many


def _rounded(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cut to TIES bits, so that what rounding errors made different ties."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    cut: NDArray[np.float64] = np.ldexp(np.round(mantissa * 2.0**TIES), exponent - TIES)
    return cut


def _exact(
    step: csr_matrix, alpha: float, degree: NDArray[np.float64]
) -> tuple[NDArray[np.integer], Iterator[_Rows]]:
    """Rows of alpha (1 - (1 - alpha) W)^-1, and the order that they and their columns are in.

    With D = diag(degree), D^-1/2 (1 - (1 - alpha) A') D^1/2 is symmetric and positive definite, so its
    inverse takes half the work of an LU decomposition, and less by elimination. Small components are inverted
    in float64, larger ones in float32.
    """
    from scipy.sparse import diags, identity

    size = step.shape[0]
    kind = np.dtype(np.float64 if size <= DOUBLE else np.float32)
    root = np.sqrt(degree)
    symmetric = diags(1 / root) @ step.astype(np.float64) @ diags(root)
    inverse = np.empty((size, size), dtype=kind)
    order = _invert((identity(size) - (1 - alpha) * symmetric).astype(kind).tocsr(), inverse)
    return order, _scaled(inverse, alpha, root[order])


def _scaled(inverse: NDArray[np.floating], alpha: float, root: NDArray[np.float64]) -> Iterator[_Rows]:
    """alpha diag(root) inverse diag(1 / root), some rows at a time."""
    kind = inverse.dtype
    left, right = (alpha * root).astype(kind), (1 / root).astype(kind)
    least = float(np.finfo(kind).eps)  # rounding leaves such numbers where nothing is reached
    for begin in range(0, len(inverse), ROWS):
        rows: NDArray[Any] = inverse[begin : begin + ROWS] * left[begin : begin + ROWS, None] * right
        rows[np.abs(rows) < least] = 0
        seeds = np.arange(begin, begin + len(rows))
        yield _Rows(seeds, rows, error=0.0 if kind == np.float64 else FLOAT32)


def _invert(system: csr_matrix, inverse: NDArray[np.floating]) -> NDArray[np.integer]:
    """Write the inverse of a symmetric positive definite matrix; return the order of its rows and columns.

    Documents of which no two are linked are eliminated together, at the cost of their few links (those with
    the fewest are taken first). The others' matrix (the Schur complement) is inverted in the same way, until
    too few can be eliminated: then by Cholesky.
    """
    from scipy.sparse import diags

    size = system.shape[0]
    apart = _unlinked(system) if size > DIRECT else np.zeros(0, dtype=np.int64)
    count = len(apart)
    if count < size / 8:
        _cholesky_inverse(system, inverse)
        return np.arange(size)
    rest = np.setdiff1d(np.arange(size), apart)
    pivots = system.diagonal()[apart]
    links = system[apart][:, rest]
    scaled = diags(1 / pivots).astype(system.dtype) @ links
    inner = inverse[count:, count:]
    order = _invert((system[rest][:, rest] - links.T @ scaled).tocsr(), inner)
    scaled = scaled.tocsr()[:, order]
    across = -(scaled @ inner)
    down = np.ascontiguousarray(across.T)
    inverse[:count, count:], inverse[count:, :count] = across, down
    inverse[:count, :count] = -(scaled @ down)
    inverse[np.arange(count), np.arange(count)] += 1 / pivots
    return np.concatenate((apart, rest[order]))


def _unlinked(system: csr_matrix) -> NDArray[np.integer]:
    """Documents of which no two are linked, by increasing number of links."""
    taken, blocked = [], np.zeros(system.shape[0], dtype=bool)
    indptr, indices = system.indptr, system.indices
    for one in np.argsort(np.diff(indptr), kind="stable").tolist():
        if not blocked[one]:
            taken.append(one)
            blocked[indices[indptr[one] : indptr[one + 1]]] = True
    return np.array(taken, dtype=np.int64)


def _cholesky_inverse(system: csr_matrix, inverse: NDArray[np.floating]) -> None:
    """Write the inverse, which LAPACK gives as one triangle."""
    from scipy.linalg import lapack

    single = inverse.dtype == np.float32
    factorise, invert = (lapack.spotrf, lapack.spotri) if single else (lapack.dpotrf, lapack.dpotri)
    factor, failed = factorise(system.toarray(order="F"), lower=0, overwrite_a=1, clean=0)
    upper, wrong = invert(factor, lower=0, overwrite_c=1)
    if failed or wrong:
        raise UsageError("the links give no intimacy; weights must be positive")
    lower = upper.T
    for begin in range(0, len(lower), SEEDS):
        end = min(begin + SEEDS, len(lower))
        corner = np.tril(lower[begin:end, begin:end])
        inverse[begin:end, :begin] = lower[begin:end, :begin]
        inverse[begin:end, begin:end] = corner + np.tril(corner, -1).T
        inverse[begin:end, end:] = lower[end:, begin:end].T


def _pushed(step: csr_matrix, alpha: float, tolerance: float, max_pushes: int) -> Iterator[_Rows]:
    """Push from every document, SEEDS side by side."""
    size = step.shape[0]
    for begin in range(0, size, SEEDS):
        seeds = np.arange(begin, min(begin + SEEDS, size))
        yield _push(step, seeds, alpha, tolerance, max_pushes)


def _push(
    step: csr_matrix, seeds: NDArray[np.int64], alpha: float, tolerance: float, max_pushes: int
) -> _Rows:
    """Rows of alpha (1 - (1 - alpha) W)^-1 by pushing, many seeds side by side as sparse products.

    What waits at a node, r(u), is pushed while it is above the tolerance: p += alpha r(u), r += (1 - alpha)
    r(u) W_u. At all times p + r I = the row, and the columns of I sum to at most 1, so no score is off by
    more than the largest r that is left. Ranked by p + alpha r, still a lower bound and closer. What is too
    small to be pushed is merged only when nothing else is left to push: merging costs more than pushing.
    """
    size = step.shape[0]
    links = np.diff(step.indptr)
    count = len(seeds)
    followed = np.zeros(count)
    settled: list[_Entries] = []
    waiting = _Entries(np.arange(count), seeds, np.ones(count, dtype=np.float32))
    while True:
        small: list[_Entries] = []
        while True:
            large = (waiting.values > tolerance) & (followed[waiting.rows] < max_pushes)
            small.append(waiting.take(~large))
            if not large.any():
                break
            pushed = waiting.take(large)
            settled.append(pushed)
            followed += np.bincount(pushed.rows, links[pushed.columns], minlength=count)
            product = pushed.matrix(count, size) @ step
            product.data *= np.float32(1 - alpha)
            waiting = _Entries.of(product)
        merged = _Entries.merged(small, count, size)
        left = _Entries.of(merged)
        above = left.values > tolerance
        if not (above & (followed[left.rows] < max_pushes)).any():
            break
        waiting = left
    total = _Entries.merged([*settled, left], count, size)
    total.data *= np.float32(alpha)
    capped = np.unique(left.rows[above])
    kept = left.take(~np.isin(left.rows, capped))
    error = float(kept.values.max(initial=0.0))
    return _Rows(seeds, None, total, error=error, capped=len(capped))


@dataclass(frozen=True)
class _Entries:
    """Entries of a sparse matrix, sorted by row; columns in any order, and more than once."""

    rows: NDArray[np.integer]
    columns: NDArray[np.integer]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, matrix: csr_matrix) -> _Entries:
        rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
        return cls(rows, matrix.indices, matrix.data)

    def take(self, which: NDArray[np.bool_]) -> _Entries:
        return _Entries(self.rows[which], self.columns[which], self.values[which])

    def matrix(self, count: int, size: int) -> csr_matrix:
        from scipy.sparse import csr_matrix

        indptr = np.searchsorted(self.rows, np.arange(count + 1)).astype(np.int32)
        return csr_matrix((self.values, self.columns.astype(np.int32), indptr), shape=(count, size))

    @staticmethod
    def merged(parts: list[_Entries], count: int, size: int) -> csr_matrix:
        """Sum of parts, with every entry once."""
        from scipy.sparse import coo_matrix

        rows, columns = (np.concatenate([getattr(p, n) for p in parts]) for n in ("rows", "columns"))
        values = np.concatenate([p.values for p in parts])
        return coo_matrix((values, (rows, columns)), shape=(count, size)).tocsr()
