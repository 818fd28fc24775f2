"""The endpoints: snapshot + body -> answer. Without HTTP.

Each of them runs in a thread, and looks at the deadline between two stages.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from rerank.errors import UsageError
from rerank.filters import filters_of
from rerank.records import Document, Query
from rerank.search.scorer import Given, Scored, Stages
from rerank.service.request_scores import LexicalScorer
from rerank.service.schemas import RerankBody, SearchBody, TextDocument
from rerank.service.snapshot import Snapshot
from rerank.stack.ranking import Ranking
from rerank.stack.signals import lexical
from rerank.stack.stack import Stack

LONGEST_QUERY, LONGEST_TEXT = 200_000, 1_000_000
"""Characters that are read of a query, and of a title or text."""

_MEMORY = 0.8  # how much of what encoding took counts of those before the last

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")


class DeadlineError(Exception):
    """The time of a request is over."""


class NotHereError(Exception):
    """A request would take too long for the event loop."""


@dataclass
class RequestContext(Stages):
    """One request and its notes for the log. Scoring ends when its time is over.

    deadline:   on the clock of ``time.monotonic``.
    most:       candidates that are allowed.
    encodes:    documents that the hook may encode.
    costs:      ranker -> CPU seconds that the last queries took to encode, of all requests.
    here:       whether it runs on the event loop, which must not be blocked.
    seconds:    stage -> time taken.
    begun:      when it came, on the same clock.
    missing:    ranker -> features that had to be fetched or computed.
    unscored:   why -> hits that keep their first-stage places.
    without_features: hits without stored features that the hook has ``encoded``, or left ``unscored``.
    passed:     why a hook's hits were passed through.
    """

    deadline: float
    most: int
    encodes: int = 0
    costs: dict[str, float] = field(default_factory=dict)
    here: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    candidates: int | None = None
    begun: float = field(default_factory=time.monotonic)
    missing: dict[str, int] = field(default_factory=dict)
    unscored: dict[str, int] = field(default_factory=dict)
    without_features: dict[str, int] = field(default_factory=dict)
    passed: str | None = None
    query: str | None = None

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time a stage; DeadlineError when it would begin too late."""
        if time.monotonic() > self.deadline:
            raise DeadlineError
        return super().stage(name)

    def leaves(self) -> None:
        """The next step takes long. Raises NotHereError on the event loop."""
        if self.here:
            raise NotHereError

    def encoded(self, ranker: str, seconds: float) -> None:
        """Note the seconds to encode a query, averaged over the last ones."""
        self.costs[ranker] = seconds + _MEMORY * (self.costs.get(ranker, seconds) - seconds)

    def takes(self, count: int, what: str) -> None:
        """Note the candidates; UsageError when they are too many."""
        if count > self.most:
            raise UsageError(f"{count:,} {what}, but this service takes {self.most:,}; send fewer")
        self.candidates = count


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """Cut a text, and runs of marks to 32, as Unicode's stream-safe text: to order long ones takes for ever.

    >>> len(clean("a" + "\\u0301\\u0327" * 1000))
    33
    """
    text = text[:longest]
    return text if text.isascii() else _MARKS.sub(r"\1", text)


def rerank(snapshot: Snapshot, body: RerankBody, work: RequestContext) -> dict[str, Any]:
    """``POST /v1/rerank``: documents that the engine has never seen.

    Equal scores keep the order of the request. Raises UsageError, InputError for what cannot be.
    """
    work.takes(len(body.documents), "documents")
    work.query = body.query
    stack = snapshot.stack(body.stack or (body.model if body.model and snapshot.knows(body.model) else None))
    query = query_of(body.query, body.categories, body.lexical_text, body.lang)
    documents = [_document(i, given) for i, given in enumerate(body.documents)]
    results: list[dict[str, Any]] = []
    scorer = snapshot.scorer(stack)
    query, unknown_categories = scorer.with_known_categories(query)
    if documents:
        with work.stage("lexical"):
            counts = LexicalScorer([snapshot.analyze(document.content) for document in documents])
            terms = snapshot.analyze(query.lexical)
            names = lexical((stack.first_stage, *stack.signals))
            scores = {name: counts.score(name, terms) for name in dict.fromkeys(names)}
        given = Given.unseen(documents, scores, scorer.features)
        scored = scorer.score(query, given, stages=work)
        stack = stack.for_case(scored.case)
        ranking = ranked(stack, scored, work)
        scores_told = stack.combiner.relevance(ranking.scores).tolist()
        for position, score in zip(ranking.order.tolist()[: body.top_n], scores_told):
            result: dict[str, Any] = {"index": position, "relevance_score": score}
            if body.return_documents:
                result["document"] = _returned(position, body.documents[position])
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


def search(snapshot: Snapshot, body: SearchBody, work: RequestContext) -> dict[str, Any]:
    """``POST /v1/search``: the answer of ``rerank query --json``."""
    work.query = body.query
    stack = snapshot.stack(body.stack)
    for asked in (body.depth, body.k):
        if asked is not None:
            work.takes(asked, "candidates")
    stack = replace(stack, depth=min(body.depth or stack.depth, work.most))
    query = query_of(body.query, body.categories, body.lexical_text, body.lang)
    query = replace(query, params=body.params)
    pipeline = snapshot.pipeline_of(stack)
    filters = filters_of(body.filter)
    answer = pipeline.answer(query, stack, filters=filters, stages=work)
    work.candidates = len(answer.ranking)
    work.missing = dict(answer.recomputed)
    with work.stage("documents"):
        hits = pipeline.hits(answer, body.k, explain=body.explain)
    return {**answer.to_json(hits), "query": body.query}


def ranked(stack: Stack, scored: Scored, work: RequestContext) -> Ranking:
    """Put scored candidates in a stack's order."""
    with work.stage("score"):
        return stack.for_case(scored.case).rank(scored.ids, scored.raw)


def query_of(
    text: str, categories: Sequence[str] | None, lexical_text: str | None = None, lang: str | None = None
) -> Query:
    """Make a query of what came. Raises UsageError for one without words."""
    if not text.strip():
        raise UsageError("the query is empty; give some words to search for")
    other = clean(lexical_text, LONGEST_QUERY) if lexical_text else None
    return Query("query", clean(text, LONGEST_QUERY), tuple(categories or ()), lang, lexical_text=other)


def _document(number: int, given: str | dict[str, Any]) -> Document:
    """Read a document of a request; its place is its id, which settles ties. Raises UsageError."""
    if isinstance(given, str):
        return Document(f"{number:09}", text=clean(given))
    try:
        found = msgspec.convert(given, TextDocument)
    except msgspec.ValidationError as error:
        raise UsageError(f"documents.{number}: {error}") from error
    return Document(
        f"{number:09}", clean(found.title or ""), clean(found.text or ""), tuple(found.categories or ())
    )


def _returned(number: int, given: str | dict[str, Any]) -> Any:
    try:
        return msgspec.Raw(msgspec.json.encode({"text": given} if isinstance(given, str) else given))
    except (UnicodeEncodeError, RecursionError) as error:  # half of a surrogate pair, or too deep
        raise UsageError(f"documents.{number}: cannot be returned ({error}); leave it out") from error
