"""Random walks over a sparse adjacency matrix, all walks at once (DeepWalk, Perozzi et al. 2014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def random_walks(adjacency: csr_matrix, *, length: int, per_node: int, seed: int) -> NDArray[np.int64]:
    """Walk ``per_node`` times from every node: (nodes * per_node, length) node numbers.

    Each step goes to a neighbor chosen uniformly. A node without neighbors stays where it is: its
    walk repeats it, which gives it a vector of its own and touches no other.

    >>> from scipy.sparse import csr_matrix
    >>> random_walks(csr_matrix([[0, 1], [1, 0]]), length=4, per_node=1, seed=0).tolist()
    [[0, 1, 0, 1], [1, 0, 1, 0]]
    """
    rng = np.random.default_rng(seed)
    start = adjacency.indptr[:-1].astype(np.int64)
    degree = np.diff(adjacency.indptr).astype(np.int64)
    at = np.tile(np.arange(adjacency.shape[0]), per_node)
    walks = np.empty((len(at), length), dtype=np.int64)
    walks[:, 0] = at
    for step in range(1, length):
        here = degree[at]
        draw = np.floor(rng.random(len(at)) * here).astype(np.int64)
        moves = here > 0
        at = at.copy()
        at[moves] = adjacency.indices[start[at[moves]] + draw[moves]]
        walks[:, step] = at
    return walks
