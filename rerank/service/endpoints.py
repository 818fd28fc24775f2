"""The endpoints: snapshot and body -> answer, without HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import EngineError, UsageError
from rerank.common.values import items_at, without_empty
from rerank.documents.filters import filters_of
from rerank.documents.records import Document, Query
from rerank.documents.text import language
from rerank.engines.base import TermStatistics
from rerank.scoring.encoding import encoding_size
from rerank.scoring.scorer import ScoringInput
from rerank.scoring.second_phase import rank_scored
from rerank.scoring.unscored import select_scorable
from rerank.service.context import RequestContext
from rerank.service.experiment import Experiment, Interleaving
from rerank.service.request_documents import clean, read_documents
from rerank.service.request_scores import LexicalScorer
from rerank.service.schemas import IdsBody, RerankBody, SearchBody
from rerank.service.snapshot import Snapshot
from rerank.service.ubi_log import MOST_HITS, SearchRecord
from rerank.stack.ranking import Ranking
from rerank.stack.relevance import check_min_score
from rerank.stack.signals import lexical_names
from rerank.stack.stack import Stack

LONGEST_QUERY = 200_000
"""Characters that are read of a query."""

_BLOCK = 16  # documents to analyze between two checks of the deadline


def rerank(snapshot: Snapshot, body: RerankBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/rerank``: rerank documents of the request.

    Returns the answer as JSON values. Documents with equal scores keep their order.

    Raises UsageError or InputError for a stack, a document or a limit that cannot be used.
    """
    context.check_count(len(body.documents), "documents")
    context.query = body.query
    stack_text = body.stack
    if not stack_text and body.model and snapshot.knows(body.model):
        stack_text = body.model
    stack, scorer = snapshot.scorer(stack_text)
    query = make_query(body.query, body.categories, body.lexical_text, body.lang)
    documents = read_documents(body)
    if body.min_score is not None:
        check_min_score(body.min_score, stack.relevance if stack.second_phase is None else None)
    query, unknown_categories = scorer.with_known_categories(query)

    results: list[dict[str, Any]] = []
    removed = 0
    calibrated = False
    if documents:
        context.check_encoding(scorer.features, len(documents), encoding_size(documents))
        with context.stage("lexical"):
            statistics = _statistics(snapshot, stack, query, documents, required=body.min_score is not None)
            terms = _analyze_documents(snapshot, documents, context)
            scores = _lexical_scores(snapshot, stack, query, LexicalScorer(terms, statistics))
        inputs = ScoringInput.from_documents(documents, scores, scorer.features)
        scored = scorer.score(query, inputs, timer=context)

        stack = stack.for_case(scored.case)
        if statistics is not None or not lexical_names(stack.signals):
            stack = stack.for_any_documents()
            calibrated = _has_probabilities(stack)
        by_id = {document.id: document for document in documents}
        ranking = rank_scored(stack, scored, context, partial(items_at, by_id))
        context.late = ranking.late
        if body.min_score is not None:
            ranking = ranking.above(body.min_score)
            removed = ranking.removed
        results = _results(body, ranking.order.tolist(), _relevance(stack, ranking, calibrated))

    words = len(query.text.split()) + sum(len(document.content.split()) for document in documents)
    return {
        "id": secrets.token_hex(16),
        "model": str(stack),
        "normalization": stack.combiner.normalization,
        "scores": "probability" if calibrated else "order",
        "results": results,
        "removed": removed,
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
        "usage": {"total_tokens": words},
        "unknown_categories": list(unknown_categories),
    }


def _results(body: RerankBody, positions: Sequence[int], relevance: Sequence[float]) -> list[dict[str, Any]]:
    """Return the results of an answer: the ``top_n`` best documents, and their texts if requested.

    positions: of the ranked documents in the request, best first. relevance: their scores.
    """
    results: list[dict[str, Any]] = []
    for position, score in zip(positions[: body.top_n], relevance):
        result: dict[str, Any] = {"index": position, "relevance_score": score}
        if body.return_documents:
            document = body.documents[position]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    return results


def _has_probabilities(stack: Stack) -> bool:
    return (
        stack.second_phase is None and stack.relevance is not None and stack.relevance.calibration is not None
    )


def _relevance(stack: Stack, ranking: Ranking, calibrated: bool) -> list[float]:
    """Return the relevance scores of the ranked documents, best first."""
    if ranking.relevance is not None and calibrated:
        return list(map(float, ranking.relevance[ranking.order]))
    combiner = stack.combiner
    if stack.second_phase is not None and not ranking.late:
        combiner = stack.second_phase.linear()
    return list(map(float, combiner.relevance(ranking.scores)))


def _statistics(
    snapshot: Snapshot, stack: Stack, query: Query, documents: Sequence[Document], *, required: bool
) -> TermStatistics | None:
    """Return the frequencies of terms in the collection.

    None: the stack has no lexical signal, or the engine does not answer and they are not ``required``.
    Without them, the documents of the request are the collection, so requests work while a cluster is down.
    """
    signals = lexical_names(stack.signals)
    if not signals:
        return None
    engine = snapshot.pipeline.engine
    texts = [query.search_text(engine.lang)]
    if "tfidf" in signals:  # it also depends on the frequency of the terms that only the documents have
        texts += [document.content for document in documents]
    try:
        return engine.term_statistics("\n".join(texts))
    except EngineError:
        if required:
            raise
        return None


def _analyze_documents(
    snapshot: Snapshot, documents: Sequence[Document], context: RequestContext
) -> list[list[str]]:
    """Return the terms of each document. Raises an error after the deadline of the request."""
    terms: list[list[str]] = []
    for start in range(0, len(documents), _BLOCK):
        context.check()
        terms += [snapshot.analyze(document.content) for document in documents[start : start + _BLOCK]]
    return terms


def _lexical_scores(
    snapshot: Snapshot, stack: Stack, query: Query, scorer: LexicalScorer
) -> dict[str, NDArray[np.float64]]:
    """Return lexical signal -> (n,) scores."""
    query_terms = snapshot.analyze(query.search_text(snapshot.pipeline.engine.lang))
    names = dict.fromkeys(lexical_names((stack.first_stage, *stack.signals)))
    return {name: scorer.score(name, query_terms) for name in names}


def search(snapshot: Snapshot, body: SearchBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/search``: search the documents of the engine, and rerank the candidates.

    Returns the JSON of ``rerank query --json``. If the search is part of an experiment, the results of two
    stacks are interleaved.

    Raises UsageError for an unknown stack or too many candidates, InputError for invalid filters.
    """
    context.query = body.query
    stack = snapshot.stack(body.stack)
    for count in (body.depth, body.k):
        if count is not None:
            context.check_count(count, "candidates")
    query = make_query(body.query, body.categories, body.lexical_text, body.lang)
    query = replace(query, params=body.params)
    experiment: Experiment | None = None
    coins = b""
    if body.stack is None and body.min_score is None:
        experiment, coins = snapshot.draw(body.client_id, query.text)
    if experiment is not None:
        stack = experiment.joint
    stack = replace(stack, depth=min(body.depth or stack.depth, context.max_candidates))
    pipeline = snapshot.pipeline_of(stack)
    if experiment is not None:
        pipeline = replace(pipeline, rank=experiment.rank_with(coins))
    answer = pipeline.answer(
        query, stack, filters=filters_of(body.filter), min_score=body.min_score, timer=context
    )
    if experiment is not None:
        answer = replace(answer, stack=experiment.arms[0])
    context.candidates = len(answer.ranking)
    context.missing = dict(answer.recomputed)
    context.without_features = dict(answer.without_features)
    context.late = answer.ranking.late
    with context.stage("documents"):
        hits = pipeline.hits(answer, body.k, explain=body.explain)
    result = {**answer.to_json(hits), "query": body.query}
    query_id = body.query_id
    if query_id is None and context.logs_searches:
        query_id = result["query_id"] = secrets.token_hex(16)
    shown: dict[str, str] = {}
    if experiment is not None and isinstance(answer.ranking, Interleaving):
        shown = result["experiment"] = experiment.to_json(answer.ranking)
        for hit, team in zip(hits, answer.ranking.teams):
            hit["team"] = team
    hit_ids = answer.ranking.best_ids(MOST_HITS)
    context.record = SearchRecord(body.query, query_id, body.client_id, hit_ids, shown)
    return result


def rerank_ids(snapshot: Snapshot, body: IdsBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/rerank_ids``: rerank documents of the engine, for the stock processors of OpenSearch.

    Ids that the engine does not know, and documents that are not scored, keep their position. Their
    scores lie between the scores of the documents around them, because processors sort by score. They have
    single precision and a point or exponent, for ML Commons. Raises UsageError if no id is known or one
    repeats.
    """
    context.check_count(len(body.ids), "ids")
    context.query = body.query
    stack, scorer = snapshot.scorer(body.stack)
    query = make_query(body.query, None)
    ids = body.ids
    if len(set(ids)) < len(ids):
        raise UsageError("an id comes twice; send each once")
    if not ids:
        return {"model": str(stack), "results": []}
    engine = snapshot.pipeline.engine
    unscored = ScoringInput(ids, {}, documents=engine.get)
    with context.stage("engine"):
        existing_ids = engine.contains(ids)
        if not existing_ids:
            raise UsageError("the engine knows none of the ids; does the search return the field of the id?")
        inputs = scorer.load_missing_scores_and_features(query, unscored)
    exists = np.array([id in existing_ids for id in ids])
    selected = select_scorable(scorer, replace(inputs, candidates=None), context, owned=exists)
    context.without_features = selected.without_features
    context.missing = dict.fromkeys(scorer.features, len(ids))
    scored = scorer.score(query, selected.inputs, timer=context)
    stack = stack.for_case(scored.case)
    ranking = rank_scored(stack, scored, context, engine.get).with_unscored(ids, selected.scorable, {})
    context.late = ranking.late
    scores = _spread_scores(ranking.scores, selected.scorable[ranking.order])
    results = [
        {"index": position, "relevance_score": float(str(score))}
        for position, score in zip(ranking.order.tolist(), scores.astype(np.float32))
    ]
    counts = without_empty({"without_features": context.without_features})
    return {"model": str(stack), "results": results, **counts}


def _spread_scores(scores: NDArray[np.float64], is_scored: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return scores in which unscored documents have evenly spaced scores between the scored ones.

    scores:    (n,) best first. is_scored: (n,).

    >>> _spread_scores(np.array([3.0, 3.0, 1.0, 1.0]), np.array([True, False, True, False]))
    array([3. , 2. , 1. , 0.5])
    """
    if is_scored.all() or not is_scored.any():
        return scores
    scored = scores[is_scored]
    positions = np.concatenate([[-1], np.flatnonzero(is_scored), [len(scores)]])
    spread: NDArray[np.float64] = np.interp(
        np.arange(len(scores)), positions, [scored[0] + 1, *scored, scored[-1] - 1]
    )
    return spread


def make_query(
    text: str, categories: Sequence[str] | None, lexical_text: str | None = None, lang: str | None = None
) -> Query:
    """Make a query. Raises UsageError if it has no words, or for a wrong code of a language."""
    if not text.strip():
        raise UsageError("the query is empty; give some words to search for")
    language(lang)
    lexical_query = clean(lexical_text, LONGEST_QUERY) if lexical_text else None
    return Query(
        "query", clean(text, LONGEST_QUERY), tuple(categories or ()), lang, lexical_text=lexical_query
    )
