"""Features of documents by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rerank.common.batches import batched
from rerank.engines.approximate import ApproximateIndex, needs_index
from rerank.engines.base import Encoder, Encoding, FeatureStore
from rerank.engines.local.files import disk

if TYPE_CHECKING:
    from rerank.engines.file_features import FeatureFiles
    from rerank.engines.local.documents import Documents
    from rerank.engines.local.engine import LocalEngine
    from rerank.engines.local.storage import Storage

_BATCH = 256  # documents per call of an encoder


class LocalFeatures(FeatureStore):
    """Writes and counts the features of an engine."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    def write(self, encoding: Encoding) -> dict[str, int]:
        encoded = {encoder.name: 0 for encoder in encoding.encoders}
        with self._engine.lock():
            storage = self._engine.storage()
            with disk("opening the documents; nothing was encoded"):
                opened = storage.connection(writes=True)
            with opened as documents:
                storage.derive(documents)
                for encoder in encoding.encoders:
                    encoded[encoder.name] += self._encode(storage, documents, encoder, encoding)
        return encoded

    def _encode(self, storage: Storage, documents: Documents, encoder: Encoder, encoding: Encoding) -> int:
        features = storage.features
        version = storage.newest()
        name = encoder.name
        stored = features.stored(name, encoder.version, version.rows)
        if encoding.force:  # an old feature stays until it is replaced
            stored[:] = False
        count = 0
        start = version.rows if stored.all() else int(np.argmin(stored))
        stream = documents.documents(version, start)
        missing = ((row, document) for row, document in stream if not stored[row])
        with disk(f"storing the features of {name!r}; features stored before are kept"):
            try:
                for batch in batched(missing, _BATCH):
                    rows, texts = zip(*batch)
                    count += features.encode(encoder, np.array(rows), texts, force=encoding.force)
                    encoding.advance(len(batch))
            finally:
                features.sync(name, encoder.version)
            for old_version in features.versions().get(name, ()):
                if old_version not in encoding.versions(name):
                    features.remove(name, old_version)
            if encoder.can_retrieve:
                self._index(features, encoder, version.rows, rebuild=encoding.force)
        return count

    @staticmethod
    def _index(features: FeatureFiles, encoder: Encoder, rows: int, *, rebuild: bool) -> None:
        """Build the index for approximate search, if the collection is large enough."""
        folder = features.folder(encoder.name, encoder.version)
        matrix = features.matrix(encoder.name, encoder.version, rows)[:rows]
        if needs_index(folder, len(matrix), rebuild=rebuild):
            ApproximateIndex.build(matrix, encoder.passages).write(folder)

    def missing(self, name: str, version: str) -> int:
        storage = self._engine.storage()
        newest = storage.version()
        stored = storage.features.stored(name, version, newest.rows)
        return int((storage.documents.alive(newest) & ~stored).sum())

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        """Count the documents without a feature. Every stored one can be searched; None: there is none."""
        stored = version in self._engine.storage().features.versions().get(name, ())
        return self.missing(name, version) if stored else None
