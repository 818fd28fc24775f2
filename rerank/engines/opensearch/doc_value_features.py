"""The features in an index, and their encoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opensearchpy import exceptions as client_errors

from rerank.engines.base import Encoder, Encoding, FeatureStore
from rerank.engines.opensearch.bulk import Action, action, send
from rerank.engines.opensearch.columns import (
    FEATURES,
    Column,
    check_mapping,
    columns,
    encode,
    feature_key,
    ranker_of,
    vector_key,
    without_vectors,
)
from rerank.engines.opensearch.reading import Hits, Reader
from rerank.errors import EngineError

_BATCH = 256  # documents per call of an encoder
_PAUSE = 3.0  # seconds in which copies replace lost shards
_ROUNDS = 5  # passes over documents that other clients change during the encoding

Encoded = list[tuple[str, set[str]]]
"""Ids of the documents that were encoded, for each ranker."""


@dataclass(frozen=True)
class _Plan:
    """One pass over the documents. Keys name ranker and version.

    wanted: features to write. stored: mapped columns. vectors: keys that need vectors. fresh: stored without.
    kept: features to write again. dropped: fields to remove. force: encode all.
    """

    wanted: dict[str, Encoder]
    stored: dict[str, Column]
    vectors: list[str]
    fresh: Collection[str]
    kept: list[str]
    dropped: list[str]
    force: bool

    def body(self, source: bool | list[str]) -> dict[str, Any]:
        lacking = [{"bool": {"must_not": _exists(key)}} for key in self.wanted]
        lacking += [without_vectors(key, self.wanted[key].passages) for key in self.vectors]
        some = {"bool": {"should": lacking, "minimum_should_match": 1}}
        return {
            "size": _BATCH,
            "query": {"match_all": {}} if self.force else some,
            "_source": source,
            "docvalue_fields": [f"{FEATURES}.{key}" for key in self.kept],
            "seq_no_primary_term": True,
        }

    def actions(self, hits: Hits, features: Sequence[Mapping[str, Any]]) -> list[Action]:
        """The ``_bulk`` updates. Each names its index, as an alias can have several."""
        dropped: dict[str, Any] = dict.fromkeys(self.dropped)
        return [
            action(
                "update",
                hit["_id"],
                {"doc": {FEATURES: {**dropped, **found}}},
                **({"routing": hit["_routing"]} if "_routing" in hit else {}),
                _index=hit["_index"],
                if_seq_no=hit["_seq_no"],
                if_primary_term=hit["_primary_term"],
            )
            for hit, found in zip(hits, features, strict=True)
        ]


class DocValueFeatures(FeatureStore):
    """Writes and counts the features of an index. columns: feature key -> mapped column."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self._index = reader, reader.index
        self._client, self._settings = self._index.client, self._index.settings
        self._layout = self._index.layout
        self.columns: dict[str, Column] = {}

    def stored(self) -> dict[str, Column]:
        """Read the mapped columns."""
        with self._index.asking("reading the mapping"):
            mappings = self._client.indices.get_mapping(index=self._settings.index)
        self.columns = {}
        for about in mappings.values():
            for key, found in columns(about["mappings"]).items():
                known = self.columns.get(key, found)
                # All indices must support a search: "" < "exact" < "hnsw".
                self.columns[key] = replace(known, vectors=min(known.vectors, found.vectors))
        return self.columns

    def searchable(self, name: str, version: str) -> Column | None:
        """Return the column of a ranker's vectors, or None."""
        key = feature_key(name, version)
        found = self.columns.get(key)
        if found is None or not found.vectors:
            found = self.stored().get(key)
        return found if found is not None and found.vectors else None

    def retrieving(self, encoders: Sequence[Encoder]) -> set[str]:
        """Return the rankers that retrieve or will retrieve."""
        now = {ranker_of(key)[0] for key, c in self.columns.items() if c.vectors}
        return now | {encoder.name for encoder in encoders if encoder.retrieves}

    def map(self, new: Mapping[str, Column], index: str) -> None:
        """Add feature fields to a mapping."""
        for name, about in self._client.indices.get_mapping(index=index).items():
            check_mapping(name, about["mappings"])
            known = columns(about["mappings"])
            fields = {key: c.mapping() for key, c in new.items() if key not in known}
            vectors = [
                key for key, c in new.items() if c.vectors and (key not in known or not known[key].vectors)
            ]
            if vectors:
                settings = self._client.indices.get_settings(index=name)[name]["settings"]["index"]
                graph = str(settings.get("knn")).lower() == "true"
                for key in vectors:
                    fields |= new[key].vector_mapping(key, graph)
            if not fields:
                continue
            body = {"properties": {FEATURES: {"type": "object", "dynamic": "false", "properties": fields}}}
            try:
                self._client.indices.put_mapping(index=name, body=body)
            except client_errors.RequestError as error:
                if vectors and "No handler for type [knn_vector]" in str(error.info):
                    raise EngineError(
                        f"{self._settings.where} has no k-NN plugin; install opensearch-knn on each node"
                    ) from error
                raise

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

        for left in reversed(range(_ROUNDS)):
            before = sum(encoded.values())
            try:
                if not self._pass(self._plan(encoding), count):
                    break
                encoding = replace(encoding, force=False)  # changed documents have lost their features
            except EngineError:
                # The point in time is lost with its node: try another one.
                if not left or sum(encoded.values()) == before:
                    raise
                time.sleep(_PAUSE)
        return encoded

    def _plan(self, encoding: Encoding) -> _Plan:
        self._index.refresh("storing features")
        stored = dict(self.stored())
        wanted = {feature_key(encoder.name, encoder.version): encoder for encoder in encoding.encoders}
        retrieving = self.retrieving(encoding.encoders)
        vectors = [key for key, encoder in wanted.items() if encoder.name in retrieving]
        fresh = {
            key: replace(stored[key], vectors="hnsw", passages=wanted[key].passages)
            for key in vectors
            if key in stored and not stored[key].vectors
        }
        self.map(fresh, self._settings.index)
        stored |= fresh
        # An update drops features, which are not part of _source: write all again.
        others = {feature_key(name, version) for name, some in encoding.keep.items() for version in some}
        by_age = sorted(stored.keys() - wanted, key=lambda key: stored[key].since)
        newest = {ranker_of(key)[0]: key for key in by_age}.values()
        kept = sorted(stored.keys() & {*wanted, *others, *newest})
        # They are part of _source in an attached index, where null removes the unused ones.
        dropped = [key for key in stored if self._layout.attached and key not in kept]
        # A list of passages is replaced anyway.
        dropped += [vector_key(key, 0) for key in dropped if stored[key].vectors and not stored[key].passages]
        return _Plan(wanted, stored, vectors, fresh, kept, dropped, encoding.force)

    def _pass(self, plan: _Plan, count: Callable[[str, int], None]) -> bool:
        """Encode documents; return whether other clients changed some."""

        def batches() -> Iterator[tuple[Encoded, list[Action]]]:
            for hits in self.reader.pages(plan.body(self._layout.source)):
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
        """All features of each hit, and ranker -> encoded ids."""
        read = [key for key in plan.kept if not (plan.force and key in plan.wanted)]
        features: list[dict[str, Any]] = [
            {key: values[0] for key in read if (values := hit.get("fields", {}).get(f"{FEATURES}.{key}"))}
            for hit in hits
        ]
        documents = [self._layout.document(hit["_id"], hit["_source"]) for hit in hits]
        encoded: Encoded = []
        for key, encoder in plan.wanted.items():
            new = key not in plan.stored
            rows = encode(encoder, documents, features, plan.stored, retrieves=key in plan.vectors)
            if new and rows:
                self.map({key: plan.stored[key]}, self._settings.index)
            # With a new field of vectors, documents with the feature get its vector.
            changed = range(len(hits)) if key in plan.fresh else rows
            encoded.append((encoder.name, {hits[i]["_id"] for i in changed}))
        for found, document in zip(features, documents):
            found |= self._layout.row(document)
        for key in plan.kept:
            if key not in plan.wanted and plan.stored[key].vectors:
                plan.stored[key].add_vectors(key, features)
        return features, encoded

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
