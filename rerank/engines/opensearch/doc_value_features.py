"""The features in an index, and their encoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError
from rerank.common.values import without
from rerank.documents.records import Document
from rerank.engines.base import Encoder, Encoding, FeatureStore, IndexSlice
from rerank.engines.opensearch.bulk import Action, action, send
from rerank.engines.opensearch.columns import (
    FEATURES,
    Column,
    check_mapping,
    columns,
    encode,
    feature_key,
    ranker_of,
    searched_keys,
    vector_key,
    with_vectors,
    without_vectors,
)
from rerank.engines.opensearch.reading import Hits, Reader

_BATCH = 256  # documents per call of an encoder
_PAUSE = 3.0  # seconds in which copies replace lost shards
_ROUNDS = 5  # passes over documents that other clients change during the encoding

Encoded = list[tuple[str, set[str]]]
"""Ids of the documents that were encoded, for each ranker."""


@dataclass(frozen=True)
class _Plan:
    """The plan of one pass over the documents. A key names a ranker and a version.

    encoders:    key -> encoder, for the features to write.
    columns:     key -> column, for the features that are mapped; encoding adds new ones.
    vectors:     keys of ``encoders`` whose features also need vectors.
    new_vectors: the ones of ``vectors`` whose features are stored without vectors.
    rewritten:   keys of the stored features that an update must contain, because it drops all others.
    dropped:     fields to remove.
    force:       encode all documents, not only those without a feature.
    """

    encoders: dict[str, Encoder]
    columns: dict[str, Column]
    vectors: list[str]
    new_vectors: Collection[str]
    rewritten: list[str]
    dropped: list[str]
    force: bool

    @property
    def only_rewritten(self) -> list[str]:
        """The keys of ``rewritten`` without an encoder."""
        return [key for key in self.rewritten if key not in self.encoders]

    def body(self, source: bool | list[str]) -> dict[str, Any]:
        """Return the search for the documents to encode. source: the fields of a document to read."""
        query: dict[str, Any] = {"match_all": {}}
        if not self.force:
            incomplete = [{"bool": {"must_not": _exists(key)}} for key in self.encoders]
            incomplete += [without_vectors(key, self.encoders[key].passages) for key in self.vectors]
            query = {"bool": {"should": incomplete, "minimum_should_match": 1}}
        return {
            "size": _BATCH,
            "query": query,
            "_source": source,
            "docvalue_fields": [f"{FEATURES}.{key}" for key in self.rewritten],
            "seq_no_primary_term": True,
        }

    def actions(self, hits: Hits, features: Sequence[Mapping[str, Any]]) -> list[Action]:
        """Return the ``_bulk`` updates of hits. Each names its index, because an alias can have several.

        features: for each hit, the fields to write. A hit that was changed since it was read is refused.
        """
        dropped: dict[str, Any] = dict.fromkeys(self.dropped)
        actions = []
        for hit, values in zip(hits, features, strict=True):
            routing = {"routing": hit["_routing"]} if "_routing" in hit else {}
            update = action(
                "update",
                hit["_id"],
                {"doc": {FEATURES: {**dropped, **values}}},
                **routing,
                _index=hit["_index"],
                if_seq_no=hit["_seq_no"],
                if_primary_term=hit["_primary_term"],
            )
            actions.append(update)
        return actions


class DocValueFeatures(FeatureStore):
    """Writes and counts the features of an index.

    columns: feature key -> column, as in the mapping that was read last.
    """

    has_slices = True

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._index = reader.index
        self._client = self._index.client
        self._settings = self._index.settings
        self._layout = self._index.layout
        self.columns: dict[str, Column] = {}

    def stored(self) -> dict[str, Column]:
        """Read the columns from the mappings; return feature key -> column, for features of all versions."""
        with self._index.asking("reading the mapping"):
            mappings = self._client.indices.get_mapping(index=self._settings.index)
        self.columns = {}
        for index in mappings.values():
            for key, column in columns(index["mappings"]).items():
                previous = self.columns.get(key, column)
                # All indices must support a search: "" < "exact" < "hnsw".
                self.columns[key] = replace(previous, vectors=min(previous.vectors, column.vectors))
        return self.columns

    def searchable(self, name: str, version: str) -> Column | None:
        """Return the column of a ranker's features if the index can search for their vectors, else None.

        If the mapping that was read last has no such column, the mapping is read again.
        """
        key = feature_key(name, version)
        return with_vectors(self.columns.get(key)) or with_vectors(self.stored().get(key))

    def retrieving(self, encoders: Sequence[Encoder]) -> set[str]:
        """Return the rankers whose vectors are in the mapping, or will be after these encoders have run."""
        rankers = {encoder.name for encoder in encoders if encoder.retrieves}
        for key in searched_keys(self.columns):
            rankers.add(ranker_of(key)[0])
        return rankers

    def map(self, new: Mapping[str, Column], index: str) -> None:
        """Add the fields of new columns to the mapping of each index.

        new:   feature key -> column.
        index: name of an index or alias.

        Raises EngineError if an index cannot have them.
        """
        for name, state in self._client.indices.get_mapping(index=index).items():
            check_mapping(name, state["mappings"])
            fields = self._new_fields(name, new, columns(state["mappings"]))
            if not fields:
                continue
            body = {"properties": {FEATURES: {"type": "object", "dynamic": "false", "properties": fields}}}
            try:
                self._client.indices.put_mapping(index=name, body=body)
            except client_errors.RequestError as error:
                if "No handler for type [knn_vector]" in str(error.info):
                    raise EngineError(
                        f"{self._settings.where} has no k-NN plugin; install opensearch-knn on each node"
                    ) from error
                raise

    def _new_fields(
        self, index: str, new: Mapping[str, Column], mapped: Mapping[str, Column]
    ) -> dict[str, Any]:
        """Return the fields that new columns need and an index lacks. mapped: columns of the index."""
        missing = without(new, mapped)
        fields = {key: column.mapping() for key, column in missing.items()}
        vectors = searched_keys(new) - searched_keys(mapped)
        if vectors:
            settings = self._client.indices.get_settings(index=index)[index]["settings"]["index"]
            has_graph = str(settings.get("knn")).lower() == "true"
            for key in sorted(vectors):
                fields |= new[key].vector_mapping(key, has_graph)
        return fields

    def write(self, encoding: Encoding) -> dict[str, int]:
        """Encode documents that lack features; see :meth:`Engine.write_features`.

        A document is written once, unless another client changed it; then it is read again.
        """
        encoded = {encoder.name: 0 for encoder in encoding.encoders}
        if not encoded:
            return encoded

        def count(name: str, number: int) -> None:
            encoded[name] += number
            encoding.advance(number)

        for remaining in reversed(range(_ROUNDS)):
            before = sum(encoded.values())
            try:
                if not self._pass(self._plan(encoding), count, encoding.index_slice):
                    break
                encoding = replace(encoding, force=False)  # changed documents have lost their features
            except EngineError:
                # The point in time is lost with its node: try another one.
                has_progress = sum(encoded.values()) > before
                if not remaining or not has_progress:
                    raise
                time.sleep(_PAUSE)
        return encoded

    def _plan(self, encoding: Encoding) -> _Plan:
        """Read the mapping, add the missing fields of vectors, and decide which features a pass writes."""
        self._index.refresh("storing features")
        stored = dict(self.stored())
        encoders = {feature_key(encoder.name, encoder.version): encoder for encoder in encoding.encoders}
        retrieving = self.retrieving(encoding.encoders)
        vectors = [key for key, encoder in encoders.items() if encoder.name in retrieving]

        new_vectors: dict[str, Column] = {}
        for key in vectors:
            if key in stored and not stored[key].vectors:
                new_vectors[key] = replace(stored[key], vectors="hnsw", passages=encoders[key].passages)
        self.map(new_vectors, self._settings.index)
        stored |= new_vectors

        rewritten = self._keys_to_rewrite(encoding, stored, encoders)
        dropped = self._fields_to_drop(stored.keys() - rewritten, stored)
        return _Plan(encoders, stored, vectors, new_vectors, rewritten, dropped, encoding.force)

    def _fields_to_drop(self, unused: Collection[str], stored: Mapping[str, Column]) -> list[str]:
        """Return the fields of unused features, which an update must set to null.

        Only in an attached index are they part of ``_source``. A list of passages is replaced anyway.
        """
        if not self._layout.attached:
            return []
        fields: list[str] = []
        for key in sorted(unused):
            fields.append(key)
            if stored[key].vectors and not stored[key].passages:
                fields.append(vector_key(key, 0))
        return fields

    @staticmethod
    def _keys_to_rewrite(
        encoding: Encoding, stored: Mapping[str, Column], encoders: Mapping[str, Encoder]
    ) -> list[str]:
        """Return the keys of stored features that stay.

        An update drops all features that it does not contain, because they are not part of ``_source``.
        """
        keys = set(encoders)
        for name, versions in encoding.keep.items():
            keys.update(feature_key(name, version) for version in versions)
        newest: dict[str, str] = {}  # ranker -> key
        for key in sorted(stored.keys() - encoders, key=lambda key: stored[key].since):
            name, _ = ranker_of(key)
            newest[name] = key
        keys.update(newest.values())
        return sorted(stored.keys() & keys)

    def _pass(self, plan: _Plan, count: Callable[[str, int], None], index_slice: IndexSlice | None) -> bool:
        """Encode documents; return whether other clients changed some."""

        def batches() -> Iterator[tuple[Encoded, list[Action]]]:
            for hits in self.reader.pages(plan.body(self._layout.source), index_slice):
                features, encoded = self._encode(plan, hits)
                yield encoded, plan.actions(hits, features)

        changed = False
        with self._index.asking("storing features"):
            for encoded, written in send(self._index, self._settings.index, batches()):
                if written.refused:
                    id, reason = written.refused[0]
                    raise EngineError(f"storing features: OpenSearch refuses document {id!r}: {reason}")
                changed |= bool(written.conflicts)
                for name, ids in encoded:
                    count(name, len(ids.difference(written.conflicts, written.missing)))
        self._index.refresh("storing features")
        return changed

    def _encode(self, plan: _Plan, hits: Hits) -> tuple[list[dict[str, Any]], Encoded]:
        """Return all features of each hit, and the ids of the documents that each ranker encoded."""
        features = [self._features_to_keep(plan, hit) for hit in hits]
        documents = [self._layout.document(hit["_id"], hit["_source"]) for hit in hits]
        encoded: Encoded = []
        for key, encoder in plan.encoders.items():
            positions = self._encode_with(plan, key, documents, features)
            ids = {hits[position]["_id"] for position in positions}
            encoded.append((encoder.name, ids))

        for key in plan.only_rewritten:
            if plan.columns[key].vectors:
                plan.columns[key].add_vectors(key, features)
        for values, document in zip(features, documents):
            values |= self._layout.row(document)
        return features, encoded

    def _encode_with(
        self, plan: _Plan, key: str, documents: Sequence[Document], features: list[dict[str, Any]]
    ) -> Sequence[int]:
        """Add the features of one encoder, and return the positions of the documents that get a value."""
        is_mapped = key in plan.columns
        positions = encode(
            plan.encoders[key], documents, features, plan.columns, retrieves=key in plan.vectors
        )
        if positions and not is_mapped:
            self.map({key: plan.columns[key]}, self._settings.index)
        if key in plan.new_vectors:  # documents with the feature get its vector
            return range(len(documents))
        return positions

    def _features_to_keep(self, plan: _Plan, hit: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored features of a hit that are written again as they are."""
        features = {}
        stored_values = hit.get("fields", {})
        for key in plan.rewritten:
            is_encoded_again = plan.force and key in plan.encoders
            values = stored_values.get(f"{FEATURES}.{key}")
            if values and not is_encoded_again:
                features[key] = values[0]
        return features

    def missing(self, name: str, version: str) -> int:
        """Count the documents without a feature."""
        return self._index.count({"bool": {"must_not": _exists(feature_key(name, version))}})

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        """Count the documents without a value in the k-NN field."""
        column = self.searchable(name, version)
        if column is None:
            return None
        return self._index.count(without_vectors(feature_key(name, version), column.passages))


def _exists(key: str) -> dict[str, Any]:
    return {"exists": {"field": f"{FEATURES}.{key}"}}
