"""Documents of hits that the cluster sends to the hook."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rerank.common.errors import EngineError
from rerank.documents.records import Document
from rerank.engines.hook_source import HookSource, NearestByRanker, NearestDocuments
from rerank.engines.opensearch.attached_features import OVER_FETCH, AttachedFeatures
from rerank.engines.opensearch.columns import Column, feature_key, vector_field
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.index import FRESH, neighbors_per_shard
from rerank.engines.opensearch.reading import Reader
from rerank.engines.opensearch.text_rows import TextRows
from rerank.engines.search_request import VectorQuery, cannot_retrieve


class ClusterHits(HookSource):
    """Knows which indices belong to the alias, and reads documents by shard and sequence number."""

    def __init__(
        self, reader: Reader, attached: AttachedFeatures | None, doc_values: DocValueFeatures
    ) -> None:
        self._reader = reader
        self._attached = attached
        self._doc_values = doc_values
        self._own: frozenset[str] = frozenset()
        self._foreign: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._retrieving: list[str] = []  # uuids of the last retrieval

    @property
    def files(self) -> TextRows | None:
        """Rows and features of an attached index; None if the hits contain the features."""
        return None if self._attached is None else self._attached.rows

    def nearest(self, queries: Sequence[VectorQuery], *, over_fetch: bool) -> NearestDocuments:
        """Return the ids of the nearest documents in files, or the k-NN field of an index with vectors."""
        shape = self._reader.index.shape()
        self._retrieving = list(shape.uuids.values())
        retrievers: list[NearestByRanker] = []
        size = 0
        for query in queries:
            depth = query.depth or 1
            column = self._column(query)
            if column is None and self._attached is not None:
                ids = self._attached.nearest(query, OVER_FETCH * depth if over_fetch else depth, fresh=False)
                retrievers.append(NearestByRanker(query.name, ids, depth))
                size += len(ids) * len(shape.uuids)
                continue
            if column is None or column.vectors == "exact":
                raise cannot_retrieve(query.name)
            key = feature_key(query.name, query.version)
            name, path = vector_field(key, column.passages)
            count = neighbors_per_shard(depth, shape)
            vector = query.vector.tolist()
            retrievers.append(NearestByRanker(query.name, None, 0, name, path, vector, count))
            size += shape.shards * count
        return NearestDocuments(retrievers, list(shape.uuids.values()), min(size, shape.window))

    def refresh(self) -> None:
        """Read the documents of the feature files again if they changed."""
        if self._attached is not None and self._retrieving:
            self._attached.rows.located(self._retrieving)

    def _column(self, query: VectorQuery) -> Column | None:
        if self._attached is not None:
            return self._attached.column(query.name, query.version)
        return self._doc_values.searchable(query.name, query.version)

    def owned(self, uuids: Sequence[str]) -> list[bool]:
        """Return (n,) whether each index belongs to the alias.

        The alias can move, so it is read again every two seconds, and at once for a new uuid. If the cluster
        does not answer, the last answer is valid.
        """
        now = time.monotonic()
        is_old = now > self._read_at + FRESH
        if is_old or not (self._own | self._foreign).issuperset(uuids):
            self._read_at = now  # other threads continue with the last answer
            self._read(frozenset(uuids), forget=is_old)
        return [uuid in self._own for uuid in uuids]

    def _read(self, uuids: frozenset[str], *, forget: bool) -> None:
        """Read the indices of the alias. forget: indices that were foreign may belong to it now."""
        try:
            own_indices = frozenset(self._reader.index.shape(fresh=True).uuids.values())
        except EngineError:
            if not self._own.issuperset(uuids):
                raise
            return
        self._foreign = (uuids if forget else self._foreign | uuids) - own_indices
        self._own = own_indices

    def documents_at(self, locations: Sequence[tuple[str, int, int]]) -> list[Document | None]:
        """Return the documents at these locations; None if a document was changed or deleted."""
        return self._reader.at(locations)
