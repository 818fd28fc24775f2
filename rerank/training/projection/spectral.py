"""Projections that are eigenvectors: LSI, CL-LSI, OPCA and CCA, on sparse matrices.

X and Y are sparse (N, V) term vectors of N pairs of texts, row i with row i. Two languages may share columns
(one matrix for both), or each have its own half of them (two matrices in one).

expect, everywhere: is called with the seconds that the rest will take, as soon as that can be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import TrainingError
from rerank.training.projection.eigen import largest, solved
from rerank.training.projection.forecast import Expect, foretell, svd_seconds, untold

Float = NDArray[np.float64]

SMALL = 2000
"""Columns up to which eigenproblems are solved densely."""
FEW_PAIRS = 6000
"""Pairs, or distinct texts, up to which OPCA and CCA are solved by dense matrices of that size instead of by
iteration. A query has often many documents, so there are far fewer texts than pairs."""
POWER, BESIDE = 7, 10
"""Iterations of the randomized SVD, and columns that it computes beside those asked for."""
ITERATIONS, ROUNDS = 25, 4
"""LOBPCG's iterations, and how often so many are added while the first vector is not one yet."""
SETTLED = 0.1
"""Largest |S v - lambda B v| / (|S v| + lambda |B v|) of the first vector v, the easiest to find."""


def lsi(texts: Any, k: int, *, seed: int = 0, expect: Expect = untold) -> Float:
    """Latent semantic indexing: the k largest right singular vectors of the (n, V) ``texts``, (V, k).

    Deerwester et al. 1990; a text's vector f becomes A^T f. Fewer columns come back where the rank is less.

    >>> import scipy.sparse
    >>> lsi(scipy.sparse.csr_matrix([[3.0, 0.0], [0.0, 1.0]]), 1).round(6).tolist()
    [[1.0], [0.0]]
    """
    texts = texts.astype(np.float64).tocsr()
    if min(texts.shape) <= SMALL:
        wide = texts.shape[0] < texts.shape[1]
        products = texts @ texts.T if wide else texts.T @ texts
        squares, vectors = largest(products.toarray(), k)
        kept = squares > 1e-10 * squares[0]
        vectors = vectors[:, kept]
        return _signed(texts.T @ (vectors / np.sqrt(squares[kept])) if wide else vectors)
    from sklearn.utils.extmath import randomized_svd

    expect(svd_seconds(texts, k + BESIDE, POWER))
    _, values, rows = randomized_svd(texts, k, n_oversamples=BESIDE, n_iter=POWER, random_state=seed)
    return _signed(rows[:k][values[:k] > 1e-10 * values[0]].T)


def cllsi(X: Any, Y: Any, k: int, *, seed: int = 0, expect: Expect = untold) -> Float:
    """Cross-language LSI: LSI of each pair's two texts as one (Dumais et al. 1997), (V, k)."""
    return lsi(X + Y, k, seed=seed, expect=expect)


def opca(X: Any, Y: Any, k: int, *, ridge: float = 0.5, seed: int = 0, expect: Expect = untold) -> Float:
    """Oriented PCA: directions in which pairs vary much and their two texts differ little, (V, k).

    Solves S v = lambda B v for the largest lambda with the pairs' means M = (X + Y) / 2 and differences
    E = (X - Y) / 2: S = M^T M / N, B = E^T E / N + eta I (Platt, Toutanova, Yih 2010), columns scaled to
    v^T B v = 1. Columns in which the two sides are not positively correlated, |Mv| <= |Ev|, are dropped.

    ridge: eta as a share of the mean of E^T E / N's diagonal.
    """
    X, Y = X.astype(np.float64), Y.astype(np.float64)
    mean, noise, count = ((X + Y) / 2).tocsr(), ((X - Y) / 2).tocsr(), X.shape[0]
    eta = ridge * noise.power(2).sum() / count / X.shape[1]
    # Where X = Y there is no noise, and any ridge gives the directions of LSI.
    eta = max(eta, 1e-9 * mean.power(2).sum() / count / X.shape[1])
    few = _distinct(X, Y) if X.shape[1] > SMALL and count > FEW_PAIRS else None
    if X.shape[1] > SMALL and count <= FEW_PAIRS:

        def dual(rows: int) -> float:
            _opca_dual(mean[:rows], noise[:rows], eta, k)
            return rows**3

        foretell(dual, count, count**3, expect)
        vectors = _opca_dual(mean, noise, eta, k)
    elif few is not None and sum(few[2].shape) <= FEW_PAIRS:

        def of_texts(rows: int) -> float:
            some = _distinct(X[:rows], Y[:rows])
            assert some is not None
            _opca_of_texts(*some, eta, k)
            return float(sum(some[2].shape) ** 3)

        foretell(of_texts, count, sum(few[2].shape) ** 3, expect)
        vectors = _opca_of_texts(*few, eta, k)
    else:
        mean_t, noise_t = mean.T.tocsr(), noise.T.tocsr()
        vectors = _generalised(
            lambda v: mean_t @ (mean @ v) / count,
            lambda v: noise_t @ (noise @ v) / count + eta * v,
            np.asarray(noise.power(2).sum(axis=0)).ravel() / count + eta,
            lambda: cllsi(X, Y, k, seed=seed, expect=expect),
            k,
            seed,
            expect,
        )
    together = np.square(mean @ vectors).sum(axis=0) > np.square(noise @ vectors).sum(axis=0)
    return _signed(vectors[:, together])


def cca(X: Any, Y: Any, k: int, *, ridge: float = 1e-4, seed: int = 0, expect: Expect = untold) -> Float:
    """Canonical correlation analysis, not centred; X and Y on separate columns, (V, k).

    Solves [0 C_xy; C_yx 0] w = rho [C_xx + kappa I, 0; 0, C_yy + kappa I] w for the largest rho, where kappa
    is the ``ridge`` (Vinokourov et al. 2003): each side's half of w^T f is most correlated with the
    other's. Columns are scaled so that each side's half has variance 1.
    """
    X, Y = X.astype(np.float64).tocsr(), Y.astype(np.float64).tocsr()
    count = X.shape[0]
    few = _distinct(X, Y) if X.shape[1] > SMALL else None
    if few is not None:
        exact = min(few[2].shape) <= SMALL

        def dual(rows: int) -> float:
            some = _distinct(X[:rows], Y[:rows])
            assert some is not None
            _cca_dual(*some, k, ridge * rows, seed, exact)
            return float(sum(size**3 for size in some[2].shape))

        foretell(dual, count, float(sum(size**3 for size in few[2].shape)), expect)
        return _signed(_cca_dual(*few, k, ridge * count, seed, exact))
    X_t, Y_t = X.T.tocsr(), Y.T.tocsr()

    def across(v: Float) -> Float:
        crossed: Float = (X_t @ (Y @ v) + Y_t @ (X @ v)) / count
        return crossed

    def within(v: Float) -> Float:
        covariance: Float = (X_t @ (X @ v) + Y_t @ (Y @ v)) / count + ridge * v
        return covariance

    squares = np.asarray((X.power(2) + Y.power(2)).sum(axis=0)).ravel()
    vectors = _generalised(
        across,
        within,
        squares / count + ridge,
        lambda: cllsi(X, Y, k, seed=seed, expect=expect),
        k,
        seed,
        expect,
    )
    correlated = np.einsum("ij,ij->j", vectors, across(vectors)) > 1e-10
    return _signed(vectors[:, correlated]) * 2**0.5  # each half of w has w^T C w = 1 / 2


def _generalised(
    numerator: Callable[[Float], Float],
    denominator: Callable[[Float], Float],
    diagonal: Float,
    start: Callable[[], Float],
    k: int,
    seed: int,
    expect: Expect,
) -> Float:
    """Largest k eigenvectors of S v = lambda B v from the operators v -> S v and v -> B v, (V, <= k).

    diagonal: of B, the preconditioner. Dense up to SMALL columns, else by LOBPCG from ``start``;
    TrainingError when that finds nothing, as with a ridge that is almost 0.
    """
    size = len(diagonal)
    if size <= SMALL or size < 5 * k:
        identity = np.eye(size)
        return largest(numerator(identity), k, denominator(identity))[1]
    from scipy.sparse.linalg import LinearOperator, lobpcg

    def operator(apply: Callable[[Float], Float]) -> Any:
        return LinearOperator((size, size), matvec=apply, matmat=apply, dtype=np.float64)

    begin = start()
    counted = _Counted(numerator, expect)
    if begin.shape[1] < k:
        extra = np.random.default_rng(seed).normal(size=(size, k - begin.shape[1]))
        begin = np.concatenate((begin, extra), axis=1)
    import warnings

    for _ in range(ROUNDS):
        counted.begin()
        with warnings.catch_warnings():
            # LOBPCG warns of every vector that is not exact to the last digit; the last ones never matter.
            warnings.simplefilter("ignore", UserWarning)
            values, vectors = lobpcg(
                operator(counted),
                begin,
                B=operator(denominator),
                M=operator(lambda v: v / (diagonal[:, None] if v.ndim == 2 else diagonal)),
                largest=True,
                maxiter=ITERATIONS,
                tol=1e-6,
            )
        order = np.argsort(-values)
        begin = np.asarray(vectors[:, order], dtype=np.float64)
        highest = begin[:, :1]
        up, down = numerator(highest), denominator(highest) * values[order[0]]
        if np.linalg.norm(up - down) <= SETTLED * (np.linalg.norm(up) + np.linalg.norm(down)):
            return begin
    raise TrainingError(
        f"the eigenvectors are not found after {ITERATIONS * ROUNDS} iterations; a larger ridge helps"
    )


class _Counted:
    """An operator of LOBPCG, called once before and once in each iteration; tells what the rest takes."""

    def __init__(self, apply: Callable[[Float], Float], expect: Expect) -> None:
        self.apply, self.expect = apply, expect

    def begin(self) -> None:
        """Count a round of iterations from here."""
        self.calls, self.begun = 0, time.monotonic()

    def __call__(self, v: Float) -> Float:
        """S v."""
        if self.calls > 1:
            each = (time.monotonic() - self.begun) / self.calls
            self.expect(each * max(1, ITERATIONS + 1 - self.calls))
        self.calls += 1
        return self.apply(v)


def _opca_dual(mean: Any, noise: Any, eta: float, k: int) -> Float:
    """OPCA through the (N, N) matrix M B^-1 M^T / N; exact, and quick while there are few pairs.

    B^-1 = (I - E^T (eta N I + E E^T)^-1 E) / eta (Woodbury); v = B^-1 M^T u / sqrt(N lambda).
    """
    count = mean.shape[0]
    inner = (noise @ noise.T).toarray()
    inner[np.diag_indices(count)] += eta * count
    root = np.linalg.cholesky(inner)
    cross = solved(root, (noise @ mean.T).toarray())
    outer = (mean @ mean.T).toarray() - cross.T @ cross
    outer /= count * eta
    values, vectors = largest(outer, k)
    kept = values > 1e-10 * values[0]
    values, vectors = values[kept], vectors[:, kept]
    back = mean.T @ vectors
    back -= noise.T @ solved(root, solved(root, noise @ back), transposed=True)
    back /= eta * np.sqrt(count * values)
    return np.asarray(back, dtype=np.float64)


def _distinct(X: Any, Y: Any) -> tuple[Any, Any, Any] | None:
    """Distinct rows of both sides, (n, V) and (m, V), and how often each pair of them is there, (n, m).

    None where they are more than FEW_PAIRS.
    """
    from scipy.sparse import csr_matrix

    sides, places = [], []
    for rows in (X, Y):
        rows.sort_indices()
        first: dict[bytes, int] = {}
        kept: list[int] = []
        place: list[int] = []
        for row, (begin, end) in enumerate(zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist())):
            key = rows.indices[begin:end].tobytes() + rows.data[begin:end].tobytes()
            if key not in first:
                first[key] = len(kept)
                kept.append(row)
                if len(kept) > FEW_PAIRS:
                    return None
            place.append(first[key])
        sides.append(rows[kept])
        places.append(place)
    shape = sides[0].shape[0], sides[1].shape[0]
    return *sides, csr_matrix((np.ones(X.shape[0]), places), shape=shape)


def _opca_of_texts(X: Any, Y: Any, together: Any, eta: float, k: int) -> Float:
    """OPCA through dense matrices of n + m distinct texts Z = [X; Y]; exact, however many pairs they make.

    Every solution is v = Z^T a. With Z Z^T = L L^T, L^T a = b, M = P Z and E = Q Z (P, Q: pairs x texts),
    it is L^T (P^T P / N) L b = lambda (L^T (Q^T Q / N) L + eta I) b.
    """
    from scipy.sparse import bmat, diags, vstack

    count = together.sum()
    here = [diags(np.asarray(together.sum(axis=axis)).ravel()) for axis in (1, 0)]
    crossed = [bmat([[here[0], sign * together], [sign * together.T, here[1]]]) for sign in (1, -1)]
    texts = vstack([X, Y]).tocsr()
    gram = (texts @ texts.T).toarray()
    gram[np.diag_indices(len(gram))] += 1e-10 * gram.trace() / len(gram)  # texts may depend on each other
    root = np.linalg.cholesky(gram)
    numerator, denominator = (root.T @ (one.tocsr() @ root) / (4 * count) for one in crossed)
    denominator[np.diag_indices(len(root))] += eta
    _, vectors = largest(numerator, k, denominator)
    a = solved(root, vectors, transposed=True)
    return np.asarray(texts.T @ a, dtype=np.float64)


def _cca_dual(X: Any, Y: Any, together: Any, k: int, ridge: float, seed: int, exact: bool) -> Float:
    """CCA through dense matrices of n and m distinct texts; exact, however many pairs they make.

    ``together`` is K, (n, m): how often a text of X is in a pair with one of Y. A text that is in c pairs
    counts as sqrt(c) x. With sqrt(c) X = U S V^T of one side and U', S' of the other: the singular vectors
    L, R of D U^T c^-1/2 K c'^-1/2 U' D', where D = S / sqrt(S^2 + ridge), give the columns
    V (S^2 + ridge)^-1/2 L sqrt(N), and likewise with R. exact: unless they come of a randomized SVD.
    """
    from scipy.sparse import diags
    from sklearn.utils.extmath import randomized_svd

    roots = [np.sqrt(np.asarray(together.sum(axis=axis)).ravel()) for axis in (1, 0)]
    X, Y = (diags(root) @ texts for root, texts in zip(roots, (X, Y)))
    together = diags(1 / roots[0]) @ together @ diags(1 / roots[1])
    count = float((roots[0] ** 2).sum())
    sides = []
    for texts in (X, Y):
        values, vectors = np.linalg.eigh((texts @ texts.T).toarray())
        kept = values > 1e-10 * values[-1]
        sides.append((values[kept], vectors[:, kept]))
    (left, U), (right, W) = sides
    inner = (
        (U.T @ (together @ W)) * np.sqrt(left / (left + ridge))[:, None] * np.sqrt(right / (right + ridge))
    )
    if exact:
        L, rho, R = np.linalg.svd(inner, full_matrices=False)
    else:
        L, rho, R = randomized_svd(inner, k, n_iter=7, random_state=seed)
    L, R = L[:, :k][:, rho[:k] > 1e-10], R[:k][rho[:k] > 1e-10].T
    scale = count**0.5
    # V = X^T U / S
    above = X.T @ (U @ (L * (scale / np.sqrt(left * (left + ridge)))[:, None]))
    below = Y.T @ (W @ (R * (scale / np.sqrt(right * (right + ridge)))[:, None]))
    return np.asarray(above + below, dtype=np.float64)


def _signed(vectors: Float) -> Float:
    """Make each column's largest entry positive: the sign is free, and this one can be repeated."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    signed: Float = vectors * signs
    return signed
