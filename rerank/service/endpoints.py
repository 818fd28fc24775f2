"""The endpoints: snapshot and body -> answer, without HTTP."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.filters import filters_of
from rerank.records import Document, Query
from rerank.search.scorer import ScoringInput, encoding_size
from rerank.search.second_phase import rank_scored
from rerank.search.unscored import select_scorable
from rerank.service.context import RequestContext
from rerank.service.request_scores import LexicalScorer
from rerank.service.schemas import IdsBody, RerankBody, SearchBody, TextDocument
from rerank.service.snapshot import Snapshot
from rerank.stack.signals import lexical
from rerank.stack.stack import Stack

LONGEST_QUERY, LONGEST_TEXT = 200_000, 1_000_000
"""Characters that are read of a query, and of a title or text."""

LONGEST_DOCUMENTS = 4_000_000
"""Characters of all documents of a request together."""

_BLOCK = 16  # documents to analyze between two checks of the deadline

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """Cut a text, and runs of combining marks to 32, as Unicode sorts them slowly.

    >>> len(clean("a" + "\\u0301\\u0327" * 1000))
    33
    """
    text = text[:longest]
    return text if text.isascii() else _MARKS.sub(r"\1", text)


def rerank(snapshot: Snapshot, body: RerankBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/rerank``: rerank documents of the request.

    Ties keep their order. Raises UsageError, InputError.
    """
    context.check_count(len(body.documents), "documents")
    context.query = body.query
    named = body.stack or (body.model if body.model and snapshot.knows(body.model) else None)
    stack, scorer = snapshot.scorer(named)
    query = make_query(body.query, body.categories, body.lexical_text, body.lang)
    documents = [_document(i, given, body.rank_fields) for i, given in enumerate(body.documents)]
    check_characters(documents)
    results: list[dict[str, Any]] = []
    query, unknown_categories = scorer.with_known_categories(query)
    if documents:
        context.check_encoding(scorer.features, len(documents), encoding_size(documents))
        with context.stage("lexical"):
            scores = _lexical_scores(snapshot, stack, query, documents, context)
        inputs = ScoringInput.from_documents(documents, scores, scorer.features)
        scored = scorer.score(query, inputs, timer=context)
        stack = stack.for_case(scored.case)
        by_id = {document.id: document for document in documents}
        ranking = rank_scored(stack, scored, context, lambda ids: [by_id[id] for id in ids])
        context.late = ranking.late
        combiner = stack.combiner if stack.then is None or ranking.late else stack.then.linear()
        values = combiner.relevance(ranking.scores).tolist()
        for position, score in zip(ranking.order.tolist()[: body.top_n], values):
            result: dict[str, Any] = {"index": position, "relevance_score": score}
            if body.return_documents:
                given = body.documents[position]
                result["document"] = {"text": given} if isinstance(given, str) else given
            results.append(result)
    words = len(query.text.split()) + sum(len(document.content.split()) for document in documents)
    return {
        "id": secrets.token_hex(16),
        "model": str(stack),
        "results": results,
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
        "usage": {"total_tokens": words},
        "unknown_categories": list(unknown_categories),
    }


def check_characters(documents: Sequence[Document]) -> None:
    """Raise UsageError if the documents of a request have too many characters together."""
    characters = sum(len(document.title) + len(document.text) for document in documents)
    if characters > LONGEST_DOCUMENTS:
        raise UsageError(
            f"the documents have {characters:,} characters, but a request may have {LONGEST_DOCUMENTS:,};"
            " send fewer or shorter documents"
        )


def _lexical_scores(
    snapshot: Snapshot, stack: Stack, query: Query, documents: Sequence[Document], context: RequestContext
) -> dict[str, NDArray[np.float64]]:
    """Return lexical signal -> (n,) scores among the documents of the request."""
    terms: list[list[str]] = []
    for start in range(0, len(documents), _BLOCK):
        context.check()
        terms += [snapshot.analyze(document.content) for document in documents[start : start + _BLOCK]]
    lexical_scorer = LexicalScorer(terms)
    query_terms = snapshot.analyze(query.search_text(snapshot.pipeline.engine.lang))
    names = dict.fromkeys(lexical((stack.first_stage, *stack.signals)))
    return {name: lexical_scorer.score(name, query_terms) for name in names}


def search(snapshot: Snapshot, body: SearchBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/search``: the answer of ``rerank query --json``."""
    context.query = body.query
    stack = snapshot.stack(body.stack)
    for count in (body.depth, body.k):
        if count is not None:
            context.check_count(count, "candidates")
    stack = replace(stack, depth=min(body.depth or stack.depth, context.max_candidates))
    query = make_query(body.query, body.categories, body.lexical_text, body.lang)
    query = replace(query, params=body.params)
    pipeline = snapshot.pipeline_of(stack)
    answer = pipeline.answer(query, stack, filters=filters_of(body.filter), timer=context)
    context.candidates = len(answer.ranking)
    context.missing = dict(answer.recomputed)
    context.without_features = dict(answer.without_features)
    context.late = answer.ranking.late
    with context.stage("documents"):
        hits = pipeline.hits(answer, body.k, explain=body.explain)
    return {**answer.to_json(hits), "query": body.query}


def rerank_ids(snapshot: Snapshot, body: IdsBody, context: RequestContext) -> dict[str, Any]:
    """``POST /v1/rerank_ids``: rerank documents of the engine, for the stock processors of OpenSearch.

    Scores have single precision and a point or exponent, for ML Commons. Raises UsageError if no id is known
    or one repeats.
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
        inputs = scorer.load_missing_scores_and_features(query, unscored)
    selected = select_scorable(scorer, replace(inputs, candidates=None), context)
    context.without_features = selected.without_features
    context.missing = dict.fromkeys(scorer.features, len(ids))
    scored = scorer.score(query, selected.inputs, timer=context)
    if not selected.scorable.any() or not (scored.raw.any() or engine.contains(ids)):
        raise UsageError("the engine knows none of the ids; does the search return the field of the id?")
    stack = stack.for_case(scored.case)
    ranking = rank_scored(stack, scored, context, engine.get).with_unscored(ids, selected.scorable, {})
    context.late = ranking.late
    scores = [float(str(score)) for score in ranking.scores.astype(np.float32)]
    results = [{"index": i, "relevance_score": score} for i, score in zip(ranking.order.tolist(), scores)]
    counts = {"without_features": context.without_features} if context.without_features else {}
    return {"model": str(stack), "results": results, **counts}


def make_query(
    text: str, categories: Sequence[str] | None, lexical_text: str | None = None, lang: str | None = None
) -> Query:
    """Make a query. Raises UsageError if it has no words."""
    if not text.strip():
        raise UsageError("the query is empty; give some words to search for")
    other = clean(lexical_text, LONGEST_QUERY) if lexical_text else None
    return Query("query", clean(text, LONGEST_QUERY), tuple(categories or ()), lang, lexical_text=other)


def _document(number: int, given: str | dict[str, Any], rank_fields: Sequence[str] | None) -> Document:
    """Return a document of the request; its id is its position, which breaks ties."""
    id = f"{number:09}"
    if isinstance(given, str):
        return Document(id, text=clean(given))
    try:
        read = msgspec.convert(given, TextDocument)
    except msgspec.ValidationError as error:
        raise UsageError(f"documents.{number}: {error}") from error
    categories = tuple(read.categories or ())
    if rank_fields:
        return Document(id, text=clean(_joined_fields(number, given, rank_fields)), categories=categories)
    if not given.keys() & {"title", "text", "categories"}:
        names = ", ".join(repr(name[:50]) for name in list(given)[:10]) or "no field"
        raise UsageError(
            f"documents.{number} has {names}, but no 'text' or 'title'; rename a field, or name the fields in"
            " rank_fields"
        )
    return Document(id, clean(read.title or ""), clean(read.text or ""), categories)


def _joined_fields(number: int, given: dict[str, Any], names: Sequence[str]) -> str:
    """Return the texts of fields. Raises UsageError if a document has none of them."""
    values = [given[name] for name in names if given.get(name) is not None]
    if not values:
        raise UsageError(f"documents.{number} has none of the rank_fields {', '.join(names)}"[:300])
    return " ".join(
        value if isinstance(value, str) else msgspec.json.encode(value).decode() for value in values
    )
