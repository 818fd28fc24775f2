"""Features of documents by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import feature_width
from rerank.engines.base import Encoder, Encoding, FeatureStore, VectorQuery, cannot_retrieve
from rerank.engines.file_features import FeatureFiles
from rerank.engines.local.files import disk
from rerank.engines.local.nearest import nearest
from rerank.errors import WorkspaceError

if TYPE_CHECKING:
    from rerank.engines.local.documents import Documents
    from rerank.engines.local.engine import LocalEngine
    from rerank.engines.local.storage import Storage

_BATCH = 256  # documents per call of an encoder
_COPIED = 1024  # rows that are copied together


class Features(FeatureFiles):
    """Features in files."""

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
        dead = excluded[excluded < len(matrix)]
        return nearest(matrix, vectors, depth, query.passages, dead, ids)

    def copy(self, other: Features, rows: NDArray[np.int64]) -> None:
        """Copy rows, ascending, to the rows 0, 1, ..."""
        for name, versions in other.versions().items():
            for version in versions:
                for start in range(0, len(rows), _COPIED):
                    values, missing = other.read(name, version, rows[start : start + _COPIED])
                    if not missing.all():
                        self.write(name, version, start + np.flatnonzero(~missing), values[~missing])
                self.sync(name, version)


class LocalFeatures(FeatureStore):
    """Writes and counts the features of an engine."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def write(self, encoding: Encoding) -> dict[str, int]:
        """See :meth:`Engine.write_features`."""
        encoded = {encoder.name: 0 for encoder in encoding.encoders}
        with self._engine.lock():
            storage = self._engine.storage()
            with storage.connection() as documents:
                storage.derive(documents)
                for encoder in encoding.encoders:
                    encoded[encoder.name] += self._encode(storage, documents, encoder, encoding)
        return encoded

    def _encode(self, storage: Storage, documents: Documents, encoder: Encoder, encoding: Encoding) -> int:
        features, version = storage.features, storage.newest()
        name = encoder.name
        if encoding.force:
            features.remove(name, encoder.version)
        stored = features.stored(name, encoder.version, version.rows)
        done, start = 0, version.rows if stored.all() else int(np.argmin(stored))
        stream = documents.documents(version, start)
        missing = ((row, document) for row, document in stream if not stored[row])
        with disk(f"storing the features of {name!r}; features stored before are kept"):
            try:
                while batch := list(islice(missing, _BATCH)):
                    rows, some = zip(*batch)
                    done += features.encode(encoder, np.array(rows), some)
                    encoding.advance(len(batch))
            finally:
                features.sync(name, encoder.version)
            for other in features.versions().get(name, ()):
                if other not in encoding.versions(name):
                    features.remove(name, other)
        return done

    def missing(self, name: str, version: str) -> int:
        """Count the documents without a feature."""
        snapshot = self._engine.storage().snapshot()
        missing = ~snapshot.features.stored(name, version, snapshot.version.rows)
        missing[snapshot.dead] = False
        return int(missing.sum())

    def prepared(self, name: str, version: str) -> int | None:
        """Count the documents without a feature; None: nothing is stored."""
        stored = version in self._engine.storage().features.versions().get(name, ())
        return self.missing(name, version) if stored else None
