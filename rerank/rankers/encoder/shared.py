"""Vectors of pretrained encoders, which several rankers of a process share."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rerank.common.values import items_at, with_keys

_OVERHEAD = 300
"""Bytes of a key, and of the objects around a vector."""


class SharedVectors:
    """Keeps vectors of texts, so that an encoder reads a text once for all rankers that map its vectors.

    ``dense`` without training and ``adapter`` have the same encoder: the vectors of a passage and of a query
    are computed for the first of them. Several threads can use it. When the limit is reached, it forgets all
    vectors and begins again, so rankers that encode the same batch also share vectors of a large collection.

    limit:         bytes that are kept: about 1.8 kB for a text and a small encoder.
    has_forgotten: whether the limit was reached.
    """

    def __init__(self, limit: int) -> None:
        self.has_forgotten = False
        self._limit = limit
        self._bytes = 0
        self._lock = threading.Lock()
        self._vectors: dict[bytes, NDArray[np.float32]] = {}

    def get(
        self,
        encoder: str,
        texts: Sequence[bytes],
        compute: Callable[[list[int]], NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """Return the vectors of n texts before the map of a ranker, (n, E).

        encoder: version of the encoder.
        texts:   what the encoder reads: characters or tokens, as bytes. Each has at least one.
        compute: positions of m texts -> their vectors, (m, E). It is called for texts without a vector.

        >>> shared = SharedVectors(limit=10_000)
        >>> shared.get("e", [b"a", b"b"], lambda positions: np.float32([[1], [2]])).tolist()
        [[1.0], [2.0]]
        >>> shared.get("e", [b"b", b"c"], lambda positions: np.float32([positions])).tolist()
        [[2.0], [1.0]]
        """
        keys = [hashlib.blake2b(encoder.encode() + b"\0" + text, digest_size=16).digest() for text in texts]
        with self._lock:
            vectors = with_keys(self._vectors, keys)
        positions = {key: position for position, key in enumerate(keys) if key not in vectors}
        if positions:
            computed = dict(zip(positions, compute(list(positions.values()))))
            vectors.update(computed)
            self._keep(computed)
        return np.stack(items_at(vectors, keys))

    def _keep(self, vectors: dict[bytes, NDArray[np.float32]]) -> None:
        size = sum(vector.nbytes + _OVERHEAD for vector in vectors.values())
        with self._lock:
            if self._bytes + size > self._limit:
                self._vectors.clear()
                self._bytes = 0
                self.has_forgotten = True
            if size <= self._limit:
                self._vectors.update(vectors)
                self._bytes += size


PASSAGE_VECTORS = SharedVectors(limit=512 << 20)
"""The vectors of passages in this process, for a training and the encoding after it."""
QUERY_VECTORS = SharedVectors(limit=8 << 20)
"""The vectors of queries in this process. Few, because a service runs for months and reads other queries each
day, and because it has another cache for the vectors of each ranker."""
