"""Searches by words or vectors, and scores of given documents.

Sort values return the ids, which is faster than stored fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import feature_width, passage_cosines
from rerank.engines.base import SearchRequest, VectorQuery, cannot_retrieve, check_signal
from rerank.engines.opensearch.attached_features import AttachedFeatures
from rerank.engines.opensearch.columns import FEATURES, Column, feature_key, vector_field
from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.filtering import Fields
from rerank.engines.opensearch.index import DEFAULTS
from rerank.engines.opensearch.reading import usable
from rerank.errors import WorkspaceError
from rerank.order import rank
from rerank.records import Candidates

_DOING = "searching"
_COPIES = 64  # preferences, which distribute the searches over the copies of a shard
_TOGETHER = 2000  # hits that one _msearch returns, about


Clauses = list[dict[str, Any]]
"""Queries that hits must match, without effect on scores."""


class Hit(NamedTuple):
    """A hit of a search.

    score: of the first stage; NaN: of something else.
    features: field -> Base64. version: index, sequence number and primary term, if attached.
    """

    id: str
    score: float
    features: Mapping[str, Sequence[str]]
    version: tuple[str, int, int] | None


class Search(NamedTuple):
    """A query with its text and its maximum number of hits."""

    query: Mapping[str, Any]
    text: str
    size: int


class Answer(NamedTuple):
    """Hits, and seconds in the cluster."""

    hits: list[Hit]
    took: float


def search_options(settings: Settings, text: str) -> dict[str, str]:
    """Return search parameters. A text always goes to the same shard copy, because idf differs."""
    return {
        "preference": f"rerank-{zlib.crc32(text.encode()) % _COPIES}",
        "search_type": settings.search_type,
        "allow_partial_search_results": "false",
    }


class Searcher:
    """Finds and scores the documents of one index. attached: the features of an attached index."""

    def __init__(self, features: DocValueFeatures, attached: AttachedFeatures | None) -> None:
        self._features, self._attached = features, attached
        index = self._index = features.reader.index
        self._settings, self._layout = index.settings, index.layout
        self.fields = Fields(features.reader)

    def search(self, requests: Sequence[SearchRequest], kept: Clauses | None = None) -> Iterator[Candidates]:
        """Search for one batch of requests; see :func:`batches`. kept: additional filters.

        A second request to the cluster gets first-stage scores if the first one cannot.
        """
        one = requests[0]
        one.check(self._layout.first_stages)
        columns = {query.name: self._searchable_column(query) for query in one.vector_queries}
        wanted = self._feature_keys(one)
        kept = [*(kept or ()), *self.fields.clauses(one.filters)]
        depths = [one.depth for _ in one.signals] + [query.depth or one.depth for query in one.vector_queries]
        together = max(1, _TOGETHER // sum(depths))
        for i in range(0, len(requests), together):
            some = [replace(request, text=_encodable(request.text)) for request in requests[i : i + together]]
            searches = [search for request in some for search in self._searches(request, columns, kept)]
            answers = iter(self._find(searches, [*wanted.values()]))
            for request in some:
                yield self._union(request, list(islice(answers, len(depths))), columns, wanted)

    def select(self, request: SearchRequest) -> Candidates:
        """Score and order the requested documents."""
        request.check(self._layout.first_stages)
        wanted = self._feature_keys(request)
        ids = [id for id in dict.fromkeys(request.ids or ()) if usable(id)]
        text = _encodable(request.text)
        hits, took = self._among(ids, text, request.first_stage, [*wanted.values()])
        return self._candidates(_ordered(hits), took, request, wanted)

    def score(self, text: str, signal: str, ids: Sequence[str]) -> NDArray[np.float64]:
        """Score documents; see :meth:`Engine.score`."""
        check_signal(signal, self._layout.first_stages)
        hits, _ = self._among(ids, _encodable(text), signal, matching=True)
        scores = {hit.id: hit.score for hit in reversed(_ordered(hits))}
        return np.array([scores.get(id, 0.0) for id in ids], np.float64)

    def _among(
        self, ids: Sequence[str], text: str, signal: str, keys: Sequence[str] = (), *, matching: bool = False
    ) -> Answer:
        """Given documents with their scores. matching: only documents with a term of ``text``."""
        kind = "must" if matching else "should"
        shape = self._index.shape()
        page_size = max(1, shape.window // shape.shards)  # each shard may have a document of the same id
        hits: list[Hit] = []
        for start in range(0, len(ids), page_size):
            page = list(ids[start : start + page_size])
            size = len(page) * shape.shards
            query = {"bool": {"filter": {"ids": {"values": page}}, kind: self._layout.query(text, signal)}}
            (answer,) = self._find([Search(query, text, size)], keys)
            hits += answer.hits
        return Answer(hits, answer.took if ids else 0.0)

    def _searchable_column(self, one: VectorQuery) -> Column:
        column = self._features.searchable(one.name, one.version)
        if column is None:
            raise cannot_retrieve(one.name)
        expected = feature_width(one.passages, len(one.vector))
        if column.width != expected:
            raise WorkspaceError(
                f"the {one.name} features have {column.width} numbers, not {expected}; train {one.name} again"
            )
        return column

    def _feature_keys(self, request: SearchRequest) -> dict[str, str]:
        """Ranker -> key of features in the requested version, if the index has them."""
        versions = {} if self._attached else dict(request.features)
        versions |= {query.name: query.version for query in request.vector_queries}
        keys = {name: feature_key(name, version) for name, version in versions.items()}
        if any(key not in self._features.columns for key in keys.values()):
            self._features.stored()
        return {name: key for name, key in keys.items() if key in self._features.columns}

    def _searches(
        self, request: SearchRequest, columns: Mapping[str, Column], kept: Clauses
    ) -> Iterator[Search]:
        """The searches of a request, by signal, then by vector."""
        for signal in request.signals:
            query = {"bool": {"must": [self._layout.query(request.text, signal)], "filter": kept}}
            yield Search(query, request.text, request.depth)
        for one in request.vector_queries:
            yield self._nearest(one, columns[one.name], request, kept)

    def _nearest(self, one: VectorQuery, column: Column, request: SearchRequest, kept: Clauses) -> Search:
        """The search for documents by their nearest vector.

        With a graph, hits have first-stage scores and may exceed the depth. Without, they have similarities.
        """
        name, path = vector_field(feature_key(one.name, one.version), column.passages)
        vector, depth, shape = one.vector.tolist(), one.depth or request.depth, self._index.shape()

        def inside(query: dict[str, Any]) -> dict[str, Any]:
            return {"nested": {"path": path, "query": query, "score_mode": "max"}} if path else query

        if column.vectors == "exact":
            values = {"field": name, "query_value": vector, "space_type": "innerproduct"}
            script = {"source": "knn_score", "lang": "knn", "params": values}
            having = {"bool": {"filter": {"exists": {"field": name}}}}
            scored = inside({"script_score": {"query": having, "script": script}})
            return Search(
                {"bool": {"must": [scored], "filter": kept}}, request.text, min(depth, shape.window)
            )
        # A shard has about its share of the nearest.
        count = min(depth, 2 * depth // shape.shards + 100, shape.window)
        # The filter is applied in the search of the graph, and again to its result.
        inner = {"filter": {"bool": {"filter": list(kept)}}} if kept else {}
        near = inside({"knn": {name: {"vector": vector, "k": count, **inner}}})
        query = {
            "bool": {"filter": [near, *kept], "should": self._layout.query(request.text, request.first_stage)}
        }
        return Search(query, request.text, min(shape.shards * count, shape.window))

    def _union(
        self,
        request: SearchRequest,
        answers: Sequence[Answer],
        columns: Mapping[str, Column],
        wanted: Mapping[str, str],
    ) -> Candidates:
        """The hits of all retrievers, with first-stage scores."""
        parts, took = self._parts(request, answers, wanted), max(answer.took for answer in answers)
        if not request.retrievers:
            return self._candidates(parts[request.first_stage], took, request, wanted)
        scored = {request.first_stage, *(name for name, c in columns.items() if c.vectors != "exact")}
        hits_by_id = {hit.id: hit for part in parts.values() for hit in part}
        scores: dict[str, float] = {}
        for name, part in parts.items():
            if name in scored:
                for hit in part:
                    scores[hit.id] = max(hit.score, scores.get(hit.id, hit.score))
        unscored = [id for id in hits_by_id if id not in scores]
        if unscored:
            scores |= zip(unscored, self.score(request.text, request.first_stage, unscored).tolist())
        hits = _ordered([hit._replace(score=scores[id]) for id, hit in hits_by_id.items()])
        members = {name: {hit.id for hit in part} for name, part in parts.items()}
        by = {name: np.array([hit.id in some for hit in hits], np.bool_) for name, some in members.items()}
        return replace(self._candidates(hits, took, request, wanted), retrieved_by=by)

    def _parts(
        self, request: SearchRequest, answers: Sequence[Answer], wanted: Mapping[str, str]
    ) -> dict[str, list[Hit]]:
        """The best hits of each retriever."""
        parts: dict[str, list[Hit]] = {}
        for signal, answer in zip(request.signals, answers):
            parts[signal] = _ordered(answer.hits)[: request.depth]
        for query, answer in zip(request.vector_queries, answers[len(request.signals) :], strict=True):
            hits = self._by_product(answer.hits, query, wanted[query.name])
            parts[query.name] = hits[: query.depth or request.depth]
        return parts

    def _by_product(self, hits: Sequence[Hit], one: VectorQuery, key: str) -> list[Hit]:
        """The hits with positive products, the largest first."""
        values, _ = self._decoded(hits, key)
        vector = one.vector.astype(np.float64)
        if one.passages:
            exact = passage_cosines(vector, values, one.passages).max(axis=1)
        else:
            exact = values.astype(np.float64) @ vector
        products = exact.astype(np.float32)
        order = rank([hit.id for hit in hits], products).tolist()
        return _each_once([hits[i] for i in order if products[i] > 0])

    def _decoded(self, hits: Sequence[Hit], key: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        field = f"{FEATURES}.{key}"
        texts = [hit.features[field][0] if field in hit.features else None for hit in hits]
        return self._features.columns[key].decode(texts)

    def _candidates(
        self, hits: Sequence[Hit], took: float, request: SearchRequest, wanted: Mapping[str, str]
    ) -> Candidates:
        ids, scores = [hit.id for hit in hits], np.array([hit.score for hit in hits], np.float64)
        values: dict[str, NDArray[Any]] = {}
        missing: dict[str, NDArray[np.bool_]] = {}
        if self._attached is not None:
            if request.features:
                versions = [hit.version for hit in hits if hit.version is not None]
                values, missing = self._attached.read(request.features, ids, versions)
        else:
            for name in request.features:
                if name in wanted:
                    values[name], missing[name] = self._decoded(hits, wanted[name])
                else:
                    values[name] = np.empty((len(ids), 0), np.float32)
                    missing[name] = np.ones(len(ids), np.bool_)
        return Candidates(ids, scores, np.arange(len(ids), dtype=np.int64), values, missing, took=took)

    def _find(self, searches: Sequence[Search], keys: Sequence[str]) -> list[Answer]:
        """Send searches in one request. keys: features to return."""
        located = self._attached if self._attached is not None and self._attached.locates else None
        stored = self._layout.attached and located is None
        bodies = [self._body(search, keys, stored) for search in searches]
        answers = list(self._send(searches, bodies))
        results = [answer["hits"]["hits"] for answer in answers]
        ids = located.ids(results) if located else [[_id(hit) for hit in hits] for hits in results]
        for place, search in enumerate(searches):
            if not all(ids[place]):  # written without `id`, or after the encoding
                (answers[place],) = self._send([search], [self._body(search, keys, True)])
                results[place] = answers[place]["hits"]["hits"]
                ids[place] = [_id(hit) for hit in results[place]]
        return [
            Answer(list(map(_hit, hits, some)), answer["took"] / 1000)
            for hits, some, answer in zip(results, ids, answers)
        ]

    def _body(self, search: Search, keys: Sequence[str], stored: bool) -> dict[str, Any]:
        """stored: with ``_id``, for which a cluster decompresses all texts: ten times as slow."""
        body: dict[str, Any] = {"query": search.query, "size": search.size}
        body |= {"_source": False} if stored else {"stored_fields": "_none_"}
        if self._layout.attached:
            body["seq_no_primary_term"] = True
        elif not stored:
            body["sort"] = [{"_score": "desc"}, {"id": "asc"}]
        if keys:
            body["docvalue_fields"] = [f"{FEATURES}.{key}" for key in keys]
        return body

    def _send(self, searches: Sequence[Search], bodies: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        options = [search_options(self._settings, search.text) for search in searches]
        if len(bodies) == 1:
            yield self._index.search(_DOING, bodies[0], **options[0])
            return
        lines: list[Any] = []
        for option, body in zip(options, bodies):
            lines += [{**option, "index": self._settings.index}, {**DEFAULTS, **body}]
        with self._index.asking(_DOING):
            answers = self._index.client.msearch(body=lines)["responses"]
        for body, option, answer in zip(bodies, options, answers, strict=True):
            yield self._index.search(_DOING, body, **option) if "error" in answer else answer


def _id(hit: Mapping[str, Any]) -> str:
    return (hit["sort"][1] if "sort" in hit else hit["_id"]) or ""


def _hit(hit: Mapping[str, Any], id: str) -> Hit:
    score = hit["sort"][0] if "sort" in hit else hit["_score"]
    version = (hit["_index"], hit["_seq_no"], hit["_primary_term"]) if "_seq_no" in hit else None
    return Hit(id, score, hit.get("fields", {}), version)


def _ordered(hits: Sequence[Hit]) -> list[Hit]:
    order = rank([hit.id for hit in hits], [hit.score for hit in hits])
    return _each_once([hits[i] for i in order.tolist()])


def _each_once(hits: Sequence[Hit]) -> list[Hit]:
    """Return the first hit of each id: several indices of an alias may have a document of the same id."""
    first_hits: dict[str, Hit] = {}
    for hit in hits:
        first_hits.setdefault(hit.id, hit)
    return list(first_hits.values())


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()
