"""Personalized PageRank by a dense inverse, for tests."""

from __future__ import annotations

import numpy as np


def pagerank_matrix(adjacency, alpha=0.15):
    """(N, N) alpha (1 - (1 - alpha) A')^-1; the columns of A' sum to 1."""
    dense = adjacency.toarray().astype(np.float64)
    dense /= np.where(dense.sum(axis=0) > 0, dense.sum(axis=0), 1)
    return alpha * np.linalg.inv(np.eye(len(dense)) - (1 - alpha) * dense)
