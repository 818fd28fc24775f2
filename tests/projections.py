"""Texts of terms, for tests of projections."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, hstack

from rerank.rankers.projection.s2net import Comparisons, entries


def texts(rows, columns, seed, density=0.4, dtype=np.float64):
    rng = np.random.default_rng(seed)
    values = rng.random((rows, columns)) * (rng.random((rows, columns)) < density)
    values[np.arange(rows), rng.integers(columns, size=rows)] = 1.0  # no empty row
    return csr_matrix(values.astype(dtype))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def separate_columns(queries, documents):
    """Return both sides on separate columns."""
    empty = [csr_matrix(side.shape, dtype=side.dtype) for side in (queries, documents)]
    return hstack((queries, empty[0])).tocsr(), hstack((empty[1], documents)).tocsr()


def comparisons(target, left_out=None, weight=None, worse=None, judged=0.0, columns=None):
    """Return comparisons. By default the partner of each row is compared with all other columns."""
    rows, columns = len(target), columns or len(target)
    left_out = [sorted({*some, own}) for some, own in zip(left_out or [[]] * rows, target)]
    weight = np.ones(rows) if weight is None else weight
    excluded, below = entries(left_out, columns), entries(worse or [[]] * rows, columns)
    return Comparisons(np.array(target), excluded, weight / weight.sum(), below, judged)


def identity(count):
    return comparisons(range(count))
