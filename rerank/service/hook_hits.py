"""Hits of a hook call: index, features and documents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Engine
from rerank.engines.opensearch.columns import DOCUMENT, rows
from rerank.errors import UsageError
from rerank.records import Document
from rerank.scoring.scorer import FEEDBACK_DEPTH
from rerank.service.schemas import HookCall, Values


class HookHits:
    """The n hits of one call.

    ours:      (n,) bool: documents of the workspace.
    ids:       of the call, or of stored values; else numbers.
    sidecar:   workspace files contain the features.
    attached:  these files can be used: the call has locations.
    locatable: the engine finds documents by location.
    repeated:  two documents of the workspace have the same id, as far as ids are known.
    """

    def __init__(self, engine: Engine, call: HookCall) -> None:
        self._engine, self._locations = engine, call.places
        self._uuids, n = call.body.places.uuids, len(call.ids)
        index = np.array(call.body.places.index, np.int64)
        if len(index) not in (0, n) or (len(index) and index.max() >= len(self._uuids)):
            raise UsageError(f"{n} ids came with {len(index)} positions in uuids; send one for each")
        self._index = index if len(index) else np.zeros(n, np.int64)
        source = self._source = engine.hook_source()
        own = source.owned(self._uuids) if self._uuids and source is not None else [True]
        self.ours = np.ones(n, np.bool_) if all(own) else np.array(own, np.bool_)[self._index]
        self._files: Any = source.files if source is not None else None
        self.sidecar = self._files is not None
        self.locatable = source is not None
        self.attached = self.sidecar and call.places is not None
        placeholders = (f"\0{i:06}" for i in range(n))  # other indices can have the same ids
        self.ids = [id if ours else other for id, ours, other in zip(call.ids, self.ours, placeholders)]
        self.repeated = len(set(self.ids)) < n
        self._unnamed = set() if call.body.ids else set(np.flatnonzero(self.ours).tolist())
        self._categories: dict[str, Sequence[str]] = {}
        self._stored_ids: dict[int, str] = {}  # position -> id
        if DOCUMENT in call.stored and not self.sidecar:
            self._read_rows(call.stored[DOCUMENT])

    def _read_rows(self, stored: Values) -> None:
        """Read ids and categories of our documents."""
        values = {i: value for i, value in stored.split().items() if self.ours[i]}
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # then documents are read
            for i, row in zip(values, rows(list(values.values()))):
                self._name(i, row[0] if row else "")
                self._categories[self.ids[i]] = row[1:]

    def _name(self, position: int, id: str) -> None:
        if position not in self._unnamed or not id:
            return
        if id in self._categories:
            self.repeated = True
            return
        self.ids[position] = id
        self._unnamed.remove(position)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """(n,) row of each hit in the feature files; -1: none."""
        assert self._locations is not None
        rows = np.full(len(self.ids), -1, np.int64)
        for i, uuid in enumerate(self._uuids):
            where = np.flatnonzero(self._index == i)
            rows[where], ids = self._files.find(uuid, *(part[where] for part in self._locations))
            self._stored_ids.update({place: id for place, id in zip(where.tolist(), ids) if id})
        moved = np.flatnonzero((rows < 0) & self.ours)  # written since the encoding; the text may be the same
        if len(moved):
            documents = zip(moved.tolist(), self.documents(moved.tolist()))
            found = {i: document for i, document in documents if document is not None}
            if found:
                rows[[*found]] = self._files.of_texts([*found.values()])
                self._stored_ids.update({i: document.id for i, document in found.items()})
        self.repeated |= len(set(self._stored_ids.values())) < len(self._stored_ids)
        return rows

    def features(self, name: str, version: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Stored features, and (n,) bool: missing."""
        values, missing = self._files.features.read(name, version, self.rows)
        return values.astype(np.float32) if values.dtype == np.float16 else values, missing  # as rankers do

    def categories(self, scores: NDArray[np.float64]) -> dict[str, Sequence[str]]:
        """Id -> categories of the hits that may vote, if known."""
        if not self.attached or not len(scores):
            return self._categories
        depth = min(FEEDBACK_DEPTH, len(scores))
        last = np.partition(scores, -depth)[-depth]
        where = np.flatnonzero((scores >= last) & (self.rows >= 0))
        found = self._files.categories(self.rows[where])
        return {self.ids[i]: categories for i, categories in zip(where.tolist(), found)}

    def documents(self, positions: Sequence[int]) -> list[Document | None]:
        """The stored documents of these hits; None if deleted."""
        which = list(positions)
        if self._source is None or self._locations is None:
            return list(self._engine.get([self.ids[i] for i in which]))
        shards, seq_nos, _ = self._locations
        locations = zip(*(part[which].tolist() for part in (self._index, shards, seq_nos)))
        return self._source.documents_at(
            [(self._uuids[index], shard, seq_no) for index, shard, seq_no in locations]
        )

    def find_ids(self) -> None:
        """Find the ids of hits without an id; a hit without a document keeps its placeholder."""
        where = sorted(self._unnamed)
        if where and self.attached:
            _ = self.rows  # stores the ids
        elif where:
            documents = zip(where, self.documents(where))
            self._stored_ids.update({i: document.id for i, document in documents if document is not None})
        known = set(self.ids)
        for i in where:
            id = self._stored_ids.get(i)
            if id in known:
                self.repeated = True
            elif id is not None:
                self.ids[i] = id
                known.add(id)
