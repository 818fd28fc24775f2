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
        self._engine = engine
        self._locations = call.places
        self._uuids = call.body.places.uuids
        count = len(call.ids)
        index = np.array(call.body.places.index, np.int64)
        if len(index) not in (0, count) or (len(index) and index.max() >= len(self._uuids)):
            raise UsageError(f"{count} ids came with {len(index)} positions in uuids; send one for each")
        self._index = index if len(index) else np.zeros(count, np.int64)
        source = self._source = engine.hook_source()
        self.ours = np.ones(count, np.bool_)
        if self._uuids and source is not None:
            self.ours = np.array(source.owned(self._uuids), np.bool_)[self._index]
        self._files: Any = source.files if source is not None else None
        self.sidecar = self._files is not None
        self.locatable = source is not None
        self.attached = self.sidecar and call.places is not None
        self.ids = list(call.ids)
        for position in np.flatnonzero(~self.ours).tolist():  # other indices can have the same ids
            self.ids[position] = f"\0{position:06}"
        self.repeated = len(set(self.ids)) < count
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
        for index, uuid in enumerate(self._uuids):
            positions = np.flatnonzero(self._index == index)
            locations = (values[positions] for values in self._locations)
            rows[positions], ids = self._files.find(uuid, *locations)
            self._stored_ids.update((position, id) for position, id in zip(positions.tolist(), ids) if id)
        moved = np.flatnonzero((rows < 0) & self.ours)  # written since the encoding; the text may be the same
        documents = self._documents_by_position(moved.tolist())
        if documents:
            rows[[*documents]] = self._files.of_texts([*documents.values()])
            self._stored_ids.update((position, document.id) for position, document in documents.items())
        self.repeated |= len(set(self._stored_ids.values())) < len(self._stored_ids)
        return rows

    def _documents_by_position(self, positions: Sequence[int]) -> dict[int, Document]:
        """Read the documents of these hits, without deleted ones."""
        if not positions:
            return {}
        documents = zip(positions, self.documents(positions))
        return {position: document for position, document in documents if document is not None}

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
        positions = np.flatnonzero((scores >= last) & (self.rows >= 0))
        categories_of_hits = self._files.categories(self.rows[positions])
        ids = [self.ids[position] for position in positions.tolist()]
        return dict(zip(ids, categories_of_hits))

    def documents(self, positions: Sequence[int]) -> list[Document | None]:
        """The stored documents of these hits; None if deleted."""
        if self._source is None or self._locations is None:
            return list(self._engine.get([self.ids[position] for position in positions]))
        shards, seq_nos, _ = self._locations
        locations: list[tuple[str, int, int]] = []
        for position in positions:
            uuid = self._uuids[int(self._index[position])]
            locations.append((uuid, int(shards[position]), int(seq_nos[position])))
        return self._source.documents_at(locations)

    def find_ids(self) -> None:
        """Find the ids of hits without an id; a hit without a document keeps its placeholder."""
        unnamed = sorted(self._unnamed)
        if unnamed and self.attached:
            _ = self.rows  # stores the ids
        else:
            documents = self._documents_by_position(unnamed)
            self._stored_ids.update((position, document.id) for position, document in documents.items())
        used_ids = set(self.ids)
        for position in unnamed:
            id = self._stored_ids.get(position)
            if id in used_ids:
                self.repeated = True
            elif id is not None:
                self.ids[position] = id
                used_ids.add(id)
