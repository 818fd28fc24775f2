"""Features of documents by row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import feature_width
from rerank.engines.base import Encoder, VectorQuery, cannot_retrieve
from rerank.engines.file_features import FeatureFiles
from rerank.engines.local.files import disk
from rerank.engines.local.nearest import PassageVectors, Vectors
from rerank.errors import WorkspaceError
from rerank.records import Document

_BATCH = 256  # documents per call of an encoder
_COPIED = 1024  # rows that are copied together


class Features(FeatureFiles):
    """Features in files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._vectors: dict[tuple[str, str], Vectors] = {}
        self._mutex = threading.Lock()

    def newest(self, count: int) -> dict[str, str]:
        """Ranker -> version with the most features of the first ``count`` rows."""
        return {
            name: max(reversed(versions), key=lambda one: int(self.stored(name, one, count).sum()))
            for name, versions in self.versions().items()
        }

    def nearest(
        self,
        query: VectorQuery,
        vectors: NDArray[np.float32],
        depth: int,
        rows: int,
        excluded: NDArray[np.int64],
        ids: Callable[[NDArray[np.int64]], list[str]],
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the nearest of the first ``rows`` rows per (Q, width) vector.

        Raises UsageError without features, WorkspaceError for another width.
        """
        name, version = query.name, query.version
        if version not in self.versions().get(name, ()):
            raise cannot_retrieve(name)
        matrix = self.matrix(name, version, rows)[:rows]
        width = feature_width(query.passages, vectors.shape[1])
        if len(matrix) and matrix.shape[1] != width:
            raise WorkspaceError(
                f"the stored {name} features have {matrix.shape[1]} numbers, not {width}; train {name} again"
            )
        with self._mutex:
            if (name, version) not in self._vectors:
                for other in [key for key in self._vectors if key[0] == name]:
                    del self._vectors[other]
                self._vectors[name, version] = (
                    PassageVectors(query.passages) if query.passages else Vectors(vectors.shape[1])
                )
            searched = self._vectors[name, version]
        return searched.top(matrix, vectors, depth, excluded[excluded < len(matrix)], ids)

    def encode(
        self,
        encoder: Encoder,
        documents: Iterable[tuple[int, Document]],
        progress: Callable[[int], object] | None,
    ) -> int:
        """Encode documents and return their number."""
        name, version, encode, *_ = encoder
        done, stream = 0, iter(documents)
        try:
            while batch := list(islice(stream, _BATCH)):
                values = encode([document for _, document in batch])
                with _storing(name):
                    self.write(name, version, np.array([row for row, _ in batch]), values, sync=False)
                done += len(batch)
                if progress is not None:
                    progress(len(batch))
        finally:
            with _storing(name):
                self.sync(name, version)
        return done

    def keep(self, versions: Mapping[str, Sequence[str]]) -> None:
        """Remove other versions of these rankers."""
        for name, stored in self.versions().items():
            for version in stored:
                if name in versions and version not in versions[name]:
                    self.remove(name, version)

    def copy(self, other: Features, rows: NDArray[np.int64]) -> None:
        """Copy rows, ascending, to the rows 0, 1, ..."""
        for name, versions in other.versions().items():
            for version in versions:
                for start in range(0, len(rows), _COPIED):
                    values, missing = other.read(name, version, rows[start : start + _COPIED])
                    if not missing.all():
                        self.write(name, version, start + np.flatnonzero(~missing), values[~missing])


def _storing(name: str) -> AbstractContextManager[None]:
    return disk(f"storing the features of {name!r}; features stored before are kept")
