"""Projections by eigenvectors: LSI, CL-LSI, OPCA and CCA, on sparse matrices.

X and Y are sparse (N, V) term vectors of N pairs of texts; row i of X belongs to row i of Y. Two languages
may share columns (one matrix for both) or each have half of them (two matrices in one).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

SMALL = 2000
"""Columns up to which eigenvalue problems are solved densely."""
FEW_PAIRS = 6000
"""Pairs, or distinct texts, that OPCA and CCA solve exactly by dense matrices of that size. A query often has
many documents, so there are far fewer texts than pairs. Of more, so many random pairs are used."""
POWER = 7
"""Power iterations of the randomized SVD. SciPy's exact ``svds`` takes twice as long."""
NEGLIGIBLE = 1e-10
"""Share of the largest eigenvalue below which an eigenvalue counts as 0."""


def lsi(texts: Any, k: int, *, seed: int = 0) -> Float:
    """Latent semantic indexing: the k largest right singular vectors of the (n, V) ``texts``, (V, k).

    Deerwester et al. 1990; a text's vector f becomes A^T f. If the rank is below k, there are fewer columns.

    >>> import scipy.sparse
    >>> lsi(scipy.sparse.csr_matrix([[3.0, 0.0], [0.0, 1.0]]), 1).round(6).tolist()
    [[1.0], [0.0]]
    """
    texts = texts.astype(np.float64).tocsr()
    if min(texts.shape) > SMALL:
        from sklearn.utils.extmath import randomized_svd

        _, values, rows = randomized_svd(texts, k, n_iter=POWER, random_state=seed)
        return _signed(rows[values > NEGLIGIBLE * values[0]].T)
    wide = texts.shape[0] < texts.shape[1]
    products = texts @ texts.T if wide else texts.T @ texts
    squares, vectors = _largest(products.toarray(), k)
    kept = squares > NEGLIGIBLE * squares[0]
    vectors = vectors[:, kept]
    return _signed(texts.T @ (vectors / np.sqrt(squares[kept])) if wide else vectors)


def cllsi(X: Any, Y: Any, k: int, *, seed: int = 0) -> Float:
    """Cross-language LSI: LSI of each pair's two texts as one (Dumais et al. 1997), (V, k)."""
    return lsi(X + Y, k, seed=seed)


def opca(X: Any, Y: Any, k: int, *, ridge: float = 0.5, seed: int = 0) -> Float:
    """Oriented PCA: directions in which pairs vary much and their two texts differ little, (V, k).

    Solves S v = lambda B v for the largest lambda with the pairs' means M = (X + Y) / 2 and differences
    E = (X - Y) / 2: S = M^T M / N, B = E^T E / N + eta I (Platt, Toutanova, Yih 2010), columns scaled to
    v^T B v = 1. Columns in which the two sides are not positively correlated, |Mv| <= |Ev|, are dropped.

    ridge: eta as a share of the mean of E^T E / N's diagonal.
    """
    X, Y = X.astype(np.float64), Y.astype(np.float64)
    wide, distinct = X.shape[1] > SMALL, None
    if wide and X.shape[0] > FEW_PAIRS:
        distinct = _distinct(X, Y)
        if distinct is None or sum(distinct[2].shape) > FEW_PAIRS:
            X, Y, distinct = *_sample(X, Y, seed), None
    mean, noise, count = ((X + Y) / 2).tocsr(), ((X - Y) / 2).tocsr(), X.shape[0]
    eta = ridge * noise.power(2).sum() / count / X.shape[1]
    # If X = Y there is no noise, and any ridge gives the directions of LSI.
    eta = max(eta, 1e-9 * mean.power(2).sum() / count / X.shape[1])
    if not wide:
        variances = [(rows.T @ rows).toarray() / count for rows in (mean, noise)]
        variances[1][np.diag_indices(X.shape[1])] += eta
        _, vectors = _largest(variances[0], k, variances[1])
    elif distinct is not None:
        vectors = _opca_of_texts(*distinct, eta, k)
    else:
        vectors = _opca_of_pairs(mean, noise, eta, k)
    together = np.square(mean @ vectors).sum(axis=0) > np.square(noise @ vectors).sum(axis=0)
    return _signed(vectors[:, together])


def cca(X: Any, Y: Any, k: int, *, ridge: float = 1e-4, seed: int = 0) -> Float:
    """Canonical correlation analysis, not centered; X and Y on separate columns, (V, k).

    Solves [0 C_xy; C_yx 0] w = rho [C_xx + kappa I, 0; 0, C_yy + kappa I] w for the largest rho. kappa is the
    ``ridge`` (Vinokourov et al. 2003): each side's half of w^T f is most correlated with the other half.
    Columns are scaled so that each side's half has variance 1.
    """
    X, Y = X.astype(np.float64).tocsr(), Y.astype(np.float64).tocsr()
    if X.shape[1] > SMALL:
        distinct = _distinct(X, Y)
        if distinct is None:
            X, Y = _sample(X, Y, seed)
            distinct = _distinct(X, Y)
        assert distinct is not None
        return _signed(_cca_of_texts(*distinct, k, ridge * X.shape[0], seed))
    count = X.shape[0]
    crossed = (X.T @ Y).toarray() / count
    within = ((X.T @ X + Y.T @ Y) / count).toarray()
    within[np.diag_indices(len(within))] += ridge
    rho, vectors = _largest(crossed + crossed.T, k, within)
    return _signed(vectors[:, rho > NEGLIGIBLE]) * 2**0.5  # each half of w has w^T C w = 1 / 2


def _largest(A: Float, k: int, B: Float | None = None) -> tuple[Float, Float]:
    """Solve A v = lambda B v for the k largest eigenvalues, largest first: (k,) and (n, k), v^T B v = 1.

    A: symmetric; B: positive definite, None for the identity. Both may be overwritten.
    """
    from scipy.linalg import eigh

    first = max(0, len(A) - k)
    options = {"subset_by_index": [first, len(A) - 1], "overwrite_a": True, "overwrite_b": True}
    values, vectors = eigh(A, B, **options)
    return values[::-1], np.ascontiguousarray(vectors[:, ::-1])


def _sample(X: Any, Y: Any, seed: int) -> tuple[Any, Any]:
    """Return FEW_PAIRS random pairs."""
    rows = np.sort(np.random.default_rng(seed).choice(X.shape[0], FEW_PAIRS, replace=False))
    return X[rows], Y[rows]


def _opca_of_pairs(mean: Any, noise: Any, eta: float, k: int) -> Float:
    """OPCA through the (N, N) matrix M B^-1 M^T / N; exact, and fast for few pairs.

    B^-1 = (I - E^T (eta N I + E E^T)^-1 E) / eta (Woodbury); v = B^-1 M^T u / sqrt(N lambda).
    """
    from scipy.linalg import cho_factor, cho_solve

    count = mean.shape[0]
    inner = (noise @ noise.T).toarray()
    inner[np.diag_indices(count)] += eta * count
    factor = cho_factor(inner, lower=True, overwrite_a=True)
    cross = (noise @ mean.T).toarray()
    outer = (mean @ mean.T).toarray() - cross.T @ cho_solve(factor, cross)
    outer /= count * eta
    values, vectors = _largest(outer, k)
    kept = values > NEGLIGIBLE * values[0]
    values, vectors = values[kept], vectors[:, kept]
    back = mean.T @ vectors
    back -= noise.T @ cho_solve(factor, noise @ back)
    back /= eta * np.sqrt(count * values)
    return np.asarray(back, dtype=np.float64)


def _distinct(X: Any, Y: Any) -> tuple[Any, Any, Any] | None:
    """Return the distinct rows of both sides, (n, V) and (m, V), and the count of each pair of them, (n, m).

    None if one side has more than FEW_PAIRS of them.
    """
    from scipy.sparse import csr_matrix

    sides, places = [], []
    for rows in (X, Y):
        place, kept = alike(rows)
        if len(kept) > FEW_PAIRS:
            return None
        sides.append(rows[kept])
        places.append(place)
    shape = sides[0].shape[0], sides[1].shape[0]
    return *sides, csr_matrix((np.ones(X.shape[0]), places), shape=shape)


def alike(rows: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the distinct rows of a CSR matrix by first appearance: (n,) numbers and (m,) first rows.

    >>> import scipy.sparse
    >>> [found.tolist() for found in alike(scipy.sparse.csr_matrix([[1.0, 0], [0, 1], [1, 0]]))]
    [[0, 1, 0], [0, 1]]
    """
    rows.sort_indices()
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    found = np.empty(rows.shape[0], dtype=np.int64)
    for row, (begin, end) in enumerate(zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist())):
        key = rows.indices[begin:end].tobytes() + rows.data[begin:end].tobytes()
        if key not in numbers:
            numbers[key] = len(first)
            first.append(row)
        found[row] = numbers[key]
    return found, np.array(first, dtype=np.int64)


def _opca_of_texts(X: Any, Y: Any, together: Any, eta: float, k: int) -> Float:
    """OPCA through dense matrices of n + m distinct texts Z = [X; Y]; exact for any number of pairs.

    Every solution is v = Z^T a. With Z Z^T = L L^T, L^T a = b, M = P Z and E = Q Z (P, Q: pairs x texts),
    it is L^T (P^T P / N) L b = lambda (L^T (Q^T Q / N) L + eta I) b.
    """
    from scipy.linalg import cholesky, solve_triangular
    from scipy.sparse import bmat, diags, vstack

    count = together.sum()
    here = [diags(np.asarray(together.sum(axis=axis)).ravel()) for axis in (1, 0)]
    crossed = [bmat([[here[0], sign * together], [sign * together.T, here[1]]]) for sign in (1, -1)]
    texts = vstack([X, Y]).tocsr()
    gram = (texts @ texts.T).toarray()
    gram[np.diag_indices(len(gram))] += NEGLIGIBLE * gram.trace() / len(gram)  # texts may be dependent
    root = cholesky(gram, lower=True)
    numerator, denominator = (root.T @ (one.tocsr() @ root) / (4 * count) for one in crossed)
    denominator[np.diag_indices(len(root))] += eta
    _, vectors = _largest(numerator, k, denominator)
    return np.asarray(texts.T @ solve_triangular(root, vectors, trans="T", lower=True), dtype=np.float64)


def _cca_of_texts(X: Any, Y: Any, together: Any, k: int, ridge: float, seed: int) -> Float:
    """CCA through dense matrices of n and m distinct texts; exact for any number of pairs.

    ``together`` is K, (n, m): how often a text of X is in a pair with a text of Y. A text that is in c pairs
    counts as sqrt(c) x. With sqrt(c) X = U S V^T of one side and U', S' of the other: the singular vectors
    L, R of D U^T c^-1/2 K c'^-1/2 U' D', with D = S / sqrt(S^2 + ridge), give the columns
    V (S^2 + ridge)^-1/2 L sqrt(N), and likewise with R.
    """
    from scipy.sparse import diags
    from sklearn.utils.extmath import randomized_svd

    roots = [np.sqrt(np.asarray(together.sum(axis=axis)).ravel()) for axis in (1, 0)]
    X, Y = (diags(root) @ texts for root, texts in zip(roots, (X, Y)))
    together = diags(1 / roots[0]) @ together @ diags(1 / roots[1])
    sides = []
    for texts in (X, Y):
        values, vectors = _largest((texts @ texts.T).toarray(), texts.shape[0])
        kept = values > NEGLIGIBLE * values[0]
        sides.append((values[kept], vectors[:, kept]))
    (left, U), (right, W) = sides
    damped = np.sqrt(left / (left + ridge))[:, None], np.sqrt(right / (right + ridge))
    inner = (U.T @ (together @ W)) * damped[0] * damped[1]
    if min(inner.shape) <= SMALL:
        L, rho, R = np.linalg.svd(inner, full_matrices=False)
    else:
        L, rho, R = randomized_svd(inner, k, n_iter=POWER, random_state=seed)
    kept = rho[:k] > NEGLIGIBLE
    L, R = L[:, :k][:, kept], R[:k][kept].T
    scale = float((roots[0] ** 2).sum()) ** 0.5
    # V = X^T U / S
    above = X.T @ (U @ (L * (scale / np.sqrt(left * (left + ridge)))[:, None]))
    below = Y.T @ (W @ (R * (scale / np.sqrt(right * (right + ridge)))[:, None]))
    return np.asarray(above + below, dtype=np.float64)


def _signed(vectors: Float) -> Float:
    """Make each column's largest entry positive, so that the result is reproducible."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    signed: Float = vectors * signs
    return signed
