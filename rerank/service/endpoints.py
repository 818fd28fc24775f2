"""The endpoints: snapshot and body -> answer, without HTTP."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.filters import filters_of
from rerank.records import Document, Query
from rerank.search.scorer import ScoringInput, ScoringResult, StageTimer
from rerank.search.second_phase import Read, rescore
from rerank.service.request_scores import LexicalScorer
from rerank.service.schemas import IdsBody, RerankBody, SearchBody, TextDocument
from rerank.service.snapshot import Snapshot
from rerank.stack.ranking import Ranking
from rerank.stack.signals import lexical
from rerank.stack.stack import Stack

LONGEST_QUERY, LONGEST_TEXT = 200_000, 1_000_000
"""Characters that are read of a query, and of a title or text."""

ENCODED = "*"
"""Among the costs: seconds to encode a document, by all rankers together."""

_MEMORY = 0.8  # weight of the earlier queries in the mean time to encode a query
_SHARE = 0.5  # of the remaining time, for documents whose features are missing or a second phase
_GUESS = 0.005  # seconds to encode a document, before the first one

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")


class DeadlineError(Exception):
    """A request has no time left."""


class EventLoopError(Exception):
    """A request is too slow for the event loop."""


@dataclass
class RequestContext(StageTimer):
    """The limits of one request, and notes for the log.

    deadline, begun: ``time.monotonic`` seconds.
    max_candidates, max_encoded: see :class:`Settings`.
    costs:         ranker -> mean CPU seconds per query.
    on_event_loop: must not block.
    seconds:       stage -> seconds.
    missing:       ranker -> features fetched or computed.
    unscored:      reason -> hits.
    without_features: hits ``encoded`` or ``unscored``.
    passed:        why hits keep their order.
    late:          whether the second phase took too long.
    timeout:       seconds that the client waits.
    """

    deadline: float
    max_candidates: int
    max_encoded: int = 0
    costs: dict[str, float] = field(default_factory=dict)
    on_event_loop: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    candidates: int | None = None
    begun: float = field(default_factory=time.monotonic)
    missing: dict[str, int] = field(default_factory=dict)
    unscored: dict[str, int] = field(default_factory=dict)
    without_features: dict[str, int] = field(default_factory=dict)
    passed: str | None = None
    late: bool = False
    timeout: float = math.inf
    query: str | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage. Raises DeadlineError."""
        if time.monotonic() > self.deadline:
            raise DeadlineError
        with super().stage(name):
            yield

    def leaves(self) -> None:
        """Raise EventLoopError before a slow step."""
        if self.on_event_loop:
            raise EventLoopError

    def encoded(self, ranker: str, seconds: float) -> None:
        """Note the encoding time of a query."""
        self.costs[ranker] = seconds + _MEMORY * (self.costs.get(ranker, seconds) - seconds)

    def check_count(self, count: int, noun: str) -> None:
        """Note the number of candidates. Raises UsageError."""
        if count > self.max_candidates:
            raise UsageError(f"{count:,} {noun}, but this service takes {self.max_candidates:,}; send fewer")
        self.candidates = count

    def left(self) -> float:
        """Return a share of the seconds until the deadline or the client's timeout."""
        return _SHARE * (min(self.deadline, self.begun + self.timeout) - time.monotonic())

    def affordable(self) -> int:
        """How many documents can be encoded in time."""
        return min(self.max_encoded, max(int(self.left() / self.costs.get(ENCODED, _GUESS)), 0))

    def to_log(self, with_query: bool) -> dict[str, Any]:
        """The notes as log fields."""
        names = ("candidates", "missing", "without_features", "unscored", "passed", "late")
        notes = {name: value for name in names if (value := getattr(self, name)) not in (None, {}, False)}
        return notes | ({"query": self.query} if with_query and self.query is not None else {})


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
    documents = [_document(i, given) for i, given in enumerate(body.documents)]
    results: list[dict[str, Any]] = []
    query, unknown_categories = scorer.with_known_categories(query)
    if documents:
        with context.stage("lexical"):
            lexical_scorer = LexicalScorer([snapshot.analyze(document.content) for document in documents])
            terms = snapshot.analyze(query.search_text(snapshot.pipeline.engine.lang))
            names = dict.fromkeys(lexical((stack.first_stage, *stack.signals)))
            scores = {name: lexical_scorer.score(name, terms) for name in names}
        scored = scorer.score(query, ScoringInput.unseen(documents, scores, scorer.features), stages=context)
        stack = stack.for_case(scored.case)
        by_id = {document.id: document for document in documents}
        ranking = rank(stack, scored, context, lambda ids: [by_id[id] for id in ids])
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
    answer = pipeline.answer(query, stack, filters=filters_of(body.filter), stages=context)
    context.candidates = len(answer.ranking)
    context.missing, context.late = dict(answer.recomputed), answer.ranking.late
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
    query, ids = make_query(body.query, None), body.ids
    if len(set(ids)) < len(ids):
        raise UsageError("an id comes twice; send each once")
    if not ids:
        return {"model": str(stack), "results": []}
    engine = snapshot.pipeline.engine
    given = scorer.fetched(query, ScoringInput(ids, {}, documents=engine.get), context)
    scorable, given = encodable(replace(given, candidates=None), context)
    scored = scorer.score(query, given, stages=context)
    context.missing = dict.fromkeys(scorer.features, len(ids))
    if not scorable.any() or not (scored.raw.any() or engine.contains(ids)):
        raise UsageError("the engine knows none of the ids; does the search return the field of the id?")
    ranking = rank(stack, scored, context, engine.get)
    order, scores = kept_places(scorable, ranking.order, ranking.scores)
    pairs = zip(order.tolist(), [float(str(score)) for score in scores.astype(np.float32)])
    results = [{"index": i, "relevance_score": score} for i, score in pairs]
    return {"model": str(stack.for_case(scored.case)), "results": results}


def encodable(
    given: ScoringInput, context: RequestContext, ours: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.bool_], ScoringInput]:
    """Which of n documents can be scored, (n,) bool, and these documents. Encodes while there is time.

    ours: (n,) documents of the engine; others are not scored.
    """
    scorable = np.ones(len(given.ids), np.bool_) if ours is None else ours.copy()
    lacking = [missing for missing in given.missing.values() if missing.any()]
    if lacking and len(places := np.flatnonzero(np.logical_or.reduce(lacking) & scorable)):
        context.leaves()
        read, ids = given.documents, [given.ids[i] for i in places[: context.affordable()].tolist()]
        assert read is not None
        with context.stage("engine"):
            documents = {id: document for id, document in zip(ids, read(ids)) if document is not None}
        scorable[[i for i in places.tolist() if given.ids[i] not in documents]] = False
        counts = {"encoded": len(documents), "unscored": len(places) - len(documents)}
        context.without_features = {name: count for name, count in counts.items() if count}

        def get(ids: Sequence[str]) -> Sequence[Document | None]:
            return [documents[id] for id in ids] if documents.keys() >= {*ids} else read(ids)

        given = replace(given, documents=get)
    return scorable, given if scorable.all() else _subset(given, np.flatnonzero(scorable))


def _subset(given: ScoringInput, places: NDArray[np.intp]) -> ScoringInput:
    def cut(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {name: values[places] for name, values in columns.items()}

    ids = [given.ids[i] for i in places.tolist()]
    features, missing = cut(given.features), cut(given.missing)
    return replace(given, ids=ids, scores=cut(given.scores), features=features, missing=missing)


def kept_places(
    scorable: NDArray[np.bool_], order: NDArray[np.int64], scores: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Order n hits. Hits without a score keep their place, with the score of the hit before.

    scorable: (n,) bool. order: (m,) positions among scorable hits, best first. scores: (m,).

    >>> kept_places(np.array([False, True, True, True]), np.array([2, 0, 1]), np.array([3.0, 2.0, 1.0]))
    (array([0, 3, 1, 2]), array([3., 3., 2., 1.]))
    """
    if len(order) == len(scorable):
        return order, scores
    merged, values = np.arange(len(scorable)), np.empty(len(scorable))
    merged[scorable] = np.flatnonzero(scorable)[order]
    values[scorable] = scores
    before = np.maximum(np.cumsum(scorable) - 1, 0)
    values[~scorable] = scores[before[~scorable]]
    return merged, values


def rank(stack: Stack, scored: ScoringResult, context: RequestContext, read: Read) -> Ranking:
    """Rank scored candidates by a stack and its second phase. read: gets documents."""
    with context.stage("score"):
        ranking = stack.for_case(scored.case).rank(scored.ids, scored.raw)
    if stack.then is not None:
        with context.stage("then"):
            limit = min(stack.then.ms / 1000, context.left())
            ranking = rescore(ranking, scored.query, stack.then, read, limit)
        context.late = ranking.late
    return ranking


def make_query(
    text: str, categories: Sequence[str] | None, lexical_text: str | None = None, lang: str | None = None
) -> Query:
    """Make a query. Raises UsageError if it has no words."""
    if not text.strip():
        raise UsageError("the query is empty; give some words to search for")
    other = clean(lexical_text, LONGEST_QUERY) if lexical_text else None
    return Query("query", clean(text, LONGEST_QUERY), tuple(categories or ()), lang, lexical_text=other)


def _document(number: int, given: str | dict[str, Any]) -> Document:
    """A document; its id is its place, which breaks ties."""
    if isinstance(given, str):
        return Document(f"{number:09}", text=clean(given))
    try:
        read = msgspec.convert(given, TextDocument)
    except msgspec.ValidationError as error:
        raise UsageError(f"documents.{number}: {error}") from error
    categories = tuple(read.categories or ())
    return Document(f"{number:09}", clean(read.title or ""), clean(read.text or ""), categories)
