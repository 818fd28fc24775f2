"""Rows of attached documents in the feature files.

A row belongs to the hash of a text. A location (shard and sequence number) leads to a row, so a changed
document never gets an old feature, and an unchanged text keeps its row.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import WorkspaceError
from rerank.common.values import items_at
from rerank.documents.records import Document
from rerank.engines.file_features import FeatureFiles

Numbers = NDArray[np.int64]

_Version = tuple[int, int, int, "int | str"]
"""Of a document: hash of its index, sequence number, primary term, and shard or id."""

_PATIENCE = 60.0  # seconds to wait for other writers
_MOST_ENTRIES = 50_000  # of the files that are kept in memory, about 15 MB

_TABLES = """
CREATE TABLE salt (value INTEGER);
CREATE TABLE texts (row INTEGER PRIMARY KEY, hash BLOB UNIQUE, categories TEXT);
CREATE TABLE locations (
    place INTEGER, seq_no INTEGER, shard INTEGER, term INTEGER, id TEXT, row INTEGER,
    PRIMARY KEY (place, seq_no, shard)
) WITHOUT ROWID;
CREATE INDEX locations_by_id ON locations (place, id);
CREATE TABLE encoded (
    ranker TEXT, version TEXT, place INTEGER, shard INTEGER, last INTEGER,
    PRIMARY KEY (ranker, version, place, shard)
) WITHOUT ROWID;
"""
# place: hash of an index and the fields of its documents (_hash_of_index). last: sequence number.


class LocatedDocuments(NamedTuple):
    """The documents of some indices that have a row.

    rows:   (m,) different rows, ascending.
    ids:    ids of the n documents, by row, then ascending.
    ends:   (m,) for each row, the number of documents up to its last one.
    unused: the other rows below the last one of ``rows``, ascending.
    """

    rows: Numbers
    ids: list[str]
    ends: Numbers
    unused: Numbers

    def first_ids(self, rows: Numbers) -> list[str]:
        """Return the smallest id of the documents of each of these ``rows``."""
        begins, _ = self._spans(rows)
        return items_at(self.ids, begins.tolist())

    def ids_of(self, rows: Numbers) -> tuple[list[str], Numbers]:
        """Return the k ids of the documents of (m,) ``rows``, and the (k,) positions of their rows."""
        begins, counts = self._spans(rows)
        row_of_id = np.repeat(np.arange(len(rows)), counts)
        position_in_row = np.arange(len(row_of_id)) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = begins[row_of_id] + position_in_row
        return items_at(self.ids, positions.tolist()), row_of_id

    def _spans(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return the (m,) positions of the first id of each row in ``ids``, and their numbers of ids."""
        index = np.searchsorted(self.rows, rows)
        begins = np.where(index > 0, self.ends[index - 1], 0)
        return begins, self.ends[index] - begins


class _Loaded(NamedTuple):
    """Documents in memory.

    index_hashes: the indices of the documents.
    state:        state of the files when they were read.
    """

    index_hashes: list[int]
    state: tuple[object, ...]
    documents: LocatedDocuments

    def is_for(self, index_hashes: list[int], state: tuple[object, ...]) -> bool:
        """Return whether these are the documents of these indices in this state of the files."""
        return self.index_hashes == index_hashes and self.state == state


@dataclass
class _ReadEntries:
    """What searches have read from the files in one state, so that a frequent hit is read once.

    locations:  version of a document -> row and id.
    categories: row -> categories.
    """

    state: tuple[object, ...] = ()
    locations: dict[_Version, tuple[int, str]] = field(default_factory=dict)
    categories: dict[int, tuple[str, ...]] = field(default_factory=dict)


class TextRows:
    """The rows of one attached index, and their ``features``.

    layout: identifies the document fields. After a change, all documents are read again.

    >>> import tempfile
    >>> rows = TextRows(Path(tempfile.mkdtemp()))
    >>> wolf = Document("wolf", text="a grey wolf", categories=("animals",))
    >>> row = rows.add([wolf])
    >>> rows.features.write("text", "v1", row, np.array([[1.0, 2.0]], np.float16))
    >>> shards, numbers, terms = np.array([0]), np.array([7]), np.array([1])
    >>> rows.locate("uuid", shards, numbers, terms, ["wolf"], row)
    >>> rows.find("uuid", shards, numbers, terms), rows.find("uuid", shards, numbers + 1, terms)
    ((array([1]), ['wolf']), (array([-1]), ['']))
    >>> rows.categories(row)
    [('animals',)]
    """

    def __init__(self, folder: Path, layout: str = "") -> None:
        self._folder = folder
        self._layout = layout
        self._path = folder / "texts.db"
        self._mutex = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._opened = 0
        self._immutable = False  # SQLite does not see changes of the file, so each use opens it again
        self._features = FeatureFiles(folder / "rankers")
        self._loading = threading.Lock()
        self._loaded: _Loaded | None = None
        self._read_entries = _ReadEntries()

    def current(self) -> TextRows:
        """Return the rows of the files in use, which another process may replace."""
        replaced = self._opened and self._inode() != self._opened
        return TextRows(self._folder, self._layout) if replaced else self

    @property
    def exist(self) -> bool:
        """Whether the text of a document was ever stored."""
        return bool(self._inode())

    @property
    def features(self) -> FeatureFiles:
        """The features of the texts, by row."""
        with self._database():
            return self._features

    def _inode(self) -> int:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return 0
        return stat.st_ino if stat.st_size else 0  # another process is making the tables

    def find(
        self, uuid: str, shards: Numbers | None, seq_nos: Numbers, terms: Numbers, ids: Sequence[str] = ()
    ) -> tuple[Numbers, list[str]]:
        """Return the (n,) rows and the ids of documents of one index; -1 and "": no row.

        shards, seq_nos, terms: (n,), the versions of the documents. shards None: compare ids.
        """
        index_hash = self._hash_of_index(uuid)
        shards_or_ids = ids if shards is None else shards.tolist()
        versions = list(zip(repeat(index_hash), seq_nos.tolist(), terms.tolist(), shards_or_ids))
        with self._database() as db:
            located = self._current_entries(db).locations
            unknown = [version[1] for version in versions if version not in located]
            if unknown:
                located.update(_read_locations(db, index_hash, unknown, by_id=shards is None))
            rows = np.full(len(versions), -1, np.int64)
            ids_of_rows = [""] * len(versions)
            for position, version in enumerate(versions):
                if version in located:
                    rows[position], ids_of_rows[position] = located[version]
        return rows, ids_of_rows

    def located(self, uuids: Sequence[str], *, fresh: bool = True) -> LocatedDocuments:
        """Return the documents of indices.

        They are kept in memory. ``fresh=False`` also accepts documents from before the last encoding, so that
        a search does not wait while they are read again.
        """
        index_hashes = sorted(map(self._hash_of_index, uuids))
        with self._database() as db:
            state = self._state(db)
        loaded = self._loaded
        if loaded is not None and loaded.is_for(index_hashes, state if fresh else loaded.state):
            return loaded.documents
        with self._loading, self._errors():  # another connection, so that searches can use this one
            loaded = self._loaded  # another thread may have read them
            if loaded is None or not loaded.is_for(index_hashes, state):
                loaded = _Loaded(index_hashes, state, self._read_located(index_hashes))
                self._loaded = loaded
            return loaded.documents

    def _read_located(self, index_hashes: Sequence[int]) -> LocatedDocuments:
        """Read the documents of indices."""
        rows_of_documents: list[int] = []
        ids: list[str] = []
        if self._inode():
            with closing(self._connect_to_read()) as db:
                cursor = db.execute(
                    "SELECT row, id FROM locations WHERE place IN (SELECT value FROM json_each(?))"
                    " ORDER BY row, id",
                    (json.dumps(list(index_hashes)),),
                )
                for row, id in cursor:
                    rows_of_documents.append(row)
                    ids.append(id)
        rows, counts = np.unique(np.array(rows_of_documents, np.int64), return_counts=True)
        unused = np.setdiff1d(np.arange(rows.max(initial=-1) + 1), rows)
        return LocatedDocuments(rows, ids, np.cumsum(counts), unused)

    def of_texts(self, documents: Sequence[Document]) -> Numbers:
        """Return the (n,) rows of the texts of these documents; -1: the text has no row."""
        with self._database() as db:
            return _rows(db, [digest(document) for document in documents])

    def categories(self, rows: Numbers) -> list[tuple[str, ...]]:
        """Return the categories of each of these existing rows, as the documents had them."""
        numbers: list[int] = rows.tolist()
        with self._database() as db:
            categories = self._current_entries(db).categories
            unknown = [row for row in numbers if row not in categories]
            if unknown:
                stored = db.execute(
                    "SELECT row, categories FROM texts WHERE row IN (SELECT value FROM json_each(?))",
                    (json.dumps(unknown),),
                )
                for row, names in stored:
                    categories[row] = tuple(json.loads(names))
            return [categories[row] for row in numbers]

    def encoded(self, name: str, version: str, uuid: str, shard: int) -> int:
        """Return the last sequence number up to which all documents have a feature; -1: none."""
        if version not in self.features.versions().get(name, ()):
            return -1
        with self._database() as db:
            last = db.execute(
                "SELECT last FROM encoded WHERE ranker = ? AND version = ? AND place = ? AND shard = ?",
                (name, version, self._hash_of_index(uuid), shard),
            ).fetchone()
        return int(last[0]) if last else -1

    def add(self, documents: Sequence[Document]) -> Numbers:
        """Return the (n,) rows of the texts of documents. A text without a row gets one."""
        hashes = [digest(document) for document in documents]
        with self._writing() as db:
            db.executemany(
                "INSERT OR IGNORE INTO texts (hash, categories) VALUES (?, ?)",
                [(hash, json.dumps(document.categories)) for hash, document in zip(hashes, documents)],
            )
            return _rows(db, hashes)

    def locate(
        self, uuid: str, shards: Numbers, seq_nos: Numbers, terms: Numbers, ids: Sequence[str], rows: Numbers
    ) -> None:
        """Store the (n,) rows of documents of one index, instead of the rows of their older versions.

        See :meth:`find` for the arguments.
        """
        index_hash = self._hash_of_index(uuid)
        versions = (seq_nos.tolist(), shards.tolist(), terms.tolist())
        locations = [(index_hash, *location) for location in zip(*versions, ids, rows.tolist(), strict=True)]
        with self._writing() as db:
            db.executemany(
                "DELETE FROM locations WHERE place = ? AND seq_no < ? AND shard = ? AND id = ?",
                [(index_hash, seq_no, shard, id) for index_hash, seq_no, shard, _, id, _ in locations],
            )
            db.executemany("INSERT OR REPLACE INTO locations VALUES (?, ?, ?, ?, ?, ?)", locations)

    def set_encoded(self, name: str, version: str, uuid: str, shard: int, last: int) -> None:
        """Store that all documents of a shard up to a sequence number have features of a ranker.

        name, version: of the ranker. shard: its number. last: the sequence number; it never falls.
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO encoded VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET last = max(last, excluded.last)",
                (name, version, self._hash_of_index(uuid), shard, last),
            )

    def remove(self, name: str, version: str) -> None:
        """Remove the features of a ranker in one version."""
        with self._writing() as db:
            db.execute("DELETE FROM encoded WHERE ranker = ? AND version = ?", (name, version))
        self.features.remove(name, version)

    def keep_indices(self, uuids: Iterable[str]) -> None:
        """Remove the locations of documents in all other indices. Their texts and features stay."""
        index_hashes = json.dumps([self._hash_of_index(uuid) for uuid in uuids])
        with self._writing() as db:
            db.execute("PRAGMA cache_spill = OFF")  # searches then wait only for the commit
            for table in ("locations", "encoded"):
                db.execute(
                    f"DELETE FROM {table} WHERE place NOT IN (SELECT value FROM json_each(?))",
                    (index_hashes,),
                )

    def _state(self, db: sqlite3.Connection) -> tuple[object, ...]:
        """Return a value that changes with every change of the files."""
        (version,) = db.execute("PRAGMA data_version").fetchone()
        modified = self._path.stat().st_mtime_ns if self._immutable else 0
        return self._opened, version, db.total_changes, modified

    def _current_entries(self, db: sqlite3.Connection) -> _ReadEntries:
        """Return the entries that earlier searches have read; none if the files have changed since."""
        state = self._state(db)
        entries = self._read_entries
        count = len(entries.locations) + len(entries.categories)
        if entries.state != state or count > _MOST_ENTRIES:
            entries = _ReadEntries(state)
            self._read_entries = entries
        return entries

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread; empty if nothing is stored."""
        with self._mutex, self._errors():
            inode = self._opened or self._inode()
            if self._db is None or inode != self._opened or self._immutable:
                self._db = self._open(inode)
                self._opened = inode
                (salt,) = self._db.execute("SELECT value FROM salt").fetchone()
                # Another file of texts has other rows.
                self._features = FeatureFiles(self._folder / "rankers" / f"{salt:x}")
            yield self._db

    def _open(self, inode: int) -> sqlite3.Connection:
        """Connect as the rights of the user allow. inode: of the file; 0: it does not exist."""
        self._immutable = False
        if not inode:
            return self._connect("memory")
        if os.access(self._path, os.W_OK) and os.access(self._folder, os.W_OK):
            return self._connect("rw")
        return self._connect_to_read()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """The connection in a transaction. The first one creates the file."""
        if not self._opened and not self._inode():
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._errors():
                self._connect("rwc").close()
        with self._database() as db, db:
            db.execute("BEGIN IMMEDIATE")
            yield db

    def _connect(self, mode: str) -> sqlite3.Connection:
        """Connect; a new database gets the tables."""
        path = f"file:{quote(str(self._path))}?mode={mode}"
        db = sqlite3.connect(path, _PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
        if mode in ("rwc", "memory"):
            with db:
                db.execute("BEGIN IMMEDIATE")
                if not db.execute("SELECT 1 FROM sqlite_schema").fetchone():
                    for table in _TABLES.split(";"):
                        db.execute(table)
                    db.execute("INSERT INTO salt VALUES (?)", (secrets.randbits(62),))
        if mode == "rwc":  # after the tables: another process reads a file that is not empty
            db.execute("PRAGMA journal_mode = WAL")  # searches do not wait for a writer
        return db

    def _connect_to_read(self) -> sqlite3.Connection:
        """Connect without the right to write, which the log of a writer may need."""
        db = self._connect("ro")
        log = self._path.with_name(f"{self._path.name}-wal")
        try:
            db.execute("SELECT value FROM salt").fetchone()
        except sqlite3.OperationalError:
            if log.exists() and log.stat().st_size:
                raise
            self._immutable = True
            db = self._connect("ro&immutable=1")
        return db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise WorkspaceError(f"{self._path}: {error}; check the folder and the disk") from error
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise WorkspaceError(
                f"{self._path} is corrupt ({error}); remove the folder {self._folder} and run `rerank encode`"
            ) from error

    def _hash_of_index(self, uuid: str) -> int:
        hashed = hashlib.blake2b(f"{uuid} {self._layout}".encode("utf-8", "surrogatepass"), digest_size=6)
        return int.from_bytes(hashed.digest(), "big")


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


def _rows(db: sqlite3.Connection, hashes: Sequence[bytes]) -> Numbers:
    """Return the (n,) rows of texts by their hashes; -1: the text has no row."""
    rows = np.full(len(hashes), -1, np.int64)
    for position, hash in enumerate(hashes):
        stored = db.execute("SELECT row FROM texts WHERE hash = ?", (hash,)).fetchone()
        if stored is not None:
            rows[position] = stored[0]
    return rows


def _read_locations(
    db: sqlite3.Connection, index_hash: int, seq_nos: Sequence[int], *, by_id: bool
) -> Iterator[tuple[_Version, tuple[int, str]]]:
    """Yield the versions with these sequence numbers, each with its row and id.

    by_id: the last member of a version is the id of the document, else its shard.
    """
    locations = db.execute(
        "SELECT seq_no, term, shard, id, row FROM locations"
        " WHERE place = ? AND seq_no IN (SELECT value FROM json_each(?))",
        (index_hash, json.dumps(seq_nos)),
    )
    for seq_no, term, shard, id, row in locations:
        yield (index_hash, seq_no, term, id if by_id else shard), (row, id)
