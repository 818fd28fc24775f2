"""The sidecar of an attached index: the features of its documents, in files of the workspace.

A *row* belongs to a text: to the hash of all parts of a document that can be encoded. The matrices of
rankers, categories and hashes are aligned by row, append-only, and memory-mapped. A *cell* leads from one
version of a document (uuid of the index, shard, sequence number and primary term) to its row. A changed
document has another sequence number, so it never gets an old feature. A document that is written again,
reindexed or restored unchanged needs a cell, and no encoder.

GENERATION/hashes              16 bytes a row: how many there are says how many rows count
GENERATION/categories, ends    JSON lists, each with its CRC, and where each ends (int64)
GENERATION/cells/UUID/SHARD    a cell for each sequence number (``_CELL``)
GENERATION/rankers/NAME/VERSION/  matrix, sums (uint64, of each row; 0: no feature), about.json (``About``)
current                        the name of the generation in use

A generation is replaced only if its categories are corrupt. Rows of one generation mean nothing in another
one, so a ``Sidecar`` is bound to the generation that was in use when it was made.

Cells and features that do not agree with their sums are corrupt and count as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.errors import EngineError, UsageError, WorkspaceError
from rerank.files import folder_lock, parse_json, write_text
from rerank.records import Document
from rerank.text import plural

_FORMAT = "2"
_CELL = np.dtype([("row", "<u4"), ("term", "<u4"), ("id", "<u4"), ("sum", "<u4")])
"""Row + 1 (0: nothing), primary term, a checksum of the id for who does not know the shard, and of all."""

_LONGEST = 1 << 30  # bytes of a list of categories; what is longer is damage
_PATIENCE = 60.0  # seconds for other writers to end what takes milliseconds
_KEPT = 2  # versions of a ranker: the one before serves until the service has taken the newest
_REMEMBERED = 1 << 14  # rows whose categories are kept in memory
_NAMES = 1000  # files whose paths are kept in memory
_INDICES = 4  # indices whose cells are kept, the present ones apart: an alias may move back

_WORDS = 512
# Odd factors: a change of one word always changes the sum, and so does an exchange of two.
_FACTORS = np.random.default_rng(0).integers(0, 2**63, _WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_PLACE = np.uint64(0x9E3779B97F4A7C15)  # a row in the place of another has another sum

Ranges = list[list[int]]
"""Ranges of sequence numbers, both ends included, ascending and apart."""


class Place(NamedTuple):
    """One version of a document. uuid: of its index; shard: -1: unknown, and the id is compared."""

    uuid: str
    shard: int
    seq_no: int
    term: int
    id: str = ""


@dataclass
class About:
    """Description of one version of a ranker's features.

    covered: index -> shard -> sequence numbers whose documents all have a feature.
    """

    dtype: str
    width: int
    covered: dict[str, dict[str, Ranges]] = field(default_factory=dict)


class Sidecar:
    """The files of one generation. Readers need no lock; writers of several processes take turns.

    layout: which fields of the index make a document. With other fields, every document is read again.

    >>> import tempfile
    >>> sidecar = Sidecar(Path(tempfile.mkdtemp()))
    >>> wolf = Document("wolf", text="a grey wolf", categories=("animals",))
    >>> rows = sidecar.rows_for([wolf])
    >>> sidecar.store("text", "v1", rows, np.array([[1.0, 2.0]], np.float16))
    >>> sidecar.place("uuid", 0, [Place("uuid", 0, 7, 1, "wolf")], rows)
    >>> by_id, changed = Place("uuid", -1, 7, 1, "wolf"), Place("uuid", 0, 8, 1)
    >>> found = sidecar.find([Place("uuid", 0, 7, 1), by_id, changed])
    >>> found.tolist()
    [0, 0, -1]
    >>> values, missing = sidecar.gather("text", "v1", found)
    >>> values.tolist(), missing.tolist()
    ([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]], [False, False, True])
    >>> sidecar.categories(found[:1])
    [('animals',)]
    """

    def __init__(self, folder: Path, layout: str = "") -> None:
        self._base, self._layout = folder, layout
        self._changed = self._stamp()
        self._folder = folder / self._name()
        self._maps: dict[Path, NDArray[Any]] = {}
        self._right: dict[Path, NDArray[np.bool_]] = {}
        self._files: dict[tuple[str, ...], Path] = {}
        self._categories: dict[int, tuple[str, ...]] = {}
        self._shards: dict[str, tuple[int, list[int]]] = {}
        self._abouts: dict[Path, tuple[int, About]] = {}
        self._by_hash: dict[bytes, int] = {}

    def current(self) -> Sidecar:
        """Return the sidecar of the generation in use: this one, unless another process has replaced it."""
        return self if self._stamp() == self._changed else Sidecar(self._base, self._layout)

    def _stamp(self) -> int:
        try:
            return (self._base / "current").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _name(self) -> str:
        """The generation in use; the first one needs no file, and files of another format do not count."""
        try:
            name = (self._base / "current").read_text("utf-8").strip()
        except FileNotFoundError:
            name = ""
        return name if re.fullmatch(rf"{_FORMAT}-\d+", name, re.ASCII) else f"{_FORMAT}-0"

    # -- reading -----------------------------------------------------------------------------------------

    def find(self, places: Sequence[Place]) -> NDArray[np.int64]:
        """Return the row of each document in this version; -1: no row."""
        rows = np.full(len(places), -1, np.int64)
        for uuid in dict.fromkeys(place.uuid for place in places):
            where = np.array([i for i, place in enumerate(places) if place.uuid == uuid])
            some = [places[i] for i in where.tolist()]
            shards = np.array([place.shard for place in some], np.int64)
            numbers = np.array([place.seq_no for place in some], np.int64)
            terms = np.array([place.term for place in some], np.int64)
            checks = None
            if (shards < 0).any():
                checks = np.array([_check(place.id) for place in some], np.uint32)
            rows[where] = self.lookup(uuid, shards, numbers, terms, checks)
        return rows

    def lookup(
        self,
        uuid: str,
        shards: NDArray[np.int64],
        numbers: NDArray[np.int64],
        terms: NDArray[np.int64],
        checks: NDArray[np.uint32] | None = None,
    ) -> NDArray[np.int64]:
        """Rows of n documents of one index; (n,) arrays as in :class:`Place`. checks: where shards are -1."""
        rows = np.full(len(numbers), -1, np.int64)
        if len(numbers) and checks is None and (shards == shards[0]).all() and numbers.min() >= 0:
            cells = self._maps.get(self._cells(uuid, int(shards[0])))
            if cells is not None and numbers.max() < len(cells):  # as nearly always, and nothing to look for
                found = cells[numbers, 0]
                right = (found["term"] == terms) & (found["sum"] == _cell_sums(found, numbers))
                rows[right] = found["row"][right].astype(np.int64) - 1
                return rows
        for shard in self._shards_of(uuid):
            asked = shards == shard if checks is None else (shards == shard) | (shards < 0)
            cells = self._map(self._cells(uuid, shard), _CELL, 1, int(numbers.max(initial=-1)) + 1)
            asked &= (numbers >= 0) & (numbers < len(cells))
            where = np.flatnonzero(asked)
            found = cells[numbers[where], 0]
            right = (found["row"] > 0) & (found["term"] == terms[where])
            right &= found["sum"] == _cell_sums(found, numbers[where])
            if checks is not None:
                right &= (shards[where] >= 0) | (found["id"] == checks[where])
            rows[where[right]] = found["row"][right].astype(np.int64) - 1
        return rows

    def gather(
        self, name: str, version: str, rows: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return (n, width) features of rows, and which are missing; these are 0. Width 0: nothing is stored.

        A row is compared with its sum when it is first read.
        """
        cached = self._abouts.get(self._path(name, version, "about.json"))
        about = cached[1] if cached is not None else self.about(name, version)
        if about is None:
            return np.empty((len(rows), 0), np.float32), np.ones(len(rows), np.bool_)
        most = int(rows.max(initial=-1)) + 1
        path = self._path(name, version, "matrix")
        matrix = self._map(path, about.dtype, about.width, most)
        right = self._right.get(path)
        if right is not None and most <= len(right) and rows.min(initial=0) >= 0 and right[rows].all():
            return matrix[rows], np.zeros(len(rows), np.bool_)
        sums = self._map(self._path(name, version, "sums"), np.uint64, 1, most)
        known = (rows >= 0) & (rows < min(len(sums), len(matrix)))
        found = matrix[rows[known]]
        compared = _row_sums(found, rows[known]) == sums[rows[known], 0]
        if right is None or len(right) != len(matrix):
            right = self._right[path] = np.zeros(len(matrix), np.bool_)
        right[rows[known][compared]] = True
        if known.all() and compared.all():
            return found, ~known
        known[known] = compared
        values = np.zeros((len(rows), about.width), about.dtype)
        values[known] = found[compared]
        return values, ~known

    def categories(self, rows: NDArray[np.int64]) -> list[tuple[str, ...]]:
        """Categories of the documents of rows that there are."""
        known, wanted = self._categories, rows.tolist()
        found = {row: one for row in wanted if (one := known.get(row)) is not None}
        if len(found) < len(set(wanted)):
            found = dict(self._read_categories(rows))
            if len(known) > _REMEMBERED:
                known.clear()
            known.update(found)
        return [found[row] for row in wanted]

    def _read_categories(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, tuple[str, ...]]]:
        most = int(rows.max(initial=-1)) + 1
        ends = self._map(self._folder / "ends", np.int64, 1, most)[:, 0]
        with open(self._folder / "categories", "rb") as file:
            for row in rows.tolist():
                begin = int(ends[row - 1]) if 0 < row < len(ends) else 0
                end = int(ends[row]) if row < len(ends) else -1
                whole = b""
                if 0 <= begin < end < begin + _LONGEST:
                    whole = os.pread(file.fileno(), end - begin, begin)
                if _signed(whole[:-4]) != whole:
                    again = "`rerank encode --force`"
                    raise WorkspaceError(f"{file.name} is damaged; encode again with {again}")
                yield row, tuple(parse_json(whole[:-4]))

    def about(self, name: str, version: str) -> About | None:
        """Return the description of this version; None: nothing is stored."""
        path = self._path(name, version, "about.json")
        try:
            changed = path.stat().st_mtime_ns
            cached = self._abouts.get(path)
            if cached is None or cached[0] != changed:
                about = About(**parse_json(path.read_bytes()))
                if np.dtype(about.dtype).kind not in "fiu" or not 0 < about.width < _LONGEST:
                    raise ValueError(f"{about.width} numbers of {about.dtype}")
                cached = self._abouts[path] = changed, about
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise WorkspaceError(
                f"{path} is damaged ({error}); encode again with `rerank encode --force`"
            ) from error
        return cached[1]

    def covered(self, name: str, version: str, uuid: str, shard: int) -> Ranges:
        """Return the sequence numbers of a shard whose documents all have a feature."""
        about = self.about(name, version)
        return about.covered.get(self._key(uuid), {}).get(str(shard), []) if about is not None else []

    def versions(self) -> dict[str, list[str]]:
        """Ranker -> its stored versions, the newest last."""
        found: dict[str, list[tuple[int, str]]] = {}
        for path in self._folder.glob("rankers/*/*/made"):
            found.setdefault(path.parent.parent.name, []).append((path.stat().st_mtime_ns, path.parent.name))
        return {name: [version for _, version in sorted(some)] for name, some in sorted(found.items())}

    # -- writing -----------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the files against other writers, for a moment."""
        self._base.mkdir(parents=True, exist_ok=True)
        with folder_lock(self._base, "storing features", patience=_PATIENCE):
            self._folder.mkdir(parents=True, exist_ok=True)
            yield

    def rows_for(self, documents: Sequence[Document]) -> NDArray[np.int64]:
        """Return the rows of these texts; a new text gets a new row."""
        hashes = [digest(document) for document in documents]
        with self._alone():
            known = self._known()
            fresh = {h: d for h, d in zip(hashes, documents) if h not in known}
            if fresh:
                self._append(fresh)
                known = self._known()
        return np.array([known[h] for h in hashes], np.int64)

    def _known(self) -> dict[bytes, int]:
        """Hash -> row, of all rows, also of rows that other processes have added."""
        path = self._folder / "hashes"
        count = path.stat().st_size // 16 if path.exists() else 0
        if count > len(self._by_hash):
            with path.open("rb") as file:
                file.seek(16 * len(self._by_hash))
                data = file.read(16 * (count - len(self._by_hash)))
            first = len(self._by_hash)
            self._by_hash.update((data[i : i + 16], first + i // 16) for i in range(0, len(data), 16))
        return self._by_hash

    def _append(self, fresh: Mapping[bytes, Document]) -> None:
        count = len(self._by_hash)
        texts = [_signed(json.dumps(d.categories, ensure_ascii=False).encode()) for d in fresh.values()]
        with open(self._folder / "ends", "ab") as ends, open(self._folder / "categories", "ab") as lists:
            ends.truncate(8 * count)  # what a crash has left behind the last row
            begin = 0
            if count:
                begin = int(np.fromfile(self._folder / "ends", np.int64, 1, offset=8 * (count - 1))[0])
            lists.truncate(begin)
            lists.write(b"".join(texts))
            ends.write((begin + np.cumsum([len(text) for text in texts], dtype=np.int64)).tobytes())
            for file in (lists, ends):
                file.flush()
                os.fsync(file.fileno())
        with open(self._folder / "hashes", "ab") as hashes:
            hashes.truncate(16 * count)
            hashes.write(b"".join(fresh))
            hashes.flush()
            os.fsync(hashes.fileno())

    def store(
        self, name: str, version: str, rows: NDArray[np.int64], values: NDArray[Any], *, force: bool = False
    ) -> None:
        """Write the features of rows.

        Raises EngineError if they do not fit the stored ones; with ``force``, they replace them.
        """
        if values.ndim != 2 or len(values) != len(rows) or not values.shape[1]:
            raise EngineError(
                f"ranker {name!r} encoded {plural(len(rows), 'document[|s]')} into an array of shape"
                f" {values.shape}, not ({len(rows)}, width)"
            )
        folder = self._path(name, version)
        with self._alone():
            about, kind = self.about(name, version), (values.dtype.str, values.shape[1])
            if force and about is not None and (about.dtype, about.width) != kind:
                shutil.rmtree(folder)
                for name_of_file in ("matrix", "sums"):
                    self._maps.pop(folder / name_of_file, None)
                about = None
            if about is None:
                about = About(*kind)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "made").touch()
                write_text(folder / "about.json", json.dumps(asdict(about)))
        if (about.dtype, about.width) != kind:
            raise EngineError(
                f"ranker {name!r} encoded features of dtype {values.dtype.str} and width {values.shape[1]},"
                f" but its stored ones have dtype {about.dtype} and width {about.width}; give it a new"
                " version"
            )
        _put(folder / "matrix", rows, np.ascontiguousarray(values))
        _put(folder / "sums", rows, _row_sums(values, rows)[:, None])

    def place(self, uuid: str, shard: int, places: Sequence[Place], rows: NDArray[np.int64]) -> None:
        """Lead documents of one shard to their rows."""
        path = self._cells(uuid, shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = np.zeros((len(rows), 1), _CELL)
        cells["row"][:, 0] = rows + 1
        cells["term"][:, 0] = [place.term for place in places]
        cells["id"][:, 0] = [_check(place.id) for place in places]
        numbers = np.array([place.seq_no for place in places], np.int64)
        cells["sum"][:, 0] = _cell_sums(cells[:, 0], numbers)
        _put(path, numbers, cells)

    def cover(self, name: str, version: str, uuid: str, shard: int, first: int, last: int) -> None:
        """Note that every document with these sequence numbers has a feature."""
        with self._alone():
            about = self.about(name, version)
            if about is not None and first <= last:
                shards = about.covered.setdefault(self._key(uuid), {})
                shards[str(shard)] = united([*shards.get(str(shard), []), [first, last]])
                write_text(self._path(name, version) / "about.json", json.dumps(asdict(about)))

    def drop(self, name: str, kept: Collection[str], present: Sequence[str]) -> None:
        """Remove all versions except the newest and the ``kept`` ones, and cells of former indices."""
        with self._alone():
            for other in self.versions().get(name, [])[:-_KEPT]:
                if other not in kept:
                    shutil.rmtree(self._path(name, other), ignore_errors=True)
            cells = sorted((self._folder / "cells").glob("*"), key=lambda path: path.stat().st_mtime_ns)
            names = {self._key(uuid) for uuid in present}
            for path in [path for path in cells if path.name not in names][:-_INDICES]:
                shutil.rmtree(path, ignore_errors=True)

    def repair(self, rankers: Iterable[tuple[str, str]]) -> Sidecar:
        """Remove corrupt files, so that they are written again; return the generation in use.

        rankers: names and versions whose ``about.json`` is checked. Corrupt categories cannot be replaced in
        place: an empty generation replaces this one.
        """
        with self._alone():
            now = self.current()
            if not now._is_intact():
                number = int(now._folder.name.removeprefix(f"{_FORMAT}-")) + 1
                write_text(self._base / "current", f"{_FORMAT}-{number}\n")
                for path in self._base.iterdir():
                    if re.fullmatch(r"\d+-\d+", path.name, re.ASCII):
                        shutil.rmtree(path, ignore_errors=True)
                return Sidecar(self._base, self._layout)
            for name, version in rankers:
                try:
                    now.about(name, version)
                except WorkspaceError:
                    shutil.rmtree(now._path(name, version))
            return now

    def _is_intact(self) -> bool:
        """Whether the categories of all rows can be read."""
        try:
            for _ in self._read_categories(np.arange(len(self._known()))):
                pass
        except FileNotFoundError:
            return not self._known()
        except WorkspaceError:
            return False
        return True

    # -- files -------------------------------------------------------------------------------------------

    def _path(self, name: str, version: str, file: str = "") -> Path:
        """The folder of a version's features, or a file in it."""
        known = self._files.get((name, version, file))
        if known is None:
            for part in (name, version):
                if not re.fullmatch(r"\w[\w.-]{0,99}", part):
                    raise UsageError(f"{part!r} cannot name features: use letters, digits, '_', '-' and '.'")
            known = self._folder / "rankers" / name / version / file
            self._files[name, version, file] = known
        return known

    def _cells(self, uuid: str, shard: int) -> Path:
        known = self._files.get((uuid, str(shard)))
        if known is None:
            known = self._folder / "cells" / self._key(uuid) / str(shard)
            if len(self._files) > _NAMES:  # callers may ask for indices that there are not
                self._files.clear()
            self._files[uuid, str(shard)] = known
        return known

    def _key(self, uuid: str) -> str:
        """The name of an index, read with these fields, in the sidecar."""
        return re.sub(r"[^\w-]", "_", uuid) + (f"+{self._layout}" if self._layout else "")

    def _shards_of(self, uuid: str) -> list[int]:
        folder = self._cells(uuid, 0).parent
        try:
            changed = folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        known = self._shards.get(uuid)
        if known is None or known[0] != changed:
            names = [path.name for path in folder.iterdir() if path.name.isdecimal()]
            known = self._shards[uuid] = changed, sorted(map(int, names))
        return known[1]

    def _map(self, path: Path, dtype: Any, width: int, most: int) -> NDArray[Any]:
        """The file as (n, width), mapped again if it is longer now and ``most`` rows are needed."""
        there = self._maps.get(path)
        if there is None or len(there) < most:
            kind = np.dtype(dtype)
            try:
                count = path.stat().st_size // (kind.itemsize * width)
            except FileNotFoundError:
                count = 0
            if there is not None and count == len(there):
                return there
            there = np.empty((0, width), kind)
            if count:
                there = np.memmap(path, kind, "r", shape=(count, width)).view(np.ndarray)
            self._maps[path] = there
            self._right.pop(path, None)  # it may be another file: a version that was removed and came back
        return there


def digest(document: Document) -> bytes:
    """Return the hash of all parts of a document that can be encoded, without its id.

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


def united(ranges: Ranges) -> Ranges:
    """Ranges that touch or overlap become one.

    >>> united([[5, 9], [0, 2], [3, 4], [20, 21]])
    [[0, 9], [20, 21]]
    """
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


def lacking(covered: Ranges, last: int) -> Ranges:
    """Return the ranges from 0 to ``last`` that are not covered.

    >>> lacking([[0, 2], [5, 6]], 8), lacking([], 3), lacking([[0, 9]], 8)
    ([[3, 4], [7, 8]], [[0, 3]], [])
    """
    found, begin = [], 0
    for first, end in covered:
        if begin < first:
            found.append([begin, min(first - 1, last)])
        begin = max(begin, end + 1)
    return [*found, [begin, last]] if begin <= last else [one for one in found if one[0] <= last]


def _signed(data: bytes) -> bytes:
    """A list of categories with its CRC."""
    return data + zlib.crc32(data).to_bytes(4, "little")


def _row_sums(values: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(n,) sums of the rows of an (n, width) array, odd and so never 0; numbers: (n,), of the rows."""
    width = values.shape[1] * values.itemsize
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
    words = -(-width // 8)
    if width < 8 * words:
        rows = np.pad(rows, ((0, 0), (0, 8 * words - width)))
    factors = _FACTORS[:words] if words <= _WORDS else np.resize(_FACTORS, words)
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", rows.view(np.uint64), factors)
    sums += numbers.astype(np.uint64) * _PLACE
    sums |= np.uint64(1)
    return sums


def _cell_sums(cells: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
    """(n,) sums of cells, at their sequence numbers."""
    sums: NDArray[np.uint32] = cells["row"] * np.uint32(0x9E3779B1) ^ cells["term"] * np.uint32(0x85EBCA77)
    sums ^= cells["id"] * np.uint32(0xC2B2AE3D) ^ numbers.astype(np.uint32) * np.uint32(0x27D4EB2F)
    return sums


def _check(id: str) -> int:
    return zlib.crc32(id.encode("utf-8", "surrogatepass"))


def _put(path: Path, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Write values to their rows of a file, each unbroken run at once, and have them on the disk."""
    width = values.shape[1] * values.itemsize
    order = np.argsort(rows, kind="stable")
    rows, values = rows[order], values[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    number = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        for start, run in zip(starts.tolist(), np.split(values, starts[1:])):
            os.pwrite(number, run.tobytes(), int(rows[start]) * width)
        os.fsync(number)
    finally:
        os.close(number)
