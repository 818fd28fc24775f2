"""Ingest, in place or into a new index."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import IO, Any

import msgspec

from rerank.common.batches import batched
from rerank.common.errors import EngineError, InputError, RepeatedIdError, UsageError
from rerank.common.files import DISK_ERRORS, folder_lock
from rerank.common.values import only
from rerank.documents.records import Document
from rerank.documents.text import count_of
from rerank.engines.base import DEFAULT_WRITE, Encoder, WriteOptions, WriteResult
from rerank.engines.opensearch.bulk import Action, Written, action, send
from rerank.engines.opensearch.columns import FEATURES, Column, encode, feature_key, searched_keys
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.reading import LONGEST_ID, Reader, usable

DEFAULT_PIPELINE = "index.search.default_pipeline"
"""The setting with the search pipeline of searches that do not name one."""

_BATCH = 500  # documents per call of an encoder, and per request
_CLEANUP = 5.0  # seconds that removing a half-written index may take


@dataclass
class _Ingest:
    """One ingest: its options, and its actions in a temporary file.

    columns:   feature key -> mapped column, for the features that are written.
    actions:   number of actions in the file.
    unchanged: number of documents that are skipped because the index has them.
    """

    file: IO[bytes]
    options: WriteOptions
    columns: dict[str, Column]
    actions: int = 0
    unchanged: int = 0

    def put(self, batch: list[Action]) -> None:
        self.file.write(msgspec.json.encode(batch) + b"\n")
        self.actions += len(batch)

    def batches(self) -> Iterator[tuple[int, list[Action]]]:
        """Read the batches of actions in the order in which they were written, with their sizes."""
        self.file.seek(0)
        for line in self.file:
            batch = msgspec.json.decode(line, type=list[Action])
            yield len(batch), batch


class Writer:
    """Adds, updates and removes the documents of an index."""

    def __init__(self, reader: Reader, doc_values: DocValueFeatures) -> None:
        self.reader = reader
        self.doc_values = doc_values
        self.index = reader.index
        self._client = self.index.client
        self._settings = self.index.settings
        self._layout = self.index.layout

    def write(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        options: WriteOptions = DEFAULT_WRITE,
    ) -> WriteResult:
        """Add, update and remove documents; see :meth:`Engine.write`.

        All documents are checked before the first is sent. If interrupted, run it again: stored documents are
        skipped.

        With ``options.replace``, and always for an empty collection, the documents go into a new index, to
        which the alias then moves.
        """
        if self._layout.attached:
            raise UsageError(
                f"index {self._settings.index!r} is attached and only read; change its documents elsewhere"
            )
        delete = list(dict.fromkeys(delete))
        written = Written()
        try:
            with self.lock(), tempfile.TemporaryFile(dir=self.index.folder) as file:
                current, replace = self._current(options.replace)
                ingest = _Ingest(file, options, self._columns(options.encoders, replace))
                self._fill(ingest, documents, delete, compare=not replace)
                file.flush()
                if ingest.actions:
                    written = (self._replace if replace else self._send)(current, ingest)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            raise EngineError(
                f"{self.index.folder}: cannot be written ({error.strerror}); free space and run again"
            ) from error
        return WriteResult(
            written.created,
            written.updated,
            written.deleted,
            (*written.missing, *filterfalse(usable, delete)),
            tuple(written.refused),
            encoded=written.created + written.updated if options.encoders else 0,
            unchanged=ingest.unchanged,
        )

    def _columns(self, encoders: Sequence[Encoder], replace: bool) -> dict[str, Column]:
        """Return the columns of the index for the features that an ingest writes: feature key -> column."""
        stored = self.doc_values.stored() if encoders or replace else {}
        if encoders:
            keys = {feature_key(encoder.name, encoder.version) for encoder in encoders}
        else:  # rankers that retrieve still do, after a later encoding
            keys = searched_keys(stored)
        return only(stored, keys)

    @contextmanager
    def lock(self) -> Iterator[None]:
        self.index.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.index.folder, f"ingesting into {self._settings.index!r}"):
            yield

    def _current(self, replace: bool) -> tuple[str, bool]:
        """Return the index of the alias, and whether to replace it: on request, or if it is empty.

        Raises EngineError for an alias of several indices, UsageError for an index without alias.
        """
        if replace and not self.index.indices():  # another client has deleted it
            self.index.make(f"{self._settings.index}-000001", alias=True)
        self.index.check()
        current = self._only_index()
        if not replace:
            # An interrupted ingest may have written documents that no search finds yet.
            self.index.refresh("reading documents", current)
            replace = self.index.count() == 0
        if replace and current == self._settings.index:
            raise UsageError(f"{current!r} is an index, not an alias: it cannot be replaced; ingest in place")
        return current, replace

    def _only_index(self) -> str:
        """Return the index of the alias. Raises EngineError for an alias of several indices."""
        current, *surplus = sorted(self.index.indices())
        if surplus:
            raise EngineError(
                f"alias {self._settings.index!r} has {1 + len(surplus)} indices; remove it from all but one"
            )
        return current

    def _fill(
        self, ingest: _Ingest, documents: Iterable[Document], delete: Sequence[str], compare: bool
    ) -> None:
        """Check documents, and store the actions of an ingest.

        compare: leave out documents that the index has as they are.
        """
        positions: dict[str, int] = {}
        for batch in batched(documents, _BATCH):
            texts = [self._check(document, positions) for document in batch]
            if compare:
                changed = self._changed(batch, texts)
                ingest.unchanged += len(batch) - len(changed)
                batch = changed
            if batch:
                ingest.put(self._encoded(batch, ingest))

        _refuse_contradiction(positions, delete)
        for ids in batched(filter(usable, delete), _BATCH):
            ingest.put([action("delete", id) for id in ids])

    def _encoded(self, documents: Sequence[Document], ingest: _Ingest) -> list[Action]:
        """Return the actions that write documents with their features."""
        encoders = ingest.options.encoders
        retrieving = self.doc_values.retrieving(encoders)
        features = [self._layout.row(document) for document in documents]
        for encoder in encoders:
            encode(encoder, documents, features, ingest.columns, retrieves=encoder.name in retrieving)
        actions: list[Action] = []
        for document, row in zip(documents, features):
            source = {**self._layout.to_source(document), FEATURES: row}
            actions.append(action("index", document.id, source))
        return actions

    def _changed(self, documents: Sequence[Document], texts: Sequence[bytes]) -> list[Document]:
        """Return the documents that the index does not have as they are. texts: their JSON."""
        stored_documents = self.reader.get([document.id for document in documents])
        changed: list[Document] = []
        for document, text, stored in zip(documents, texts, stored_documents):
            if stored is None or text != self._text(stored):
                changed.append(document)
        return changed

    def _text(self, document: Document) -> bytes:
        return msgspec.json.encode(self._layout.to_source(document), order="deterministic")

    def _check(self, document: Document, positions: dict[str, int]) -> bytes:
        """Check a document, and add its position; return its JSON. Raises InputError."""
        position = len(positions) + 1
        id = document.id
        if not id:
            raise InputError(f"document {position} has an empty id; give it one")
        try:
            size = len(id.encode())
            text = self._text(document)
        except UnicodeEncodeError as error:
            raise InputError(
                f"document {position} ({id!r}) is not valid text ({error.reason}); correct it"
            ) from error
        if size > LONGEST_ID:
            raise InputError(
                f"document {position}: its id has {size} bytes, OpenSearch accepts {LONGEST_ID}:"
                f" {id[:40]!r}…; give it a shorter one"
            )
        if positions.setdefault(id, position) != position:
            raise RepeatedIdError(id, position)
        return text

    def _send(self, target: str, ingest: _Ingest) -> Written:
        """Send all actions to an index, after its mapping has the columns. Raises EngineError."""
        with self.index.asking("ingesting"):
            now = time.time()
            self.doc_values.map({key: replace(c, since=now) for key, c in ingest.columns.items()}, target)
        written = Written()
        try:
            for count, written_batch in send(self.index, target, ingest.batches()):
                written.add(written_batch)
                ingest.options.progress(count)
        except EngineError as error:
            raise EngineError(f"{error} (then run the same command again)") from error
        if written.refused and not ingest.options.skip_refused:
            first = "; ".join(f"{id!r}: {reason}" for id, reason in written.refused[:3])
            raise EngineError(
                f"OpenSearch refuses {len(written.refused):,} of {count_of(ingest.actions, 'document')}:"
                f" {first}; correct them, or skip such documents with --skip-invalid"
            )
        self.index.refresh("completing the ingest", target)
        return written

    def _replace(self, old: str, ingest: _Ingest) -> Written:
        """Write a new index and move the alias; remove it on failure."""
        target = self._next(old)
        self.index.make(target, alias=False, like=self._settings_of(old))
        with self.index.asking("ingesting"):
            uuid = self.index.uuid(target)
            self._client.indices.put_settings(index=target, body={"index": {"refresh_interval": "-1"}})
        try:
            written = self._send(target, ingest)
            # A repeated action, after a lost answer, is not an update.
            written.created += written.updated
            written.updated = 0
            with self.index.asking("completing the ingest"):
                self._check_complete(target, uuid, written.created)
                like = self._settings_of(old)  # again: they can have changed
                settings = {
                    "refresh_interval": like.get("refresh_interval"),
                    "search.default_pipeline": like.get("search", {}).get("default_pipeline"),
                }
                self._client.indices.put_settings(index=target, body={"index": settings})
                moves: list[dict[str, Any]] = [{"add": {"index": target, "alias": self._settings.index}}]
                if like:
                    moves.insert(0, {"remove_index": {"index": old}})
                self._client.indices.update_aliases(body={"actions": moves})
        except BaseException:
            with suppress(Exception):
                if self.index.uuid(target) == uuid:
                    self._client.indices.delete(index=target, params={"request_timeout": _CLEANUP})
            raise
        return written

    def _settings_of(self, index: str) -> dict[str, Any]:
        """Return the settings of an index; empty if it does not exist."""
        description = self.index.indices(index)
        settings: dict[str, Any] = description[index]["settings"]["index"] if description else {}
        return settings

    def _check_complete(self, target: str, uuid: str | None, expected: int) -> None:
        """Raise EngineError if the new index was replaced or lacks documents.

        A cluster recreates an index that is deleted during writing, without its mapping.
        """
        count = self.index.count(index=target)
        if self.index.uuid(target) != uuid or count != expected:
            raise EngineError(
                f"index {target!r} at {self._settings.where} was changed by another client (it has"
                f" {count_of(count, 'document')} instead of {expected:,}); nothing was replaced:"
                " remove it, and run again"
            )

    def _next(self, current: str) -> str:
        """Return the next index name; remove remains of an interrupted ingest."""
        match = re.fullmatch(r".*-(\d{6})", current)
        number = int(match[1]) if match else 0
        name = f"{self._settings.index}-{number + 1:06}"
        description = self.index.indices(name).get(name)
        if description is not None:
            if description["aliases"] or "rerank" not in description["mappings"].get("_meta", {}):
                raise EngineError(
                    f"{self._settings.where} has an index {name!r} that is in use; remove or rename it"
                )
            with self.index.asking("creating the index"):
                self._client.indices.delete(index=name)
        return name


def _refuse_contradiction(ingested: Collection[str], deleted: Iterable[str]) -> None:
    """Raise InputError for an id that is both ingested and deleted."""
    for id in deleted:
        if id in ingested:
            raise InputError(f"id {id!r} is both ingested and deleted; do only one of the two")
