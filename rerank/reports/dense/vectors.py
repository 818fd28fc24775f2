"""Vectors as the losses see them: not brought to length 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.transformer import TOKENS, TextEncoder, precision


def raw_vectors(
    encoder: TextEncoder,
    sequences: Sequence[Sequence[int]],
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.float32]:
    """(n, E) vectors of token sequences, batched by length."""
    vectors = np.zeros((len(sequences), encoder.width), dtype=np.float32)
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    encoder.model.eval().requires_grad_(False)
    at = 0
    while at < len(order):
        which = order[at : at + max(1, TOKENS // (len(sequences[order[at]]) + 2))]
        with precision(encoder.device, encoder.precision):
            found = encoder.forward(*encoder.batch([sequences[i] for i in which]))
        vectors[which] = found.float().cpu().numpy()
        at += len(which)
        if progress is not None:
            progress(len(which))
    return vectors


def cosine_distance(
    vectors: NDArray[np.float32], a: NDArray[np.integer], b: NDArray[np.integer]
) -> NDArray[np.float64]:
    """1 - cosine of rows a and b: (P,), 0 to 2; what the ranker goes by.

    >>> cosine_distance(np.float32([[3, 4], [4, 3]]), np.array([0]), np.array([1])).round(4).tolist()
    [0.04]
    """
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found: NDArray[np.float64] = 1 - np.einsum("ij,ij->i", unit[a], unit[b]).astype(np.float64)
    return np.clip(found, 0, 2)


def euclidean(
    vectors: NDArray[np.float32], a: NDArray[np.integer], b: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Length of the difference of rows a and b: (P,); what the losses with a margin go by.

    >>> euclidean(np.float32([[0, 0], [3, 4]]), np.array([0]), np.array([1])).tolist()
    [5.0]
    """
    found: NDArray[np.float64] = np.linalg.norm(vectors[a] - vectors[b], axis=1).astype(np.float64)
    return found
