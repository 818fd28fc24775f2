"""LSI, CL-LSI, OPCA and CCA on sparse matrices.

X, Y: (N, V) term vectors of N pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Float = NDArray[np.float64]

MAX_PAIRS = 6_000
"""Maximum number of pairs; of more, random pairs are used, because matrices have pairs by pairs."""
NEGLIGIBLE = 1e-10
"""Share of the largest eigenvalue below which an eigenvalue counts as 0."""


def lsi(texts: csr_matrix, k: int, *, seed: int = 0) -> Float:
    """Latent semantic indexing (Deerwester et al. 1990): the k largest right singular vectors, (V, <= k).

    For CL-LSI, each text is the sum of a pair (Dumais et al. 1997).
    """
    from scipy.sparse.linalg import svds

    texts = texts.astype(np.float64).tocsr()
    small = min(texts.shape)
    if k < small:
        start = np.random.default_rng(seed).uniform(-1, 1, small)
        _, values, rows = svds(texts, k, v0=start)
    else:
        _, values, rows = np.linalg.svd(texts.toarray(), full_matrices=False)
    order = np.argsort(-values)
    order = order[values[order] > NEGLIGIBLE**0.5 * values.max()]
    return _signed(rows[order].T)


def opca(X: csr_matrix, Y: csr_matrix, k: int, *, ridge: float = 0.5, seed: int = 0) -> Float:
    """Oriented PCA (Platt, Toutanova, Yih 2010): pairs vary, their two texts differ little, (V, k).

    Solves S v = lambda B v for the largest lambda: M = (X + Y) / 2, E = (X - Y) / 2, S = M^T M / N,
    B = E^T E / N + eta I, v^T B v = 1. Drops columns without positive correlation, |Mv| <= |Ev|.

    Eigenvectors u of M B^-1 M^T / N give v = B^-1 M^T u / sqrt(N lambda), with (Woodbury)
    B^-1 = N (I - E^T (eta N I + E E^T)^-1 E) / (eta N).

    ridge: eta as a share of the mean diagonal of E^T E / N.
    """
    X, Y = _sample(X, Y, seed)
    mean = ((X + Y) / 2).tocsr()
    noise = ((X - Y) / 2).tocsr()
    count = X.shape[0]
    eta = ridge * noise.power(2).sum() / count / X.shape[1]
    # If X = Y there is no noise, and any ridge gives the directions of LSI.
    eta = float(max(eta, 1e-9 * mean.power(2).sum() / count / X.shape[1]))
    cross = (noise @ mean.T).toarray()
    damped = _solver(noise, eta * count)(cross)
    values, vectors = _largest(((mean @ mean.T).toarray() - cross.T @ damped) / (eta * count), k)
    positive = values > NEGLIGIBLE * values[0]
    scaled = vectors[:, positive] / np.sqrt(count * values[positive])
    directions = np.asarray(mean.T @ scaled - noise.T @ (damped @ scaled)) / eta
    correlated = np.square(mean @ directions).sum(axis=0) > np.square(noise @ directions).sum(axis=0)
    return _signed(directions[:, correlated])


def cca(X: csr_matrix, Y: csr_matrix, k: int, *, ridge: float = 1e-4, seed: int = 0) -> Float:
    """Canonical correlation analysis, not centered: the halves of X and of Y, (2 V, k).

    Solves [0 C_xy; C_yx 0] w = rho [C_xx + kappa I, 0; 0, C_yy + kappa I] w for the largest rho; kappa is
    ``ridge`` (Vinokourov et al. 2003). Each side's half has variance 1.

    H = X X^T + N kappa I, G = I - N kappa H^-1 per side. With G_x G_y G_x z = rho^2 G_x z and u = G_x z, the
    halves are X^T H_x^-1 G_y u sqrt(N) / rho^2 and Y^T H_y^-1 u sqrt(N) / rho.
    """
    X, Y = _sample(X, Y, seed)
    count = X.shape[0]
    ridges = [max(ridge * count, 1e-7 * side.power(2).sum() / count) for side in (X, Y)]
    solvers = [_solver(side, amount) for side, amount in zip((X, Y), ridges)]

    def damp(side: int, vectors: Float) -> Float:  # G
        return np.asarray(vectors - ridges[side] * solvers[side](vectors))

    damped = damp(0, np.eye(count))  # G_x
    metric = damped.copy()
    metric[np.diag_indices(count)] += 1e-6  # else singular if the rank is low
    squares, vectors = _largest(damped.T @ damp(1, damped), k, metric)
    positive = squares > NEGLIGIBLE**0.5
    rho = np.sqrt(squares[positive])
    vectors = damped @ vectors[:, positive]
    half_of_x = X.T @ solvers[0](damp(1, vectors)) / rho**2
    half_of_y = Y.T @ solvers[1](vectors) / rho
    return _signed(np.concatenate((half_of_x, half_of_y)) * count**0.5)


def _sample(X: csr_matrix, Y: csr_matrix, seed: int) -> tuple[csr_matrix, csr_matrix]:
    """Return at most MAX_PAIRS random pairs."""
    if X.shape[0] > MAX_PAIRS:
        rows = np.sort(np.random.default_rng(seed).choice(X.shape[0], MAX_PAIRS, replace=False))
        X = X[rows]
        Y = Y[rows]
    return X.astype(np.float64).tocsr(), Y.astype(np.float64).tocsr()


def _solver(rows: csr_matrix, ridge: float) -> Callable[[Float], Float]:
    """Return the function b -> (rows rows^T + ridge I)^-1 b, by a Cholesky decomposition."""
    from scipy.linalg import cho_factor, cho_solve

    kernel = (rows @ rows.T).toarray()
    kernel[np.diag_indices(len(kernel))] += ridge
    factor = cho_factor(kernel, lower=True, overwrite_a=True)
    return lambda vectors: np.asarray(cho_solve(factor, vectors))


def _largest(A: Float, k: int, B: Float | None = None) -> tuple[Float, Float]:
    """Return the k largest lambda of A v = lambda B v, and their v, (n, k), with v^T B v = 1."""
    from scipy.linalg import eigh

    size = len(A)
    values, vectors = eigh(
        (A + A.T) / 2,
        None if B is None else (B + B.T) / 2,
        subset_by_index=(max(0, size - k), size - 1),
        overwrite_a=True,
        overwrite_b=True,
    )
    return values[::-1], vectors[:, ::-1]


def _signed(vectors: Float) -> Float:
    """Make each column's largest entry positive."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    signed: Float = vectors * signs
    return signed
