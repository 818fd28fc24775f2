"""Several vectors in one feature: those of a document's passages, and how many there are.

A row of features is F blocks of E numbers, of which the first ones are filled, and, as its last number, how
many those are. Only the directions of the vectors count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024
"""Vectors that are unpacked at once: they stay in the cache."""


def blocks(features: NDArray[Any], passages: int) -> NDArray[Any]:
    """(n, F, E) view of (n, F * E + 1) features.

    >>> blocks(np.array([[1, 2, 3, 4, 2]]), 2).tolist()
    [[[1, 2], [3, 4]]]
    >>> blocks(np.array([[1, 2, 3, 4, 1]]), 1).tolist()
    [[[1, 2, 3, 4]]]
    """
    return features[:, :-1].reshape(len(features), passages, (features.shape[1] - 1) // passages)


def cosines(query: NDArray[Any], features: NDArray[Any], passages: int) -> NDArray[Any]:
    """(n, most) cosines of n documents' vectors with the query, 0 beyond a document's last one.

    query: (E,) of length 1; its dtype is that of the products and of the result. most: vectors of the
    document that has the most, at least 1.

    >>> features = np.array([[3, 4, 5, 0, 2], [0, 2, 0, 0, 1]], np.int8)
    >>> cosines(np.array([1.0, 0.0]), features, 2).tolist()
    [[0.6, 1.0], [0.0, 0.0]]
    """
    most = int(features[:, -1].max(initial=0))
    found = np.zeros((len(features), max(most, 1)), dtype=query.dtype)
    rows, places = np.nonzero(np.arange(most) < features[:, -1:])
    unpacked = blocks(features, passages)
    for begin in range(0, len(rows), BLOCK):
        at = slice(begin, begin + BLOCK)
        vectors = unpacked[rows[at], places[at]].astype(query.dtype)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        found[rows[at], places[at]] = (vectors @ query) / np.maximum(lengths, 1e-9)
    return found


def width(passages: int, numbers: int) -> int:
    """Width of features for vectors of so many numbers; ``passages`` 0: the feature is the vector."""
    return passages * numbers + 1 if passages else numbers
