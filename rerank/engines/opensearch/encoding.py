"""The features that the documents of an index have: writing and counting them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from opensearchpy import exceptions as client_errors

from rerank.engines.base import Encoder
from rerank.engines.opensearch.bulk import Action, action, send
from rerank.engines.opensearch.features import (
    Column,
    check_mapping,
    column,
    columns,
    ranker_of,
    without_vectors,
)
from rerank.engines.opensearch.index import OURS, WHOLE, Index
from rerank.engines.opensearch.layout import FEATURES, AttachedLayout, feature_field, feature_key, vector_key
from rerank.engines.opensearch.reading import Reader
from rerank.errors import EngineError

_BATCH = 256  # documents a call of an encoder
_PAUSE = 3.0  # seconds in which copies take the place of shards that are lost
_ROUNDS = 5  # passes over documents that others keep changing while they are encoded


@dataclass(frozen=True)
class _Plan:
    """The plan of one pass over the documents. Keys name a ranker and a version.

    wanted: features to write, and their encoders. stored: columns of the mapping; new ones are added.
    retrieving: names of rankers that retrieve. vectors: wanted keys whose documents need vectors.
    fresh: wanted keys without vectors until now.
    kept: stored features that are written again with a document.
    dropped: fields to remove from ``_source``. force: encode all documents.
    """

    wanted: dict[str, Encoder]
    stored: dict[str, Column]
    retrieving: set[str]
    vectors: list[str]
    fresh: set[str]
    kept: list[str]
    dropped: list[str]
    force: bool

    def body(self, source: bool | list[str]) -> dict[str, Any]:
        """The search for the documents to write, with their stored features."""
        lacking = [{"bool": {"must_not": {"exists": {"field": f"{FEATURES}.{key}"}}}} for key in self.wanted]
        lacking += [without_vectors(key, self.wanted[key].passages) for key in self.vectors]
        return {
            "size": _BATCH,
            "query": {"match_all": {}}
            if self.force
            else {"bool": {"should": lacking, "minimum_should_match": 1}},
            "_source": source,
            "docvalue_fields": [f"{FEATURES}.{key}" for key in self.kept],
            "seq_no_primary_term": True,
        }

    def actions(
        self, hits: Sequence[Mapping[str, Any]], features: Sequence[Mapping[str, Any]]
    ) -> list[Action]:
        """The updates of ``_bulk``. Each names its own index: an attached alias can have several."""
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


class Features:
    """Writes and counts the features of an index's documents.

    columns: feature key -> column of the mapping, as it was last read.
    """

    def __init__(self, index: Index, reader: Reader) -> None:
        self._index, self._reader = index, reader
        self._client, self._settings, self._layout = index.client, index.settings, index.layout
        self.columns: dict[str, Column] = {}

    def stored(self) -> dict[str, Column]:
        """Read what features the mapping knows."""
        with self._index.asking("reading the mapping"):
            mappings = self._client.indices.get_mapping(index=self._settings.index)
        self.columns = {}
        for about in mappings.values():
            for key, found in columns(about["mappings"]).items():
                known = self.columns.get(key, found)
                # Of several indices the one that can do least decides: "" < "exact" < "hnsw".
                self.columns[key] = replace(known, vectors=min(known.vectors, found.vectors))
        return self.columns

    def retrieving(self, encoders: Sequence[Encoder]) -> set[str]:
        """Names of the rankers that retrieve, in whatever version, or are to from now on."""
        there = {ranker_of(key)[0] for key, c in self.columns.items() if c.vectors}
        return there | {encoder.name for encoder in encoders if encoder.retrieves}

    def map(self, made: Mapping[str, Column], index: str) -> None:
        """Add the fields of features to an index's mapping."""
        there = self._client.indices.get_mapping(index=index)
        for name, about in there.items():
            check_mapping(name, about["mappings"], FEATURES)
            known = columns(about["mappings"])
            new = {key: c.mapping() for key, c in made.items() if key not in known}
            there_by = {key for key, c in known.items() if c.vectors}
            lacking = [key for key, c in made.items() if c.vectors and key not in there_by]
            if lacking:
                settings = self._client.indices.get_settings(index=name)[name]["settings"]["index"]
                graph = str(settings.get("knn")).lower() == "true"
                for key in lacking:
                    new |= made[key].vector_mapping(key, graph)
            if not new:
                continue
            body = {"properties": {FEATURES: {"type": "object", "dynamic": "false", "properties": new}}}
            try:
                self._client.indices.put_mapping(index=name, body=body)
            except client_errors.RequestError as error:
                if lacking and "No handler for type [knn_vector]" in str(error.info):
                    raise EngineError(
                        f"{self._settings.where} has no k-NN plugin, which {ranker_of(lacking[0])[0]}"
                        " needs to retrieve; install opensearch-knn on every node, or leave"
                        f" --retrieve out"
                    ) from error
                raise

    def write(
        self,
        encoders: Sequence[Encoder],
        *,
        part: tuple[int, int] = (0, 1),
        force: bool = False,
        keep: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Encode the documents that lack features; see :meth:`Engine.write_features`.

        Every document that lacks any of them is written once, with all of them, and only if nobody else
        has changed it since it was read; one that was changed is read again. ``part`` makes use of sliced
        points in time, so that several processes, on several machines, share the work.
        """
        encoded = {encoder.name: 0 for encoder in encoders}
        if not encoders:
            return encoded

        def count(name: str, number: int) -> None:
            encoded[name] += number
            if progress is not None:
                progress(number)

        others = {feature_key(name, version) for name, some in (keep or {}).items() for version in some}
        for left in reversed(range(_ROUNDS)):
            before = sum(encoded.values())
            try:
                if not self._pass(self._plan(encoders, others, force), part, count):
                    break
                force = False  # what was changed meanwhile has lost its features
            except EngineError:
                # A node that dies takes the point in time with it: go on at another one if that may help.
                if not left or sum(encoded.values()) == before:
                    raise
                time.sleep(_PAUSE)
        return encoded

    def _plan(self, encoders: Sequence[Encoder], others: set[str], force: bool) -> _Plan:
        """Read the stored columns, and add fields of vectors for stored features."""
        with self._index.asking("storing features"):
            self._index.refresh(self._settings.index)
        stored = dict(self.stored())
        wanted = {feature_key(encoder.name, encoder.version): encoder for encoder in encoders}
        retrieving = self.retrieving(encoders)
        vectors = [key for key, encoder in wanted.items() if encoder.name in retrieving]
        fresh = {key for key in vectors if key not in stored or not stored[key].vectors}
        made = {
            key: replace(stored[key], vectors="hnsw", passages=wanted[key].passages)
            for key in fresh
            if key in stored
        }
        self.map(made, self._settings.index)
        stored |= made
        # An update of a document drops its features (they are not part of _source): all are written again.
        serving = {feature_key(name, version) for name, version in self.versions().items()}
        kept = sorted(key for key in stored if key in serving or key in wanted or key in others)
        # They are part of _source in an attached index, where null removes those that nobody needs any more.
        attached = isinstance(self._layout, AttachedLayout)
        dropped = [key for key in stored if attached and key not in kept]
        # A list of passages is replaced anyway.
        dropped += [vector_key(key) for key in dropped if stored[key].vectors and not stored[key].passages]
        return _Plan(wanted, stored, retrieving, vectors, fresh, kept, dropped, force)

    def _pass(self, plan: _Plan, part: tuple[int, int], count: Callable[[str, int], None]) -> bool:
        """Encode the documents without features; return whether some were changed during the pass."""

        def batches() -> Iterator[tuple[list[tuple[str, set[str]]], list[Action]]]:
            for hits in self._reader.pages(plan.body(self._layout.source), part):
                features, encoded = self._encoded(plan, hits)
                yield encoded, plan.actions(hits, features)

        changed = False
        with self._index.asking("storing features"):
            for encoded, written in send(self._client, self._settings, self._settings.index, batches()):
                if written.refused:
                    id, reason = written.refused[0]
                    raise EngineError(f"storing features: OpenSearch refuses document {id!r}: {reason}")
                changed |= bool(written.conflicts)
                for name, ids in encoded:
                    count(name, len(ids.difference(written.conflicts, written.missing)))
            self._index.refresh(self._settings.index)
        return changed

    def _encoded(
        self, plan: _Plan, hits: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[tuple[str, set[str]]]]:
        """Return all features of each hit, and the ids that were encoded for each ranker."""
        read = [key for key in plan.kept if not (plan.force and key in plan.wanted)]
        features = [_stored_texts(hit, read) for hit in hits]
        documents = [self._layout.document(hit["_id"], hit["_source"]) for hit in hits]
        counted: list[tuple[str, set[str]]] = []
        for key, encoder in plan.wanted.items():
            rows = [i for i, found in enumerate(features) if key not in found]
            if key in plan.fresh:  # documents with the feature get a vector of it
                counted.append(
                    (encoder.name, {hit["_id"] for hit, found in zip(hits, features) if key in found})
                )
            if not rows:
                continue
            values = encoder.encode([documents[i] for i in rows])
            for i, text in zip(rows, self._column(plan, key, values, len(rows)).encode(values)):
                features[i][key] = text
            counted.append((encoder.name, {hits[i]["_id"] for i in rows}))
        for key in dict.fromkeys([*plan.kept, *plan.vectors]):
            if ranker_of(key)[0] in plan.retrieving and key in plan.stored and plan.stored[key].vectors:
                plan.stored[key].add_vectors(key, features, [found.get(key) for found in features])
        return features, counted

    def _column(self, plan: _Plan, key: str, values: NDArray[Any], count: int) -> Column:
        """The column that encoded values belong to; its field is added to the mapping if it is new."""
        encoder, known = plan.wanted[key], plan.stored.get(key)
        found = column(encoder.name, values, count, known)
        if known is None:
            if encoder.name in plan.retrieving:
                found = replace(found, vectors="hnsw", passages=encoder.passages)
            self.map({key: found}, self._settings.index)
        plan.stored[key] = found
        return found

    def missing(self, name: str, version: str) -> int:
        """Count the documents without a feature; see :meth:`Engine.missing_features`."""
        lacking = {"bool": {"must_not": {"exists": {"field": feature_field(name, version)}}}}
        with self._index.asking("counting features"):
            return self._index.count(lacking)

    def prepared(self, name: str, version: str) -> int | None:
        """Count the documents that a ranker cannot find; see :meth:`Engine.prepared`."""
        key = feature_key(name, version)
        column = self.columns.get(key)
        if column is None or not column.vectors:
            column = self.stored().get(key)
        if column is None or not column.vectors:
            return None
        with self._index.asking("counting features"):
            return self._index.count(without_vectors(key, column.passages))

    def versions(self) -> dict[str, str]:
        """Ranker name -> version of the stored features: the most complete one, of two the newer."""
        stored = self.stored()
        if not stored:
            return {}
        filters = {key: {"exists": {"field": f"{FEATURES}.{key}"}} for key in stored}
        body = {**OURS, "size": 0, "aggs": {"stored": {"filters": {"filters": filters}}}}
        with self._index.asking("counting features"):
            answer = self._client.search(index=self._settings.index, body=body, params=WHOLE)
        counts = {
            key: found["doc_count"] for key, found in answer["aggregations"]["stored"]["buckets"].items()
        }
        best: dict[str, str] = {}
        for key in sorted(stored, key=lambda key: (counts[key], stored[key].since)):
            if counts[key]:
                name, version = ranker_of(key)
                best[name] = version
        return best


def _stored_texts(hit: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str]:
    """Feature key -> Base64, of the features of a hit."""
    fields = hit.get("fields", {})
    return {key: fields[f"{FEATURES}.{key}"][0] for key in keys if f"{FEATURES}.{key}" in fields}
