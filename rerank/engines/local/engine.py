"""LocalEngine: the engine in a folder."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import NoCollectionError, UsageError, WorkspaceError
from rerank.common.files import as_system_error, write_bytes
from rerank.documents.records import Candidates, Document
from rerank.documents.text import ANALYZER_VERSION, language
from rerank.engines.base import DEFAULT_WRITE, Engine, TermStatistics, WriteOptions, WriteResult
from rerank.engines.local.documents import Documents, Version
from rerank.engines.local.features import LocalFeatures
from rerank.engines.local.files import disk, unreadable, write_lock
from rerank.engines.local.snapshot import Lexical, Snapshot
from rerank.engines.local.storage import Storage, remove_unused
from rerank.engines.search_request import SearchRequest, batches, check_signal
from rerank.engines.template_hits import hits_of_run, union_with_search

FORMAT = 5
"""Version of the folder's layout; a folder of another version is not opened."""

_FILE = "engine.json"
_WASTE = 100  # fewer dead rows are not compacted


class LocalEngine(Engine):
    """Documents, text index and features in one folder. Reads are possible during writes.

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
        self._current = self._open_storage()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path, lang: str | None = None) -> LocalEngine:
        """Create an empty engine for documents in ``lang`` (None: unknown or mixed).

        Raises WorkspaceError if the folder has an engine.
        """
        lang = language(lang)
        with disk(f"creating {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            with write_lock(folder):
                if (folder / _FILE).exists():
                    raise WorkspaceError(f"{folder} already holds a collection; open it or remove it")
                Storage.create(folder, "data-0", lang).close()
                _write_description(folder, lang, "data-0")
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> LocalEngine:
        """Open an engine. Raises WorkspaceError if it is missing, damaged or of another version.

        A damaged text index is an error of the first search; every write builds it again.
        """
        with _readable(folder):
            engine = cls(folder)
            engine._current.version()
        return engine

    @classmethod
    def in_workspace(
        cls, folder: Path, lang: str | None, settings: Mapping[str, Any], *, new: bool, settings_file: str
    ) -> LocalEngine:
        if settings:
            raise UsageError(
                f"{settings_file}: {next(iter(settings))!r} is not a setting: the engine local has none;"
                " remove it"
            )
        if new:
            return cls.create(folder, lang)
        engine = cls.open(folder)
        if engine.lang != lang:
            raise WorkspaceError(
                f"{settings_file}: lang is {lang or ''!r}, but the documents were indexed as"
                f" {engine.lang or 'mixed languages'}; correct lang"
            )
        return engine

    def _open_storage(self) -> Storage:
        while True:
            stamp = self._file_stamp()
            description = _read_description(self.folder)
            self.lang = description.lang
            try:
                storage = Storage(self.folder, description.data, description.lang)
            except (OSError, ValueError, sqlite3.Error, WorkspaceError):
                if self._file_stamp() == stamp:  # otherwise a compaction has replaced the folder
                    raise
                continue
            self._stamp = stamp
            return storage

    def _file_stamp(self) -> object:
        try:
            stat = (self.folder / _FILE).stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def storage(self) -> Storage:
        """Return the files in use. After a compaction, also by another process, these are new ones."""
        with self._mutex:
            if self._file_stamp() != self._stamp:
                self._current = self._open_storage()
            return self._current

    def _snapshot(self) -> Snapshot:
        with _readable(self.folder):
            return self.storage().snapshot()

    def _documents(self) -> tuple[Documents, Version]:
        """Return the documents and their newest complete version."""
        with _readable(self.folder):
            storage = self.storage()
            return storage.documents, storage.version()

    def close(self) -> None:
        self._current.close()

    def lock(self) -> AbstractContextManager[None]:
        return write_lock(self.folder)

    # -- writing -------------------------------------------------------------------------------------

    def write(
        self,
        documents: Iterable[Document],
        delete: Iterable[str] = (),
        options: WriteOptions = DEFAULT_WRITE,
    ) -> WriteResult:
        """See :meth:`Engine.write`. Ignores all options but ``replace``.

        Raises InputError for an id in both ``documents`` and ``delete``.
        """
        with write_lock(self.folder):
            storage = self.storage()
            with disk("opening the documents; nothing was ingested"):
                opened = storage.connection(writes=True)
            with opened as connection:
                storage.derive(connection)
                result = connection.write(documents, delete, replace=options.replace)
                storage.derive(connection)
            self._reclaim(storage)
        return result

    def _reclaim(self, storage: Storage) -> None:
        """Compact if many rows are dead: they count in the statistics of BM25."""
        try:
            self.compact(max(storage.newest().documents // 5, _WASTE))
        except Exception as error:
            warnings.warn(
                f"{self.folder}: the ingest is complete, but the disk space of deleted documents could not be"
                f" reclaimed: {error}",
                stacklevel=3,
            )

    def compact(self, max_dead: int = 0) -> int:
        """Copy the documents if more than ``max_dead`` rows are dead; return the number of dead rows.

        The caller holds the lock, and everything is indexed.
        """
        storage = self.storage()
        version = storage.newest()
        dead = version.rows - version.documents
        if dead > max_dead:
            self._copy(storage, version)
        remove_unused(self.folder, self._current.folder.name)
        return dead

    def _copy(self, storage: Storage, version: Version) -> None:
        """Copy the living documents to a new folder, and switch to it."""
        doing = "compacting; nothing was changed"
        name = f"data-{storage.number + 1}"
        new: Storage | None = None
        try:
            with disk(doing):
                new = Storage.create(self.folder, name, self.lang)
            with new.connection(writes=True) as documents, storage.connection() as old:
                documents.write((document for _, document in old.documents(version)))
                new.derive(documents)
                with disk(doing):
                    new.features.copy(storage.features, np.flatnonzero(old.alive(version)))
            new.close()
            with disk(doing):
                _write_description(self.folder, self.lang, name)
        except BaseException:
            if new is not None:
                new.close()
            shutil.rmtree(self.folder / name, ignore_errors=True)
            raise
        self.storage()
        storage.release()

    @property
    def features(self) -> LocalFeatures:
        return LocalFeatures(self)

    # -- reading -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        _, version = self._documents()
        return version.documents

    def stores_documents(self) -> bool:
        with _readable(self.folder):
            return self.storage().newest().documents > 0

    def ids(self) -> list[str]:
        documents, version = self._documents()
        return documents.ids(version)

    def contains(self, ids: Iterable[str]) -> set[str]:
        documents, version = self._documents()
        return set(documents.rows_of(list(ids), version))

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        documents, version = self._documents()
        stored = documents.get(ids, version)
        return [stored.get(id) for id in ids]

    def documents(self) -> Iterator[Document]:
        """Read all documents of the newest version, in the order of ingestion."""
        with _readable(self.folder):
            storage = self.storage()
            version = storage.version()
        # A cursor on the main connection would keep an old version.
        with storage.connection() as documents:
            for _, document in documents.documents(version):
                yield document

    def search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        for batch in batches(requests):
            options = batch[0]
            if options.template is not None:
                yield from map(self._search_run, batch)
                continue
            options.check(self.first_stages)
            if options.ids is not None:
                yield from map(self._select, batch)
            else:
                yield from self._search(batch)

    def _search_run(self, request: SearchRequest) -> Candidates:
        """Return the hits of a TREC run, joined with the results of other retrievers."""
        assert request.template is not None
        self.check_template(*request.template)
        hits = hits_of_run(request)
        if not request.retrievers:
            return hits
        (retrieved,) = self._search([request.without_template(self.first_stages[0])])
        return union_with_search(request, hits, retrieved)

    def _search(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Search for requests with equal options; the vectors of one ranker are compared together."""
        options = requests[0]
        snapshot = self._snapshot()
        filtered = snapshot.filtered(options.filters)
        nearest_rows: dict[str, Iterator[NDArray[np.int64]]] = {}
        approximate: list[str] = []
        for queries in zip(*(request.vector_queries for request in requests)):
            depth = queries[0].depth or options.depth
            nearest_rows[queries[0].name], is_approximate = snapshot.nearest(queries, depth, filtered)
            if is_approximate:
                approximate.append(queries[0].name)

        for request in requests:
            lexical = Lexical(snapshot, request.text, filtered)
            if not options.retrievers:
                rows, scores = lexical.top(options.first_stage, options.depth)
                yield snapshot.candidates(rows, scores, options.features)
                continue

            rows_by_retriever: dict[str, NDArray[np.int64]] = {}
            scores_by_signal: dict[str, NDArray[np.float64]] = {}
            for signal in options.signals:
                rows_by_retriever[signal], scores_by_signal[signal] = lexical.top(signal, options.depth)
            for name, rows_of_queries in nearest_rows.items():
                rows_by_retriever[name] = next(rows_of_queries)
            union, retrieved_by = _union(rows_by_retriever, options.first_stage)
            known_scores = scores_by_signal.get(options.first_stage, np.empty(0))
            other_scores = lexical.scores(options.first_stage, union[len(known_scores) :])
            scores = np.concatenate((known_scores, other_scores))
            yield snapshot.candidates(union, scores, options.features, retrieved_by, approximate)

    def _select(self, request: SearchRequest) -> Candidates:
        snapshot = self._snapshot()
        selected = snapshot.documents.rows_of(request.ids or (), snapshot.version)
        rows = np.array(list(selected.values()), np.int64)
        scores = Lexical(snapshot, request.text).scores(request.first_stage, rows)
        return snapshot.candidates(rows, scores, request.features)

    def term_statistics(self, text: str) -> TermStatistics:
        snapshot = self._snapshot()
        tfidf = snapshot.tfidf
        frequencies = {term: tfidf.frequency(term) for term in set(snapshot.index.analyze(text))}
        return TermStatistics(snapshot.version.documents, tfidf.mean_length, frequencies)

    def score(self, text: str, signal: str, candidates: Candidates) -> NDArray[np.float64]:
        check_signal(signal, self.first_stages)
        snapshot = self._snapshot()
        lexical = Lexical(snapshot, text)
        rows = snapshot.rows_of(candidates)
        if rows is not None:
            return lexical.scores(signal, rows)
        row_by_id = snapshot.documents.rows_of(candidates.ids, snapshot.version)
        scores = lexical.scores(signal, np.array(list(row_by_id.values()), np.int64))
        score_by_id = dict(zip(row_by_id, scores.tolist()))
        return np.array([score_by_id.get(id, 0.0) for id in candidates.ids], np.float64)


def _union(
    rows_by_retriever: Mapping[str, NDArray[np.int64]], first: str
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.bool_]]]:
    """Return n distinct rows, and retriever -> (n,) bool: whether it found a row.

    The rows of ``first`` come first and keep their order: it is almost the order of the candidates, which is
    sorted faster. Other rows are searched in the few ones of a retriever, so that only these are sorted.

    first: a retriever, or another name, which has no rows.
    """
    union = rows_by_retriever.get(first, np.empty(0, np.int64))
    # Retriever -> whether it found a row of the union so far. Rows that are added later are not its rows.
    is_found_by = {first: np.ones(len(union), np.bool_)}
    for name, unsorted_rows in rows_by_retriever.items():
        if name == first or not len(unsorted_rows):
            continue
        rows = np.sort(unsorted_rows)
        positions = np.searchsorted(rows[:-1], union)
        is_found = rows[positions] == union
        is_new = np.ones(len(rows), np.bool_)
        is_new[positions[is_found]] = False
        union = np.concatenate((union, rows[is_new]))
        is_found_by[name] = np.concatenate((is_found, np.ones(np.count_nonzero(is_new), np.bool_)))
    retrieved_by: dict[str, NDArray[np.bool_]] = {}
    for name in rows_by_retriever:
        is_found = is_found_by.get(name, np.empty(0, np.bool_))
        retrieved_by[name] = np.zeros(len(union), np.bool_)
        retrieved_by[name][: len(is_found)] = is_found
    return union, retrieved_by


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn errors of reading a folder into one of rerank."""
    try:
        yield
    except (OSError, LookupError, ValueError, TypeError, sqlite3.Error) as error:
        raise unreadable(folder, error) from error


def _has_documents(folder: Path) -> bool:
    for path in folder.glob("data-*/documents.db"):
        try:
            if Documents(path).versions()[-1].rows:
                return True
        except sqlite3.Error as error:
            if "no such table" not in str(error):  # else an interrupted creation
                return True
    return False


class _Description(msgspec.Struct):
    """The content of ``engine.json``. data: name of the folder in use."""

    format: int
    analyzer: int
    lang: str | None
    data: Annotated[str, msgspec.Meta(pattern=r"^data-[0-9]{1,9}\Z")]


def _write_description(folder: Path, lang: str | None, data: str) -> None:
    description = _Description(FORMAT, ANALYZER_VERSION, lang, data)
    write_bytes(folder / _FILE, msgspec.json.encode(description) + b"\n")


def _read_description(folder: Path) -> _Description:
    path = folder / _FILE
    try:
        description = msgspec.json.decode(path.read_bytes(), type=_Description)
    except FileNotFoundError:
        if _has_documents(folder):
            raise WorkspaceError(
                f"{folder} holds documents, but no {_FILE}; restore that file, or remove the folder and"
                " ingest the collection again"
            ) from None
        raise NoCollectionError(f"{folder} holds no collection; ingest one first") from None
    except (ValueError, OSError) as error:
        raise as_system_error(error, path) or WorkspaceError(
            f"{path} cannot be read: {error}; restore the file"
        ) from error
    if (description.format, description.analyzer) != (FORMAT, ANALYZER_VERSION):
        raise WorkspaceError(
            f"{folder} was written in format {description.format}.{description.analyzer}, this version of"
            f" rerank reads {FORMAT}.{ANALYZER_VERSION}; remove the folder and ingest the collection again"
        )
    return description
