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
from rerank.service.experiment import can_take_part
from rerank.service.query_text import query_text
from rerank.service.schemas import RetrieveBody, SearchOptions
from rerank.service.snapshot import Snapshot
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.signals import ranker_names
from rerank.stack.stack import Stack


def retrieve(snapshot: Snapshot, body: RetrieveBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/retrieve``: name the documents that a stack's rankers retrieve for a search."""
    context.timeout = body.timeout or context.timeout
    options = body.rerank or SearchOptions()
    text = options.query if options.query is not None else query_text(body.query, snapshot.words)
    context.query = text
    stack, scorer = snapshot.scorer(options.stack or body.stack)
    experiment, _ = snapshot.draw(options.client_id, text) if can_take_part(body) else (None, b"")
    if experiment is not None:
        stack = experiment.joint
        scorer = snapshot.scorer_of(stack)
    reason = _reason_to_pass(snapshot, body, stack, text)
    if reason is not None:
        context.passed = reason
        return {"passed": reason}
    assert text is not None
    query = make_query(text, options.categories, lang=language_or_none(options.lang))
    query, _ = scorer.with_known_categories(query)
    with context.stage("encode"):
        queries = vector_queries(snapshot, stack, query)
    source = snapshot.pipeline.engine.hook_source()
    if source is None:
        return {"passed": "the documents are not in a cluster"}
    with context.stage("engine"):
        nearest = source.nearest(queries, over_fetch=body.conditions)
    limit = max(context.max_candidates - body.first, 0)
    retrievers = [_json(retriever) for retriever in _limit(nearest.retrievers, limit)]
    return {"find": retrievers, "uuids": nearest.uuids, "size": min(nearest.size, limit), "text": text}


def _reason_to_pass(snapshot: Snapshot, body: RetrieveBody, stack: Stack, text: str | None) -> str | None:
    """Return why nothing is retrieved. The reason is counted, so it has no names or texts of users."""
    options = body.rerank or SearchOptions()
    if not ranker_names(retriever_depths(stack.retrieve)):
        return "the stack retrieves nothing"
    if text is None or not text.strip():
        return "the query has no text"
    if options.stack is not None and not body.stack_allowed and not is_free(snapshot, options.stack, stack):
        return "the pipeline does not allow this stack"
    return None


def is_free(snapshot: Snapshot, text: str, stack: Stack) -> bool:
    """Whether any search may name a stack that reads no fields: it is tuned, or the first stage."""
    names, weights = parse_stack(text)
    is_tuned = weights is None and frozenset(names) in snapshot.tuned
    return is_tuned or stack.signals == (stack.first_stage,)


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
    for is_nearest in found_by.values():
        stays = stays | is_nearest
    kept_rows = np.flatnonzero(stays)
    return Added(kept_rows, {name: is_nearest[kept_rows] for name, is_nearest in found_by.items()})


def check_first(first: int | None, count: int) -> int:
    """Return the number of hits of the first stage. Raises UsageError for more than there are hits."""
    if first is None:
        return count
    if first > count:
        raise UsageError(f"first is {first}, but {count} hits came; send the number of hits of the query")
    return first
