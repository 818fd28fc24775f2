"""A cache of query vectors."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.base import Ranker
from rerank.records import Query

_LONGEST = 2000  # characters; longer queries are not cached

Key = tuple[str, str, str, str | None, tuple[str, ...]]


class VectorCache:
    """Keeps the ``most`` recently used query vectors; thread-safe.

    >>> from types import SimpleNamespace
    >>> ranker = SimpleNamespace(name="text", version="v1", uses_text=True, uses_categories=False)
    >>> kept = VectorCache(most=1)
    >>> kept.keep(ranker, Query("q", "wolf"), np.ones(1, np.float32))
    >>> kept.find(ranker, Query("another", "wolf")), kept.find(ranker, Query("q", "fox"))
    (array([1.], dtype=float32), None)
    >>> meta = SimpleNamespace(name="meta", version="v1", uses_text=False, uses_categories=True)
    >>> kept.keep(meta, Query("q", "wolf", ("animals",)), np.ones(1, np.float32))
    >>> kept.find(meta, Query("q", "fox", ("animals",)))
    array([1.], dtype=float32)
    """

    def __init__(self, most: int = 4096) -> None:
        self._most, self._lock = most, threading.Lock()
        self._vectors: OrderedDict[Key, NDArray[np.float32]] = OrderedDict()

    def find(self, ranker: Ranker, query: Query) -> NDArray[np.float32] | None:
        """Return the vector, or None."""
        key = _key(ranker, query)
        with self._lock:
            vector = None if key is None else self._vectors.get(key)
            if vector is not None and key is not None:
                self._vectors.move_to_end(key)
            return vector

    def encode(
        self, ranker: Ranker, query: Query, spent: Callable[[str, float], object] = lambda name, seconds: None
    ) -> NDArray[np.float32]:
        """Return the vector, computed if it is not known. spent: called with a ranker and CPU seconds."""
        vector = self.find(ranker, query)
        if vector is None:
            begin = time.thread_time()
            vector = ranker.encode_query(query)
            spent(ranker.name, time.thread_time() - begin)
            self.keep(ranker, query, vector)
        return vector

    def keep(self, ranker: Ranker, query: Query, vector: NDArray[np.float32]) -> None:
        """Store a vector."""
        key = _key(ranker, query)
        if key is None:
            return
        with self._lock:
            self._vectors[key] = vector
            if len(self._vectors) > self._most:
                self._vectors.popitem(last=False)


def _key(ranker: Ranker, query: Query) -> Key | None:
    """None if not cacheable."""
    if len(query.text) > _LONGEST or query.params:
        return None
    text, lang = (query.text, query.lang) if ranker.uses_text else ("", None)
    categories = query.categories if ranker.uses_categories else ()
    return ranker.name, ranker.version, text, lang, categories
