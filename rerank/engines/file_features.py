"""Features in files: one matrix per ranker and version.

NAME/VERSION/float16x128   the rows; the name has their dtype and width
NAME/VERSION/stored        one byte per row: 1 if it has a feature. Written after the row is on the disk, so a
                           row that was lost is missing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import EngineError, UsageError
from rerank.common.files import sync_folder
from rerank.common.values import items_at
from rerank.documents.records import Document
from rerank.engines.base import Encoder

_NAME = "{}x{}"
_STORED = "stored"
_TOGETHER = 4096  # rows that are copied together


class _Matrix(NamedTuple):
    """Mapped files. values: (n, width). stored: (n,) bytes."""

    values: NDArray[Any]
    stored: NDArray[np.uint8]


class FeatureFiles:
    """The matrices in a folder. Readers need no lock; processes may write different rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, str], _Matrix] = {}

    def versions(self) -> dict[str, list[str]]:
        """Return ranker -> versions whose features are stored, the newest last."""
        dated_versions: dict[str, list[tuple[int, str]]] = {}
        for path in self._folder.glob(f"*/*/{_STORED}"):
            folder = path.parent
            with suppress(FileNotFoundError):  # another process has just removed this version
                version = folder.stat().st_mtime_ns, folder.name
                dated_versions.setdefault(folder.parent.name, []).append(version)
        versions: dict[str, list[str]] = {}
        for name in sorted(dated_versions):
            versions[name] = [version for _, version in sorted(dated_versions[name])]
        return versions

    def has(self, name: str, version: str) -> bool:
        """Return whether features of this version are stored."""
        return (self._path(name, version) / _STORED).exists()

    def read(
        self, name: str, version: str, rows: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return (n, width) features and (n,) bool: missing, with zeros as features.

        rows: -1: no row. Width 0: nothing is stored.
        """
        matrix = self._matrix(name, version, int(rows.max(initial=-1)) + 1)
        if matrix is None:
            return np.empty((len(rows), 0), np.float32), np.ones(len(rows), np.bool_)
        stored = (rows >= 0) & (rows < len(matrix.stored))
        stored[stored] = matrix.stored[rows[stored]] != 0
        if stored.all():
            return matrix.values[rows], ~stored
        values = np.zeros((len(rows), matrix.values.shape[1]), matrix.values.dtype)
        values[stored] = matrix.values[rows[stored]]
        return values, ~stored

    def matrix(self, name: str, version: str, rows: int) -> NDArray[Any]:
        """Return the mapped (n, width) matrix, with at least ``rows`` rows if stored."""
        matrix = self._matrix(name, version, rows)
        return matrix.values if matrix is not None else np.empty((0, 0), np.float32)

    def folder(self, name: str, version: str) -> Path:
        """Return the folder of a version. Other files that are derived from its features may be there."""
        return self._path(name, version)

    def stored(self, name: str, version: str, count: int) -> NDArray[np.bool_]:
        """Return (count,) bool: whether each of the first ``count`` rows has a feature."""
        stored = np.zeros(count, np.bool_)
        matrix = self._matrix(name, version, count)
        if matrix is not None:
            stored[: len(matrix.stored)] = matrix.stored[:count] != 0
        return stored

    def write(
        self, name: str, version: str, rows: NDArray[np.int64], values: NDArray[Any], *, replace: bool = False
    ) -> None:
        """Store the (n, width) features of n rows; they are all durable after :meth:`sync`.

        replace: accept another dtype or width, instead of raising EngineError.
        """
        check_features(name, values, len(rows))
        folder = self._path(name, version)
        stored = self._kind(name, version)
        new = values.dtype.name, values.shape[1]
        if stored not in (None, new):
            if not replace:
                raise other_kind(name, new, stored)
            self.remove(name, version)
        folder.mkdir(parents=True, exist_ok=True)
        _put(folder / _NAME.format(*new), rows, np.ascontiguousarray(values))
        _put(folder / _STORED, rows, np.ones((len(rows), 1), np.uint8))

    def encode(
        self, encoder: Encoder, rows: NDArray[np.int64], documents: Sequence[Document], *, force: bool = False
    ) -> int:
        """Encode the documents of n rows that have no feature; return their number.

        force: encode all of them.
        """
        missing = np.ones(len(rows), np.bool_)
        if not force:
            missing = self.read(encoder.name, encoder.version, rows)[1]
        positions = np.flatnonzero(missing)
        if len(positions):
            values = encoder.encode(items_at(documents, positions.tolist()))
            self.write(encoder.name, encoder.version, rows[positions], values, replace=force)
        return len(positions)

    def copy(self, source: FeatureFiles, rows: NDArray[np.int64]) -> None:
        """Copy the features of some rows of other files to the rows 0, 1, ... of these files.

        rows: rows of ``source``, ascending.
        """
        for name, versions in source.versions().items():
            for version in versions:
                for start in range(0, len(rows), _TOGETHER):
                    values, missing = source.read(name, version, rows[start : start + _TOGETHER])
                    if not missing.all():
                        self.write(name, version, start + np.flatnonzero(~missing), values[~missing])
                self.sync(name, version)

    def sync(self, name: str, version: str) -> None:
        """Make features durable, with their files and folders."""
        folder = self._path(name, version)
        for path in (*folder.glob("*"), folder, folder.parent, self._folder):
            sync_folder(path)

    def remove(self, name: str, version: str) -> None:
        """Remove the features of this version."""
        self._open.pop((name, version), None)
        shutil.rmtree(self._path(name, version), ignore_errors=True)

    def _matrix(self, name: str, version: str, rows: int) -> _Matrix | None:
        """Return the mapped files, with at least ``rows`` rows if the files have them."""
        cached = self._open.get((name, version))
        cached_rows = 0 if cached is None else len(cached.stored)
        if cached is not None and rows <= cached_rows:
            return cached
        kind = self._kind(name, version)
        if kind is None:
            return None
        dtype = np.dtype(kind[0])
        width = kind[1]
        folder = self._path(name, version)
        file = folder / _NAME.format(*kind)
        count = min(_size(folder / _STORED), _size(file) // (width * dtype.itemsize))
        if count in (0, cached_rows):
            return cached
        values = np.memmap(file, dtype, "r", shape=(count, width)).view(np.ndarray)
        stored = np.memmap(folder / _STORED, np.uint8, "r", shape=(count,)).view(np.ndarray)
        matrix = self._open[name, version] = _Matrix(values, stored)
        return matrix

    def _kind(self, name: str, version: str) -> tuple[str, int] | None:
        """The dtype and width of the rows."""
        for path in self._path(name, version).glob("*x*"):
            match = re.fullmatch(r"(u?int(?:8|16|32|64)|float(?:16|32|64))x([1-9]\d{0,8})", path.name)
            if match is not None:
                return match[1], int(match[2])
        return None

    def _path(self, name: str, version: str) -> Path:
        for folder_name in (name, version):
            if not re.fullmatch(r"\w[\w.-]{0,99}", folder_name):
                raise UsageError(
                    f"{folder_name!r} cannot name features: use letters, digits, '_', '-' and '.'"
                )
        return self._folder / name / version


def check_features(name: str, values: NDArray[Any], count: int) -> None:
    """Raise EngineError unless ``values`` is a (count, width) array."""
    is_matrix = values.ndim == 2 and values.shape[1] > 0
    if not is_matrix or len(values) != count:
        raise EngineError(
            f"ranker {name!r} encoded {count} documents into shape {values.shape}; correct encode_documents"
        )


def other_kind(name: str, new: tuple[str, int], stored: tuple[str, int]) -> EngineError:
    """Return the error for another dtype or width."""
    return EngineError(
        f"ranker {name!r} encoded features of dtype {new[0]} and width {new[1]}, but its stored ones have"
        f" dtype {stored[0]} and width {stored[1]}; give it a new version"
    )


def _put(path: Path, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Write rows durably."""
    width = values.shape[1] * values.itemsize
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    values = values[order]
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        for start, run in zip(starts.tolist(), np.split(values, starts[1:])):
            os.pwrite(descriptor, run.tobytes(), int(rows[start]) * width)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
