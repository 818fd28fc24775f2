"""Stored features: one row-aligned, append-only matrix per ranker and version.

``<name>/<version>/matrix`` holds raw values row after row; ``manifest.json`` beside it says how many of
the rows are valid, and their CRC-32. Rows never change, so a feature once written is never stale.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import feature_width
from rerank.engines.base import VectorQuery, cannot_retrieve
from rerank.engines.local.files import append_to, disk
from rerank.engines.local.nearest import PassageVectors, Vectors
from rerank.errors import EngineError, UsageError, WorkspaceError
from rerank.files import file_crc, parse_json, trouble, write_text
from rerank.records import Document

MATRIX = "matrix"
_MANIFEST = "manifest.json"
_BATCH = 256  # documents per call of an encoder
_COPIED = 1024  # rows that are copied together
_TRIES = 20  # to open a matrix that a writer adds to
_SAVED = 10.0  # seconds of work that a kill may cost


class Features:
    """The features folder of an engine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[tuple[str, str], tuple[int, NDArray[Any]]] = {}
        self._vectors: dict[tuple[str, str], Vectors] = {}
        self._mutex = threading.Lock()

    def versions(self) -> dict[str, str]:
        """Ranker name -> version of its stored features (the most complete one)."""
        found = {}
        for folder in sorted(self._folder.iterdir()):
            rows = {
                path.parent.name: _Manifest.load(path.parent).rows for path in folder.glob(f"*/{_MANIFEST}")
            }
            if rows:
                found[folder.name] = max(sorted(rows), key=rows.__getitem__)
        return found

    def gather(
        self, wanted: Mapping[str, str], rows: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        """Features of the given rows, and where they are missing.

        A version of which nothing is stored gives an array of width 0, all missing. Missing rows are 0.
        """
        features, missing = {}, {}
        for name, version in wanted.items():
            matrix = self._matrix(name, version)
            absent = rows >= len(matrix)
            if not absent.any():
                features[name] = matrix[rows]
            else:
                features[name] = np.zeros((len(rows), matrix.shape[1]), matrix.dtype)
                features[name][~absent] = matrix[rows[~absent]]
            missing[name] = absent
        return features, missing

    def top(
        self,
        one: VectorQuery,
        queries: NDArray[np.float32],
        depth: int,
        rows: int,
        dead: NDArray[np.int64],
        ids: Callable[[NDArray[np.int64]], list[str]],
    ) -> Iterator[NDArray[np.int64]]:
        """For each of (Q, width) vectors the nearest of the first rows documents; see :meth:`Vectors.top`.

        Raises UsageError when nothing of this version is stored, WorkspaceError for another width.
        """
        name, version = one.name, one.version
        if not self.stored(name, version):
            raise cannot_retrieve(name)
        matrix, expected = self._matrix(name, version)[:rows], feature_width(one.passages, queries.shape[1])
        if len(matrix) and matrix.shape[1] != expected:
            raise WorkspaceError(
                f"the stored {name} features have {matrix.shape[1]} numbers, not {expected};"
                f" train {name} again"
            )
        with self._mutex:
            if (name, version) not in self._vectors:
                for other in [key for key in self._vectors if key[0] == name]:
                    del self._vectors[other]
                self._vectors[name, version] = (
                    PassageVectors(one.passages) if one.passages else Vectors(queries.shape[1])
                )
            vectors = self._vectors[name, version]
        return vectors.top(matrix, queries, depth, dead[dead < len(matrix)], ids)

    def stored(self, name: str, version: str) -> bool:
        """Whether there are features of this version, be it of no document."""
        return (self._path(name, version) / _MANIFEST).exists()

    def _matrix(self, name: str, version: str) -> NDArray[Any]:
        """The valid rows of one matrix, mapped; opened again when its manifest was replaced."""
        folder = self._path(name, version)
        for left in reversed(range(_TRIES)):
            try:
                changed = (folder / _MANIFEST).stat().st_mtime_ns
                cached = self._open.get((name, version))
                if cached is not None and cached[0] == changed:
                    return cached[1]
                matrix = _Manifest.load(folder).open(folder)
                self._open[name, version] = (changed, matrix)
                return matrix
            except FileNotFoundError as error:
                if not (folder / _MANIFEST).exists():
                    break
                if not left:  # else it was replaced meanwhile
                    raise _damaged(folder, error) from error
            except OSError as error:
                raise trouble(error, folder) or _damaged(folder, error) from error
            except ValueError as error:  # the matrix is shorter than its manifest says
                raise _damaged(folder, error) from error
        return np.empty((0, 0), np.float32)

    def start(self, name: str, version: str) -> int:
        """Rows below this one have features of this version already."""
        return _Manifest.load(self._path(name, version), missing_ok=True).rows

    def remove(self, name: str, version: str) -> None:
        """Remove what is stored of this version."""
        shutil.rmtree(self._path(name, version), ignore_errors=True)

    def write(
        self,
        name: str,
        version: str,
        documents: Iterable[tuple[int, Document]],
        rows: int,
        encode: Callable[[Sequence[Document]], NDArray[Any]],
        progress: Callable[[int], object] | None,
        keep: Iterable[str] = (),
    ) -> int:
        """Encode documents from row :meth:`start` on, so that all below ``rows`` are valid; return how many.

        What was encoded stays when this is interrupted. At the end other versions than those to ``keep`` are
        dropped.
        """
        folder = self._path(name, version)
        doing = f"storing the features of {name!r}; those stored before are kept"
        with disk(doing):
            folder.mkdir(parents=True, exist_ok=True)
            manifest = _Manifest.load(folder, missing_ok=True)
            file = append_to(folder / MATRIX, manifest.rows * manifest.bytes_per_row())
        done, saved, stream, complete = 0, time.monotonic(), iter(documents), False
        try:
            while batch := list(islice(stream, _BATCH)):
                values = encode([document for _, document in batch])
                manifest = manifest.check(name, values, len(batch))
                numbers = np.array([row for row, _ in batch])
                with disk(doing):
                    _put(file, numbers, values)
                    manifest = replace(manifest, rows=batch[-1][0] + 1)
                    if time.monotonic() - saved > _SAVED:
                        manifest.save(folder, file)
                        saved = time.monotonic()
                done += len(batch)
                if progress is not None:
                    progress(len(batch))
            manifest, complete = replace(manifest, rows=rows), True
        finally:
            with file, disk(doing):
                if done or complete:  # a ranker whose first batch fails has no features, and no manifest
                    manifest.save(folder, file)
        for path in folder.parent.iterdir():
            if path != folder and path.name not in keep:
                shutil.rmtree(path)
        return done

    def copy(self, other: Features, rows: NDArray[np.int64]) -> None:
        """Take over the given rows of another folder's matrices, ascending, as the first of this one's."""
        for folder in other._folder.glob(f"*/*/{_MANIFEST}"):
            name, version = folder.parts[-3:-1]
            source = other._matrix(name, version)
            wanted = rows[rows < len(source)]
            target = self._path(name, version)
            target.mkdir(parents=True)
            with open(target / MATRIX, "wb") as file:
                for at in range(0, len(wanted), _COPIED):
                    some = wanted[at : at + _COPIED]
                    file.write(np.ascontiguousarray(source[some]).tobytes())
                known = _Manifest.load(folder.parent)
                replace(known, rows=len(wanted), crc=0).save(target, file)

    def manifests(self) -> Iterator[tuple[Path, _Manifest]]:
        """Stream the folder and the manifest of each matrix."""
        for path in sorted(self._folder.glob(f"*/*/{_MANIFEST}")):
            yield path.parent, _Manifest.load(path.parent)

    def _path(self, name: str, version: str) -> Path:
        for part in (name, version):
            if not re.fullmatch(r"\w[\w.-]{0,99}", part):
                raise UsageError(f"{part!r} cannot name features: use letters, digits, '_', '-' and '.'")
        return self._folder / name / version


@dataclass(frozen=True, slots=True)
class _Manifest:
    """What is valid in a matrix: so many rows of ``width`` values of ``dtype``; width 0 = no row so far.

    crc: CRC-32 of these rows.
    """

    dtype: str = "<f4"
    width: int = 0
    rows: int = 0
    crc: int = 0

    @classmethod
    def load(cls, folder: Path, *, missing_ok: bool = False) -> _Manifest:
        try:
            found = cls(**parse_json((folder / _MANIFEST).read_bytes()))
            if type(found.dtype) is not str or np.dtype(found.dtype).hasobject:
                raise ValueError(f"numbers of {found.dtype!r}")
            if not all(
                type(size) is int and 0 <= size < 2**63 for size in (found.width, found.rows, found.crc)
            ):
                raise ValueError(f"{found.rows!r} rows of {found.width!r} numbers")
            return found
        except FileNotFoundError:
            if missing_ok:
                return cls()
            raise
        except (ValueError, TypeError) as error:
            raise _damaged(folder, error) from error

    def save(self, folder: Path, matrix: BinaryIO) -> None:
        """Make the matrix's file long enough and durable, continue the CRC, then replace the manifest."""
        size = self.rows * self.bytes_per_row()
        matrix.flush()
        matrix.truncate(size)
        os.fsync(matrix.fileno())
        before = _Manifest.load(folder, missing_ok=True)
        start, crc = (before.rows * self.bytes_per_row(), before.crc) if before.rows <= self.rows else (0, 0)
        whole = replace(self, crc=file_crc(folder / MATRIX, start, size, crc))
        write_text(folder / _MANIFEST, json.dumps(asdict(whole)))

    def open(self, folder: Path) -> NDArray[Any]:
        """Map the valid rows: (rows, width). Raises ValueError for a matrix that is cut short."""
        if not self.rows or not self.width:
            return np.empty((0, self.width), np.dtype(self.dtype))
        if self.rows * self.bytes_per_row() > (folder / MATRIX).stat().st_size:
            raise ValueError("it is cut short")
        shape = (self.rows, self.width)
        return np.memmap(folder / MATRIX, np.dtype(self.dtype), "r", shape=shape).view(np.ndarray)

    def bytes_per_row(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize

    def check(self, name: str, values: NDArray[Any], count: int) -> _Manifest:
        """Refuse what does not fit the rows before; the first batch decides on width and dtype."""
        if values.ndim != 2 or len(values) != count or not values.shape[1]:
            raise EngineError(
                f"ranker {name!r} encoded {count} documents into an array of shape {values.shape}, "
                f"not ({count}, width)"
            )
        found = (values.dtype.str, values.shape[1])
        if self.width == 0:
            return replace(self, dtype=found[0], width=found[1])
        if found != (self.dtype, self.width):
            raise EngineError(
                f"ranker {name!r} encoded features of dtype {found[0]} and width {found[1]}, but its "
                f"stored ones have dtype {self.dtype} and width {self.width}; give it a new version"
            )
        return self


def _damaged(folder: Path, error: Exception) -> WorkspaceError:
    return WorkspaceError(f"{folder} is damaged ({error}); remove it and run `rerank encode`")


def _put(file: BinaryIO, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Write values to their rows, each unbroken run at once; dead rows in between stay holes (zeros)."""
    width = values.shape[1] * values.itemsize
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    for start, run in zip(starts.tolist(), np.split(values, starts[1:])):
        file.seek(int(rows[start]) * width)
        file.write(run.tobytes())
