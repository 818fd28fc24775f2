"""Search templates: query -> ``_search`` body -> ids and scores. The cluster renders Mustache.

A query cannot change the structure of a body: the cluster renders words, which are replaced afterwards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError, InputError, UsageError
from rerank.common.order import rank
from rerank.common.values import is_list, items_at, listed, without, without_empty
from rerank.documents.records import Candidates, Query, SearchTemplate
from rerank.engines.opensearch.attached_features import AttachedFeatures
from rerank.engines.opensearch.errors import explain, root_cause
from rerank.engines.opensearch.index import FRESH, NO_PIPELINE, Index
from rerank.engines.opensearch.legs import WITH_SCORES, is_hybrid, leg_scores, with_names
from rerank.engines.opensearch.reading import ids_of
from rerank.engines.opensearch.restrictions import restrictions
from rerank.engines.opensearch.search import search_options
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.formats.templates import SLOT, check_values, slots

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


class _Rendering(NamedTuple):
    """The last rendering of a template: its query, and the body with words for the texts of the query.

    texts: word -> text.
    """

    search: SearchTemplate
    query: Query
    body: dict[str, Any]
    texts: dict[str, str]


class Templates:
    """Searches by search templates. attached: the features of an attached index."""

    def __init__(self, index: Index, attached: AttachedFeatures | None) -> None:
        self._index = index
        self._attached = attached
        self._pipelines = lru_cache(64)(self._pipeline_without_rerank)
        self._definitions = lru_cache(64)(self._definition)
        self._read = time.monotonic()
        self._last: _Rendering | None = None

    def check(self, search: SearchTemplate, query: Query) -> SearchTemplate:
        """Return a template after a trial rendering.

        Raises InputError for an invalid body, UsageError for another index.
        """
        self._last = None
        self._forget()
        self.body(search, query)
        return search

    def find(self, requests: Sequence[SearchRequest]) -> Iterator[Candidates]:
        """Search for each request by its template; yield its ``depth`` best hits.

        Raises InputError for a template that cannot be searched with a query, or lacks a leg of the request.
        """
        for request in requests:
            assert request.template is not None
            search, query = request.template
            body = self.body(search, query)
            with _located(f"{search}: query {query.id!r}"):
                body = with_names(body, request.legs)
            yield self._hits(body, request.template, request.depth, request.legs)

    def _hits(
        self, body: Mapping[str, Any], template: FilledTemplate, size: int, legs: Sequence[str] = ()
    ) -> Candidates:
        search, query = template
        body = self.ids_only(body, min(self._index.shape().window, size))
        params = search_options(self._index.settings, query.lexical)
        if is_hybrid(body):  # OpenSearch refuses it with dfs_query_then_fetch from 3.8
            params["search_type"] = "query_then_fetch"
        if legs:
            params |= WITH_SCORES
        doing = f"{search}: query {query.id!r}"
        answer_and_ids = self._search_without_ids(doing, body, params)
        answer, ids = answer_and_ids or self._search_with_ids(doing, body, params)
        return _candidates(answer, ids, template, legs)

    def _search_with_ids(
        self, doing: str, body: Mapping[str, Any], params: Mapping[str, str]
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """Return the answer to a search, and the ids of its hits, which the cluster reads."""
        answer = self._index.search(doing, body, **params)
        return answer, ids_of(answer["hits"]["hits"])

    def _search_without_ids(
        self, doing: str, body: Mapping[str, Any], params: Mapping[str, str]
    ) -> tuple[dict[str, Any], Sequence[str]] | None:
        """Return the answer to a search, and the ids of its hits from the files of an attached index.

        Returns None without such files, if they lack a hit, or if the search needs stored fields.
        """
        attached = self._attached
        reads_source = body["_source"]
        if attached is None or not attached.locates or reads_source:
            return None
        located = {**body, "stored_fields": "_none_", "seq_no_primary_term": True}
        try:
            answer = self._index.search(doing, located, **params)
            (ids,) = attached.ids([answer["hits"]["hits"]])
        except EngineError as error:
            if not isinstance(error.__cause__, client_errors.RequestError):
                raise
            return None
        return (answer, ids) if all(ids) else None

    def body(self, search: SearchTemplate, query: Query) -> dict[str, Any]:
        """Return the body of the search for a query: the rendered template with the texts of the query.

        The texts are inserted after the rendering, so they cannot change the structure of the body.

        Raises InputError if the template does not render to a search.
        """
        rendering = self._rendered(search, query)
        return _put_back(rendering.body, rendering.texts)

    def filters(
        self, search: SearchTemplate, query: Query, word_fields: Collection[str]
    ) -> list[dict[str, Any]]:
        """Return the conditions of a search, as clauses; see :func:`restrictions`.

        Includes the filters of its search pipeline. Raises InputError for conditions that cannot be separated
        from the words of the query.
        """
        body = self.body(search, query)
        pipeline = self.ids_only(body, 0)["search_pipeline"]
        conditions: list[dict[str, Any]] = []
        for processor in self._processors(pipeline, "request_processors"):
            if processor.get("filter_query"):
                conditions.append(processor["filter_query"]["query"])
        if "post_filter" in body:
            conditions.append(body["post_filter"])
        with _located(str(search)):
            conditions += restrictions(body["query"], word_fields)
        return conditions

    def score(self, request: SearchRequest, ids: Sequence[str]) -> Candidates:
        """Return the given documents that the request's search finds, with scores.

        A ``hybrid`` query finds none: its scores depend on its other hits.
        """
        assert request.template is not None
        search, query = request.template
        body = self.body(search, query)
        if not ids or is_hybrid(body):
            return Candidates([], np.zeros(0), np.arange(0))
        query_of_ids = {"bool": {"must": [body["query"]], "filter": {"ids": {"values": list(ids)}}}}
        return self._hits({**body, "query": query_of_ids}, request.template, len(ids))

    def _rendered(self, search: SearchTemplate, query: Query) -> _Rendering:
        """Return the rendering of a template for a query, after a check of its body.

        The last one is kept, because one search needs it several times.
        """
        last = self._last  # other threads may replace it
        if last is not None and last.search is search and last.query is query:
            return last
        self._check_index(search)
        location = f"{search}: query {query.id!r}"
        texts = {SLOT: query.lexical}
        params = self._params(search, query, texts)
        try:
            rendered = self._render(search, params, location)
        except InputError:
            check_values(search, [query])  # a missing value may be the reason
            raise
        _check(rendered, location)
        pipeline = rendered.get("search_pipeline", search.pipeline)
        body = {**rendered, "search_pipeline": pipeline} if pipeline else rendered
        rendering = _Rendering(search, query, body, texts)
        self._last = rendering
        return rendering

    @staticmethod
    def _params(search: SearchTemplate, query: Query, texts: dict[str, str]) -> dict[str, Any]:
        """Return the parameters of a rendering, with words for texts. ``texts`` receives word -> text."""
        values: dict[str, Any] = {**query.params, "categories": list(query.categories)}
        if query.lang:
            values["lang"] = query.lang
        params: dict[str, Any] = _with_texts(values, partial(_word_for, texts))
        slot = slots(search.source)[0]
        if slot != SLOT and query.lexical:
            texts[_WORDS] = query.lexical
        params[slot] = _WORDS if query.lexical else ""
        return params

    def ids_only(self, body: Mapping[str, Any], size: int) -> dict[str, Any]:
        """Return the body of a search for ids and scores only.

        The hits and their order stay the same. Documents are read if response processors may need them, and
        the search pipeline is the one of the body without rerank's processors.

        size: number of hits.
        """
        short_body = without(body, _SHOWN)
        if time.monotonic() > self._read + FRESH:
            self._forget()
        pipeline = body.get("search_pipeline")
        if not isinstance(pipeline, Mapping):
            pipeline = self._pipelines(pipeline)
        reads_source = bool(self._processors(pipeline, "response_processors"))
        short_body |= {"size": size, "_source": reads_source, "track_total_hits": False}
        return {**short_body, "search_pipeline": pipeline}

    def _forget(self) -> None:
        """Read the search pipelines again."""
        self._pipelines.cache_clear()
        self._definitions.cache_clear()
        self._read = time.monotonic()

    def _processors(self, pipeline: str | Mapping[str, Any], phase: str) -> Sequence[Mapping[str, Any]]:
        """Return the processors of a phase. pipeline: its name or definition."""
        if isinstance(pipeline, str):
            pipeline = {} if pipeline == NO_PIPELINE else self._definitions(pipeline)
        processors: Sequence[Mapping[str, Any]] = pipeline.get(phase, ())
        return processors

    def _check_index(self, search: SearchTemplate) -> None:
        """Raise UsageError for a template of another index."""
        index = self._index.settings.index
        if search.index not in (None, index) and search.index not in self._index.indices():
            raise UsageError(
                f"{search} is for index {search.index!r}, this workspace has {index!r}; use a template for it"
            )

    def _render(self, search: SearchTemplate, params: Mapping[str, Any], location: str) -> dict[str, Any]:
        """Return the body that the cluster renders. params: words stand for the query's texts."""
        body = {"source": search.source, "params": params}
        try:
            answer = self._index.client.transport.perform_request("POST", "/_render/template", body=body)
        except client_errors.SerializationError as error:  # the answer contains the rendered text
            raise InputError(f"{location}: no JSON after rendering; correct the template") from error
        except client_errors.TransportError as error:
            if isinstance(error, client_errors.ConnectionError) or error.status_code in (401, 403, 429, 503):
                raise explain(error, self._index.settings, "rendering the template") from error
            _, reason = root_cause(error.info, str(error.info))
            raise InputError(
                f"{location}: no JSON after rendering ({reason}); correct the template"
            ) from error
        rendered = answer.get("template_output")
        if not isinstance(rendered, dict):
            raise InputError(f"{location}: no JSON object after rendering; write the body of a _search")
        return rendered

    def _pipeline_without_rerank(self, name: str | None) -> str | dict[str, Any]:
        """Return a pipeline without our processor: its name, or its definition without it.

        name: by default, the default pipeline of all indices.
        """
        if name is None:
            name = self._default_pipeline()
        if name == NO_PIPELINE:
            return name
        pipeline = self._definitions(name)
        remaining = other_processors(pipeline)
        has_rerank = {**pipeline, **remaining} != pipeline
        if not has_rerank:
            return name
        return without_empty(remaining) or NO_PIPELINE

    def _default_pipeline(self) -> str:
        names: set[str] = set()
        for state in self._index.indices().values():
            search_settings = state["settings"]["index"].get("search", {})
            names.add(search_settings.get("default_pipeline", NO_PIPELINE))
        return names.pop() if len(names) == 1 else NO_PIPELINE

    def _definition(self, name: str) -> dict[str, Any]:
        with self._index.asking("reading the search pipeline"):
            pipelines = self._index.client.search_pipeline.get(id=name, params={"ignore": 404})
        pipeline: dict[str, Any] | None = pipelines.get(name)
        if pipeline is None:
            raise UsageError(f"the search pipeline {name!r} does not exist; correct the template")
        return pipeline


def other_processors(pipeline: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the processors of a search pipeline that are not rerank's.

    pipeline: its definition: phase, such as ``request_processors`` -> list of processors. Other entries, such
        as a description, are left out.
    """
    remaining: dict[str, list[Any]] = {}
    for phase, processors in pipeline.items():
        if isinstance(processors, list):
            remaining[phase] = [processor for processor in processors if PROCESSOR not in processor]
    return remaining


@contextmanager
def _located(location: str) -> Iterator[None]:
    """Begin the message of an InputError with a location."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{location}: {error}") from None


def _check(body: Mapping[str, Any], location: str) -> None:
    """Raise InputError for a body that cannot give candidates."""
    for name, reason in _REFUSED.items():
        if name in body:
            raise InputError(f'{location}: the template has "{name}", but {reason}; remove it')
    if not body.get("query"):
        raise InputError(f'{location}: the template has no "query"; write the body of a _search')
    if body.get("sort") and not _sorts_by_score(body["sort"]):
        raise InputError(f'{location}: the template must sort by "_score"; remove "sort"')


def _sorts_by_score(sort: object) -> bool:
    """Return whether the first key of a ``sort`` is the score: ``"_score"`` or ``{"_score": ...}``."""
    first = listed(sort)[0]
    fields = list(first) if isinstance(first, Mapping) else [first]
    return fields == ["_score"]


def _same(name: str) -> str:
    return name


def _with_texts(value: object, text_of: Callable[[str], str], name_of: Callable[[str], str] = _same) -> Any:
    """Return a JSON value with other texts.

    text_of: text -> its replacement. name_of: name in an object -> its replacement; by default, names stay.
    """
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, Mapping):
        return {name_of(name): _with_texts(inner, text_of, name_of) for name, inner in value.items()}
    if is_list(value):
        return [_with_texts(item, text_of, name_of) for item in value]
    return value


def _word_for(texts: dict[str, str], text: str) -> str:
    """Return a word for a text with special characters, or the text itself. texts: receives word -> text."""
    if not text or _PLAIN.fullmatch(text):
        return text
    word = f"zq{len(texts)}word"
    texts[word] = text
    return word


def _put_back(body: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Replace words by texts in names and values. texts: word -> text, see :func:`_word_for`."""
    longest_first = sorted(texts, key=len, reverse=True)
    words = re.compile("|".join(map(re.escape, longest_first)))
    text_of = partial(words.sub, lambda match: texts[match[0]])
    body_with_texts: dict[str, Any] = _with_texts(body, text_of, text_of)
    return body_with_texts


def _candidates(
    answer: Mapping[str, Any], ids: Sequence[str], template: FilledTemplate, legs: Sequence[str]
) -> Candidates:
    """Return the hits of an answer as candidates, ordered by score and id. Raises InputError."""
    hits = answer["hits"]["hits"]
    scores_of_hits = [hit["_score"] for hit in hits]
    location = f"{template.template}: query {template.query.id!r}"
    if None in scores_of_hits:
        raise InputError(f'{location}: the search has no scores; remove "sort"')
    if len(set(ids)) < len(ids):
        raise InputError(f"{location}: two hits have the same id; search one index only")
    scores = np.array(scores_of_hits, np.float64)
    order = rank(ids, scores).tolist()
    ranked_ids = items_at(ids, order)
    ranked_leg_scores = {name: values[order] for name, values in leg_scores(hits, legs).items()}
    took = answer["took"] / 1000
    return Candidates(ranked_ids, scores[order], np.arange(len(ids)), took=took, legs=ranked_leg_scores)
