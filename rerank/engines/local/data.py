"""One numbering of the documents' rows: database, text index, tf-idf index and features, at one generation.

A compaction makes a folder with new numbers beside it, and a reader that is at work goes on in the old one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tantivy
from numpy.typing import NDArray

from rerank.engines.local import tfidf_build
from rerank.engines.local.bm25 import TextIndex
from rerank.engines.local.features import Features
from rerank.engines.local.files import disk, write_lock
from rerank.engines.local.store import State, Store
from rerank.engines.local.strings import Strings, StringWriter
from rerank.engines.local.tfidf import TfIdf, at, best
from rerank.errors import BusyError, EngineError, WorkspaceError
from rerank.filters import Filter
from rerank.records import Candidates

_PATIENCE = 30.0  # seconds that opening waits for a writer that is just switching generations
_KEPT = 16  # sets of filters whose rows are remembered
_NUMBER = 40  # bits of a row's handle below the number of its data: a trillion rows
_FILES = ("documents.db*", "ids.*", "index", "tfidf", "features")


@dataclass
class Kept:
    """What filters leave of one generation. rows: (all rows,) bool."""

    query: tantivy.Query
    index: TextIndex
    view: View

    @cached_property
    def rows(self) -> NDArray[np.bool_]:
        """Looked up when it is first needed: the text index itself does not need it."""
        found = np.zeros(self.view.state.rows, np.bool_)
        found[self.index.rows(self.view.searcher, self.query)] = True
        return found


@dataclass(frozen=True)
class View:
    """What a reader sees: one generation, all parts at the same one."""

    state: State
    searcher: tantivy.Searcher
    ids: Strings


class Data:
    """The documents of an engine in one numbering of their rows, open for reading.

    engine: the engine's folder. name: the data's own folder in it; "" for the first.
    """

    def __init__(self, engine: Path, name: str, lang: str | None) -> None:
        self.engine, self.folder = engine, engine / name
        self.number = int(name.rpartition("-")[2]) if name else 0
        self.store = Store(self.folder / "documents.db")
        self.index = TextIndex(self.folder / "index", lang)
        self.features = Features(self.folder / "features")
        self._mutex = threading.Lock()
        self._seen: object = None
        self._now: View | None = None
        self._tfidf: TfIdf | None = None
        self._gone: tuple[int, NDArray[np.int64]] | None = None
        self._kept: dict[tuple[Filter, ...], Kept] = {}
        # As long as it is held, nobody removes the folder.
        held = os.open(self.folder / "features", os.O_RDONLY)
        self.let_go = weakref.finalize(self, os.close, held)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH)

    @classmethod
    def create(cls, engine: Path, name: str, lang: str | None) -> Data:
        """Make an empty one, in place of what a creation that was cut off has left."""
        folder = engine / name
        remove(engine, name)
        folder.mkdir(exist_ok=True)
        Store.create(folder / "documents.db")
        TextIndex.create(folder / "index")
        (folder / "tfidf").mkdir()
        (folder / "features").mkdir()
        data = cls(engine, name, lang)
        data.index.share(folder / "documents.db")
        return data

    def close(self) -> None:
        """Close the database, and let others remove the folder."""
        self.store.close()
        self.let_go()

    @contextmanager
    def connection(self) -> Iterator[Store]:
        """Open another connection to the database."""
        store = Store(self.folder / "documents.db")
        try:
            yield store
        finally:
            store.close()

    # -- keeping it whole (the caller holds the write lock) ------------------------------------------------

    def recover(self, store: Store) -> None:
        """Finish or undo what a crash has left."""
        if store.pending() is not None:
            state, stamp = store.state(), self.index.stamp()
            if stamp == state.stamp:
                store.undo(state)
            else:
                store.publish(stamp)
        tfidf_build.forget(self.folder / "tfidf", store.state().generation)

    def tidy(self, store: Store) -> None:
        """Give back space: after a failure all that was written for nothing, as far as it can be undone."""
        with suppress(OSError, sqlite3.Error):
            if store.pending() is None:  # else all of it may still be published
                state = store.state()
                tfidf_build.clean(self.folder / "tfidf", state.generation)
                StringWriter(self.folder / "ids", state.rows).close()
        with suppress(sqlite3.Error):
            store.checkpoint()
        with suppress(OSError):
            self.index.share(self.folder / "documents.db")

    def build(self, store: Store, state: State) -> None:
        """Write the tf-idf index of a state."""
        folder = self.folder / "tfidf"
        start = tfidf_build.counted(folder, state.generation)
        contents = (
            (row, f"{title}\n{text}" if title and text else title or text)
            for row, title, text in store.contents(state, start)
        )
        tfidf_build.build(folder, state, contents, lambda: store.alive(state), self.index.analyze)

    def _refresh(self) -> None:
        """Write the tf-idf index of the newest generation, should it be lost.

        Raises BusyError when another process is writing.
        """
        with write_lock(self.engine), disk("updating the tf-idf index"), self.connection() as store:
            self.recover(store)
            state = store.state()
            self.build(store, state)
            tfidf_build.clean(self.folder / "tfidf", state.generation)

    # -- reading -------------------------------------------------------------------------------------------

    def view(self) -> View:
        """The newest published generation, or the one at hand while a writer is just switching."""
        with self._mutex:
            changes = self.store.changes()
            if self._now is not None and changes == self._seen:
                return self._now
            give_up, recovered = time.monotonic() + _PATIENCE, 0
            while True:
                state = self.store.state()
                if self._now is not None and self._now.state == state:
                    break
                searcher = self.index.searcher(state.stamp)
                if searcher is not None and self.store.state() == state:
                    self._now = View(state, searcher, Strings(self.folder / "ids", state.rows))
                    break
                # tantivy has committed and SQLite not yet published: either right now, or in a crash.
                if self.store.read_only:
                    if self._now is not None:
                        return self._now
                    raise WorkspaceError(
                        f"{self.engine} was left in the middle of a change, and can only be read here;"
                        " open it once where it can be written to"
                    )
                with suppress(BusyError), write_lock(self.engine):
                    self.recover(self.store)
                    recovered += 1
                    if recovered > 3:
                        raise WorkspaceError(
                            f"documents and text index in {self.engine} are not of the same state; "
                            "remove the folder and ingest the collection again"
                        )
                    continue
                if self._now is not None:
                    return self._now
                if time.monotonic() > give_up:
                    raise BusyError(f"another process keeps writing to {self.engine}; try again later")
                time.sleep(0.01)
            self._seen = changes
            return self._now

    def tfidf_at(self, view: View) -> TfIdf:
        """The tf-idf index of the view; an older one while another process is writing."""
        wanted, folder = view.state.generation, self.folder / "tfidf"
        if self._tfidf is not None and self._tfidf.manifest.generation == wanted:
            return self._tfidf
        found = TfIdf.latest(folder, wanted)
        if (found is None or found.manifest.generation < wanted) and not self.store.read_only:
            try:
                self._refresh()
            except BusyError:
                if found is None:
                    raise
            found = TfIdf.latest(folder, wanted) or found
        if found is None:
            raise EngineError(f"the tf-idf index of {self.engine} was replaced meanwhile; search again")
        self._tfidf = found
        return found

    def dead(self, view: View) -> NDArray[np.int64]:
        """The rows that no document is in any more."""
        state = view.state
        if state.documents == state.rows:
            return np.empty(0, np.int64)
        with self._mutex:
            if self._gone is None or self._gone[0] != state.generation:
                self._gone = (state.generation, np.flatnonzero(~self.store.alive(state)))
            return self._gone[1]

    def kept(self, view: View, filters: Sequence[Filter]) -> Kept | None:
        """What filters leave; None: all. Raises UsageError for a field that no document has."""
        if not filters:
            return None
        with self._mutex:
            known = self._kept.get(tuple(filters))
        if known is None or known.view is not view:
            known = Kept(self.index.filter(view.searcher, filters), self.index, view)
            with self._mutex:
                # Those of older views would hold their files open.
                self._kept = {key: one for key, one in self._kept.items() if one.view is view}
                while len(self._kept) >= _KEPT:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[tuple(filters)] = known
        return known

    def candidates(
        self,
        ids: list[str],
        rows: NDArray[np.int64],
        scores: NDArray[np.float64],
        features: Mapping[str, str] | None,
        found: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> Candidates:
        """Settle ties by id, and add the features; ``scores`` are in descending order.

        found: retriever -> (all rows,) who was found by it.
        """
        order = ties_by_id(ids, scores)
        if order is not None:
            ids, rows = [ids[i] for i in order], rows[order]
        stored, missing = self.features.gather(features or {}, rows)
        by = {name: where[rows] for name, where in (found or {}).items()}
        return Candidates(ids, scores, rows + (self.number << _NUMBER), stored, missing, by)


def number_of(handles: NDArray[np.int64]) -> int:
    """The number of the data that candidates are of."""
    return int(handles[0]) >> _NUMBER if len(handles) else 0


def rows_of(handles: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of candidates in their data."""
    return handles & ((1 << _NUMBER) - 1)


def remove(engine: Path, name: str) -> None:
    """Remove data that nobody reads any more."""
    if name:
        shutil.rmtree(engine / name, ignore_errors=True)
        return
    for pattern in _FILES:
        for path in engine.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def remove_others(engine: Path, kept: str) -> None:
    """Remove the data of other numbers than those in use, if nobody reads them any more."""
    names = {path.name for path in engine.glob("data-*")}
    if (engine / "documents.db").exists():
        names.add("")
    for name in names - {kept}:
        with suppress(OSError):
            try:
                held = os.open(engine / name / "features", os.O_RDONLY)
            except FileNotFoundError:  # a creation that was cut off
                remove(engine, name)
                continue
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(engine, name)
            finally:
                os.close(held)


class Lexical:
    """One text's lexical scores in one view; what several questions need is computed once."""

    def __init__(self, data: Data, view: View, text: str, kept: Kept | None = None) -> None:
        self._data, self._view, self._text, self._kept = data, view, text, kept
        self._all: NDArray[np.float64] | None = None
        self._bm25 = (np.empty(0, np.int64), np.empty(0))  # what a search has said already

    def _tfidf(self) -> NDArray[np.float64]:
        if self._all is None:
            terms = self._data.index.analyze(self._text)
            self._all = self._data.tfidf_at(self._view).all(terms)
        return self._all

    def top(self, signal: str, depth: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows and scores of the ``depth`` best documents, best first; those that are kept of the documents
        that tie with the last one are those with the smallest ids. Only what the filters leave is found.
        """
        if signal == "bm25":
            among = None if self._kept is None else self._kept.query
            rows, scores = self._bm25 = self._data.index.top(self._view.searcher, self._text, depth, among)
        else:
            known = self._tfidf()
            if self._kept is not None and len(known):
                known = np.where(self._kept.rows[: len(known)], known, 0.0)
            rows, scores = best(known, depth)
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
            scores[~there] = self._data.index.scores(self._view.searcher, self._text, rows[~there])
            return scores
        return at(self._tfidf(), rows)


def ties_by_id(ids: list[str], scores: NDArray[Any]) -> list[int] | None:
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
