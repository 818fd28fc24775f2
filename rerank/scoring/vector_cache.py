"""A cache of query vectors."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import TrainingError
from rerank.documents.records import Query
from rerank.rankers.base import Ranker

_LONGEST = 2000  # characters of text and categories; longer queries are not cached

Key = tuple[str, str, str, str | None, tuple[str, ...]]


class VectorCache:
    """Keeps the most recently used query vectors, for several threads.

    size: number of vectors. With 0, each vector is computed.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._vectors: dict[Key, NDArray[np.float32]] = {}  # the most recently used last

    def encode(self, ranker: Ranker, query: Query) -> NDArray[np.float32]:
        """Return the vector of a query; it is computed if it is not in the cache.

        Raises the errors of :func:`encode_query`.
        """
        key = _key(ranker, query)
        if key is None:
            return encode_query(ranker, query)
        with self._lock:
            vector = self._vectors.get(key)
        if vector is None:
            vector = encode_query(ranker, query)
        with self._lock:
            self._vectors.pop(key, None)  # it becomes the last one
            self._vectors[key] = vector
            if len(self._vectors) > self._size:
                del self._vectors[next(iter(self._vectors))]
        return vector


def encode_query(ranker: Ranker, query: Query) -> NDArray[np.float32]:
    """Return the vector of a query by a ranker.

    Raises TrainingError for a vector with a non-finite number: quantized scores would look valid.
    """
    vector = ranker.encode_query(query)
    if not np.isfinite(vector).all():
        raise TrainingError(
            f"{ranker.name} has a query vector that is not finite; train {ranker.name} again or leave it out"
        )
    return vector


def _key(ranker: Ranker, query: Query) -> Key | None:
    """Return what decides the vector of a query, or None if it is not cached.

    Long texts are not cached, so that users cannot fill the memory.
    """
    text = ""
    lang = None
    categories: tuple[str, ...] = ()
    if ranker.uses_text:
        text = query.text
        lang = query.lang
    if ranker.uses_categories:
        categories = query.categories
    characters = len(text) + len(lang or "") + sum(map(len, categories))
    if characters > _LONGEST or query.params:
        return None
    return ranker.name, ranker.version, text, lang, categories
