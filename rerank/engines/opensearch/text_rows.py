"""Rows of attached documents in the feature files.

A row belongs to the hash of a text. A location (shard and sequence number) leads to a row, so a changed
document never gets an old feature, and an unchanged text keeps its row.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rerank.engines.file_features import FeatureFiles
from rerank.errors import WorkspaceError
from rerank.files import folder_lock
from rerank.records import Document

_PATIENCE = 60.0  # seconds to wait for other writers
_INDICES = 4  # former indices whose locations are kept: an alias may move back

_TABLES = """
CREATE TABLE salt (value INTEGER);
CREATE TABLE texts (row INTEGER PRIMARY KEY, hash BLOB UNIQUE, categories TEXT);
CREATE TABLE indices (number INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT UNIQUE);
CREATE TABLE locations (
    number INTEGER, seq_no INTEGER, shard INTEGER, term INTEGER, id INTEGER, row INTEGER,
    PRIMARY KEY (number, seq_no, shard)
) WITHOUT ROWID;
CREATE TABLE covered (
    ranker TEXT, version TEXT, number INTEGER, shard INTEGER, ranges TEXT,
    PRIMARY KEY (ranker, version, number, shard)
) WITHOUT ROWID;
"""

Ranges = list[list[int]]
"""Ranges of sequence numbers, both ends included, ascending, with gaps between them."""


class DocumentLocation(NamedTuple):
    """A version of a document. uuid: of its index."""

    uuid: str
    shard: int
    seq_no: int
    term: int
    id: str = ""


class TextRows:
    """The rows of one attached index, and their ``features``.

    layout: identifies the document fields. After a change, all documents are read again.

    >>> import tempfile
    >>> rows = TextRows(Path(tempfile.mkdtemp()))
    >>> wolf = Document("wolf", text="a grey wolf", categories=("animals",))
    >>> row = rows.add([wolf])
    >>> rows.features.write("text", "v1", row, np.array([[1.0, 2.0]], np.float16))
    >>> rows.locate([DocumentLocation("uuid", 0, 7, 1, "wolf")], row)
    >>> shards, numbers, terms = np.array([0, 0]), np.array([7, 8]), np.array([1, 1])
    >>> rows.find("uuid", shards, numbers, terms).tolist()
    [1, -1]
    >>> rows.categories(row)
    [('animals',)]
    """

    def __init__(self, folder: Path, layout: str = "") -> None:
        self._folder, self._layout = folder, layout
        self._path = folder / "rows.db"
        self._mutex = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._opened = 0
        self._features = FeatureFiles(folder / "rankers")

    def current(self) -> TextRows:
        """Return the rows of the files in use, which another process may replace."""
        replaced = self._opened and self._inode() != self._opened
        return TextRows(self._folder, self._layout) if replaced else self

    @property
    def features(self) -> FeatureFiles:
        """The features of these rows."""
        with self._reading():
            return self._features

    def _inode(self) -> int:
        try:
            return self._path.stat().st_ino
        except FileNotFoundError:
            return 0

    # -- reading -----------------------------------------------------------------------------------------

    def find(
        self,
        uuid: str,
        shards: NDArray[np.int64] | None,
        seq_nos: NDArray[np.int64],
        terms: NDArray[np.int64],
        ids: Sequence[str] = (),
    ) -> NDArray[np.int64]:
        """Return (n,) rows of documents of one index; -1: no row.

        shards, seq_nos, terms: (n,), as in :class:`DocumentLocation`. shards None: compare ids.
        """
        with self._reading() as db:
            found = db.execute(
                "SELECT seq_no, term, shard, id, row FROM locations JOIN indices USING (number)"
                " WHERE uuid = ? AND seq_no IN (SELECT value FROM json_each(?))",
                (self._key(uuid), json.dumps(seq_nos.tolist())),
            ).fetchall()
        which = shards.tolist() if shards is not None else [_id_sum(id) for id in ids]
        rows = {
            (seq_no, term, id if shards is None else shard): row for seq_no, term, shard, id, row in found
        }
        keys = zip(seq_nos.tolist(), terms.tolist(), which)
        return np.array([rows.get(key, -1) for key in keys], np.int64)

    def of_texts(self, documents: Sequence[Document]) -> NDArray[np.int64]:
        """Return (n,) rows of these texts; -1: no row."""
        with self._reading() as db:
            return _rows(db, [digest(document) for document in documents])

    def categories(self, rows: NDArray[np.int64]) -> list[tuple[str, ...]]:
        """Return the categories of existing rows."""
        with self._reading() as db:
            found = dict(
                db.execute(
                    "SELECT row, categories FROM texts WHERE row IN (SELECT value FROM json_each(?))",
                    (json.dumps(rows.tolist()),),
                )
            )
            return [tuple(json.loads(found[row])) for row in rows.tolist()]

    def covered(self, name: str, version: str, uuid: str, shard: int) -> Ranges:
        """Return the sequence numbers whose documents all have a feature."""
        with self._reading() as db:
            found = db.execute(
                "SELECT ranges FROM covered JOIN indices USING (number)"
                " WHERE ranker = ? AND version = ? AND uuid = ? AND shard = ?",
                (name, version, self._key(uuid), shard),
            ).fetchone()
        ranges: Ranges = json.loads(found[0]) if found else []
        return ranges

    # -- writing -----------------------------------------------------------------------------------------

    def add(self, documents: Sequence[Document]) -> NDArray[np.int64]:
        """Return the rows of texts; new ones are added."""
        hashes = [digest(document) for document in documents]
        with self._writing() as db:
            db.executemany(
                "INSERT OR IGNORE INTO texts (hash, categories) VALUES (?, ?)",
                [(one, json.dumps(document.categories)) for one, document in zip(hashes, documents)],
            )
            return _rows(db, hashes)

    def locate(self, locations: Sequence[DocumentLocation], rows: NDArray[np.int64]) -> None:
        """Store the rows of documents."""
        with self._writing() as db:
            numbers = {uuid: self._number(db, uuid) for uuid in {one.uuid for one in locations}}
            db.executemany(
                "INSERT OR REPLACE INTO locations VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (numbers[one.uuid], one.seq_no, one.shard, one.term, _id_sum(one.id), row)
                    for one, row in zip(locations, rows.tolist())
                ],
            )

    def cover(self, name: str, version: str, uuid: str, shard: int, first: int, last: int) -> None:
        """Mark sequence numbers as encoded."""
        if first > last:
            return
        with self._writing() as db:
            key = name, version, self._number(db, uuid), shard
            found = db.execute(
                "SELECT ranges FROM covered WHERE ranker = ? AND version = ? AND number = ? AND shard = ?",
                key,
            ).fetchone()
            ranges = union([*(json.loads(found[0]) if found else []), [first, last]])
            db.execute("INSERT OR REPLACE INTO covered VALUES (?, ?, ?, ?, ?)", (*key, json.dumps(ranges)))

    def remove(self, name: str, version: str) -> None:
        """Remove a version's features."""
        with self._writing() as db:
            db.execute("DELETE FROM covered WHERE ranker = ? AND version = ?", (name, version))
        self.features.remove(name, version)

    def drop_indices(self, present: Sequence[str]) -> None:
        """Remove locations of former indices, except the last ones."""
        names = {self._key(uuid) for uuid in present}
        with self._writing() as db:
            stored = db.execute("SELECT number, uuid FROM indices ORDER BY number").fetchall()
            former = [(number,) for number, uuid in stored if uuid not in names][:-_INDICES]
            for table in ("locations", "covered", "indices"):
                db.executemany(f"DELETE FROM {table} WHERE number = ?", former)

    def repaired(self) -> TextRows:
        """Return these rows. Corrupt rows are removed first, with all features."""
        with suppress(WorkspaceError), self._reading() as db:
            if db.execute("PRAGMA integrity_check").fetchone() == ("ok",):
                return self
        with folder_lock(self._folder, "storing features", patience=_PATIENCE):
            self._path.unlink(missing_ok=True)
            shutil.rmtree(self._folder / "rankers", ignore_errors=True)
        return TextRows(self._folder, self._layout)

    def corruptions(self) -> Iterator[tuple[Path, str]]:
        """Yield each corrupt file and its problem."""
        try:
            with self._reading() as db:
                (problem,) = db.execute("PRAGMA integrity_check").fetchone()
        except WorkspaceError as error:
            problem = str(error)
        if problem == "ok":
            yield from self.features.corruptions()
        else:
            yield self._path, problem

    # -- the database ------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread; empty if nothing is stored."""
        with self._mutex, self._errors():
            inode = self._opened or self._inode()
            if self._db is None or inode != self._opened:
                db = self._connect(("rw" if os.access(self._path, os.W_OK) else "ro") if inode else "")
                (salt,) = db.execute("SELECT value FROM salt").fetchone()
                self._features = FeatureFiles(self._folder / "rankers", salt)
                self._db, self._opened = db, inode
            yield self._db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if not self._opened:
            self._folder.mkdir(parents=True, exist_ok=True)
            with folder_lock(self._folder, "storing features", patience=_PATIENCE), self._errors():
                if not self._inode():
                    new = self._path.with_name("rows.new")
                    new.unlink(missing_ok=True)
                    self._connect("rwc", new).close()
                    new.rename(self._path)
        with self._errors():
            db = self._connect("rw")
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.commit()
            finally:
                db.close()

    def _connect(self, mode: str, path: Path | None = None) -> sqlite3.Connection:
        """Connect; mode "": to an empty database in memory."""
        name = f"file:{quote(str(path or self._path))}?mode={mode}" if mode else ":memory:"
        db = sqlite3.connect(name, _PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
        if mode in ("", "rwc"):
            db.executescript(_TABLES)
            db.execute("INSERT INTO salt VALUES (?)", (secrets.randbits(62),))
        return db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise WorkspaceError(f"{self._path}: {error}; check the folder and the disk") from error
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise WorkspaceError(
                f"{self._path} is corrupt ({error}); encode again with `rerank encode --force`"
            ) from error

    def _number(self, db: sqlite3.Connection, uuid: str) -> int:
        db.execute("INSERT OR IGNORE INTO indices (uuid) VALUES (?)", (self._key(uuid),))
        found: tuple[int] = db.execute(
            "SELECT number FROM indices WHERE uuid = ?", (self._key(uuid),)
        ).fetchone()
        return found[0]

    def _key(self, uuid: str) -> str:
        return re.sub(r"[^\w-]", "_", uuid) + (f"+{self._layout}" if self._layout else "")


def digest(document: Document) -> bytes:
    """Return the hash of everything that can be encoded, without the id.

    >>> digest(Document("a", text="wolf")) == digest(Document("b", text="wolf"))
    True
    >>> digest(Document("a", text="wolf")) == digest(Document("a", title="wolf"))
    False
    """
    parts = [
        document.title,
        document.text,
        document.categories,
        document.links,
        document.lang,
        document.extra,
    ]
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True, default=dict)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def union(ranges: Ranges) -> Ranges:
    """Merge adjacent or overlapping ranges.

    >>> union([[5, 9], [0, 2], [3, 4], [20, 21]])
    [[0, 9], [20, 21]]
    """
    merged: Ranges = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged


def gaps(covered: Ranges, last: int) -> Ranges:
    """Return the uncovered ranges from 0 to ``last``.

    >>> gaps([[0, 2], [5, 6]], 8), gaps([], 3), gaps([[0, 9]], 8)
    ([[3, 4], [7, 8]], [[0, 3]], [])
    """
    left, begin = [], 0
    for first, end in [*covered, [last + 1, last + 1]]:
        if begin < min(first, last + 1):
            left.append([begin, min(first - 1, last)])
        begin = max(begin, end + 1)
    return left


def _rows(db: sqlite3.Connection, hashes: Sequence[bytes]) -> NDArray[np.int64]:
    rows: list[Any] = [
        db.execute("SELECT row FROM texts WHERE hash = ?", (one,)).fetchone() for one in hashes
    ]
    return np.array([row[0] if row else -1 for row in rows], np.int64)


def _id_sum(id: str) -> int:
    return zlib.crc32(id.encode("utf-8", "surrogatepass"))
