"""How many links lie between two documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MOST = 3
"""Hops that are told apart; documents further away are FARTHER."""
FARTHER, UNREACHABLE = MOST + 1, MOST + 2
HOPS = ("same document", *map(str, range(1, MOST + 1)), f"{MOST + 1} and more", "no path")
"""What they are called."""


def hops(links: csr_matrix, anchor: int, components: NDArray[np.integer]) -> NDArray[np.int8]:
    """(N,) hops from a document to each: 0 (itself) to MOST, FARTHER, or UNREACHABLE.

    links: (N, N) symmetric; components: (N,) which connected component each document is in.

    >>> from scipy.sparse import csr_matrix
    >>> line = csr_matrix(np.diag(np.ones(5), 1) + np.diag(np.ones(5), -1))
    >>> hops(line, 0, np.zeros(6, int)).tolist()
    [0, 1, 2, 3, 4, 4]
    """
    found = np.where(components == components[anchor], FARTHER, UNREACHABLE).astype(np.int8)
    found[anchor] = 0
    frontier = np.array([anchor])
    for hop in range(1, MOST + 1):
        reached = np.unique(links[frontier].indices)
        frontier = reached[found[reached] == FARTHER]
        if not len(frontier):
            break
        found[frontier] = hop
    return found
