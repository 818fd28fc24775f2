"""Documents in SQLite. An update adds a row and marks the old one as dead, for readers of the old version."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.batches import batched
from rerank.common.errors import InputError, RepeatedIdError
from rerank.documents.records import Document
from rerank.engines.base import WriteResult
from rerank.engines.local.files import disk, is_full

_SCHEMA = """
CREATE TABLE documents (
    row INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    died INTEGER NOT NULL DEFAULT 0,   -- 0: alive; otherwise the first version without this row
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    rest TEXT,                         -- JSON [categories, links, lang, extra]; NULL: all are empty
    UNIQUE (id, died)
);
CREATE INDEX ids ON documents (row, id);
CREATE INDEX dead ON documents (died) WHERE died <> 0;
CREATE TABLE versions (
    number INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL,             -- rows below this one exist
    documents INTEGER NOT NULL,        -- number of living rows
    token INTEGER NOT NULL,            -- random, so versions of two collections differ
    stamp INTEGER                      -- commit of the text index that has this version; NULL: none
);
INSERT INTO versions VALUES (0, 0, 0, 0, 0);
"""

_COLUMNS = "id, title, text, rest"
_ALIVE = "row < ?1 AND (died = 0 OR died > ?2)"  # ?1: rows, ?2: version
_CHUNK = 1000  # documents that are inserted together
_DOING = "ingesting; nothing was ingested"
_SOME = 500  # ids per statement; old SQLite accepts 999 parameters
_SURROGATE = re.compile("[\ud800-\udfff]")


class Version(NamedTuple):
    """Rows below ``rows`` that are alive in a version."""

    number: int
    rows: int
    documents: int
    token: int
    stamp: int | None


class Documents:
    """One connection to ``documents.db``.

    writes: whether the connection writes. One that only reads needs neither write permission nor free space,
    unless a killed process left a log.
    """

    def __init__(self, path: Path, *, writes: bool = False) -> None:
        self._path = path
        self._writes = writes
        self._files: object = None  # files' state if opened without a log
        self._db = self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._path.open("rb").close()  # unlike SQLite, this says why a file cannot be opened
        self._files = None
        is_writable = os.access(self._path, os.W_OK) and os.access(self._path.parent, os.W_OK)
        database = None
        if is_writable or self._writes:
            database = self._open_to_write()
        return database or self._open_to_read()

    def _open_to_write(self) -> sqlite3.Connection | None:
        """Open the files to write. Return None if the disk is full, and this connection only reads."""
        try:
            return self._open("rw")
        except sqlite3.OperationalError as error:
            if not is_full(self._path):
                raise
            if self._writes:  # SQLite reports only an error of the disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
            return None

    def _open_to_read(self) -> sqlite3.Connection:
        """Open the files to read. Without a log, SQLite reads them as files that do not change."""
        files = self._state_of_files()
        try:
            return self._open("ro")
        except sqlite3.OperationalError:
            if self._log.exists() and self._log.stat().st_size:
                raise
            self._files = files
            return self._open("ro&immutable=1")

    def _open(self, mode: str) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode={mode}"
        # Threads share the connection, but must not share its cache of statements: with it, Python 3.13 and
        # 3.14 return rows of another thread's query. Without it, a statement is compiled each time.
        db = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=0, timeout=30
        )
        # An automatic checkpoint would write every ingest twice.
        db.executescript(
            "PRAGMA synchronous = FULL; PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 0"
        )
        db.execute("SELECT count(*) FROM versions").fetchone()
        return db

    def _state_of_files(self) -> object:
        states = []
        for path in (self._path, self._log):
            if path.exists():
                stat = path.stat()
                states.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return states

    @property
    def _log(self) -> Path:
        return self._path.with_name(f"{self._path.name}-wal")

    @classmethod
    def create(cls, path: Path) -> None:
        """Create a database without documents, in the first version."""
        db = sqlite3.connect(path, isolation_level=None)
        # Large pages avoid chains of overflow pages.
        db.executescript(f"PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA} COMMIT")
        db.close()

    def close(self) -> None:
        """Close the connection. The documents cannot be read by it afterwards."""
        self._db.close()

    def versions(self) -> list[Version]:
        """Return the version that is indexed, and after it one that is not indexed yet, if there is one."""
        if self._files is not None and self._files != self._state_of_files():
            self._db = self._connect()
        return [Version(*row) for row in self._db.execute("SELECT * FROM versions ORDER BY number")]

    # -- writing (the caller holds the write lock) -------------------------------------------------------

    def write(
        self, documents: Iterable[Document], delete: Iterable[str] = (), *, replace: bool = False
    ) -> WriteResult:
        """Store a new version of the documents in one transaction. It is not indexed yet.

        replace: delete all other documents.

        Raises InputError for an invalid or repeated id, EngineError if the disk is full.
        """
        (before,) = self.versions()
        ingest = _Ingest(before)
        ids = list(dict.fromkeys(delete))
        try:
            with disk(_DOING):
                self._db.execute("BEGIN IMMEDIATE")
            for chunk in batched(documents, _CHUNK):
                with disk(_DOING):
                    self._add(chunk, ingest)
            with disk(_DOING):
                deleted = self._delete(ids, ingest, replace=replace)
                added = ingest.end - ingest.first - ingest.updated
                if ingest.end > ingest.first or deleted:
                    counts = ingest.end, before.documents + added - len(deleted)
                    values = (ingest.number, *counts, secrets.randbits(31))
                    self._db.execute("INSERT INTO versions VALUES (?, ?, ?, ?, NULL)", values)
                self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.rollback()
                self.checkpoint()
            raise
        unknown = tuple(id for id in ids if id not in deleted)
        unchanged = int(ingest.unchanged.sum())
        return WriteResult(added, ingest.updated, len(deleted), unknown, unchanged=unchanged)

    def _delete(self, ids: Sequence[str], ingest: _Ingest, *, replace: bool) -> set[str]:
        """Delete documents, and return their ids. replace: also delete all that were not ingested."""
        rows = dict(self._select("SELECT id, row FROM documents WHERE died = 0 AND id IN", ids))
        for id, row in rows.items():
            if ingest.contains(row):
                raise InputError(f"id {id!r} is both ingested and deleted; remove it from one of the two")
        if replace:
            all_rows = self._db.execute("SELECT id, row FROM documents WHERE died = 0")
            rows |= {id: row for id, row in all_rows if not ingest.contains(row)}
        self._kill(list(rows.values()), ingest.number)
        return set(rows)

    def _add(self, documents: Sequence[Document], ingest: _Ingest) -> None:
        """Add a row for each document that is new or changed; the row with its old content dies."""
        new_rows: list[tuple[Any, ...]] = []
        replaced: list[int] = []
        values_of_documents = [_values(document) for document in documents]
        ids = [values[0] for values in values_of_documents]
        sql = "SELECT id, row, title, text, rest FROM documents WHERE died = 0 AND id IN"
        stored = {id: row_and_content for id, *row_and_content in self._select(sql, ids)}
        for id, *content in values_of_documents:
            if id in stored:
                row, *stored_content = stored[id]
                if ingest.contains(row):
                    position = ingest.end - ingest.first + int(ingest.unchanged.sum()) + 1
                    raise RepeatedIdError(id, position)
                if content == stored_content:
                    ingest.unchanged[row] = True
                    continue
                replaced.append(row)
            new_rows.append((ingest.end, id, *content))
            stored[id] = [ingest.end]
            ingest.end += 1
        self._kill(replaced, ingest.number)
        self._db.executemany(f"INSERT INTO documents (row, {_COLUMNS}) VALUES (?, ?, ?, ?, ?)", new_rows)
        ingest.updated += len(replaced)

    def _kill(self, rows: Sequence[int], version: int) -> None:
        self._db.executemany("UPDATE documents SET died = ? WHERE row = ?", [(version, row) for row in rows])

    def died(self, version: Version) -> list[int]:
        """Return the rows that a version no longer has, but the version before had."""
        rows = self._db.execute("SELECT row FROM documents WHERE died <> 0 AND died = ?", (version.number,))
        return [row for (row,) in rows]

    def publish(self, version: Version, stamp: int) -> None:
        """Record that a version is indexed, and remove older versions. stamp: commit of the text index."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            self._db.execute("UPDATE versions SET stamp = ? WHERE number = ?", (stamp, version.number))
            self._db.execute("DELETE FROM versions WHERE number < ?", (version.number,))

    def checkpoint(self) -> None:
        """Merge the write-ahead log into the database, unless another process reads or writes."""
        self._db.execute("PRAGMA busy_timeout = 0")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # -- reading -----------------------------------------------------------------------------------------

    def rows_of(self, ids: Sequence[str], version: Version) -> dict[str, int]:
        """Return id -> row of documents in a version, without unknown ids."""
        sql = f"SELECT id, row FROM documents WHERE {_ALIVE} AND id IN"
        return dict(self._select(sql, ids, version.rows, version.number))

    def get(self, ids: Sequence[str], version: Version) -> dict[str, Document]:
        """Return id -> document of a version, without unknown ids."""
        sql = f"SELECT {_COLUMNS} FROM documents WHERE {_ALIVE} AND id IN"
        selected = self._select(sql, ids, version.rows, version.number)
        return {values[0]: _document(values) for values in selected}

    def ids_of(self, rows: Sequence[int]) -> list[str]:
        """Return the ids of existing rows, in this order, also of deleted ones."""
        ids = dict(self._select("SELECT row, id FROM documents INDEXED BY ids WHERE row IN", rows))
        return [ids[row] for row in rows]

    def _select(self, sql: str, values: Sequence[str] | Sequence[int], *parameters: int) -> Iterator[Any]:
        """Yield the rows of a statement that ends in IN. Ids with a lone surrogate are unknown."""
        storable = [value for value in values if not (isinstance(value, str) and _SURROGATE.search(value))]
        for start in range(0, len(storable), _SOME):
            batch = storable[start : start + _SOME]
            marks = ",".join("?" * len(batch))
            yield from self._db.execute(f"{sql} ({marks})", [*parameters, *batch]).fetchall()

    def ids_by_row(self, version: Version) -> list[str]:
        """Return the ids of all rows, also of deleted ones."""
        sql = "SELECT id FROM documents INDEXED BY ids WHERE row < ? ORDER BY row"
        return [id for (id,) in self._db.execute(sql, (version.rows,))]

    def ids(self, version: Version) -> list[str]:
        """Return all ids, ascending by code point."""
        sql = f"SELECT id FROM documents WHERE {_ALIVE} ORDER BY id"
        return [row[0] for row in self._db.execute(sql, (version.rows, version.number))]

    def documents(self, version: Version, start: int = 0) -> Iterator[tuple[int, Document]]:
        """Yield the rows of a version and their documents, in the order of the rows. start: first row."""
        sql = f"SELECT row, {_COLUMNS} FROM documents WHERE {_ALIVE} AND row >= ?3 ORDER BY row"
        for row, *values in self._db.execute(sql, (version.rows, version.number, start)):
            yield row, _document(values)

    def alive(self, version: Version) -> NDArray[np.bool_]:
        """Return (rows,) bool: whether a row has a document in a version."""
        mask = np.ones(version.rows, np.bool_)
        sql = "SELECT row FROM documents WHERE row < ? AND died <> 0 AND died <= ?"
        mask[[row for (row,) in self._db.execute(sql, (version.rows, version.number))]] = False
        return mask

    def problem(self) -> str | None:
        """Return the first problem in the structure of the file, or None."""
        (state,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        return None if state == "ok" else str(state)


class _Ingest:
    """One ingest. Rows from ``first`` to ``end`` are new, and ``updated`` of them replace an older row."""

    def __init__(self, before: Version) -> None:
        self.number = before.number + 1
        self.first = before.rows
        self.end = before.rows
        self.updated = 0
        self.unchanged = np.zeros(before.rows, np.bool_)  # rows that were ingested again as they are

    def contains(self, row: int) -> bool:
        """Return whether the document of a living row is part of the ingest: it is new, or unchanged."""
        return row >= self.first or bool(self.unchanged[row])


def _mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_mapping).encode


def _other_fields(document: Document) -> str | None:
    """Return the JSON of the fields without a column, or None if they are empty. Raises InputError."""
    values = [document.categories, document.links, document.lang, document.extra or None]
    if not any(values):
        return None
    try:
        return _encode(values)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"document {document.id!r} has a field that is not JSON ({error}); correct it"
        ) from None


def _values(document: Document) -> tuple[str, str, str, str | None]:
    """Return the values of ``_COLUMNS``. Raises InputError for a document that cannot be stored."""
    if not document.id:
        raise InputError("a document has an empty id; give every document a non-empty _id")
    other_fields = _other_fields(document)
    try:
        for text in (document.id, document.title, document.text, other_fields or ""):
            text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"document {document.id!r} contains a lone surrogate (half of a \\ud83d\\ude00 pair), which is"
            " not text; repair the input"
        ) from None
    return document.id, document.title, document.text, other_fields


def _document(values: Sequence[Any]) -> Document:
    id, title, text, other_fields = values
    if other_fields is None:
        return Document(id, title, text)
    categories, links, lang, extra = json.loads(other_fields)
    return Document(id, title, text, tuple(categories), tuple(links), lang, extra or {})
