"""Search templates: query -> ``_search`` body -> ids and scores. The cluster renders Mustache.

A query cannot change the structure of a body: the cluster renders words, which are replaced afterwards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from opensearchpy import exceptions as client_errors

from rerank.engines.base import SearchRequest
from rerank.engines.opensearch.attached_features import AttachedFeatures
from rerank.engines.opensearch.errors import explain, root_cause
from rerank.engines.opensearch.index import FRESH, NO_PIPELINE, Index
from rerank.engines.opensearch.restrictions import restrictions
from rerank.engines.opensearch.search import search_options
from rerank.errors import EngineError, InputError, UsageError
from rerank.formats.templates import SLOT, check_values, slots
from rerank.order import rank
from rerank.records import Candidates, Query, SearchTemplate

PROCESSOR = "rerank_stack"
"""The plugin's processor, and its part of ``ext`` of a search. The service's own searches leave it out."""

_REFUSED = {
    "size": "the depth is the size",
    **dict.fromkeys(("from", "search_after"), "candidates begin with the first"),
    **dict.fromkeys(("aggs", "aggregations"), "candidates need none"),
    "collapse": "a search with it is not reranked",
    **dict.fromkeys(("slice", "pit"), "candidates are of the whole index"),
}
"""Keys that a body must not have -> the reason."""

_SHOWN = (
    *("_source", "highlight", "fields", "docvalue_fields", "stored_fields", "script_fields"),
    *("explain", "profile", "suggest", "version", "seq_no_primary_term", "track_total_hits", "timeout"),
)
"""Keys without effect on hits and scores. They are removed."""

_WORDS = "zqwordsofthequery"
"""Stands for the words of a query until the template is rendered."""

_PLAIN = re.compile(r"[^\W_][\w .'-]*")  # text without characters of JSON and Mustache


class Templates:
    """Searches by search templates. attached: the features of an attached index."""

    def __init__(self, index: Index, attached: AttachedFeatures | None) -> None:
        self._index, self._attached = index, attached
        self._pipelines = lru_cache(64)(self._pipeline_without_rerank)
        self._definitions = lru_cache(64)(self._definition)
        self._read = time.monotonic()
        self._last: tuple[Any, ...] = (None, None)  # search and query of the last rendering, and its result

    def check(self, search: SearchTemplate, query: Query) -> SearchTemplate:
        """Return a template after a trial rendering.

        Raises InputError for an invalid body, UsageError for another index.
        """
        self._last = (None, None)
        self._forget()
        self.body(search, query)
        return search

    def find(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Return the ``depth`` best hits of requests with one template."""
        for request in requests:
            assert request.template is not None
            search, query = request.template
            yield self._hits(self.body(search, query), search, query, request.depth)

    def _hits(self, body: Mapping[str, Any], search: SearchTemplate, query: Query, size: int) -> Candidates:
        body, settings = self.ids_only(body, min(self._index.shape().window, size)), self._index.settings
        params = search_options(settings, query.lexical)
        doing = f"{search}: query {query.id!r}"
        if self._attached is not None and self._attached.locates and not body["_source"]:
            located = {**body, "stored_fields": "_none_", "seq_no_primary_term": True}
            try:
                answer = self._index.search(doing, located, **params)
                (ids,) = self._attached.ids([answer["hits"]["hits"]])
                if all(ids):
                    return _candidates(answer, ids, search, query)
            except EngineError as error:  # a part of the search may need stored fields
                if not isinstance(error.__cause__, client_errors.RequestError):
                    raise
        answer = self._index.search(doing, body, **params)
        return _candidates(answer, [hit["_id"] for hit in answer["hits"]["hits"]], search, query)

    def body(self, search: SearchTemplate, query: Query) -> dict[str, Any]:
        """Return the search body of a query. Its texts are inserted after the rendering."""
        body: dict[str, Any] = _put_back(*self._rendered(search, query))
        return body

    def filters(self, search: SearchTemplate, query: Query) -> list[dict[str, Any]]:
        """Return the conditions of a search that do not depend on the query's words, as clauses.

        Includes the filters of its search pipeline. Raises InputError for a condition in an unknown query.
        """
        body, texts = self._rendered(search, query)
        pipeline = self.ids_only(body, 0)["search_pipeline"]
        before = [one.get("filter_query") for one in self._processors(pipeline, "request_processors")]
        found = [one["query"] for one in before if one]
        found += [body["post_filter"]] if "post_filter" in body else []
        try:
            found += restrictions(body["query"], _WORDS if _WORDS in texts else SLOT)
        except InputError as error:
            raise InputError(f"{search}: {error}") from None
        return [_put_back(one, texts) for one in found]

    def score(self, request: SearchRequest, ids: Sequence[str]) -> Candidates:
        """Return the given documents that the request's search finds, with scores.

        A ``hybrid`` query finds none: its scores depend on its other hits.
        """
        assert request.template is not None
        search, query = request.template
        body = self.body(search, query)
        if not ids or "hybrid" in body["query"]:
            return Candidates([], np.zeros(0), np.arange(0))
        query_of_ids = {"bool": {"must": [body["query"]], "filter": {"ids": {"values": list(ids)}}}}
        return self._hits({**body, "query": query_of_ids}, search, query, len(ids))

    def _rendered(self, search: SearchTemplate, query: Query) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a checked body with words for the query's texts, and word -> text."""
        last = self._last
        if last[0] is search and last[1] is query:
            body, texts = last[2:]
            return body, texts
        self._check_index(search)
        where = f"{search}: query {query.id!r}"
        params: dict[str, Any] = {**query.params, "categories": list(query.categories)}
        params |= {"lang": query.lang} if query.lang else {}
        texts = {SLOT: query.lexical}
        params = _harmless(params, texts)
        name = slots(search.source)[0]
        if name != SLOT and query.lexical:
            texts[_WORDS] = query.lexical
        params[name] = _WORDS if query.lexical else ""
        try:
            rendered = self._render(search, params, where)
        except InputError:
            check_values(search, [query])  # a missing value may be the reason
            raise
        _check(rendered, where)
        named = rendered.get("search_pipeline", search.pipeline)
        body = {**rendered, "search_pipeline": named} if named else rendered
        self._last = (search, query, body, texts)
        return body, texts

    def ids_only(self, body: Mapping[str, Any], size: int) -> dict[str, Any]:
        """Return the body with the same hits without fields, unless response processors may read them."""
        asked = {name: value for name, value in body.items() if name not in _SHOWN}
        if time.monotonic() > self._read + FRESH:
            self._forget()
        named = body.get("search_pipeline")
        pipeline = named if isinstance(named, Mapping) else self._pipelines(named)
        reads = bool(self._processors(pipeline, "response_processors"))
        asked |= {"size": size, "_source": reads, "track_total_hits": False}
        return {**asked, "search_pipeline": pipeline}

    def _forget(self) -> None:
        """Read the search pipelines again."""
        self._pipelines.cache_clear()
        self._definitions.cache_clear()
        self._read = time.monotonic()

    def _processors(self, pipeline: str | Mapping[str, Any], phase: str) -> Sequence[Mapping[str, Any]]:
        """Return the processors of a phase. pipeline: its name or definition."""
        if isinstance(pipeline, str):
            pipeline = {} if pipeline == NO_PIPELINE else self._definitions(pipeline)
        found: Sequence[Mapping[str, Any]] = pipeline.get(phase, ())
        return found

    def _check_index(self, search: SearchTemplate) -> None:
        """Raise UsageError for a template of another index."""
        mine = self._index.settings.index
        if search.index not in (None, mine) and search.index not in self._index.indices():
            raise UsageError(
                f"{search} is for index {search.index!r}, this workspace has {mine!r}; use a template for it"
            )

    def _render(self, search: SearchTemplate, params: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The template with words in the place of the query's texts, rendered by the cluster."""
        body = {"source": search.source, "params": params}
        try:
            answer = self._index.client.transport.perform_request("POST", "/_render/template", body=body)
        except client_errors.SerializationError as error:  # the answer contains the rendered text
            raise InputError(f"{where}: no JSON after rendering; correct the template") from error
        except client_errors.TransportError as error:
            if isinstance(error, client_errors.ConnectionError) or error.status_code in (401, 403, 429, 503):
                raise explain(error, self._index.settings, "rendering the template") from error
            _, reason = root_cause(error.info, str(error.info))
            raise InputError(f"{where}: no JSON after rendering ({reason}); correct the template") from error
        rendered = answer.get("template_output")
        if not isinstance(rendered, dict):
            raise InputError(f"{where}: no JSON object after rendering; write the body of a _search")
        return rendered

    def _pipeline_without_rerank(self, name: str | None) -> str | dict[str, Any]:
        """A pipeline without our processor: name or definition. None: the default of the indices."""
        if name is None:
            indices = [about["settings"]["index"] for about in self._index.indices().values()]
            names = {index.get("search", {}).get("default_pipeline", NO_PIPELINE) for index in indices}
            name = names.pop() if len(names) == 1 else NO_PIPELINE
        if name == NO_PIPELINE:
            return name
        pipeline = self._definitions(name)
        kept = other_processors(pipeline)
        if all(kept[part] == pipeline[part] for part in kept):
            return name
        kept = {part: processors for part, processors in kept.items() if processors}
        return kept or NO_PIPELINE

    def _definition(self, name: str) -> dict[str, Any]:
        with self._index.asking("reading the search pipeline"):
            pipelines = self._index.client.search_pipeline.get(id=name, params={"ignore": 404})
        pipeline: dict[str, Any] | None = pipelines.get(name)
        if pipeline is None:
            raise UsageError(f"there is no search pipeline {name!r}; correct the template")
        return pipeline


def other_processors(pipeline: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return phase -> processors of a search pipeline, without ours."""
    return {
        phase: [one for one in processors if PROCESSOR not in one]
        for phase, processors in pipeline.items()
        if isinstance(processors, list)
    }


def _check(body: Mapping[str, Any], where: str) -> None:
    for name, why in _REFUSED.items():
        if name in body:
            raise InputError(f'{where}: the template has "{name}", but {why}; remove it')
    if not body.get("query"):
        raise InputError(f'{where}: the template has no "query"; write the body of a _search')
    sort = body.get("sort")
    first = sort[0] if isinstance(sort, list) and sort else sort
    if sort and not (first == "_score" or (isinstance(first, Mapping) and list(first) == ["_score"])):
        raise InputError(f'{where}: the template must sort by "_score"; remove "sort"')


def _harmless(value: Any, texts: dict[str, str]) -> Any:
    """Replace unusual texts by words; ``texts`` receives word -> text."""
    if isinstance(value, Mapping):
        return {name: _harmless(one, texts) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_harmless(one, texts) for one in value]
    if isinstance(value, str) and value and not _PLAIN.fullmatch(value):
        word = f"zq{len(texts)}word"
        texts[word] = value
        return word
    return value


def _put_back(value: Any, texts: Mapping[str, str]) -> Any:
    words = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    def back(one: Any) -> Any:
        if isinstance(one, dict):
            return {back(name): back(inner) for name, inner in one.items()}
        if isinstance(one, list):
            return [back(inner) for inner in one]
        return words.sub(lambda found: texts[found[0]], one) if isinstance(one, str) else one

    return back(value)


def _candidates(
    answer: Mapping[str, Any], ids: Sequence[str], search: SearchTemplate, query: Query
) -> Candidates:
    hits = answer["hits"]["hits"]
    if any(hit["_score"] is None for hit in hits):
        raise InputError(f'{search}: query {query.id!r}: the search has no scores; remove "sort"')
    if len(set(ids)) < len(ids):
        raise InputError(f"{search}: query {query.id!r}: two hits have the same id; search one index only")
    scores = np.array([hit["_score"] for hit in hits], np.float64)
    order = rank(ids, scores).tolist()
    return Candidates([ids[i] for i in order], scores[order], np.arange(len(ids)), took=answer["took"] / 1000)
