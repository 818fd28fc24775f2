"""Documents in SQLite, and the state that says which of their rows count.

A row is never changed: an update makes a new row and marks the old one as dead from a generation on.
A generation is published in one small transaction once everything that belongs to it is on the disk,
so a reader that holds to its generation always sees one whole state.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.errors import InputError
from rerank.records import Document

_SCHEMA = """
CREATE TABLE documents (
    row INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    died INTEGER NOT NULL DEFAULT 0,   -- 0 = alive, else the generation that no longer has this row
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    rest TEXT,                         -- JSON [categories, links, lang, extra], NULL where all are empty
    crc INTEGER NOT NULL,              -- CRC-32 of id, title, text and rest
    UNIQUE (id, died)
);
CREATE INDEX dead ON documents (died) WHERE died <> 0;
CREATE TABLE states (
    generation INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL,             -- rows below this one exist
    documents INTEGER NOT NULL,        -- how many of them are alive
    stamp INTEGER                      -- the text index's commit of this generation; NULL = not published
);
INSERT INTO states VALUES (0, 0, 0, 0);
"""

_DEAD = "died <> 0"  # said in these words, so that SQLite uses the partial index
_CONTENT = "title, text, rest"
_COLUMNS = f"id, {_CONTENT}"
_ALIVE = "row < ?1 AND (died = 0 OR died > ?2)"  # parameters: rows and generation of a state
_PUBLISHED = _ALIVE.replace("?1", "(SELECT rows FROM states WHERE stamp IS NOT NULL)").replace(
    "?2", "(SELECT generation FROM states WHERE stamp IS NOT NULL)"
)  # one statement sees one snapshot, so this cannot mix two states
_SOME = 500  # SQLite's limit on parameters is 999 in old versions


def _plain(value: object) -> object:
    """What JSON makes of a mapping that is no dict; everything else it does not know is an error."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode


@dataclass(frozen=True, slots=True)
class State:
    """One published generation: rows below ``rows`` that did not die in it or before."""

    generation: int
    rows: int
    documents: int
    stamp: int


class Seen:
    """What one ingest has brought so far: which documents, in which of the rows.

    first: the first row of the ingest. unchanged: how many documents were there already, just so.
    """

    def __init__(self, first: int) -> None:
        self.first, self.unchanged, self.count = first, 0, 0
        self._old = np.zeros(first, np.int64)  # row that was there -> number of the document that names it
        self._new = array("q")  # new row -> number of its document

    def names(self, id: str, row: int) -> None:
        """Note that the next document is that of a row that was there; InputError for the second time."""
        if self._old[row]:
            raise _twice(id, int(self._old[row]), self.count)
        self._old[row] = self.count

    def adds(self) -> None:
        """Note that the next document is in a row of its own."""
        self._new.append(self.count)

    def place(self, row: int) -> int:
        """Number of the document in a row, from 1; 0 where none was ingested into it."""
        return int(self._old[row]) if row < self.first else self._new[row - self.first]


def _twice(id: str, one: int, other: int) -> InputError:
    return InputError(
        f"id {id!r} occurs twice: as document {one} and as document {other};"
        " an id can be ingested once per call"
    )


class Store:
    """One connection to ``documents.db``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Nobody's log can be read where none can be made: then the file alone is all there is.
        self.read_only = not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        self._alone: object = None  # how the files looked when they were opened without a log
        self._db = self._connect()

    def _connect(self) -> sqlite3.Connection:
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": 30}
        db: sqlite3.Connection
        if not self.read_only:
            db = sqlite3.connect(self._path, **options)
        else:
            name = self._path.absolute().as_uri()
            self._alone, looked = None, self._look()
            try:
                db = sqlite3.connect(f"{name}?mode=ro", uri=True, **options)
                db.execute("SELECT count(*) FROM states").fetchone()
            except sqlite3.OperationalError:
                log = self._path.with_name(f"{self._path.name}-wal")
                if log.exists() and log.stat().st_size:
                    raise
                db = sqlite3.connect(f"{name}?immutable=1", uri=True, **options)
                self._alone = looked
        # FULL: the text index relies on a committed transaction being still there after a power cut.
        # No automatic checkpoint: it would write everything a second time before it is published.
        db.executescript(
            "PRAGMA synchronous = FULL; PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 0"
        )
        return db

    def _look(self) -> object:
        seen = []
        for name in (self._path.name, f"{self._path.name}-wal"):
            try:
                about = self._path.with_name(name).stat()
            except OSError:
                continue
            seen.append((name, about.st_ino, about.st_size, about.st_mtime_ns))
        return tuple(seen)

    @classmethod
    def create(cls, path: Path) -> None:
        """Create an empty database of generation 0."""
        db = sqlite3.connect(path, isolation_level=None)
        # Large pages: a document of some kilobytes then needs no chain of overflow pages.
        db.executescript(f"PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA} COMMIT")
        db.close()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    # -- state ---------------------------------------------------------------------------------------

    def changes(self) -> object:
        """Return what is another one when another connection has committed something."""
        if self._alone is not None:
            if self._look() != self._alone:
                self._db = self._connect()
            if self._alone is not None:
                return self._alone
        return id(self._db), int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def token(self) -> int:
        """Return a number that is another one after every change of the documents, drawn by chance."""
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _mark(self) -> None:
        self._db.execute(f"PRAGMA user_version = {secrets.randbelow(2**31 - 1) + 1}")

    def state(self) -> State:
        """Return the published state."""
        return State(*self._db.execute("SELECT * FROM states WHERE stamp IS NOT NULL").fetchone())

    def pending(self) -> int | None:
        """Return the generation that was committed but not published, if there is one."""
        row = self._db.execute("SELECT generation FROM states WHERE stamp IS NULL").fetchone()
        return None if row is None else int(row[0])

    def publish(self, stamp: int) -> None:
        """Make the pending generation the state, with the text index's commit ``stamp``."""
        with self._transaction():
            self._db.execute("DELETE FROM states WHERE stamp IS NOT NULL")
            self._db.execute("UPDATE states SET stamp = ?", (stamp,))
            self._mark()

    def undo(self, state: State) -> None:
        """Remove what the pending generation after ``state`` has changed."""
        with self._transaction():
            self._db.execute("DELETE FROM documents WHERE row >= ?", (state.rows,))
            self._db.execute(f"UPDATE documents SET died = 0 WHERE {_DEAD} AND died > ?", (state.generation,))
            self._db.execute("DELETE FROM states WHERE stamp IS NULL")
            self._mark()

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db  # as a context manager it commits, or rolls back on an exception

    # -- writing (the caller holds the write lock) ---------------------------------------------------

    def begin(self, state: State) -> None:
        """Start a transaction for the generation after ``state``, and drop the rows that are dead in it."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(f"DELETE FROM documents WHERE {_DEAD} AND died <= ?", (state.generation,))

    def rollback(self) -> None:
        """Forget the open transaction, if any."""
        if self._db.in_transaction:
            self._db.rollback()

    def commit_pending(self, state: State) -> None:
        """Commit the transaction with ``state`` (its stamp is not looked at) as the pending generation."""
        self._db.execute(
            "INSERT INTO states VALUES (?, ?, ?, NULL)", (state.generation, state.rows, state.documents)
        )
        self._mark()
        self._db.execute("COMMIT")

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database file, unless a reader needs it just now."""
        self._db.execute("PRAGMA busy_timeout = 0")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def add(
        self, documents: Sequence[Document], row: int, generation: int, seen: Seen
    ) -> tuple[list[Document], list[int]]:
        """Insert documents as rows ``row``, ``row + 1``, ..., but for those that are there just so.

        seen: what the ingest has brought before. Returns the documents that were inserted, and the rows that
        they replace.
        """
        values = [_values(document) for document in documents]
        kept: list[Document] = []
        rows: list[tuple[int, str, str, str, str | None, int]] = []
        replaced: list[int] = []
        try:
            old = self._there([value[0] for value in values]) if seen.first else {}
            for document, value in zip(documents, values):
                seen.count += 1
                number, *content = old.get(value[0], (seen.first,))
                if number < seen.first:
                    seen.names(value[0], number)
                    if content == [*value[1:]]:
                        seen.unchanged += 1
                        continue
                    replaced.append(number)
                seen.adds()
                rows.append((row + len(rows), *value, _crc(value)))
                kept.append(document)
            self.kill(replaced, generation)
            insert = (
                "INSERT OR IGNORE INTO documents (row, id, title, text, rest, crc) VALUES (?, ?, ?, ?, ?, ?)"
            )
            done = self._db.executemany(insert, rows).rowcount if rows else 0
        except UnicodeEncodeError:
            raise _unencodable(documents) from None
        if done != len(rows):
            there = self.rows_alive([value[1] for value in rows])
            number, id, *_ = next(value for value in rows if there[value[1]] != value[0])
            raise _twice(id, seen.place(there[id]), seen.place(number))
        return kept, replaced

    def _there(self, ids: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """Id -> row, title, text and rest of the documents that are alive."""
        return {row[0]: tuple(row[1:]) for row in self._select(f"id, row, {_CONTENT}", ids, "died = 0")}

    def kill(self, rows: Sequence[int], generation: int) -> None:
        """Mark rows as dead from ``generation`` on."""
        self._db.executemany("UPDATE documents SET died = ? WHERE row = ?", [(generation, r) for r in rows])

    def rows_alive(self, ids: Sequence[str]) -> dict[str, int]:
        """Return id -> row of the ids that are alive, seen from the open transaction."""
        return dict(self._select("id, row", ids, "died = 0"))

    # -- reading -------------------------------------------------------------------------------------

    def rows_of(self, ids: Sequence[str], state: State) -> dict[str, int]:
        """Return id -> row in ``state``; unknown ids are left out."""
        return dict(self._select("id, row", ids, _ALIVE, state.rows, state.generation))

    def get(self, ids: Sequence[str]) -> dict[str, Document]:
        """Return id -> document; unknown ids are left out."""
        return {values[0]: _document(values) for values in self._select(_COLUMNS, ids, _PUBLISHED)}

    def _select(self, columns: str, ids: Sequence[str], where: str, *parameters: int) -> Iterator[Any]:
        known = [id for id in ids if _encodable(id)]
        for i in range(0, len(known), _SOME):
            some = known[i : i + _SOME]
            marks = ",".join("?" * len(some))
            sql = f"SELECT {columns} FROM documents WHERE {where} AND id IN ({marks})"
            yield from self._db.execute(sql, [*parameters, *some]).fetchall()

    def ids(self) -> list[str]:
        """All ids, ascending by code point (SQLite compares the UTF-8 bytes)."""
        sql = f"SELECT id FROM documents WHERE {_PUBLISHED} ORDER BY id"
        return [row[0] for row in self._db.execute(sql)]

    def count(self, start: int) -> int:
        """Count the documents from row ``start`` on."""
        sql = f"SELECT count(*) FROM documents WHERE {_PUBLISHED} AND row >= ?"
        return int(self._db.execute(sql, (start,)).fetchone()[0])

    def documents(self, start: int = 0) -> Iterator[tuple[int, Document]]:
        """Stream (row, document) from row ``start`` on, by row."""
        sql = f"SELECT row, {_COLUMNS} FROM documents WHERE {_PUBLISHED} AND row >= ? ORDER BY row"
        for row, *values in self._db.execute(sql, (start,)):
            yield row, _document(values)

    def contents(self, state: State, start: int) -> Iterator[tuple[int, str, str]]:
        """Stream (row, title, text) of ``state`` from row ``start`` on, by row."""
        sql = f"SELECT row, title, text FROM documents WHERE {_ALIVE} AND row >= ?3 ORDER BY row"
        return self._db.execute(sql, (state.rows, state.generation, start))

    def rows(self, count: int) -> Iterator[tuple[list[int], list[str]]]:
        """Stream all rows that are stored and their ids, ``count`` at a time."""
        cursor = self._db.execute(f"SELECT row, id FROM documents WHERE {_PUBLISHED} ORDER BY row")
        while found := cursor.fetchmany(count):
            yield [row for row, _ in found], [id for _, id in found]

    def problem(self) -> str | None:
        """Return what is wrong with the database, or None: of its structure, and of each document."""
        (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            return str(found)
        for row, *values, crc in self._db.execute(f"SELECT row, {_COLUMNS}, crc FROM documents"):
            if _crc(values) != crc:
                return f"the checksum of document {values[0]!r} (row {row}) does not match"
        return None

    def alive(self, state: State) -> NDArray[np.bool_]:
        """(rows,) bool: which rows are alive in ``state``."""
        mask = np.zeros(state.rows, np.bool_)
        # The plus keeps SQLite off the table itself, with all its text: the index on ids has the rows too.
        sql = f"SELECT row FROM documents WHERE +{_ALIVE}"
        cursor = self._db.execute(sql, (state.rows, state.generation))
        while rows := cursor.fetchmany(100_000):
            mask[[row[0] for row in rows]] = True
        return mask


def _crc(values: Sequence[str | None]) -> int:
    """CRC-32 of the id, title, text and rest of a row."""
    return zlib.crc32("\0".join(value or "" for value in values).encode())


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unencodable(documents: Sequence[Document]) -> InputError:
    for document in documents:
        if not all(_encodable(str(value)) for value in _values(document)):
            return InputError(
                f"document {document.id!r} contains a lone surrogate (half of a \\ud83d\\ude00 pair), "
                "which is no text; repair the input"
            )
    raise AssertionError("every document can be encoded")


def _values(document: Document) -> tuple[str, str, str, str | None]:
    if not document.id:
        raise InputError("a document has an empty id; give every document a non-empty _id")
    rest = None
    if document.categories or document.links or document.lang or document.extra:
        try:
            rest = _encode([document.categories, document.links, document.lang, document.extra or None])
        except (TypeError, ValueError) as error:
            raise InputError(f"document {document.id!r} has a field that is not JSON: {error}") from None
    return document.id, document.title, document.text, rest


def _document(values: Sequence[Any]) -> Document:
    id, title, text, rest = values
    if rest is None:
        return Document(id, title, text)
    categories, links, lang, extra = json.loads(rest)
    return Document(id, title, text, tuple(categories), tuple(links), lang, extra or {})
