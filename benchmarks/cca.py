"""Canonical correlation analysis of pairs, which the paper on S2Net compares with: see ``projections.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from rerank.rankers.projection.spectral import _solver, _subspace

Float = NDArray[np.float64]
MOST_PAIRS = 20_000
"""Of more, random pairs are used. On debian.it: MRR 0.824 with 6,000 pairs, and 0.837 with all 16,873."""


def cca(X: Any, Y: Any, k: int, *, ridge: float = 1e-4, seed: int = 0) -> tuple[Float, Float]:
    """Return a matrix for each side, (V, <= k), not centered; each side has variance 1.

    Solves [0 C_xy; C_yx 0] w = rho [C_xx + kappa I, 0; 0, C_yy + kappa I] w for the largest rho; kappa is
    ``ridge`` (Vinokourov et al. 2003).

    H = X X^T + N kappa I, G = I - N kappa H^-1 per side. With G_x G_y G_x z = rho^2 G_x z and u = G_x z, the
    halves are X^T H_x^-1 G_y u sqrt(N) / rho^2 and Y^T H_y^-1 u sqrt(N) / rho.
    """
    if X.shape[0] > MOST_PAIRS:
        rows = np.sort(np.random.default_rng(seed).choice(X.shape[0], MOST_PAIRS, replace=False))
        X, Y = X[rows], Y[rows]
    X, Y = X.astype(np.float64).tocsr(), Y.astype(np.float64).tocsr()
    count = X.shape[0]
    ridges = [max(ridge * count, 1e-7 * side.power(2).sum() / count) for side in (X, Y)]
    solvers = [_solver(side, amount) for side, amount in zip((X, Y), ridges)]

    def damp(side: int, vectors: Float) -> Float:  # G
        return vectors - ridges[side] * solvers[side](vectors)

    basis = _subspace(lambda vectors: damp(1, damp(0, vectors)), count, k, seed)
    left = damp(0, basis)
    within = basis.T @ left
    within[np.diag_indices(len(within))] += 1e-6  # else singular if the rank is low
    damped = left.T @ damp(1, left)
    squares, vectors = eigh(damped + damped.T, within + within.T)
    squares, vectors = squares[::-1][:k], vectors[:, ::-1][:, :k] * 2**0.5
    kept = squares > 1e-5
    rho, vectors = np.sqrt(squares[kept]), left @ vectors[:, kept]
    above, below = X.T @ solvers[0](damp(1, vectors)) / rho**2, Y.T @ solvers[1](vectors) / rho
    return above * count**0.5, below * count**0.5
