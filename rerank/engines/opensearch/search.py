"""Searches by words or vectors, and scores of given documents.

Sort values return the ids, which is faster than stored fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import feature_width, passage_cosines
from rerank.common.errors import WorkspaceError
from rerank.common.order import rank
from rerank.common.values import items_at
from rerank.documents.records import Candidates
from rerank.engines.opensearch.attached_features import OVER_FETCH, AttachedFeatures
from rerank.engines.opensearch.columns import FEATURES, Column, feature_key, vector_field
from rerank.engines.opensearch.connection import Settings
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.filtering import Fields
from rerank.engines.opensearch.index import DEFAULTS, neighbors_per_shard
from rerank.engines.opensearch.reading import DocumentVersion, usable
from rerank.engines.search_request import SearchRequest, VectorQuery, cannot_retrieve, check_signal

_DOING = "searching"
_COPIES = 64  # preferences, which distribute the searches over the copies of a shard
_TOGETHER = 2000  # hits that one _msearch returns, about


Clauses = list[dict[str, Any]]
"""Queries that hits must match. They have no effect on scores."""

Features = dict[str, NDArray[Any]]
"""Ranker -> (n, width) features of n hits."""

Missing = dict[str, NDArray[np.bool_]]
"""Ranker -> (n,) bool: which hits have no feature."""


class Hit(NamedTuple):
    """A hit of a search.

    score:    by the search that found it.
    features: field -> stored feature, in Base64.
    version:  of a document in an attached index.
    """

    id: str
    score: float
    features: Mapping[str, Sequence[str]]
    version: DocumentVersion | None


class Search(NamedTuple):
    """A query with its text and its maximum number of hits.

    nearest: ids of documents with the nearest features in files, best first; the query selects among them.
    """

    query: Mapping[str, Any]
    text: str
    size: int
    nearest: tuple[str, ...] = ()


class Answer(NamedTuple):
    """Hits, seconds in the cluster, and the ids of :class:`Search`."""

    hits: list[Hit]
    took: float
    nearest: tuple[str, ...] = ()


def search_options(settings: Settings, text: str) -> dict[str, str]:
    """Return search parameters. A text always goes to the same shard copy, because idf differs."""
    return {
        "preference": f"rerank-{zlib.crc32(text.encode()) % _COPIES}",
        "search_type": settings.search_type,
        "allow_partial_search_results": "false",
    }


class Searcher:
    """Finds and scores the documents of one index.

    attached: the features of an attached index; None if the index has the features.
    """

    def __init__(self, features: DocValueFeatures, attached: AttachedFeatures | None) -> None:
        self._features = features
        self._attached = attached
        self._index = features.reader.index
        self._settings = self._index.settings
        self._layout = self._index.layout
        self.fields = Fields(features.reader)

    def search(
        self, requests: Sequence[SearchRequest], conditions: Clauses | None = None
    ) -> Iterator[Candidates]:
        """Search for requests with equal options; see :func:`batches`.

        conditions: clauses that hits must match, in addition to the filters of the requests.

        A second request to the cluster gets first-stage scores if the first one cannot.
        """
        options = requests[0]
        options.check(self._layout.first_stages)
        columns: dict[str, Column] = {}
        depths = [options.depth] * len(options.signals)
        for query in options.vector_queries:
            depths.append(options.depth_of(query))
            column = self._searchable_column(query)
            if column is not None:
                columns[query.name] = column
        feature_keys = self._feature_keys(options, columns)
        clauses = [*(conditions or ()), *self.fields.clauses(options.filters)]

        batch_size = max(1, _TOGETHER // sum(depths))
        for start in range(0, len(requests), batch_size):
            batch = []
            searches: list[Search] = []
            for request in requests[start : start + batch_size]:
                encodable = replace(request, text=_encodable(request.text))
                batch.append(encodable)
                searches += self._searches(encodable, columns, clauses)
            answers = iter(self._find(searches, list(feature_keys.values())))
            for request in batch:
                yield self._union(request, list(islice(answers, len(depths))), columns, feature_keys)

    def select(self, request: SearchRequest) -> Candidates:
        """Score the documents that a request names by their ids, and order them.

        A document that shares no term with the text has the score 0. Unknown ids are left out.
        """
        request.check(self._layout.first_stages)
        feature_keys = self._feature_keys(request, {})
        requested_ids = dict.fromkeys(request.ids or ())
        ids = list(filter(usable, requested_ids))
        text = _encodable(request.text)
        answer = self._among(ids, text, request.first_stage, list(feature_keys.values()))
        return self._candidates(_ordered(answer.hits), answer.took, request, feature_keys)

    def score(self, text: str, signal: str, ids: Sequence[str]) -> NDArray[np.float64]:
        """Return (n,) scores of documents by a lexical signal; 0: unknown, or no shared term."""
        check_signal(signal, self._layout.first_stages)
        answer = self._among(ids, _encodable(text), signal, matching=True)
        scores = {hit.id: hit.score for hit in reversed(_ordered(answer.hits))}
        return np.array([scores.get(id, 0.0) for id in ids], np.float64)

    def _among(
        self, ids: Sequence[str], text: str, signal: str, keys: Sequence[str] = (), *, matching: bool = False
    ) -> Answer:
        """Return documents with their scores.

        keys:     features to return.
        matching: leave out documents that have no term of ``text``.
        """
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

    def _searchable_column(self, query: VectorQuery) -> Column | None:
        """Return the column of a ranker's vectors in the index; None: in the files of an attached index."""
        name = query.name
        if self._attached is not None:
            column = self._attached.column(name, query.version)
            if column is None:
                return None
        else:
            column = self._features.searchable(name, query.version)
            if column is None:
                raise cannot_retrieve(name)
        expected = feature_width(query.passages, len(query.vector))
        if column.width != expected:
            raise WorkspaceError(
                f"the {name} features have {column.width} numbers, not {expected}; train {name} again"
            )
        return column

    def _feature_keys(self, request: SearchRequest, columns: Mapping[str, Column]) -> dict[str, str]:
        """Return the key of each ranker's features in the requested version, if the index has them.

        columns: the rankers whose vectors are searched in the index.
        """
        versions = self._versions_in_index(request, columns)
        keys = {name: feature_key(name, version) for name, version in versions.items()}
        unknown_keys = set(keys.values()) - self._features.columns.keys()
        if unknown_keys:
            self._features.stored()  # another client may have written them since
        return {name: key for name, key in keys.items() if key in self._features.columns}

    def _versions_in_index(self, request: SearchRequest, columns: Mapping[str, Column]) -> dict[str, str]:
        """Return the version of each ranker whose features a search reads from the index."""
        versions: dict[str, str] = {}
        if self._attached is None:
            versions.update(request.features)
        for query in request.vector_queries:
            if query.name in columns:
                versions[query.name] = query.version
        return versions

    def _searches(
        self, request: SearchRequest, columns: Mapping[str, Column], conditions: Clauses
    ) -> Iterator[Search]:
        """Yield the searches of a request: one for each signal, then one for each vector."""
        for signal in request.signals:
            query = {"bool": {"must": [self._layout.query(request.text, signal)], "filter": conditions}}
            yield Search(query, request.text, request.depth)
        for vector_query in request.vector_queries:
            column = columns.get(vector_query.name)
            if column is None:
                yield self._nearest_in_files(vector_query, request, conditions)
            else:
                yield self._nearest(vector_query, column, request, conditions)

    def _nearest_in_files(
        self, vector_query: VectorQuery, request: SearchRequest, conditions: Clauses
    ) -> Search:
        """Return the search for the documents with the nearest stored features, with first-stage scores.

        It looks for more documents if there are conditions, which the files do not know.
        """
        assert self._attached is not None
        depth = request.depth_of(vector_query)
        ids = self._attached.nearest(vector_query, OVER_FETCH * depth if conditions else depth)
        shape = self._index.shape()
        scoring = self._layout.query(request.text, request.first_stage)
        filters = [{"ids": {"values": ids}}, *conditions]
        query = {"bool": {"filter": filters, "should": scoring}}
        return Search(query, request.text, min(max(shape.shards * len(ids), 1), shape.window), tuple(ids))

    def _nearest(
        self, vector_query: VectorQuery, column: Column, request: SearchRequest, conditions: Clauses
    ) -> Search:
        """Return the search for documents by their nearest vector.

        With a graph, hits have first-stage scores and may exceed the depth. Without, they have similarities.
        """
        key = feature_key(vector_query.name, vector_query.version)
        name, path = vector_field(key, column.passages)
        vector = vector_query.vector.tolist()
        depth = request.depth_of(vector_query)
        shape = self._index.shape()

        if column.vectors == "exact":
            values = {"field": name, "query_value": vector, "space_type": "innerproduct"}
            script = {"source": "knn_score", "lang": "knn", "params": values}
            with_vector = {"bool": {"filter": {"exists": {"field": name}}}}
            scored = _inside(path, {"script_score": {"query": with_vector, "script": script}})
            query: dict[str, Any] = {"bool": {"must": [scored], "filter": conditions}}
            return Search(query, request.text, min(depth, shape.window))

        count = neighbors_per_shard(depth, shape)
        neighbors: dict[str, Any] = {"vector": vector, "k": count}
        if conditions:  # applied in the search of the graph, and again to its result
            neighbors["filter"] = {"bool": {"filter": list(conditions)}}
        near = _inside(path, {"knn": {name: neighbors}})
        scoring = self._layout.query(request.text, request.first_stage)
        query = {"bool": {"filter": [near, *conditions], "should": scoring}}
        return Search(query, request.text, min(shape.shards * count, shape.window))

    def _union(
        self,
        request: SearchRequest,
        answers: Sequence[Answer],
        columns: Mapping[str, Column],
        feature_keys: Mapping[str, str],
    ) -> Candidates:
        """Return the hits of all retrievers, with first-stage scores."""
        hits_by_retriever = self._hits_by_retriever(request, answers, columns, feature_keys)
        took = max(answer.took for answer in answers)
        if not request.retrievers:
            return self._candidates(hits_by_retriever[request.first_stage], took, request, feature_keys)

        hits_by_id = {hit.id: hit for hit in chain.from_iterable(hits_by_retriever.values())}
        scores = self._first_stage_scores(request, hits_by_retriever, columns)
        scores |= self._missing_scores(request, hits_by_id.keys() - scores.keys())
        scored_hits = [hit._replace(score=scores[id]) for id, hit in hits_by_id.items()]
        union = _ordered(scored_hits)

        candidates = self._candidates(union, took, request, feature_keys)
        retrieved_by = {name: _contains(hits, union) for name, hits in hits_by_retriever.items()}
        return replace(candidates, retrieved_by=retrieved_by)

    def _missing_scores(self, request: SearchRequest, unscored: Set[str]) -> dict[str, float]:
        """Return id -> first-stage score of hits whose searches did not return it; a request gets them."""
        if not unscored:
            return {}
        ids = sorted(unscored)
        scores = self.score(request.text, request.first_stage, ids)
        return dict(zip(ids, scores.tolist()))

    @staticmethod
    def _first_stage_scores(
        request: SearchRequest, hits_by_retriever: Mapping[str, list[Hit]], columns: Mapping[str, Column]
    ) -> dict[str, float]:
        """Return id -> first-stage score, for the hits of the searches that score by the first stage.

        A search in a graph or in files also does so. One that compares all vectors has similarities.
        """
        scored_by = {request.first_stage}
        for query in request.vector_queries:
            column = columns.get(query.name)
            if column is None or column.vectors != "exact":
                scored_by.add(query.name)
        scores: dict[str, float] = {}
        for name in hits_by_retriever.keys() & scored_by:
            for hit in hits_by_retriever[name]:
                scores[hit.id] = max(hit.score, scores.get(hit.id, hit.score))
        return scores

    def _hits_by_retriever(
        self,
        request: SearchRequest,
        answers: Sequence[Answer],
        columns: Mapping[str, Column],
        feature_keys: Mapping[str, str],
    ) -> dict[str, list[Hit]]:
        """Return the best hits of each retriever."""
        best_hits: dict[str, list[Hit]] = {}
        for signal, answer in zip(request.signals, answers):
            best_hits[signal] = _ordered(answer.hits)[: request.depth]
        for query, answer in zip(request.vector_queries, answers[len(request.signals) :], strict=True):
            if query.name in columns:
                hits = self._by_product(answer.hits, query, feature_keys[query.name])
            else:
                order = {id: position for position, id in enumerate(answer.nearest)}
                hits = _each_once(sorted(answer.hits, key=lambda hit: order[hit.id]))
            best_hits[query.name] = hits[: request.depth_of(query)]
        return best_hits

    def _by_product(self, hits: Sequence[Hit], query: VectorQuery, key: str) -> list[Hit]:
        """Return the hits with positive products, the largest first."""
        values, _ = self._decoded(hits, key)
        vector = query.vector.astype(np.float64)
        if query.passages:
            exact = passage_cosines(vector, values, query.passages).max(axis=1)
        else:
            exact = values.astype(np.float64) @ vector
        products = exact.astype(np.float32)
        order = rank(_ids(hits), products).tolist()
        return _each_once([hits[i] for i in order if products[i] > 0])

    def _decoded(self, hits: Sequence[Hit], key: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return (n, width) features of hits, and (n,) bool: missing."""
        field = f"{FEATURES}.{key}"
        texts = [next(iter(hit.features.get(field, ())), None) for hit in hits]
        return self._features.columns[key].decode(texts)

    def _candidates(
        self, hits: Sequence[Hit], took: float, request: SearchRequest, feature_keys: Mapping[str, str]
    ) -> Candidates:
        """Return hits as candidates in this order, with the features that the request names."""
        ids = _ids(hits)
        scores = np.array([hit.score for hit in hits], np.float64)
        values, missing = self._features_of_hits(hits, request.features, feature_keys)
        return Candidates(ids, scores, np.arange(len(ids), dtype=np.int64), values, missing, took=took)

    def _features_of_hits(
        self, hits: Sequence[Hit], features: Mapping[str, str], feature_keys: Mapping[str, str]
    ) -> tuple[Features, Missing]:
        """Return features of hits: from files of an attached index, or from the hits themselves.

        Without features in the index, all are missing. features: ranker -> version.
        """
        if self._attached is not None and features:
            versions = [hit.version for hit in hits if hit.version is not None]
            return self._attached.read(features, _ids(hits), versions)
        values: Features = {}
        missing: Missing = {}
        for name in features:
            key = feature_keys.get(name)
            if key is not None:
                values[name], missing[name] = self._decoded(hits, key)
            else:
                values[name] = np.empty((len(hits), 0), np.float32)
                missing[name] = np.ones(len(hits), np.bool_)
        return values, missing

    def _find(self, searches: Sequence[Search], keys: Sequence[str]) -> list[Answer]:
        """Send searches in one request. keys: features to return.

        Ids come from the sort values, or from the files of an attached index. A hit without such an id was
        written without the field ``id``, or after the encoding: its search is repeated with stored ids.
        """
        files = self._files_with_ids()
        stored = self._layout.attached and files is None
        bodies = [self._body(search, keys, stored) for search in searches]
        responses = list(self._send(searches, bodies))
        if files is None:
            ids_of_responses = list(map(_read_ids, responses))
        else:
            ids_of_responses = files.ids([response["hits"]["hits"] for response in responses])

        answers: list[Answer] = []
        for search, response, ids in zip(searches, responses, ids_of_responses):
            if "" in ids:
                response = self._search_with_stored_ids(search, keys)
                ids = _read_ids(response)
            hits = list(map(_hit, response["hits"]["hits"], ids))
            answers.append(Answer(hits, response["took"] / 1000, search.nearest))
        return answers

    def _files_with_ids(self) -> AttachedFeatures | None:
        """Return the files of an attached index if they have the ids of its documents."""
        if self._attached is None or not self._attached.locates:
            return None
        return self._attached

    def _search_with_stored_ids(self, search: Search, keys: Sequence[str]) -> dict[str, Any]:
        """Return the response to a search whose hits have the stored ``_id``."""
        (response,) = self._send([search], [self._body(search, keys, stored=True)])
        return response

    def _body(self, search: Search, keys: Sequence[str], stored: bool) -> dict[str, Any]:
        """Return the body of a search.

        stored: return ``_id``. The cluster decompresses all texts for it, which is ten times as slow.
        """
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
        lines: list[dict[str, Any]] = []
        for search_parameters, body in zip(options, bodies):
            lines += [{**search_parameters, "index": self._settings.index}, {**DEFAULTS, **body}]
        with self._index.asking(_DOING):
            responses = self._index.client.msearch(body=lines)["responses"]
        for body, search_parameters, response in zip(bodies, options, responses, strict=True):
            if "error" in response:
                response = self._index.search(_DOING, body, **search_parameters)
            yield response


def _inside(path: str, query: dict[str, Any]) -> dict[str, Any]:
    """Return a query for the vectors inside a nested field, or the query itself if ``path`` is empty."""
    return {"nested": {"path": path, "query": query, "score_mode": "max"}} if path else query


def _ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.id for hit in hits]


def _read_ids(response: Mapping[str, Any]) -> list[str]:
    return list(map(_read_id, response["hits"]["hits"]))


def _read_id(hit: Mapping[str, Any]) -> str:
    """Return the id of a hit in a response; "" if it was sorted by an id that it does not have."""
    id = hit["sort"][1] if "sort" in hit else hit.get("_id")
    return id or ""


def _hit(hit: Mapping[str, Any], id: str) -> Hit:
    score = hit["sort"][0] if "sort" in hit else hit["_score"]
    version = None
    if "_seq_no" in hit:
        version = DocumentVersion(hit["_index"], hit["_seq_no"], hit["_primary_term"])
    return Hit(id, score, hit.get("fields", {}), version)


def _contains(hits: Sequence[Hit], union: Sequence[Hit]) -> NDArray[np.bool_]:
    """Return whether each hit of a union is among the hits of one retriever."""
    ids = set(_ids(hits))
    return np.array([hit.id in ids for hit in union], np.bool_)


def _ordered(hits: Sequence[Hit]) -> list[Hit]:
    scores = [hit.score for hit in hits]
    order = rank(_ids(hits), scores)
    return _each_once(items_at(hits, order.tolist()))


def _each_once(hits: Sequence[Hit]) -> list[Hit]:
    """Return the first hit of each id: several indices of an alias may have a document of the same id."""
    first_hits: dict[str, Hit] = {}
    for hit in hits:
        first_hits.setdefault(hit.id, hit)
    return list(first_hits.values())


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()
