"""LocalEngine: the engine in a folder; ties its parts together and keeps them at one generation.

How an ingest stays whole: rows are added to SQLite in one transaction, to the tf-idf files behind their
valid length and to tantivy uncommitted. Then, in this order: SQLite commits (the generation is
pending), tantivy commits, SQLite publishes the generation with the number of tantivy's commit. A crash
before tantivy's commit is undone by whoever opens next, a crash after it is published.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tantivy
from numpy.typing import NDArray

from rerank.engines.base import Encoder, Engine, Ingested, Nearest, Retriever, check_signal
from rerank.engines.local import tfidf_build
from rerank.engines.local.bm25 import IndexWriter, TextIndex
from rerank.engines.local.features import Features
from rerank.engines.local.files import disk, write_lock
from rerank.engines.local.store import State, Store
from rerank.engines.local.strings import Strings, StringWriter
from rerank.engines.local.tfidf import TfIdf, at, best
from rerank.errors import BusyError, EngineError, InputError, UsageError, WorkspaceError, setting_hint
from rerank.files import write_text
from rerank.order import rank
from rerank.records import Candidates, Document
from rerank.text import ANALYZER_VERSION, language

FORMAT = 1
"""Version of the folder's layout; a folder of another one is not opened."""

_CHUNK = 1000  # documents that are handed on together
_PATIENCE = 30.0  # seconds that opening waits for a writer that is just switching generations


@dataclass(frozen=True)
class _View:
    """What a reader sees: one generation, all parts at the same one."""

    state: State
    searcher: tantivy.Searcher
    ids: Strings


class LocalEngine(Engine):
    """Documents, text index and features in one folder.

    Any number of processes may read while one writes; readers see the old state until the new one is
    whole. Reading is safe from several threads.

    >>> import tempfile
    >>> from pathlib import Path
    >>> engine = LocalEngine.create(Path(tempfile.mkdtemp()) / "engine", lang="en")
    >>> engine.ingest([Document("1", text="A sorted list"), Document("2", text="A tree")]).added
    2
    >>> engine.search("sorting", first_stage="bm25", depth=10).ids
    ['1']
    """

    def __init__(self, folder: Path, lang: str | None) -> None:
        self.folder = folder
        self.lang = lang
        self._store = Store(folder / "documents.db")
        self._index = TextIndex(folder / "index", lang)
        self._features = Features(folder / "features")
        self._mutex = threading.Lock()
        self._seen = -1
        self._now: _View | None = None
        self._tfidf: TfIdf | None = None
        self._gone: tuple[int, NDArray[np.int64]] | None = None

    @classmethod
    def create(cls, folder: Path, lang: str | None = None) -> LocalEngine:
        """Create an empty engine for documents in ``lang`` (None: unknown or mixed).

        Raises WorkspaceError when there is an engine in the folder already.
        """
        lang = language(lang)
        with disk(f"creating {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            with write_lock(folder):
                if (folder / "engine.json").exists():
                    raise WorkspaceError(f"{folder} already holds a collection; open it or remove it")
                for part in ("index", "tfidf", "features"):  # left by a creation that was cut off
                    shutil.rmtree(folder / part, ignore_errors=True)
                for path in (*folder.glob("documents.db*"), *folder.glob("ids.*")):
                    path.unlink()
                Store.create(folder / "documents.db")
                TextIndex.create(folder / "index")
                (folder / "tfidf").mkdir()
                (folder / "features").mkdir()
                about = {"format": FORMAT, "analyzer": ANALYZER_VERSION, "lang": lang}
                write_text(folder / "engine.json", json.dumps(about) + "\n")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> LocalEngine:
        """Open an engine, finishing or undoing what a crash has left.

        Raises WorkspaceError when there is none, or one of another version of rerank.
        """
        try:
            about = dict(json.loads((folder / "engine.json").read_bytes()))
        except FileNotFoundError:
            raise WorkspaceError(f"{folder} holds no collection; ingest one first") from None
        except (ValueError, TypeError, OSError) as error:
            raise WorkspaceError(f"{folder / 'engine.json'} cannot be read: {error}") from error
        found = (about.get("format"), about.get("analyzer"))
        if found != (FORMAT, ANALYZER_VERSION):
            raise WorkspaceError(
                f"{folder} was written in format {found[0]}.{found[1]}, this version of rerank reads "
                f"{FORMAT}.{ANALYZER_VERSION}; remove the folder and ingest the collection again"
            )
        try:
            engine = cls(folder, about["lang"])
            engine._view()
        except (KeyError, ValueError, sqlite3.Error) as error:
            if str(error) in ("disk I/O error", "database or disk is full"):
                raise EngineError(f"{folder} cannot be opened ({error}); free space and run again") from error
            raise WorkspaceError(
                f"{folder} is damaged ({error}); remove the folder and ingest the collection again"
            ) from error
        return engine

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, where: str
    ) -> LocalEngine:
        """Open or make the engine in its folder; it has no settings."""
        return cls.create(folder, lang) if new else cls.open(folder)

    def close(self) -> None:
        """Close the database; the engine cannot be used afterwards."""
        self._store.close()

    @contextmanager
    def _connection(self) -> Iterator[Store]:
        store = Store(self.folder / "documents.db")
        try:
            yield store
        finally:
            store.close()

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing; see :meth:`Engine.lock`."""
        return write_lock(self.folder)

    # -- writing -------------------------------------------------------------------------------------

    def ingest(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        *,
        encoders: Sequence[Encoder] = (),
        replace: bool = False,
        skip_refused: bool = False,
        source: str = "",
        progress: Callable[[int], object] | None = None,
    ) -> Ingested:
        """Add, update and remove documents, all or nothing; see :meth:`Engine.ingest`.

        encoders: are left to :meth:`write_features`.
        skip_refused, source, progress: have no meaning here; every document is taken, all at once.

        An id both in ``documents`` and in ``delete`` raises InputError. A failure of the disk raises
        EngineError, and nothing was ingested.
        """
        doing = "ingesting; nothing was ingested"
        if replace:
            documents, delete = self._replacing(documents, delete)
        with write_lock(self.folder), self._connection() as store:
            with disk(doing):
                self._recover(store)
            try:
                return self._write(store, documents, delete, doing)
            finally:
                self._tidy(store)

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
        self, store: Store, documents: Iterable[Document], delete: Iterable[str], doing: str
    ) -> Ingested:
        state = store.state()
        generation, first, row = state.generation + 1, state.rows, state.rows
        with disk(doing):
            writer = self._index.writer()
        try:
            with disk(doing):
                store.begin(state)
                ids = StringWriter(self.folder / "ids", first)
            replaced = 0
            stream = iter(documents)
            while chunk := list(islice(stream, _CHUNK)):
                with disk(doing):
                    old = store.add(chunk, row, first, generation)
                    ids.extend([document.id for document in chunk])
                    writer.delete(old)
                    writer.add(row, [document.content for document in chunk])
                row += len(chunk)
                replaced += len(old)
            gone = list(dict.fromkeys(delete))
            with disk(doing):
                rows = store.rows_alive(gone)
                for id, number in rows.items():
                    if number >= first:
                        raise InputError(f"id {id!r} is both ingested and deleted; do only one of the two")
                store.kill(list(rows.values()), generation)
                writer.delete(list(rows.values()))
                ids.close()
                alive = state.documents + (row - first) - replaced - len(rows)
                new = State(generation, row, alive, -1)
                if row == first and not rows:
                    store.rollback()
                    writer.rollback()
                    self._build(store, state)
                else:
                    self._build(store, new)
                    self._switch(store, new, writer)
        except BaseException:
            writer.rollback()
            with suppress(Exception):  # what cannot be undone now is undone by whoever opens next
                store.rollback()
                self._recover(store)
            raise
        unknown = tuple(id for id in gone if id not in rows)
        return Ingested(row - first - replaced, replaced, len(rows), unknown)

    def _switch(self, store: Store, new: State, writer: IndexWriter) -> None:
        """Make ``new`` the state: the three commits of the module's docstring."""
        store.commit_pending(new)
        stamp = writer.commit()
        with disk("publishing what was ingested; it will show with the next command"):
            store.publish(stamp)
        writer.close()

    def _recover(self, store: Store) -> None:
        """Finish or undo what a crash has left. The caller holds the write lock."""
        if store.pending() is not None:
            state, stamp = store.state(), self._index.stamp()
            if stamp == state.stamp:
                store.undo(state)
            else:
                store.publish(stamp)
        tfidf_build.forget(self.folder / "tfidf", store.state().generation)

    def _tidy(self, store: Store) -> None:
        """Give back space: after a failure all that was written for nothing, as far as it can be undone."""
        with suppress(OSError, sqlite3.Error):
            if store.pending() is None:  # else all of it may still be published
                state = store.state()
                tfidf_build.clean(self.folder / "tfidf", state.generation)
                StringWriter(self.folder / "ids", state.rows).close()
        with suppress(sqlite3.Error):
            store.checkpoint()

    def _refresh(self) -> None:
        """Write the tf-idf index of the newest generation, should it be lost.

        Raises BusyError when another process is writing.
        """
        with write_lock(self.folder), disk("updating the tf-idf index"), self._connection() as store:
            self._recover(store)
            state = store.state()
            self._build(store, state)
            tfidf_build.clean(self.folder / "tfidf", state.generation)

    def _build(self, store: Store, state: State) -> None:
        folder = self.folder / "tfidf"
        start = tfidf_build.counted(folder, state.generation)
        contents = (
            (row, f"{title}\n{text}" if title and text else title or text)
            for row, title, text in store.contents(state, start)
        )
        tfidf_build.build(folder, state, contents, lambda: store.alive(state), self._index.analyze)

    def write_features(
        self,
        encoders: Sequence[Encoder],
        *,
        part: tuple[int, int] = (0, 1),
        force: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Encode the documents that lack features; see :meth:`Engine.write_features`.

        One process writes to the folder at a time, so there is only the one part.
        """
        if part != (0, 1):
            raise UsageError(f"the local engine encodes in one process; leave {setting_hint('slice')} out")
        encoded = {}
        with write_lock(self.folder), self._connection() as store:
            with disk("storing features"):
                self._recover(store)
            state = store.state()
            for name, version, encode, *_ in encoders:
                if force:
                    self._features.remove(name, version)
                documents = store.documents(self._features.start(name, version))
                encoded[name] = self._features.write(name, version, documents, state.rows, encode, progress)
        return encoded

    def missing_features(self, name: str, version: str) -> int:
        """Count the documents without a feature; see :meth:`Engine.missing_features`."""
        with self._connection() as store:
            return store.count(self._features.start(name, version))

    def prepared(self, name: str, version: str) -> int | None:
        """Count the documents that cannot be found; stored features are all it takes to find the others."""
        return self.missing_features(name, version) if self._features.stored(name, version) else None

    def feature_versions(self) -> dict[str, str]:
        """Ranker name -> version of the stored features."""
        return self._features.versions()

    # -- reading -------------------------------------------------------------------------------------

    def _view(self) -> _View:
        """The newest published generation, or the one at hand while a writer is just switching."""
        with self._mutex:
            changes = self._store.changes()
            if self._now is not None and changes == self._seen:
                return self._now
            give_up, recovered = time.monotonic() + _PATIENCE, 0
            while True:
                state = self._store.state()
                if self._now is not None and self._now.state == state:
                    break
                searcher = self._index.searcher(state.stamp)
                if searcher is not None and self._store.state() == state:
                    self._now = _View(state, searcher, Strings(self.folder / "ids", state.rows))
                    break
                # tantivy has committed and SQLite not yet published: either right now, or in a crash.
                with suppress(BusyError), write_lock(self.folder):
                    self._recover(self._store)
                    recovered += 1
                    if recovered > 3:
                        raise WorkspaceError(
                            f"documents and text index in {self.folder} are not of the same state; "
                            "remove the folder and ingest the collection again"
                        )
                    continue
                if self._now is not None:
                    return self._now
                if time.monotonic() > give_up:
                    raise BusyError(f"another process keeps writing to {self.folder}; try again later")
                time.sleep(0.01)
            self._seen = changes
            return self._now

    def _tfidf_at(self, view: _View) -> TfIdf:
        """The tf-idf index of the view; an older one while another process is writing."""
        wanted = view.state.generation
        if self._tfidf is not None and self._tfidf.manifest.generation == wanted:
            return self._tfidf
        found = TfIdf.latest(self.folder / "tfidf", wanted)
        if found is None or found.manifest.generation < wanted:
            try:
                self._refresh()
            except BusyError:
                if found is None:
                    raise
            found = TfIdf.latest(self.folder / "tfidf", wanted) or found
        if found is None:
            raise EngineError(f"the tf-idf index of {self.folder} was replaced meanwhile; search again")
        self._tfidf = found
        return found

    def __len__(self) -> int:
        """Count the documents."""
        return self._view().state.documents

    def state(self) -> str:
        """The number of the published generation; see :meth:`Engine.state`."""
        return str(self._view().state.generation)

    def ids(self) -> list[str]:
        """All document ids, ascending by code point."""
        return self._store.ids()

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Those of the given ids that there are documents with."""
        return set(self._store.rows_of(list(ids), self._view().state))

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents with these ids, in this order; None where there is none."""
        found = self._store.get(ids)
        return [found.get(id) for id in ids]

    def documents(self) -> Iterator[Document]:
        """All documents as a stream, by row: in the order of ingestion."""
        # On a connection of its own: an open cursor would hold back what the others may see.
        with self._connection() as store:
            for _, document in store.documents():
                yield document

    def search_many(
        self,
        texts: Sequence[str],
        *,
        first_stage: str,
        depth: int,
        features: Mapping[str, str] | None = None,
        retrieve: Sequence[Retriever] = (),
    ) -> Iterator[Candidates]:
        """Retrieve the best documents for each text; see :meth:`Engine.search`."""
        for signal in (first_stage, *(name for name in retrieve if isinstance(name, str))):
            check_signal(signal, self.first_stages, depth)
        view = self._view()
        vectors = [one for one in retrieve if isinstance(one, Nearest)]
        dead = self._dead(view) if vectors else np.empty(0, np.int64)
        nearest = [
            self._features.top(one, one.depth or depth, view.state.rows, dead, view.ids.get)
            for one in vectors
        ]
        for text in texts:
            lexical = _Lexical(self, view, text)
            if not retrieve:
                rows, scores = lexical.top(first_stage, depth)
                yield self._candidates(view.ids.get(rows), rows, scores, features)
                continue
            found = {name: lexical.top(name, depth)[0] for name in retrieve if isinstance(name, str)}
            found |= {one.name: next(rows) for one, rows in zip(vectors, nearest)}
            yield self._union(view, lexical, first_stage, found, features)

    def _union(
        self,
        view: _View,
        lexical: _Lexical,
        first_stage: str,
        found: Mapping[str, NDArray[np.int64]],
        features: Mapping[str, str] | None,
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
        candidates = self._candidates(view.ids.get(rows), rows, scores[order], features)
        return replace(candidates, found={name: where[candidates.rows] for name, where in member.items()})

    def _dead(self, view: _View) -> NDArray[np.int64]:
        """The rows that no document is in any more."""
        state = view.state
        if state.documents == state.rows:
            return np.empty(0, np.int64)
        with self._mutex:
            if self._gone is None or self._gone[0] != state.generation:
                self._gone = (state.generation, np.flatnonzero(~self._store.alive(state)))
            return self._gone[1]

    def select(
        self, text: str, ids: Sequence[str], *, first_stage: str, features: Mapping[str, str] | None = None
    ) -> Candidates:
        """Score and order the given documents; see :meth:`Engine.select`."""
        check_signal(first_stage, self.first_stages)
        view = self._view()
        found = self._store.rows_of(ids, view.state)
        for id in ids:
            if id not in found:
                raise KeyError(id)
        rows = np.array([found[id] for id in ids], np.int64)
        scores = _Lexical(self, view, text).scores(first_stage, rows)
        order = rank(ids, scores)
        return self._candidates([ids[i] for i in order], rows[order], scores[order], features)

    def lexical(self, text: str, candidates: Candidates, signal: str) -> NDArray[np.float64]:
        """Score candidates of a search; see :meth:`Engine.lexical`."""
        check_signal(signal, self.first_stages)
        return _Lexical(self, self._view(), text).scores(signal, candidates.rows)

    def _candidates(
        self,
        ids: list[str],
        rows: NDArray[np.int64],
        scores: NDArray[np.float64],
        features: Mapping[str, str] | None,
    ) -> Candidates:
        """Settle ties by id, and add the features; ``scores`` are in descending order."""
        order = _ties_by_id(ids, scores)
        if order is not None:
            ids, rows = [ids[i] for i in order], rows[order]
        stored, missing = self._features.gather(features or {}, rows)
        return Candidates(ids, scores, rows, stored, missing)


class _Lexical:
    """One text's lexical scores in one view; what several questions need is computed once."""

    def __init__(self, engine: LocalEngine, view: _View, text: str) -> None:
        self._engine, self._view, self._text = engine, view, text
        self._all: NDArray[np.float64] | None = None
        self._bm25 = (np.empty(0, np.int64), np.empty(0))  # what a search has said already

    def _tfidf(self) -> NDArray[np.float64]:
        if self._all is None:
            terms = self._engine._index.analyze(self._text)
            self._all = self._engine._tfidf_at(self._view).all(terms)
        return self._all

    def top(self, signal: str, depth: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and scores of the ``depth`` best documents, best first; those that are kept of the documents
        that tie with the last one are those with the smallest ids.
        """
        if signal == "bm25":
            rows, scores = self._bm25 = self._engine._index.top(self._view.searcher, self._text, depth)
        else:
            rows, scores = best(self._tfidf(), depth)
        if len(rows) > depth:  # all that tie with the last one are there
            first = int(np.searchsorted(-scores, -scores[depth - 1]))
            tied = rows[first:]
            ids = self._view.ids.get(tied)
            kept = tied[sorted(range(len(ids)), key=ids.__getitem__)[: depth - first]]
            rows, scores = np.concatenate([rows[:first], kept]), scores[:depth]
        return rows, scores

    def scores(self, signal: str, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) scores of the given rows: the numbers that :meth:`top` gives; 0 where no term is shared."""
        if signal == "bm25":
            known, values = self._bm25
            scores, place = np.zeros(len(rows)), np.argsort(known)
            where = np.searchsorted(known, rows, sorter=place)
            there = where < len(known)
            there[there] = known[place[where[there]]] == rows[there]
            scores[there] = values[place[where[there]]]
            scores[~there] = self._engine._index.scores(self._view.searcher, self._text, rows[~there])
            return scores
        return at(self._tfidf(), rows)


def _ties_by_id(ids: list[str], scores: NDArray[np.float64]) -> list[int] | None:
    """Permutation to the order of rerank.order.rank, or None when it is that already.

    Half of a thousand BM25 scores are ties, mostly in order already: this is four times as fast.
    """
    tied = scores[1:] == scores[:-1]
    edges = np.flatnonzero(np.diff(tied, prepend=False, append=False)).tolist()
    order = None
    for first, last in zip(edges[::2], edges[1::2]):
        run = ids[first : last + 1]
        if sorted(run) != run:
            order = order or list(range(len(ids)))
            order[first : last + 1] = sorted(range(first, last + 1), key=ids.__getitem__)
    return order
