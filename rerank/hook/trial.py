"""Compare a search with and without the hook, and with the workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rerank.common.errors import UsageError
from rerank.common.results import Report
from rerank.documents.records import Query
from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.legs import leg_scores, with_names
from rerank.engines.opensearch.reading import ids_of
from rerank.engines.opensearch.templates import PROCESSOR
from rerank.hook.base import Hook
from rerank.scoring.pipeline import template_of
from rerank.scoring.scorer import ScoringInput
from rerank.scoring.second_phase import rank_scored
from rerank.scoring.timer import StageTimer
from rerank.stack.parse import retriever_depths
from rerank.stack.ranking import Ranking
from rerank.stack.signals import SEARCH, leg_names, ranker_names
from rerank.stack.stack import Stack

_NO_ANSWER = frozenset({"refused", "connection", "timeout", "breaker_open"})
"""Reasons of the plugin for a service that is down, or too slow."""
_WITHOUT_HITS = frozenset({"no_hits", "the search has no hits"})
_SHADOW = "shadow"


@dataclass
class SearchTrial(Report):
    """One search with and without the pipeline, and the ranking that the workspace computes.

    pipeline:   name of the pipeline.
    query:      the query of the search, in the language of OpenSearch.
    stack:      the stack that scores. depth: number of candidates.
    outcome:    ``reranked``, ``passed`` or ``failed``. reason: why it did not rerank.
    plain:      ids of the hits without the pipeline, best first.
    reranked:   ids of the hits with the pipeline, best first.
    expected:   ids of the best candidates by ``rerank query``. same: whether ``reranked`` has this order.
    difference: largest difference between the two scores of a hit; None: no common hit.
    problem:    why nothing was reranked, and what to do; None: the search was reranked, or has no hits.
    weights:    weights and case of the query, if the hook reports them.
    """

    pipeline: str
    query: dict[str, Any]
    stack: str
    depth: int
    outcome: str
    reason: str | None
    plain: tuple[str, ...]
    reranked: tuple[str, ...]
    expected: tuple[str, ...]
    same: bool
    difference: float | None
    problem: str | None = None
    weights: dict[str, str] = field(default_factory=dict)


def try_search(hook: Hook, text: str, count: int = 10) -> SearchTrial:
    """Search once without and once with the pipeline, and compare the hits with the workspace's ranking.

    text:  words of the query.
    count: number of hits to compare.

    Raises EngineError without a pipeline, UsageError for a query without words.
    """
    config = hook.config()
    if not text.strip():
        raise UsageError("the query is empty; give some words to search for")
    stack = hook.stack_of(config)
    depth = int(config.get("depth", 100))
    body = _body(hook, stack, text)
    hook.search(body, count, text)  # after this search, the node knows which features to send
    named_body = with_names(body, leg_names(stack.signals))
    plain = hook.search(named_body, max(depth, count))["hits"]["hits"]
    reranked = hook.search(body, count, text)
    outcome, reason = hook.outcome(reranked, text)
    if config.get("retrieve"):
        ranking = _union_ranking(hook, stack, text, depth)
    else:
        ranking = _ranking(hook, stack, text, plain[:depth])
    if config.get("min_score") is not None:
        ranking = ranking.above(config["min_score"])

    best = ranking.top(count)
    expected = tuple(hit.id for hit in best)
    scores = {hit["_id"]: float(hit["_score"]) for hit in reranked["hits"]["hits"]}
    differences = [abs(scores[hit.id] - hit.score) for hit in best if hit.id in scores]
    return SearchTrial(
        pipeline=hook.name,
        query=body["query"],
        stack=str(stack),
        depth=depth,
        outcome=outcome,
        reason=reason,
        plain=tuple(ids_of(plain[:count])),
        reranked=tuple(scores),
        expected=expected,
        same=tuple(scores)[:depth] == expected,  # the rest of the first stage follows
        difference=max(differences, default=None),
        problem=describe_outcome(outcome, reason, str(config.get("url", ""))),
        weights=reranked.get("ext", {}).get(PROCESSOR, {}).get("weights", {}),
    )


def describe_outcome(outcome: str, reason: str | None, url: str) -> str | None:
    """Return in one line why nothing was reranked and what to do, or None if there is no problem.

    outcome, reason: of a search, see :class:`SearchTrial`. url: the services of the pipeline.

    >>> print(describe_outcome("passed", "shadow", "http://a:8765"))
    nothing was reranked: the pipeline is in shadow mode; install it again without --shadow
    """
    if outcome == "reranked" or reason in _WITHOUT_HITS:
        return None
    if reason in _NO_ANSWER:
        service = f"the service at {url}" if url else "the service"
        return (
            f"nothing was reranked: {service} did not answer ({reason}); start it with `rerank serve`, or"
            " change its URL with `rerank hook install --service URL`"
        )
    if reason == _SHADOW:
        return "nothing was reranked: the pipeline is in shadow mode; install it again without --shadow"
    cause = reason or f"the cluster reports the outcome {outcome!r}"
    if outcome == "failed":
        cause = f"the call of the service failed ({cause})"
    return f"nothing was reranked: {cause}; `rerank hook status` shows the problems of the pipeline"


def _body(hook: Hook, stack: Stack, text: str) -> dict[str, Any]:
    if stack.first_stage == SEARCH:
        return hook.engine.templates.body(template_of(stack), Query("query", text))
    words = Query("query", text).search_text(hook.engine.lang)
    query = hook.engine.layout.query(words, stack.first_stage)
    return {"query": query, "search_pipeline": NO_PIPELINE}


def _union_ranking(hook: Hook, stack: Stack, text: str, depth: int) -> Ranking:
    """Return the ranking of the hits of the query and of the documents that rankers retrieve."""
    depths = retriever_depths(stack.retrieve)
    names = ranker_names(depths)
    retrieve = tuple(f"{name}:{depths[name] or stack.depth}" if name in names else name for name in depths)
    versions = hook.workspace.versions(stack)
    pipeline = hook.workspace.pipeline(stack.signals, retrieve=retrieve, versions=versions)
    return pipeline.answer(Query("query", text), replace(stack, depth=depth, retrieve=retrieve)).ranking


def _ranking(hook: Hook, stack: Stack, text: str, hits: Sequence[Mapping[str, Any]]) -> Ranking:
    scores = {stack.first_stage: np.array([float(hit["_score"]) for hit in hits])}
    scores |= leg_scores(hits, leg_names(stack.signals))
    pipeline = hook.workspace.pipeline(stack.signals, versions=hook.workspace.versions(stack))
    scorer = pipeline.scorer(stack.signals, stack.first_stage)
    scored = scorer.score(Query("query", text), ScoringInput(ids_of(hits), scores))
    return rank_scored(stack.for_case(scored.case), scored, StageTimer(), hook.engine.get)
