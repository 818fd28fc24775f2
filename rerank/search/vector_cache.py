"""A cache of query vectors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.base import Ranker
from rerank.records import Query

_LONGEST = 2000  # characters; longer queries are not cached

Key = tuple[str, str, str, str | None, tuple[str, ...]]


class VectorCache:
    """Keeps the ``most`` recently used query vectors; thread-safe."""

    def __init__(self, most: int = 4096) -> None:
        self._most, self._lock = most, threading.Lock()
        self._vectors: dict[Key, NDArray[np.float32]] = {}  # the most recently used last

    def encode(
        self, ranker: Ranker, query: Query, spent: Callable[[str, float], object] = lambda name, seconds: None
    ) -> NDArray[np.float32]:
        """Return the vector, computed if it is not known. spent: called with a ranker and CPU seconds."""
        key = _key(ranker, query)
        with self._lock:
            vector = None if key is None else self._vectors.get(key)
        if vector is None:
            begin = time.thread_time()
            vector = ranker.encode_query(query)
            spent(ranker.name, time.thread_time() - begin)
        if key is not None:
            with self._lock:
                self._vectors.pop(key, None)
                self._vectors[key] = vector
                if len(self._vectors) > self._most:
                    del self._vectors[next(iter(self._vectors))]
        return vector


def _key(ranker: Ranker, query: Query) -> Key | None:
    """None if not cacheable."""
    if len(query.text) > _LONGEST or query.params:
        return None
    text, lang = (query.text, query.lang) if ranker.uses_text else ("", None)
    categories = query.categories if ranker.uses_categories else ()
    return ranker.name, ranker.version, text, lang, categories
