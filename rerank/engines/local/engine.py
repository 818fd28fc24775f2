"""LocalEngine: the engine in a folder; ties its parts together and keeps them at one generation.

How an ingest stays whole: rows are added to SQLite in one transaction, to the tf-idf files behind their
valid length and to tantivy uncommitted. Then, in this order: SQLite commits (the generation is
pending), tantivy commits, SQLite publishes the generation with the number of tantivy's commit. A crash
before tantivy's commit is undone by whoever opens next, a crash after it is published.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import (
    CompactionResult,
    Encoder,
    Engine,
    SearchRequest,
    WriteResult,
    batches,
    check_signal,
    hits_of_run,
)
from rerank.engines.local.bm25 import IndexWriter
from rerank.engines.local.data import Data, Lexical, View, number_of, remove_others, rows_of
from rerank.engines.local.files import disk, unreadable, write_lock
from rerank.engines.local.store import Seen, State, Store
from rerank.engines.local.strings import StringWriter
from rerank.errors import (
    EngineError,
    InputError,
    NoCollectionError,
    UsageError,
    WorkspaceError,
)
from rerank.files import parse_json, trouble, write_text
from rerank.order import rank
from rerank.records import Candidates, Document
from rerank.text import ANALYZER_VERSION, language

FORMAT = 2
"""Version of the folder's layout; a folder of another one is not opened."""

_ABOUT = "engine.json"
_CHUNK = 1000  # documents that are handed on together
_WASTE = 500  # dead rows that are too few to be compacted away
_TRIES = 20  # to open what a compaction is just putting in place
_GRACE = 60.0  # seconds in which what is being scored on former data is finished


class CompactionWarning(UserWarning):
    """Documents were ingested, but the disk space of deleted documents could not be reclaimed."""


class LocalEngine(Engine):
    """Documents, text index and features in one folder.

    Any number of processes may read while one writes; readers see the old state until the new one is
    whole. Reading is safe from several threads.

    >>> import tempfile
    >>> from pathlib import Path
    >>> engine = LocalEngine.create(Path(tempfile.mkdtemp()) / "engine", lang="en")
    >>> engine.write([Document("1", text="A sorted list"), Document("2", text="A tree")]).added
    2
    >>> engine.find(SearchRequest("sorting", "bm25")).ids
    ['1']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mutex = threading.Lock()
        self._stamp: object = None
        self._former: tuple[Data, float] | None = None
        self._data = self._opened()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path, lang: str | None = None) -> LocalEngine:
        """Create an empty engine for documents in ``lang`` (None: unknown or mixed).

        Raises WorkspaceError when there is an engine in the folder already.
        """
        lang = language(lang)
        with disk(f"creating {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            with write_lock(folder):
                if (folder / _ABOUT).exists():
                    raise WorkspaceError(f"{folder} already holds a collection; open it or remove it")
                Data.create(folder, "", lang).close()
                _write_about(folder, lang, "")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> LocalEngine:
        """Open an engine, finishing or undoing what a crash has left.

        Where nothing can be written it is opened to be read. Raises WorkspaceError when there is none, one of
        another version of rerank, or a damaged one.
        """
        try:
            engine = cls(folder)
            engine._data.view()
        except (OSError, LookupError, ValueError, TypeError, sqlite3.Error, WorkspaceError) as error:
            raise unreadable(folder, error) from error
        return engine

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, where: str
    ) -> LocalEngine:
        """Open or make the engine in its folder; it has no settings."""
        if settings:
            raise UsageError(
                f"{where}: {next(iter(settings))!r} is no setting of the engine local; it has none"
            )
        if new:
            return cls.create(folder, lang)
        engine = cls.open(folder)
        if engine.lang != lang:
            raise WorkspaceError(
                f"{where}: says lang = {lang or ''!r}, but the documents were indexed as"
                f" {engine.lang or 'mixed languages'}; put that back"
            )
        return engine

    @property
    def lang(self) -> str | None:
        """Language of the documents; None: unknown or mixed."""
        return self._lang

    def _opened(self) -> Data:
        """Open the data that are in use."""
        for _ in range(_TRIES):
            stamp = self._look()
            self._lang, name = _read_about(self.folder)
            try:
                data = Data(self.folder, name, self._lang)
            except (OSError, ValueError, sqlite3.Error, WorkspaceError):
                if self._look() == stamp:
                    raise
                continue
            if self._look() == stamp:
                self._stamp = stamp
                return data
            data.close()
        raise EngineError(f"{self.folder} keeps being compacted; try again")

    def _look(self) -> object:
        try:
            about = (self.folder / _ABOUT).stat()
        except FileNotFoundError:
            return None
        return about.st_ino, about.st_mtime_ns

    def _now(self) -> Data:
        """The data in use: others after a compaction."""
        with self._mutex:
            if self._look() != self._stamp:
                data = self._opened()
                self._former = (self._data, time.monotonic() + _GRACE)
                self._data = data
            elif self._former is not None and time.monotonic() > self._former[1]:
                self._former = None
            return self._data

    def _of(self, candidates: Candidates) -> Data:
        """The data that candidates are of."""
        number, data = number_of(candidates.rows), self._now()
        if data.number == number or not len(candidates):
            return data
        former = self._former
        if former is None or former[0].number != number:
            raise EngineError(f"{self.folder} was compacted since these candidates were found; search again")
        return former[0]

    def close(self) -> None:
        """Close the database; the engine cannot be used afterwards."""
        self._data.close()

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing; see :meth:`Engine.lock`."""
        return write_lock(self.folder)

    # -- writing -------------------------------------------------------------------------------------

    def write(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        *,
        encoders: Sequence[Encoder] = (),
        replace: bool = False,
        skip_refused: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> WriteResult:
        """Add, update and remove documents, all or nothing; see :meth:`Engine.write`.

        encoders: are left to :meth:`write_features`.
        skip_refused, source, progress: have no meaning here; every document is taken, all at once.

        An id both in ``documents`` and in ``delete`` raises InputError. A failure of the disk raises
        EngineError, and nothing was ingested.
        """
        doing = "ingesting; nothing was ingested"
        if replace:
            documents, delete = self._replacing(documents, delete)
        with write_lock(self.folder):
            data = self._now()
            with data.connection() as store:
                with disk(doing):
                    data.recover(store)
                try:
                    done = self._write(data, store, documents, delete, doing)
                finally:
                    data.tidy(store)
            self._reclaim(data)
        return done

    def _reclaim(self, data: Data) -> None:
        """Compact if most rows are of deleted documents. The caller holds the write lock.

        A failure is only a warning: the ingest before it is complete.
        """
        try:
            with data.connection() as store:
                state = store.state()
            wasted = state.rows - state.documents
            if wasted > max(state.documents, _WASTE):
                self._compact(data)
            remove_others(self.folder, self._data.folder.name if self._data.number else "")
        except Exception as error:
            warnings.warn(
                f"{self.folder}: the ingest is complete, but the disk space of deleted documents could not be"
                f" reclaimed: {error}",
                CompactionWarning,
                stacklevel=3,
            )

    def _replacing(
        self, documents: Iterable[Document], delete: Iterable[str]
    ) -> tuple[Iterator[Document], Iterator[str]]:
        """Turn an ingest into one that also deletes what is not ingested."""
        kept: set[str] = set()

        def ingested() -> Iterator[Document]:
            for document in documents:
                kept.add(document.id)
                yield document

        def deleted() -> Iterator[str]:  # asked for when all documents are in
            yield from delete
            yield from (id for id in self.ids() if id not in kept)

        return ingested(), deleted()

    def _write(
        self, data: Data, store: Store, documents: Iterable[Document], delete: Iterable[str], doing: str
    ) -> WriteResult:
        state = store.state()
        generation, first, row = state.generation + 1, state.rows, state.rows
        with disk(doing):
            writer = data.index.writer()
        try:
            with disk(doing):
                store.begin(state)
                ids = StringWriter(data.folder / "ids", first)
            replaced, seen = 0, Seen(first)
            stream = iter(documents)
            while chunk := list(islice(stream, _CHUNK)):
                with disk(doing):
                    new, old = store.add(chunk, row, generation, seen)
                    ids.extend([document.id for document in new])
                    writer.delete(old)
                    writer.add(row, new)
                row += len(new)
                replaced += len(old)
            gone = list(dict.fromkeys(delete))
            with disk(doing):
                rows = store.rows_alive(gone)
                for id, number in rows.items():
                    if seen.place(number):
                        raise InputError(f"id {id!r} is both ingested and deleted; do only one of the two")
                store.kill(list(rows.values()), generation)
                writer.delete(list(rows.values()))
                ids.close()
                alive = state.documents + (row - first) - replaced - len(rows)
                now = State(generation, row, alive, -1)
                if row == first and not rows:
                    store.rollback()
                    writer.rollback()
                    data.build(store, state)
                else:
                    data.build(store, now)
                    self._switch(store, now, writer)
        except BaseException:
            writer.rollback()
            with suppress(Exception):  # what cannot be undone now is undone by whoever opens next
                store.rollback()
                data.recover(store)
            raise
        unknown = tuple(id for id in gone if id not in rows)
        return WriteResult(row - first - replaced, replaced, len(rows), unknown, unchanged=seen.unchanged)

    def _switch(self, store: Store, new: State, writer: IndexWriter) -> None:
        """Make ``new`` the state: the three commits of the module's docstring."""
        store.commit_pending(new)
        stamp = writer.commit()
        with disk("publishing what was ingested; it will show with the next command"):
            store.publish(stamp)
        writer.close()

    def compact(self) -> CompactionResult:
        """Write what is alive anew, and give the space of the rest back; see :meth:`Engine.compact`."""
        with write_lock(self.folder):
            data = self._now()
            with data.connection() as store, disk("compacting; all is as it was"):
                data.recover(store)
                state = store.state()
            before = _size(data.folder)
            if state.rows > state.documents:
                self._compact(data)
            remove_others(self.folder, self._data.folder.name if self._data.number else "")
            return CompactionResult(state.rows - state.documents, before, _size(self._data.folder))

    def _compact(self, data: Data) -> None:
        """Make data of the living rows beside these, and switch to them. The caller holds the write lock."""
        doing, name = "compacting; all is as it was", f"data-{data.number + 1}"
        fresh: Data | None = None
        try:
            with disk(doing):
                fresh = Data.create(self.folder, name, self._lang)
            with fresh.connection() as store, data.connection() as former:
                rows = np.flatnonzero(former.alive(former.state()))
                self._write(fresh, store, (document for _, document in former.documents()), (), doing)
                with disk(doing):
                    fresh.features.copy(data.features, rows)
                fresh.tidy(store)
            fresh.close()
            with disk(doing):
                _write_about(self.folder, self._lang, name)
        except BaseException:
            if fresh is not None:
                fresh.close()
            shutil.rmtree(self.folder / name, ignore_errors=True)
            raise
        self._now()
        data.let_go()

    def write_features(
        self,
        encoders: Sequence[Encoder],
        *,
        part: tuple[int, int] = (0, 1),
        force: bool = False,
        keep: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Encode the documents that lack features; see :meth:`Engine.write_features`.

        One process writes to the folder at a time, so there is only the one part.
        """
        if part != (0, 1):
            raise UsageError("the local engine encodes in one process; leave --slice out")
        encoded: dict[str, int] = {}
        with write_lock(self.folder):
            data = self._now()
            with data.connection() as store:
                with disk("storing features"):
                    data.recover(store)
                state = store.state()
                kept = {name: set(versions) for name, versions in (keep or {}).items()}
                for name, version, *_ in encoders:
                    kept.setdefault(name, set()).add(version)
                for name, version, encode, *_ in encoders:
                    if force:
                        data.features.remove(name, version)
                    documents = store.documents(data.features.start(name, version))
                    done = data.features.write(
                        name, version, documents, state.rows, encode, progress, kept[name]
                    )
                    encoded[name] = encoded.get(name, 0) + done
        return encoded

    def missing_features(self, name: str, version: str) -> int:
        """Count the documents without a feature; see :meth:`Engine.missing_features`."""
        data = self._now()
        with data.connection() as store:
            return store.count(data.features.start(name, version))

    def prepared(self, name: str, version: str) -> int | None:
        """Count the documents that cannot be found; stored features are all it takes to find the others."""
        return self.missing_features(name, version) if self._now().features.stored(name, version) else None

    def feature_versions(self) -> dict[str, str]:
        """Ranker name -> version of the stored features."""
        return self._now().features.versions()

    def verify(self) -> dict[str, str]:
        """Compare all files with their checksums; see :meth:`Engine.verify`."""
        from rerank.engines.local.verify import corruptions

        data = self._now()
        with nullcontext() if data.store.read_only else write_lock(self.folder):
            return {str(path): problem for path, problem in corruptions(data)}

    # -- reading -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count the documents."""
        return self._now().view().state.documents

    def version(self) -> str:
        """The published generation, and a number drawn for it: another collection has others; see
        :meth:`Engine.version`.
        """
        data = self._now()
        return f"{data.view().state.generation}-{data.store.token()}"

    def ids(self) -> list[str]:
        """All document ids, ascending by code point."""
        return self._now().store.ids()

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Those of the given ids that there are documents with."""
        data = self._now()
        return set(data.store.rows_of(list(ids), data.view().state))

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents with these ids, in this order; None where there is none."""
        found = self._now().store.get(ids)
        return [found.get(id) for id in ids]

    def documents(self) -> Iterator[Document]:
        """All documents as a stream, by row: in the order of ingestion."""
        # On a connection of its own: an open cursor would hold back what the others may see.
        with self._now().connection() as store:
            for _, document in store.documents():
                yield document

    def search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Return the candidates of each request; see :meth:`Engine.search`."""
        for some in batches(requests):
            if some[0].template is not None:
                for request in some:
                    assert request.template is not None
                    self.check_template(*request.template)
                    yield hits_of_run(request)
                continue
            some[0].check(self.first_stages)
            if some[0].ids is not None:
                yield from map(self._select, some)
            else:
                yield from self._search(some)

    def _search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Search for requests of one batch."""
        data, one = self._now(), requests[0]
        view = data.view()
        kept = data.kept(view, one.filters)
        dead = np.empty(0, np.int64)
        if one.vector_queries:
            dead = data.dead(view) if kept is None else np.flatnonzero(~kept.rows)
        nearest = []
        for some in zip(*(request.vector_queries for request in requests)):
            depth, vectors = some[0].depth or one.depth, np.array([query.vector for query in some])
            nearest.append(data.features.top(some[0], vectors, depth, view.state.rows, dead, view.ids.get))
        for request in requests:
            lexical = Lexical(data, view, request.text, kept)
            if not one.retrievers:
                rows, scores = lexical.top(one.first_stage, one.depth)
                yield data.candidates(view.ids.get(rows), rows, scores, one.features)
                continue
            found = {name: lexical.top(name, one.depth)[0] for name in one.signals}
            found |= {query.name: next(rows) for query, rows in zip(one.vector_queries, nearest)}
            yield self._union(data, view, lexical, one.first_stage, found, one.features)

    def _union(
        self,
        data: Data,
        view: View,
        lexical: Lexical,
        first_stage: str,
        found: Mapping[str, NDArray[np.int64]],
        features: Mapping[str, str],
    ) -> Candidates:
        """Score what the retrievers found by the first stage, and put it in that order."""
        member = {name: np.zeros(view.state.rows, np.bool_) for name in found}
        parts: list[NDArray[np.int64]] = []
        for name, some in found.items():
            new = some
            for before in list(found)[: len(parts)]:
                new = new[~member[before][new]]
            parts.append(new)
            member[name][some] = True
        rows = np.concatenate(parts)
        scores = lexical.scores(first_stage, rows)
        order = np.argsort(-scores, kind="stable")
        rows = rows[order]
        return data.candidates(view.ids.get(rows), rows, scores[order], features, member)

    def _select(self, request: SearchRequest) -> Candidates:
        """Score and order the documents of a request's ids."""
        data = self._now()
        view = data.view()
        found = data.store.rows_of(request.ids or (), view.state)
        ids, rows = list(found), np.array(list(found.values()), np.int64)
        scores = Lexical(data, view, request.text).scores(request.first_stage, rows)
        order = rank(ids, scores)
        return data.candidates([ids[i] for i in order], rows[order], scores[order], request.features)

    def score(self, text: str, signal: str, candidates: Candidates) -> NDArray[np.float64]:
        """Score candidates of a search; see :meth:`Engine.score`."""
        check_signal(signal, self.first_stages)
        data = self._of(candidates)
        return Lexical(data, data.view(), text).scores(signal, rows_of(candidates.rows))


def _documents(folder: Path) -> bool:
    """Whether there are documents in a folder, whatever else."""
    if not (folder / "documents.db").exists():
        return any(folder.glob("data-*/documents.db"))
    try:
        store = Store(folder / "documents.db")
        try:
            return store.state().rows > 0
        finally:
            store.close()
    except (sqlite3.Error, TypeError):
        return False  # a creation that was cut off


def _write_about(folder: Path, lang: str | None, data: str) -> None:
    about = {"format": FORMAT, "analyzer": ANALYZER_VERSION, "lang": lang, "data": data}
    write_text(folder / _ABOUT, json.dumps(about) + "\n")


def _read_about(folder: Path) -> tuple[str | None, str]:
    """Language, and the name of the data in use."""
    path = folder / _ABOUT
    try:
        about = dict(parse_json(path.read_bytes()))
    except FileNotFoundError:
        if _documents(folder):
            raise WorkspaceError(
                f"{folder} holds documents, but no {_ABOUT}; restore that file, or remove the folder and"
                " ingest the collection again"
            ) from None
        raise NoCollectionError(f"{folder} holds no collection; ingest one first") from None
    except (ValueError, TypeError, OSError) as error:
        raise trouble(error, path) or WorkspaceError(f"{path} cannot be read: {error}") from error
    found = (about.get("format"), about.get("analyzer"))
    if found != (FORMAT, ANALYZER_VERSION):
        raise WorkspaceError(
            f"{folder} was written in format {found[0]}.{found[1]}, this version of rerank reads "
            f"{FORMAT}.{ANALYZER_VERSION}; remove the folder and ingest the collection again"
        )
    lang, name = about.get("lang"), str(about.get("data", ""))
    if lang is not None and not isinstance(lang, str):
        raise WorkspaceError(f"{path}: damaged: {lang!r} is no language; restore the file")
    if not re.fullmatch(r"(data-\d{1,9})?", name, re.ASCII):
        raise WorkspaceError(f"{path}: damaged: {name!r} is no folder of data; restore the file")
    return lang, name


def _size(folder: Path) -> int:
    """Bytes of the data in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
