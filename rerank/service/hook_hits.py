"""The hits of a call of the hook: their index, their stored features and their documents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import to_float32
from rerank.engines.base import Engine
from rerank.engines.opensearch.text_rows import DocumentLocation, TextRows
from rerank.errors import UsageError
from rerank.records import Document
from rerank.search.scorer import INFERENCE_DEPTH
from rerank.service.endpoints import RequestContext
from rerank.service.schemas import NOWHERE, HookCall, integers

_SHARE = 0.5  # of the time that is left may go into documents whose features are missing
_GUESS = 0.005  # seconds to encode a document, before one was


class HookHits:
    """The hits of one call, and their locations.

    ours: (n,) whether a hit is a document of the workspace's index: features belong to an index and an id.
    beside: whether the index is attached; its features are in files of the workspace.
    placed: whether the engine can find documents by their places.
    """

    def __init__(self, engine: Engine, call: HookCall, work: RequestContext) -> None:
        self._engine, self._ids, self._places = engine, call.ids, call.said.places or NOWHERE
        self._numbers = numbers = call.numbers
        n, places = len(call.ids), self._places
        lengths = {len(part) for part in (places.index, numbers.shards, numbers.seq_nos, numbers.terms)}
        which = integers(places.index)
        if not lengths <= {0, n} or (len(which) and not 0 <= which.min() <= which.max() < len(places.uuids)):
            raise UsageError(f"{n} ids came with places of {sorted(lengths)} hits; send one for each")
        self._indices = which if len(which) else np.zeros(n, np.int64)
        owns = getattr(engine, "owns", None)
        own = owns(places.uuids, work.leaves) if places.uuids and owns is not None else [True]
        self.ours = np.array(own, np.bool_)[self._indices] if not all(own) else np.ones(n, np.bool_)
        attached = getattr(engine, "attached_features", None)
        self.beside, self.placed = attached is not None, hasattr(engine, "at")
        self._text_rows: TextRows | None = attached.rows if attached and len(numbers.seq_nos) else None
        self._rows: NDArray[np.int64] | None = None

    @property
    def attached(self) -> bool:
        """Whether features are in files, and the hits' places came."""
        return self._text_rows is not None

    @property
    def rows(self) -> NDArray[np.int64]:
        """(n,) row of each hit in the feature files, -1 without a row."""
        if self._rows is None:
            assert self._text_rows is not None
            shards, numbers, terms = self._numbers.shards, self._numbers.seq_nos, self._numbers.terms
            self._rows = np.full(len(self._ids), -1, np.int64)
            for i, uuid in enumerate(self._places.uuids):
                where = np.flatnonzero(self._indices == i)
                self._rows[where] = self._text_rows.find(uuid, shards[where], numbers[where], terms[where])
        return self._rows

    def features(self, name: str, version: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the stored features of all hits, and (n,) bool which are missing."""
        assert self._text_rows is not None
        values, missing = self._text_rows.features.read(name, version, self.rows)
        if values.dtype == np.float16:
            values = to_float32(values)  # which rankers would do
        return values, missing

    def categories(self, scores: NDArray[np.float64]) -> dict[str, tuple[str, ...]]:
        """Id -> categories of the hits that may vote, if they are stored in files."""
        if self._text_rows is None or not len(scores):
            return {}
        depth = min(INFERENCE_DEPTH, len(scores))
        last = np.partition(scores, -depth)[-depth]
        where = np.flatnonzero((scores >= last) & (self.rows >= 0))
        found = self._text_rows.categories(self.rows[where])
        return {self._ids[i]: categories for i, categories in zip(where.tolist(), found)}

    def documents(self, positions: Sequence[int]) -> list[Document | None]:
        """The documents of these hits, as they are stored; None for one that is gone."""
        numbers, which = self._numbers, list(positions)
        if not (self.placed and len(numbers.seq_nos)):
            return list(self._engine.get([self._ids[i] for i in positions]))
        parts = (self._indices[which], numbers.shards[which], numbers.seq_nos[which], numbers.terms[which])
        wanted = zip(*(part.tolist() for part in parts))
        places = [DocumentLocation(self._places.uuids[index], *rest) for index, *rest in wanted]
        found: list[Document | None] = self._engine.at(places)  # type: ignore[attr-defined]
        return found

    def names(self) -> list[str]:
        """Ids of hits that came without ids; the number of a hit if its document is gone or an id repeats."""
        names, taken = list(self._ids), set(self._ids)
        where = np.flatnonzero(self.ours).tolist()
        for i, document in zip(where, self.documents(where)):
            if document is not None and document.id not in taken:
                names[i] = document.id
                taken.add(document.id)
        return names


def affordable(work: RequestContext, timeout: float | None) -> int:
    """How many documents may be encoded: at most ``work.encodes``, and as many as there is time for.

    timeout: seconds that the caller waits at most.
    """
    left = work.deadline - time.monotonic()
    if timeout is not None:
        left = min(left, timeout - (time.monotonic() - work.begun))
    return min(work.encodes, max(int(_SHARE * left / work.costs.get(ENCODED, _GUESS)), 0))


ENCODED = "*"
"""Among the costs: seconds to encode a document, of all rankers together."""
