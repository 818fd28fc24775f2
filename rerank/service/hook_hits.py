"""Hits of a hook call: index, features and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import to_float32
from rerank.engines.base import Engine
from rerank.engines.opensearch.text_rows import DocumentLocation
from rerank.errors import UsageError
from rerank.records import Document
from rerank.search.scorer import INFERENCE_DEPTH
from rerank.service.endpoints import RequestContext
from rerank.service.schemas import NOWHERE, HookCall, integers


class HookHits:
    """The n hits of one call.

    ours:      (n,) bool: documents of the workspace.
    sidecar:   workspace files contain the features.
    attached:  these files can be used: the call has locations.
    locatable: the engine finds documents by location.
    """

    def __init__(self, engine: Engine, call: HookCall, context: RequestContext) -> None:
        self._engine, self.ids, self._locations = engine, call.ids, call.body.places or NOWHERE
        self._numbers = numbers = call.numbers
        n, uuids, index = len(call.ids), self._locations.uuids, integers(self._locations.index)
        lengths = {len(part) for part in (index, numbers.shards, numbers.seq_nos, numbers.terms)}
        if not lengths <= {0, n} or (len(index) and not 0 <= index.min() <= index.max() < len(uuids)):
            raise UsageError(f"{n} ids came with places of {sorted(lengths)} hits; send one for each")
        self._index = index if len(index) else np.zeros(n, np.int64)
        owns = getattr(engine, "owns", None)
        own = owns(uuids, context.leaves) if uuids and owns is not None else [True]
        self.ours = np.ones(n, np.bool_) if all(own) else np.array(own, np.bool_)[self._index]
        features = getattr(engine, "attached_features", None)
        self.sidecar, self.locatable = features is not None, hasattr(engine, "at")
        self.attached = features is not None and len(numbers.seq_nos) > 0
        self._files: Any = features.rows if features is not None else None
        self._rows: NDArray[np.int64] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """(n,) row of each hit in the feature files; -1: none."""
        if self._rows is None:
            shards, numbers, terms = self._numbers.shards, self._numbers.seq_nos, self._numbers.terms
            self._rows = np.full(len(self.ids), -1, np.int64)
            for i, uuid in enumerate(self._locations.uuids):
                where = self._index == i
                self._rows[where] = self._files.find(uuid, shards[where], numbers[where], terms[where])
        return self._rows

    def features(self, name: str, version: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Stored features, and (n,) bool: missing."""
        values, missing = self._files.features.read(name, version, self.rows)
        return to_float32(values) if values.dtype == np.float16 else values, missing  # as rankers do

    def categories(self, scores: NDArray[np.float64]) -> dict[str, tuple[str, ...]]:
        """Id -> categories of the hits that may vote, if known."""
        if not self.attached or not len(scores):
            return {}
        depth = min(INFERENCE_DEPTH, len(scores))
        last = np.partition(scores, -depth)[-depth]
        where = np.flatnonzero((scores >= last) & (self.rows >= 0))
        found = self._files.categories(self.rows[where])
        return {self.ids[i]: categories for i, categories in zip(where.tolist(), found)}

    def documents(self, positions: Sequence[int]) -> list[Document | None]:
        """The stored documents of these hits; None if deleted."""
        numbers, which = self._numbers, list(positions)
        if not (self.locatable and len(numbers.seq_nos)):
            return list(self._engine.get([self.ids[i] for i in which]))
        parts = (self._index[which], numbers.shards[which], numbers.seq_nos[which], numbers.terms[which])
        locations = zip(*(part.tolist() for part in parts))
        at = self._engine.at  # type: ignore[attr-defined]
        return list(at([DocumentLocation(self._locations.uuids[index], *rest) for index, *rest in locations]))

    def names(self) -> list[str]:
        """Ids of numbered hits; a hit without a document keeps its number."""
        names, taken = list(self.ids), set(self.ids)
        where = np.flatnonzero(self.ours).tolist()
        for i, document in zip(where, self.documents(where)):
            if document is not None and document.id not in taken:
                names[i] = document.id
                taken.add(document.id)
        return names
