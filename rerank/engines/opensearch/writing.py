"""Ingest: documents come into an index in place, or into a new one that takes its place when complete."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replace_column
from itertools import islice
from typing import Any

from rerank.engines.base import Encoder, WriteResult
from rerank.engines.opensearch.bulk import Plan, Written, action
from rerank.engines.opensearch.connection import check
from rerank.engines.opensearch.encoding import Features
from rerank.engines.opensearch.features import Column, column
from rerank.engines.opensearch.index import Index
from rerank.engines.opensearch.layout import FEATURES, AttachedLayout, OwnedLayout, feature_key
from rerank.engines.opensearch.reading import LONGEST_ID, Reader, usable
from rerank.errors import EngineError, InputError, UsageError
from rerank.records import Document
from rerank.text import plural

DEFAULT_PIPELINE = "index.search.default_pipeline"
"""The setting that names the search pipeline of searches that name none."""

_BATCH = 256  # documents a call of an encoder


class Writer:
    """Ingests documents into an index."""

    def __init__(self, index: Index, features: Features, reader: Reader) -> None:
        self._index, self._features, self._reader = index, features, reader
        self._client, self._settings, self._layout = index.client, index.settings, index.layout
        self._plan = index.folder / "unfinished"

    def write(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        *,
        encoders: Sequence[Encoder] = (),
        replace: bool = False,
        skip_refused: bool = False,
        source: str = "",
        progress: Callable[[int], object] | None = None,
    ) -> WriteResult:
        """Add, update and remove documents; see :meth:`Engine.write`.

        All documents are read and checked, and written to the engine's folder, before the first is sent.
        What an interruption leaves is finished by :meth:`finish`, which the next ingest calls first.

        replace: the documents go into a new index, and the alias moves when that is complete. It is always
            done that way while the collection is empty.
        """
        if isinstance(self._layout, AttachedLayout):
            raise UsageError(
                f"index {self._settings.index!r} is attached, and written by others: change documents there"
            )
        with self._index.lock():
            if Plan.exists(self._plan):
                self._carry_out(Plan(self._plan), True, None)
            current, replace = self._current(replace)
            written: dict[str, Column] = {}
            delete = list(dict.fromkeys(delete))
            impossible = [id for id in delete if not usable(id)]
            same = _Same()
            reader = None if replace else self._reader
            actions = self._actions(documents, delete, encoders, written, reader, same)
            target = self._next(current) if replace else current

            def about() -> dict[str, Any]:
                made = {key: [c.dtype, c.width, c.vectors, c.passages] for key, c in written.items()}
                return {
                    "source": source,
                    "target": target,
                    "replaces": replace and current,
                    "columns": made,
                    "unknown": impossible,
                    "unchanged": same.count,
                    "name": secrets.token_hex(8),
                }

            plan = Plan.write(self._plan, actions, about)
            if plan.actions == 0:
                plan.remove()
                return WriteResult(0, 0, 0, tuple(impossible), unchanged=same.count)
            return self._carry_out(plan, skip_refused, progress)

    def _current(self, replace: bool) -> tuple[str, bool]:
        """The index of the alias, and whether a new one replaces it: also if it is empty."""
        if replace and not self._index.indices():  # somebody has deleted it
            check(self._client, self._settings)
            with self._index.asking("making the index"):
                self._index.make(f"{self._settings.index}-000001", alias=True)
        self._index.check()
        (current, *others) = sorted(self._index.indices())
        if others:
            raise EngineError(
                f"alias {self._settings.index!r} stands for {1 + len(others)} indices; rerank writes to one"
            )
        replace = replace or len(self._index) == 0
        if replace and current == self._settings.index:
            raise UsageError(
                f"{current!r} is an index and no alias, so it cannot be replaced; ingest in place"
            )
        return current, replace

    def unfinished(self) -> str | None:
        """Return the ``source`` of an ingest that was interrupted while it was sent, or None."""
        return str(Plan(self._plan).about["source"]) if Plan.exists(self._plan) else None

    def finish(
        self, *, skip_refused: bool = False, progress: Callable[[int], object] | None = None
    ) -> WriteResult:
        """Send the rest of an interrupted ingest."""
        with self._index.lock():
            return self._carry_out(Plan(self._plan), skip_refused, progress)

    def _actions(
        self,
        documents: Iterable[Document],
        delete: Iterable[str],
        encoders: Sequence[Encoder],
        written: dict[str, Column],
        reader: Reader | None,
        same: _Same,
    ) -> Iterator[bytes]:
        """The actions of an ingest; ``written`` receives the columns of the features among them.

        reader: reads the stored documents; unchanged ones are counted (``same``) and skipped.
        """
        assert isinstance(self._layout, OwnedLayout)
        places: dict[str, int] = {}
        stored = self._features.stored() if encoders else {}
        retrieving = self._features.retrieving(encoders)
        stream = iter(documents)
        while batch := list(islice(stream, _BATCH)):
            for document in batch:
                _check_document(document, len(places) + 1)
                if document.id in places:
                    raise InputError(
                        f"id {document.id!r} occurs twice, as document {places[document.id]} and as document"
                        f" {len(places) + 1} of this ingest; keep one"
                    )
                places[document.id] = len(places) + 1
            if reader is not None:
                there = reader.get([document.id for document in batch])
                fresh = [
                    new for new, old in zip(batch, there) if old is None or self._key(new) != self._key(old)
                ]
                same.count += len(batch) - len(fresh)
                batch = fresh
            if not batch:
                continue
            sources = [self._layout.to_source(document) for document in batch]
            for name, version, encode, _, passages in encoders:
                key = feature_key(name, version)
                values = encode(batch)
                written[key] = column(name, values, len(batch), written.get(key) or stored.get(key))
                texts = written[key].encode(values)
                for source, text in zip(sources, texts):
                    source.setdefault(FEATURES, {})[key] = text
                if name in retrieving:
                    written[key] = replace_column(written[key], vectors="hnsw", passages=passages)
                    written[key].add_vectors(key, [source[FEATURES] for source in sources], texts)
            for document, source in zip(batch, sources):
                yield action("index", document.id, source)
        for id in delete:
            if id in places:
                raise InputError(f"id {id!r} is both ingested and deleted; do only one of the two")
            if usable(id):
                yield action("delete", id)

    def _key(self, document: Document) -> str:
        """A document as the index keeps it, for comparing."""
        assert isinstance(self._layout, OwnedLayout)
        return json.dumps(self._layout.to_source(document), sort_keys=True, default=dict)

    def _carry_out(
        self, plan: Plan, skip_refused: bool, progress: Callable[[int], object] | None
    ) -> WriteResult:
        """Send a plan, and move the alias if it replaces the collection."""
        plan.check_own()
        target, old = plan.about["target"], plan.about["replaces"]
        with self._index.asking("ingesting"):
            if old and not self._client.indices.exists(index=target):
                plan.forget_sent()  # into an index that is gone
                self._index.make(target, alias=False, ingest=plan.about["name"])
                self._client.indices.put_settings(index=target, body={"index": {"refresh_interval": "-1"}})
            elif old:
                self._check_ours(target, plan)
            now = time.time()
            made = {
                key: Column(dtype, width, now, *vectors)
                for key, (dtype, width, *vectors) in plan.about["columns"].items()
            }
            self._features.map(made, target)
        try:
            written = plan.send(self._client, self._settings, target, progress)
        except EngineError as error:
            raise EngineError(
                f"{error}; {plan.sent:,} of {plural(plan.actions, 'document[|s]')} are in: run the"
                " same command again to go on"
            ) from error
        if written.refused and not skip_refused:
            if old:
                with suppress(Exception):
                    self._client.indices.delete(index=target)
            plan.remove()
            first = "; ".join(f"{id!r}: {reason}" for id, reason in written.refused[:3])
            rest = "nothing was changed" if old else "the others are in"
            raise EngineError(
                f"OpenSearch refuses {len(written.refused):,} of {plural(plan.actions, 'document[|s]')},"
                f" {rest}: {first}; mend them, or leave such documents out with"
                f" --skip-invalid"
            )
        with self._index.asking("completing the ingest"):
            if old:
                self._client.indices.put_settings(index=target, body={"index": {"refresh_interval": None}})
            self._index.refresh(target)
            if old:
                self._check_complete(target, plan, written)
                # One that was sent twice, because the first answer was lost, is no update.
                written.created, written.updated = written.created + written.updated, 0
                self._keep_pipeline(old, target)
                moves = [{"remove_index": {"index": old}}] if self._client.indices.exists(index=old) else []
                moves.append({"add": {"index": target, "alias": self._settings.index}})
                self._client.indices.update_aliases(body={"actions": moves})
        plan.remove()
        return WriteResult(
            written.created,
            written.updated,
            written.deleted,
            (*written.missing, *plan.about.get("unknown", ())),
            tuple(written.refused),
            encoded=written.created + written.updated if plan.about["columns"] else 0,
            unchanged=plan.about.get("unchanged", 0),
        )

    def _keep_pipeline(self, old: str, target: str) -> None:
        """Give the new index the default search pipeline of the old one, which may be a hook's."""
        found = self._client.indices.get_settings(
            index=old, name=DEFAULT_PIPELINE, params={"flat_settings": "true", "ignore_unavailable": "true"}
        )
        settings = found.get(old, {}).get("settings", {})
        if settings:
            self._client.indices.put_settings(index=target, body=settings)

    def _check_complete(self, target: str, plan: Plan, written: Written) -> None:
        """Raise EngineError if the new index does not hold all sent documents: the alias must not move."""
        self._check_ours(target, plan)
        count = self._index.count({"match_all": {}}, target)
        added = written.created + written.updated
        if count != added:
            plan.forget_sent()
            raise EngineError(
                f"index {target!r} at {self._settings.where} was changed by others while documents came"
                f" in ({count:,} are there, not {added:,}); nothing was replaced: remove it, and run again"
            )

    def _check_ours(self, target: str, plan: Plan) -> None:
        """Raise EngineError when an index is not the one that this ingest has made.

        A cluster makes an index by itself, and not as it should be, for documents on their way into one
        that somebody has deleted.
        """
        about = self._client.indices.get(index=target)[target]["mappings"].get("_meta", {}).get("rerank", {})
        if about.get("ingest") != plan.about["name"]:
            plan.forget_sent()
            raise EngineError(
                f"index {target!r} at {self._settings.where} was deleted or made anew by others while"
                " documents came in; nothing was replaced: remove it, and run again"
            )

    def _next(self, current: str) -> str:
        """Return the name of the index after ``current``, free of what an abandoned ingest has left."""
        found = re.fullmatch(r"(.*)-(\d{6})", current)
        number = int(found[2]) if found else 0
        name = f"{self._settings.index}-{number + 1:06}"
        with self._index.asking("making the index"):
            if self._client.indices.exists(index=name):
                about = self._client.indices.get(index=name)[name]
                if about["aliases"] or "rerank" not in about["mappings"].get("_meta", {}):
                    raise EngineError(
                        f"{self._settings.where} has an index {name!r} that is in use; remove or rename it"
                    )
                self._client.indices.delete(index=name)
        return name


@dataclass
class _Same:
    """Number of unchanged documents of an ingest."""

    count: int = 0


def _check_document(document: Document, place: int) -> None:
    if not document.id:
        raise InputError(f"document {place} has an empty id; give it one")
    try:
        size = len(document.id.encode())
        document.content.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"document {place} ({document.id!r}) is no valid text ({error.reason}); mend it"
        ) from error
    if size > LONGEST_ID:
        raise InputError(
            f"document {place}: its id has {size} bytes and OpenSearch takes {LONGEST_ID}:"
            f" {document.id[:40]!r}…; give it a shorter one"
        )
