"""Searches for ids, scores and features. Sort values return the ids, which is faster than stored fields."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opensearchpy import exceptions as client_errors

from rerank.engines.base import SearchRequest, VectorQuery
from rerank.engines.opensearch.columns import FEATURES, Column, feature_key, vector_field
from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.errors import asking, explain
from rerank.engines.opensearch.index import NO_PIPELINE, Index
from rerank.text import words

_DOING = "searching"
_COPIES = 64  # preferences, which distribute the searches over the copies of a shard
_PIECE = 500  # words of a long query that are sent at once; OpenSearch accepts 1,024 terms


class Found(NamedTuple):
    """Hits of one search.

    features: feature key -> Base64 or None per hit. took: seconds in the cluster.
    versions: index, sequence number and primary term of attached hits.
    """

    ids: list[str]
    scores: list[float]
    features: dict[str, list[str | None]]
    took: float
    versions: list[tuple[str, int, int]]

    def pick(self, order: Sequence[int]) -> Found:
        """Return the hits at these positions."""
        if list(order) == list(range(len(self.ids))):
            return self
        return Found(
            [self.ids[i] for i in order],
            [self.scores[i] for i in order] if self.scores else [],
            {key: [texts[i] for i in order] for key, texts in self.features.items()},
            self.took,
            [self.versions[i] for i in order] if self.versions else [],
        )


Clauses = Sequence[Mapping[str, Any]]
"""Queries that hits must match, without effect on scores."""


def only(query: Mapping[str, Any], kept: Clauses) -> Mapping[str, Any]:
    """Return the query limited to hits that match all clauses, with the same scores."""
    return {"bool": {"must": [query], "filter": list(kept)}} if kept else query


def search_options(settings: Settings, text: str) -> dict[str, str]:
    """Return search parameters. A text always goes to the same shard copy, because idf differs."""
    return {
        "preference": f"rerank-{zlib.crc32(text.encode()) % _COPIES}",
        "search_type": settings.search_type,
        "allow_partial_search_results": "false",
    }


class Search(NamedTuple):
    """A query and its maximum number of hits."""

    query: Mapping[str, Any]
    size: int


class Searcher:
    """Searches one index."""

    def __init__(self, index: Index) -> None:
        self._index, self._client = index, index.client
        self._settings, self._layout = index.settings, index.layout

    def lexical(self, text: str, signal: str, depth: int, kept: Clauses) -> Search:
        """Return the search for the best documents of a signal."""
        return Search(only(self._layout.query(text, signal), kept), depth)

    def nearest(
        self, one: VectorQuery, column: Column, request: SearchRequest, text: str | None, kept: Clauses
    ) -> Search:
        """Return the search for documents by their nearest vector.

        With a graph, hits have first-stage scores for ``text`` and may exceed the depth. Without, they have
        similarities.
        """
        name, path = vector_field(feature_key(one.name, one.version), column.passages)
        vector, depth, shape = one.vector.tolist(), one.depth or request.depth, self._index.shape()

        def inside(query: dict[str, Any]) -> dict[str, Any]:
            return {"nested": {"path": path, "query": query, "score_mode": "max"}} if path else query

        if column.vectors == "exact":
            values = {"field": name, "query_value": vector, "space_type": "innerproduct"}
            script = {"source": "knn_score", "lang": "knn", "params": values}
            query = {"bool": {"filter": {"exists": {"field": name}}}}
            scored = inside({"script_score": {"query": query, "script": script}})
            return Search(only(scored, kept), min(depth, shape.window))
        # A shard has about its share of the nearest.
        count = min(depth, 2 * depth // shape.shards + 100, shape.window)
        # The filter is applied in the search of the graph, and again to its result.
        inner = {"filter": {"bool": {"filter": list(kept)}}} if kept else {}
        near = inside({"knn": {name: {"vector": vector, "k": count, **inner}}})
        should = [] if text is None else [self._layout.query(text, request.first_stage)]
        return Search(
            {"bool": {"filter": [near, *kept], "should": should}}, min(shape.shards * count, shape.window)
        )

    def among(
        self, ids: Sequence[str], text: str, signal: str, keys: Sequence[str] = (), *, matching: bool = False
    ) -> Found | None:
        """Return given documents with their scores. matching: only those with a term of ``text``.

        None: too many terms.
        """
        kind, window = "must" if matching else "should", self._index.shape().window
        merged = Found([], [], {key: [] for key in keys}, 0.0, [])
        for i in range(0, len(ids), window):
            some = list(ids[i : i + window])
            query = {"bool": {"filter": {"ids": {"values": some}}, kind: self._layout.query(text, signal)}}
            (found,) = self.find([Search(query, len(some))], [text], keys)
            if found is None:
                return None
            merged.ids.extend(found.ids)
            merged.scores.extend(found.scores)
            merged.versions.extend(found.versions)
            for key in keys:
                merged.features[key].extend(found.features[key])
        return merged

    def find(
        self, searches: Sequence[Search], texts: Sequence[str], keys: Sequence[str]
    ) -> list[Found | None]:
        """Send searches in one request. keys: features to return. None: too many terms."""
        bodies = [self._body(query, size, keys, self._layout.has_id) for query, size in searches]
        found = []
        for body, text, answer in zip(bodies, texts, self._send(bodies, texts), strict=True):
            hits = None if answer is None else _found(answer, keys, self._layout.has_id)
            if answer is not None and hits is None:  # others have written documents without `id`
                plain = [self._body(body["query"], body["size"], keys, False)]
                (answer,) = self._send(plain, [text])
                hits = None if answer is None else _found(answer, keys, False)
            found.append(hits)
        return found

    def _body(self, query: Mapping[str, Any], size: int, keys: Sequence[str], by_id: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "query": query,
            "size": size,
            "track_total_hits": False,
            "search_pipeline": NO_PIPELINE,
        }
        if by_id:
            body.update(stored_fields="_none_", sort=[{"_score": "desc"}, {"id": "asc"}])
        else:
            body["_source"] = False
            body["seq_no_primary_term"] = not self._layout.has_id
        if keys:
            body["docvalue_fields"] = [f"{FEATURES}.{key}" for key in keys]
        return body

    def _send(
        self, bodies: Sequence[dict[str, Any]], texts: Sequence[str]
    ) -> Iterator[dict[str, Any] | None]:
        options = [search_options(self._settings, text) for text in texts]
        if len(bodies) == 1:
            yield self._ask(bodies[0], options[0])
            return
        lines: list[Any] = []
        for option, body in zip(options, bodies):
            lines += [{**option, "index": self._settings.index}, body]
        with asking(self._settings, _DOING):
            answers = self._client.msearch(body=lines)["responses"]
        for body, option, answer in zip(bodies, options, answers, strict=True):
            yield self._ask(body, option) if "error" in answer else answer

    def _ask(self, body: dict[str, Any], option: dict[str, str]) -> dict[str, Any] | None:
        """Send one search; None: too many terms."""
        for again in (True, False):
            try:
                answer: dict[str, Any] = self._client.search(
                    index=self._settings.index, body=body, params=option
                )
                return answer
            except client_errors.OpenSearchException as error:
                if _too_many_terms(error):
                    return None
                status = getattr(error, "status_code", None)
                # The searches of a dying node fail; copies of its shards answer the next request.
                if not (again and isinstance(status, int) and status >= 500):
                    raise explain(error, self._settings, _DOING) from error
        raise AssertionError


def _found(answer: Mapping[str, Any], keys: Sequence[str], by_id: bool) -> Found | None:
    """The hits of an answer; None if one has no ``id``."""
    hits = answer["hits"]["hits"]
    if by_id:
        ids = [hit["sort"][1] for hit in hits]
        scores = [hit["sort"][0] for hit in hits]
        if None in ids:
            return None
    else:
        ids = [hit["_id"] for hit in hits]
        scores = [hit["_score"] for hit in hits]
    features: dict[str, list[str | None]] = {}
    for key in keys:
        field = f"{FEATURES}.{key}"
        features[key] = [
            fields[field][0] if (fields := hit.get("fields")) and field in fields else None for hit in hits
        ]
    versions = [(hit["_index"], hit["_seq_no"], hit["_primary_term"]) for hit in hits if "_seq_no" in hit]
    return Found(ids, scores, features, answer["took"] / 1000, versions)


def _too_many_terms(error: client_errors.OpenSearchException) -> bool:
    text = str(getattr(error, "info", ""))
    return ("too_many" in text and "clause" in text) or "maxClauseCount" in text


def pieces(text: str) -> list[str]:
    """Split a long query into accepted ones, whose scores add up.

    >>> [len(piece.split()) for piece in pieces("word " * 1200)]
    [500, 500, 200]
    """
    found = words(text)
    return [" ".join(found[i : i + _PIECE]) for i in range(0, len(found), _PIECE)]
