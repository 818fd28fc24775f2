"""Texts of terms, for tests of projections."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from rerank.rankers.projection.s2net import (
    Comparisons,
)


def texts(rows, columns, seed, density=0.4, dtype=np.float64):
    rng = np.random.default_rng(seed)
    values = rng.random((rows, columns)) * (rng.random((rows, columns)) < density)
    values[np.arange(rows), rng.integers(columns, size=rows)] = 1.0  # no empty row
    return csr_matrix(values.astype(dtype))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def identity(count):
    return Comparisons.of(np.arange(count))
