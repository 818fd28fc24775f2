"""Features in files: one matrix per ranker and version.

NAME/VERSION/float16x128   the rows; the name has their dtype and width
NAME/VERSION/sums          checksum of each row (uint64), written last; 0: no feature
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Encoder
from rerank.errors import EngineError, UsageError
from rerank.files import sync_folder
from rerank.records import Document
from rerank.text import plural

_NAME = "{}x{}"
_TOGETHER = 1024  # rows that are copied or verified together

# Odd factors: changing one word, or swapping two, always changes the sum.
_FACTORS = np.random.default_rng(0).integers(0, 2**63, 512, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_PLACE = np.uint64(0x9E3779B97F4A7C15)  # a row in another row's place has another sum


class _Matrix(NamedTuple):
    """Mapped files. intact: rows with a correct checksum."""

    values: NDArray[Any]
    sums: NDArray[np.uint64]
    intact: NDArray[np.bool_]


class FeatureFiles:
    """The matrices in a folder. Readers need no lock; processes may write different rows.

    salt: identifies the numbering of rows; others are ignored.
    """

    def __init__(self, folder: Path, salt: int = 0) -> None:
        self._folder, self._salt = folder, np.uint64(salt)
        self._open: dict[tuple[str, str], _Matrix] = {}

    def versions(self) -> dict[str, list[str]]:
        """Ranker -> stored versions, the newest last."""
        stored: dict[str, list[tuple[int, str]]] = {}
        for folder in {path.parent for path in self._folder.glob("*/*/sums")}:
            stored.setdefault(folder.parent.name, []).append((folder.stat().st_mtime_ns, folder.name))
        return {name: [version for _, version in sorted(some)] for name, some in sorted(stored.items())}

    def read(
        self, name: str, version: str, rows: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """(n, width) features, and (n,) bool: missing or corrupt (zeros).

        rows: -1: no row. Width 0: nothing is stored.
        """
        matrix = self._matrix(name, version, int(rows.max(initial=-1)) + 1)
        if matrix is None:
            return np.empty((len(rows), 0), np.float32), np.ones(len(rows), np.bool_)
        stored = (rows >= 0) & (rows < len(matrix.sums))
        if stored.all() and matrix.intact[rows].all():
            return matrix.values[rows], ~stored
        some = rows[stored]
        found = matrix.values[some]
        right = row_sums(found, some, self._salt) == matrix.sums[some]
        matrix.intact[some[right]] = True
        stored[stored] = right
        values = np.zeros((len(rows), found.shape[1]), found.dtype)
        values[stored] = found[right]
        return values, ~stored

    def matrix(self, name: str, version: str, rows: int) -> NDArray[Any]:
        """Return the mapped (n, width) matrix, with at least ``rows`` rows if stored."""
        matrix = self._matrix(name, version, rows)
        return matrix.values if matrix is not None else np.empty((0, 0), np.float32)

    def stored(self, name: str, version: str, count: int) -> NDArray[np.bool_]:
        """(count,) bool: which of the first rows have a feature."""
        stored = np.zeros(count, np.bool_)
        matrix = self._matrix(name, version, count)
        if matrix is not None:
            stored[: len(matrix.sums)] = matrix.sums[:count] != 0
        return stored

    def write(
        self, name: str, version: str, rows: NDArray[np.int64], values: NDArray[Any], *, replace: bool = False
    ) -> None:
        """Store the (n, width) features of n rows; they are durable after :meth:`sync`.

        replace: accept another dtype or width, instead of raising EngineError.
        """
        check_features(name, values, len(rows))
        folder, stored = self._path(name, version), self._kind(name, version)
        new = values.dtype.name, values.shape[1]
        if stored not in (None, new):
            if not replace:
                raise other_kind(name, new, stored)
            self.remove(name, version)
        folder.mkdir(parents=True, exist_ok=True)
        _put(folder / _NAME.format(*new), rows, np.ascontiguousarray(values))
        _put(folder / "sums", rows, row_sums(values, rows, self._salt)[:, None])

    def encode(
        self, encoder: Encoder, rows: NDArray[np.int64], documents: Sequence[Document], *, force: bool = False
    ) -> int:
        """Encode the documents of n rows that have no intact feature; return their number.

        force: encode all of them.
        """
        missing = np.ones(len(rows), np.bool_)
        if not force:
            missing = self.read(encoder.name, encoder.version, rows)[1]
        where = np.flatnonzero(missing)
        if len(where):
            values = encoder.encode([documents[i] for i in where.tolist()])
            self.write(encoder.name, encoder.version, rows[where], values, replace=force)
        return len(where)

    def copy(self, other: FeatureFiles, rows: NDArray[np.int64]) -> None:
        """Copy rows of ``other``, ascending, to the rows 0, 1, ..."""
        for name, versions in other.versions().items():
            for version in versions:
                for start in range(0, len(rows), _TOGETHER):
                    values, missing = other.read(name, version, rows[start : start + _TOGETHER])
                    if not missing.all():
                        self.write(name, version, start + np.flatnonzero(~missing), values[~missing])
                self.sync(name, version)

    def sync(self, name: str, version: str) -> None:
        """Make features durable. After a power failure without it, checksums detect the lost ones."""
        for path in self._path(name, version).glob("*"):
            sync_folder(path)

    def remove(self, name: str, version: str) -> None:
        """Remove the features of this version."""
        self._open.pop((name, version), None)
        shutil.rmtree(self._path(name, version), ignore_errors=True)

    def corruptions(self) -> Iterator[tuple[Path, str]]:
        """Yield each corrupt file and its problem."""
        for name, versions in self.versions().items():
            for version in versions:
                path = self._path(name, version)
                count = _size(path / "sums") // 8
                if len(self.matrix(name, version, count)) < count:
                    yield path, "the matrix is too short"
                rows = np.flatnonzero(self.stored(name, version, count))
                parts = (rows[i : i + _TOGETHER] for i in range(0, len(rows), _TOGETHER))
                corrupt = sum(int(self.read(name, version, part)[1].sum()) for part in parts)
                if corrupt:
                    yield path, f"{plural(corrupt, 'row[|s]')} differ from the checksum"

    def _matrix(self, name: str, version: str, most: int) -> _Matrix | None:
        cached = self._open.get((name, version))
        if cached is not None and most <= len(cached.sums):
            return cached
        kind = self._kind(name, version)
        if kind is None:
            return None
        dtype, width = np.dtype(kind[0]), kind[1]
        sums_file = self._path(name, version) / "sums"
        rows_file = sums_file.with_name(_NAME.format(*kind))
        count = min(_size(sums_file) // 8, _size(rows_file) // (width * dtype.itemsize))
        if not count or (cached is not None and count == len(cached.sums)):
            return cached
        values = np.memmap(rows_file, dtype, "r", shape=(count, width)).view(np.ndarray)
        sums = np.memmap(sums_file, np.uint64, "r", shape=(count,)).view(np.ndarray)
        matrix = self._open[name, version] = _Matrix(values, sums, np.zeros(count, np.bool_))
        return matrix

    def _kind(self, name: str, version: str) -> tuple[str, int] | None:
        """The dtype and width of the rows."""
        for path in self._path(name, version).glob("*x*"):
            if found := re.fullmatch(r"(u?int(?:8|16|32|64)|float(?:16|32|64))x([1-9]\d{0,8})", path.name):
                return found[1], int(found[2])
        return None

    def _path(self, name: str, version: str) -> Path:
        for part in (name, version):
            if not re.fullmatch(r"\w[\w.-]{0,99}", part):
                raise UsageError(f"{part!r} cannot name features: use letters, digits, '_', '-' and '.'")
        return self._folder / name / version


def check_features(name: str, values: NDArray[Any], count: int) -> None:
    """Raise EngineError unless ``values`` is a (count, width) array."""
    if values.ndim != 2 or len(values) != count or not values.shape[1]:
        raise EngineError(
            f"ranker {name!r} encoded {count} documents into shape {values.shape}; correct encode_documents"
        )


def other_kind(name: str, new: tuple[str, int], stored: tuple[str, int]) -> EngineError:
    """Return the error for another dtype or width."""
    return EngineError(
        f"ranker {name!r} encoded features of dtype {new[0]} and width {new[1]}, but its stored ones have"
        f" dtype {stored[0]} and width {stored[1]}; give it a new version"
    )


def row_sums(values: NDArray[Any], rows: NDArray[np.int64], salt: np.uint64) -> NDArray[np.uint64]:
    """(n,) checksums, never 0. values: (n, width). rows: row numbers."""
    width = values.shape[1] * values.itemsize
    data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
    words = -(-width // 8)
    if width < 8 * words:
        data = np.pad(data, ((0, 0), (0, 8 * words - width)))
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", data.view(np.uint64), np.resize(_FACTORS, words))
    sums += (rows.astype(np.uint64) + salt) * _PLACE
    sums |= np.uint64(1)
    return sums


def _put(path: Path, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
    width = values.shape[1] * values.itemsize
    order = np.argsort(rows, kind="stable")
    rows, values = rows[order], values[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        for start, run in zip(starts.tolist(), np.split(values, starts[1:])):
            os.pwrite(descriptor, run.tobytes(), int(rows[start]) * width)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
