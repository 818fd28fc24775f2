"""``POST /v1/retrieve``: documents that rankers retrieve for a search of a user.

The answer names documents, or a k-NN field and a vector. The search of the user selects among them, with the
rights of the user and under the conditions of the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.order import rank
from rerank.documents.records import Query
from rerank.documents.text import language_or_none
from rerank.engines.hook_source import NearestByRanker
from rerank.engines.nearest import products
from rerank.engines.search_request import VectorQuery
from rerank.service.context import RequestContext
from rerank.service.endpoints import make_query
from rerank.service.hook_search import HookSearch, is_free
from rerank.service.schemas import RetrieveBody
from rerank.service.snapshot import Snapshot
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import ranker_names
from rerank.stack.stack import Stack


def retrieve(snapshot: Snapshot, body: RetrieveBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/retrieve``: name the documents that a stack's rankers retrieve for a search."""
    search = HookSearch.read(snapshot, body, context)
    reason = _reason_to_pass(snapshot, body, search)
    if reason is not None:
        context.passed = reason
        return {"passed": reason}
    options = search.options
    query = make_query(search.text, options.categories, lang=language_or_none(options.lang))
    query, _ = search.scorer.with_known_categories(query)
    with context.stage("encode"):
        queries = vector_queries(snapshot, search.stack, query)
    source = snapshot.pipeline.engine.hook_source()
    if source is None:
        return {"passed": "the documents are not in a cluster"}
    with context.stage("engine"):
        nearest = source.nearest(queries, over_fetch=body.conditions)
    limit = max(context.max_candidates - body.first, 0)
    retrievers = [_json(retriever) for retriever in _limit(nearest.retrievers, limit)]
    size = min(nearest.size, limit)
    return {"find": retrievers, "uuids": nearest.uuids, "size": size, "text": search.text}


def _reason_to_pass(snapshot: Snapshot, body: RetrieveBody, search: HookSearch) -> str | None:
    """Return why nothing is retrieved. The reason is counted, so it has no names or texts of users."""
    if not ranker_names(retriever_depths(search.stack.retrieve)):
        return "the stack retrieves nothing"
    if not search.has_words:
        return "the query has no text"
    stack_text = search.options.stack
    if stack_text is None or body.stack_allowed or is_free(snapshot, stack_text, search.stack):
        return None
    return "the pipeline does not allow this stack"


def vector_queries(snapshot: Snapshot, stack: Stack, query: Query) -> list[VectorQuery]:
    """Return the query vectors of the rankers that retrieve for a stack, with their depths."""
    names = ranker_names(retriever_depths(stack.retrieve))
    retrievers = [name for name in stack.retrieve if name.partition(":")[0] in names]
    queries: list[VectorQuery] = []
    for retriever in snapshot.pipeline_of(stack).retrievers(query, retrievers):
        assert isinstance(retriever, VectorQuery)
        queries.append(retriever._replace(depth=retriever.depth or stack.depth))
    return queries


def _limit(retrievers: Sequence[NearestByRanker], limit: int) -> list[NearestByRanker]:
    """Cut the ids of each retriever to a part of the limit."""
    share = max(limit // max(len(retrievers), 1), 1)
    return [
        retriever if retriever.ids is None else retriever._replace(ids=retriever.ids[:share])
        for retriever in retrievers
    ]


def _json(retriever: NearestByRanker) -> dict[str, Any]:
    if retriever.ids is not None:
        return {"name": retriever.name, "depth": retriever.depth, "ids": list(retriever.ids)}
    return {
        "name": retriever.name,
        "field": retriever.field,
        "path": retriever.path,
        "vector": list(retriever.vector),
        "k": retriever.k,
    }


@dataclass(frozen=True)
class Added:
    """The documents that retrievers added to the first stage of a search.

    kept_rows: positions of the n hits that stay, ascending: hits of the first stage, and the nearest hits of
        each retriever, to its depth.
    found_by:  retriever -> (n,) whether it found the hit.
    """

    kept_rows: NDArray[np.int64]
    found_by: dict[str, NDArray[np.bool_]]


Features = dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]
"""Ranker -> (n, width) features, and (n,) bool: missing."""


def cut_to_depth(queries: Sequence[VectorQuery], ids: Sequence[str], first: int, features: Features) -> Added:
    """Keep the added documents that are among the nearest to a vector.

    More can come back than a retriever's depth: the service names more for a query with conditions, and each
    shard has its own nearest. Hits without features stay.

    first: number of hits of the first stage, which stay; the added ones follow.
    """
    count = len(ids)
    stays = np.arange(count) < first
    found_by: dict[str, NDArray[np.bool_]] = {}
    for query in queries:
        is_nearest = np.zeros(count, np.bool_)
        if query.name in features:
            values, missing = features[query.name]
            if values.shape[1]:
                scores = products(values, query.vector, query.passages)
                scores[missing] = -np.inf
                best = rank(ids, scores)[: query.depth]
                is_nearest[best[scores[best] > 0]] = True
            is_nearest |= missing & ~stays
        else:
            is_nearest |= ~stays
        found_by[query.name] = is_nearest
    kept_rows = np.flatnonzero(np.logical_or.reduce([stays, *found_by.values()]))
    return Added(kept_rows, {name: is_nearest[kept_rows] for name, is_nearest in found_by.items()})


def check_first(first: int | None, count: int) -> int:
    """Return the number of hits of the first stage. Raises UsageError for more than there are hits."""
    if first is None:
        return count
    if first > count:
        raise UsageError(f"first is {first}, but {count} hits came; send the number of hits of the query")
    return first
