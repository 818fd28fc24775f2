"""Hits of a hook call: index, features and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import single_precision
from rerank.common.errors import UsageError
from rerank.common.values import items_at, without_empty, without_none
from rerank.documents.records import Document
from rerank.engines.base import Engine
from rerank.engines.opensearch.columns import DOCUMENT, rows
from rerank.scoring.scorer import FEEDBACK_DEPTH
from rerank.service.schemas import HookCall, Values


class HookHits:
    """The n hits of one call.

    ours:      (n,) bool: the hit is a document of the workspace, not of another index.
    ids:       id of each hit: from the call, or from stored values; else a placeholder.
    sidecar:   files of the workspace contain the features.
    attached:  these files can be used, because the call has the locations of the hits.
    locatable: the engine finds documents by their locations.
    repeated:  two documents of the workspace have the same id, as far as ids are known.

    Raises UsageError for a call whose locations do not fit its ids.
    """

    def __init__(self, engine: Engine, call: HookCall) -> None:
        self._engine = engine
        self._source = engine.hook_source()
        self._files = None if self._source is None else self._source.files
        self._locations = call.locations
        self._uuids = call.body.places.uuids
        self._index = _index_of_hits(call)
        self.locatable = self._source is not None
        self.sidecar = self._files is not None
        self.attached = self.sidecar and call.locations is not None

        count = len(call.ids)
        self.ours = np.ones(count, np.bool_)
        if self._uuids and self._source is not None:
            self.ours = np.array(self._source.owned(self._uuids), np.bool_)[self._index]
        self.ids = list(call.ids)
        for position in np.flatnonzero(~self.ours).tolist():  # other indices can have the same ids
            self.ids[position] = f"\0{position:06}"
        self.repeated = len(set(self.ids)) < count

        self._unnamed: set[int] = set() if call.body.ids else set(np.flatnonzero(self.ours).tolist())
        self._categories: dict[str, Sequence[str]] = {}
        self._stored_ids: dict[int, str] = {}  # position -> id
        if DOCUMENT in call.stored and not self.sidecar:
            self._read_rows(call.stored[DOCUMENT])

    def _read_rows(self, stored: Values) -> None:
        """Read ids and categories of our documents."""
        values = {position: value for position, value in stored.split().items() if self.ours[position]}
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # then documents are read
            for position, row in zip(values, rows(list(values.values()))):
                self._name(position, row[0] if row else "")
                self._categories[self.ids[position]] = row[1:]

    def _name(self, position: int, id: str) -> None:
        """Give a hit its id, unless it has one. An id that another hit has is ``repeated``."""
        if position not in self._unnamed or not id:
            return
        if id in self._categories:
            self.repeated = True
            return
        self.ids[position] = id
        self._unnamed.remove(position)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The (n,) rows of the hits in the feature files; -1: the text of a hit has no row."""
        assert self._locations is not None
        assert self._files is not None
        rows = np.full(len(self.ids), -1, np.int64)
        for index, uuid in enumerate(self._uuids):
            positions = np.flatnonzero(self._index == index)
            shards, seq_nos, terms = (values[positions] for values in self._locations)
            rows[positions], ids = self._files.find(uuid, shards, seq_nos, terms)
            self._stored_ids |= without_empty(dict(zip(positions.tolist(), ids)))
        moved = np.flatnonzero((rows < 0) & self.ours)  # written since the encoding; the text may be the same
        documents = self._documents_by_position(moved.tolist())
        if documents:
            rows[list(documents)] = self._files.of_texts(list(documents.values()))
            self._store_ids(documents)
        self.repeated |= len(set(self._stored_ids.values())) < len(self._stored_ids)
        return rows

    def _documents_by_position(self, positions: Sequence[int]) -> dict[int, Document]:
        """Read the documents of these hits, without deleted ones."""
        if not positions:
            return {}
        return without_none(dict(zip(positions, self.documents(positions))))

    def _store_ids(self, documents: Mapping[int, Document]) -> None:
        """Note the ids of documents by the positions of their hits."""
        self._stored_ids |= {position: document.id for position, document in documents.items()}

    def features(self, name: str, version: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the (n, width) features of a ranker in the files, and (n,) bool: missing."""
        assert self._files is not None
        values, missing = self._files.features.read(name, version, self.rows)
        return as_computed(values), missing

    def categories(self, scores: NDArray[np.float64]) -> dict[str, Sequence[str]]:
        """Return id -> categories of the hits from which the categories of a query are inferred.

        scores: (n,) first-stage scores. Hits whose categories are not stored are left out.
        """
        if not self.attached or not len(scores):
            return self._categories
        assert self._files is not None
        depth = min(FEEDBACK_DEPTH, len(scores))
        last = np.partition(scores, -depth)[-depth]
        positions = np.flatnonzero((scores >= last) & (self.rows >= 0))
        categories_of_hits = self._files.categories(self.rows[positions])
        ids = items_at(self.ids, positions.tolist())
        return dict(zip(ids, categories_of_hits))

    def documents(self, positions: Sequence[int]) -> list[Document | None]:
        """Read the documents of hits from the engine; None for one that was changed or deleted since.

        positions: of the hits in the call.
        """
        if self._source is None or self._locations is None:
            return list(self._engine.get(items_at(self.ids, positions)))
        shards, seq_nos, _ = self._locations
        rows = list(positions)
        uuids = items_at(self._uuids, self._index[rows].tolist())
        locations = zip(uuids, shards[rows].tolist(), seq_nos[rows].tolist())
        return self._source.documents_at(list(locations))

    def find_ids(self) -> None:
        """Find the ids of hits without an id; a hit without a document keeps its placeholder."""
        unnamed = sorted(self._unnamed)
        if unnamed and self.attached:
            _ = self.rows  # stores the ids
        else:
            self._store_ids(self._documents_by_position(unnamed))
        used_ids = set(self.ids)
        for position in unnamed:
            id = self._stored_ids.get(position)
            if id in used_ids:
                self.repeated = True
            elif id is not None:
                self.ids[position] = id
                used_ids.add(id)


def as_computed(features: NDArray[Any]) -> NDArray[Any]:
    """Return stored features in the precision in which rankers compute: float32 instead of float16."""
    return single_precision(features) if features.dtype == np.float16 else features


def _index_of_hits(call: HookCall) -> NDArray[np.int64]:
    """Return (n,) position of each hit's index in the uuids of a call; 0 if the call names none.

    Raises UsageError for positions that do not fit the ids or the uuids.
    """
    count = len(call.ids)
    index = np.array(call.body.places.index, np.int64)
    if not len(index):
        return np.zeros(count, np.int64)
    if len(index) != count or index.max() >= len(call.body.places.uuids):
        raise UsageError(f"{count} ids came with {len(index)} positions in uuids; send one for each")
    return index
