"""The endpoints: snapshot + body -> answer. Nothing here knows of HTTP.

Each of them runs in a thread, and looks at the deadline between two stages.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import FIRST_STAGES
from rerank.engines.opensearch.features import Column
from rerank.errors import UsageError
from rerank.graph.categories import infer_categories
from rerank.order import rank
from rerank.records import Document, Query
from rerank.scoring.pipeline import INFERENCE_DEPTH
from rerank.service.bodies import HookBody, HookWishes, RerankBody, Rows, SearchBody, TextDocument
from rerank.service.lexical import Counts
from rerank.service.query_text import query_text
from rerank.service.snapshot import Snapshot
from rerank.stack.ranking import Ranking
from rerank.stack.stack import Stack

LONGEST_QUERY, LONGEST_TEXT = 200_000, 1_000_000
"""Characters that are read of a query, and of a title or text."""

_SHORT, _QUICK = 2000, 0.001
"""Characters of a query, and seconds to encode one, that the event loop can wait for."""

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")


class DeadlineError(Exception):
    """The time of a request is over."""


class NotHereError(Exception):
    """A request would take too long for the event loop."""


@dataclass
class Work:
    """One request on its way, and what is noted of it.

    deadline:   on the clock of ``time.monotonic``.
    most:       candidates that are allowed.
    costs:      ranker -> CPU seconds that the last query took to encode, of all requests.
    here:       whether it is on the event loop, where nothing may take long.
    seconds:    stage -> time taken.
    missing:    ranker -> features that had to be fetched or computed.
    passed:     why a hook's hits were passed through.
    """

    deadline: float
    most: int
    costs: dict[str, float] = field(default_factory=dict)
    here: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    candidates: int | None = None
    missing: dict[str, int] = field(default_factory=dict)
    passed: str | None = None
    query: str | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; DeadlineError when it would begin too late."""
        begin = time.perf_counter()
        if time.monotonic() > self.deadline:
            raise DeadlineError
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def leaves(self) -> None:
        """Say that what follows takes long; NotHereError on the event loop."""
        if self.here:
            raise NotHereError

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


def rerank(snapshot: Snapshot, body: RerankBody, work: Work) -> dict[str, Any]:
    """``POST /v1/rerank``: documents that the engine has never seen.

    Equal scores keep the order of the request. Raises UsageError, InputError for what cannot be.
    """
    work.takes(len(body.documents), "documents")
    work.query = body.query
    stack = snapshot.stack(body.stack or (body.model if body.model and snapshot.knows(body.model) else None))
    query = _query(body.query, body.categories)
    documents = [_document(i, given) for i, given in enumerate(body.documents)]
    results: list[dict[str, Any]] = []
    if documents:
        lexical = {name for name in (*stack.signals, stack.first_stage) if name in FIRST_STAGES}
        with work.stage("lexical"):
            counts = Counts([snapshot.analyze(document.content) for document in documents])
            terms = snapshot.analyze(query.text)
            scores = {name: counts.score(name, terms) for name in sorted(lexical)}
        ids = [document.id for document in documents]
        best = rank(ids, scores[stack.first_stage])[:INFERENCE_DEPTH].tolist()
        first = [(float(scores[stack.first_stage][i]), documents[i].categories) for i in best]

        def features(name: str) -> NDArray[Any]:
            return snapshot.rankers[name].encode_documents(documents)

        query = _with_categories(snapshot, stack, query, lambda: first)
        ranking = _rank(snapshot, stack, query, ids, scores, features, work)
        scores_told = relevance(stack, ranking.scores).tolist()
        for position, score in zip(ranking.order.tolist()[: body.top_n], scores_told):
            result: dict[str, Any] = {"index": position, "relevance_score": score}
            if body.return_documents:
                result["document"] = _returned(body.documents[position])
            results.append(result)
    words = len(query.text.split()) + sum(len(document.content.split()) for document in documents)
    return {
        "id": secrets.token_hex(16),
        "model": str(stack),
        "results": results,
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
        "usage": {"total_tokens": words},
    }


def relevance(stack: Stack, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """A stack's (n,) scores as numbers from 0 to 1 in the same order, as clients of ``/v1/rerank`` expect.

    Under min-max they are sums of parts from 0 to 1, so they are divided by the sum of the weights (1 after
    tuning). Other scores have no bounds: the logistic function 1 / (1 + exp(-score)) brings them there.

    >>> relevance(Stack.parse("tfidf*0.5 + text*0.5"), np.array([0.75, 0.25])).tolist()
    [0.75, 0.25]
    >>> relevance(Stack.parse("text", normalisation="z-score"), np.array([0.0])).tolist()
    [0.5]
    """
    if stack.normalisation == "min-max":
        return np.clip(scores * (stack.parts / sum(stack.weights)), 0.0, 1.0)
    told: NDArray[np.float64] = 0.5 + 0.5 * np.tanh(scores / 2)
    return told


def search(snapshot: Snapshot, body: SearchBody, work: Work) -> dict[str, Any]:
    """``POST /v1/search``: the answer of ``rerank query --json``."""
    work.query = body.query
    stack = snapshot.stack(body.stack)
    for asked in (body.depth, body.k):
        if asked is not None:
            work.takes(asked, "candidates")
    stack = replace(stack, depth=min(body.depth or stack.depth, work.most))
    query = _query(body.query, body.categories)
    with work.stage("answer"):
        answer = snapshot.pipeline.answer(query, stack)
    work.seconds = dict(answer.seconds)
    work.candidates = len(answer.ranking)
    work.missing.update(answer.recomputed)
    top = answer.ranking.top(body.k)
    with work.stage("documents"):
        documents = snapshot.pipeline.engine.get([hit.id for hit in top])
    return {
        "query": body.query,
        "categories": list(answer.query.categories),
        "categories_inferred": answer.inferred,
        "stack": str(stack),
        "normalisation": stack.normalisation,
        "candidates": len(answer.ranking),
        "found": dict(answer.found),
        "recomputed": dict(answer.recomputed),
        "hits": [hit.as_dict(document, explain=body.explain) for hit, document in zip(top, documents)],
    }


def hook(snapshot: Snapshot, body: HookBody, work: Work) -> dict[str, Any]:
    """``POST /v1/hook``: hits of somebody's search, in the order of a stack.

    The stack's first stage has the scores that came. Features that did not come, in the version in use, are
    fetched from the engine, and computed if it has none; those of a document that it does not know are 0.
    """
    wishes = body.rerank or HookWishes()
    ids = body.ids
    if len(body.scores) != len(ids):
        raise UsageError(f"{len(ids)} ids came with {len(body.scores)} scores; send one for each")
    rows = body.rows()
    work.takes(len(ids), "hits")
    text = wishes.query if wishes.query is not None else query_text(body.query)
    work.query = text
    stack = snapshot.stack(wishes.stack or body.stack)
    if text is None or not text.strip():
        work.passed = "the query has no text"
    elif not ids:
        work.passed = "there are no hits"
    elif len(set(ids)) < len(ids):
        work.passed = "two hits have the same id"
    if work.passed is not None or text is None:
        return {"passed": work.passed}
    scores = {stack.first_stage: np.array(body.scores, np.float64)}
    names = [name for name in stack.signals if name not in FIRST_STAGES]
    if len(text) > _SHORT or any(work.costs.get(name, 1.0) > _QUICK for name in names):
        work.leaves()
    with work.stage("decode"):
        sent = {
            name: _decode(snapshot.columns[name], *rows[key], len(ids))
            for name in names
            if (key := snapshot.keys[name]) in rows
        }
    query = _query(text, wishes.categories)
    with work.stage("engine"):
        _fetch(snapshot, stack, query.text, ids, scores, sent, work)
        if not _compute(snapshot, ids, sent, work):
            work.passed = "the engine knows none of the hits"
            return {"passed": work.passed}

        def voters() -> list[tuple[float, Sequence[str]]]:
            first = rank(ids, body.scores)[:INFERENCE_DEPTH].tolist()
            known = body.categories
            if all(ids[i] in known for i in first):
                return [(body.scores[i], known[ids[i]]) for i in first]
            work.leaves()
            found = snapshot.pipeline.engine.get([ids[i] for i in first])
            return [(body.scores[i], d.categories) for i, d in zip(first, found) if d is not None]

        query = _with_categories(snapshot, stack, query, voters)
    ranking = _rank(snapshot, stack, query, ids, scores, lambda name: sent[name][0], work)
    own = getattr(getattr(snapshot.pipeline.engine, "layout", None), "has_id", False)
    infers = snapshot.pipeline.infers(replace(query, categories=()), stack.signals)
    answer: dict[str, Any] = {
        "ids": ranking.ids,
        "scores": ranking.scores.tolist(),
        "wishes": {
            "features": [snapshot.keys[name] for name in names],
            "id": "id" if own else None,
            "categories": "categories" if own else None,
            "voters": INFERENCE_DEPTH if infers and own else 0,
        },
    }
    if wishes.explain:
        answer["signals"] = [hit.explanation() for hit in ranking]
    return answer


Features = tuple[NDArray[Any], NDArray[np.bool_]]
"""(n, width) features of n documents, and (n,) where there are none."""


def _fetch(
    snapshot: Snapshot,
    stack: Stack,
    text: str,
    ids: Sequence[str],
    scores: dict[str, NDArray[np.float64]],
    sent: dict[str, Features],
    work: Work,
) -> None:
    """Read from the engine what did not come: all features of a ranker, and lexical signals."""
    engine = snapshot.pipeline.engine
    absent = [name for name in stack.signals if name not in FIRST_STAGES and name not in sent]
    lexical = dict.fromkeys((stack.first_stage, *stack.signals))
    others = [name for name in lexical if name in FIRST_STAGES and name not in scores]
    if not absent and not others:
        return
    work.leaves()
    there = engine.contains(ids)
    where = [i for i, id in enumerate(ids) if id in there]
    versions = {name: snapshot.rankers[name].version for name in absent}
    for name in absent:
        sent[name] = _nothing(snapshot.columns[name], len(ids))
        work.missing[name] = work.missing.get(name, 0) + len(ids)
    for name in others:
        scores[name] = np.zeros(len(ids))
    for signal in (others or [engine.first_stages[0]]) if where else ():
        try:
            found = engine.select(text, [ids[i] for i in where], first_stage=signal, features=versions)
        except KeyError:  # deleted meanwhile
            continue
        place = {id: i for i, id in enumerate(ids)}
        rows = np.array([place[id] for id in found.ids], np.int64)
        if signal in others:
            scores[signal][rows] = found.scores
        for name in versions:
            values, missing = found.features[name], found.missing[name]
            if values.shape[1:] == sent[name][0].shape[1:]:
                sent[name][0][rows[~missing]] = values[~missing]
                sent[name][1][rows[~missing]] = False
        versions = {}


def _compute(snapshot: Snapshot, ids: Sequence[str], sent: dict[str, Features], work: Work) -> bool:
    """Compute the features that are still missing; False when there is no document for any of the hits."""
    for name, (values, missing) in list(sent.items()):
        where = np.flatnonzero(missing)
        if not len(where):
            continue
        work.leaves()
        work.missing[name] = max(work.missing.get(name, 0), len(where))
        found = snapshot.pipeline.engine.get([ids[i] for i in where.tolist()])
        if len(found) == len(ids) and not any(found):
            return False
        documents = [document or Document("") for document in found]
        values = values.copy()  # what was decoded is read-only
        values[where] = snapshot.rankers[name].encode_documents(documents)
        sent[name] = (values, np.zeros(len(ids), np.bool_))
    return True


def _nothing(column: Column, count: int) -> Features:
    return np.zeros((count, column.width), column.dtype), np.ones(count, np.bool_)


def _decode(column: Column, data: bytes, rows: Rows, count: int) -> Features:
    """Rows of n hits; what is damaged counts as missing."""
    if rows.bytes < column.bytes or rows.bytes >= column.bytes + 3:  # as stored: padded to a multiple of 3
        return _nothing(column, count)
    found = np.frombuffer(data, np.uint8).reshape(-1, rows.bytes)[:, : column.bytes]
    values = np.ascontiguousarray(found).view(column.dtype)
    missing = np.zeros(count, np.bool_)
    if values.dtype == np.float16:
        values = values.astype(np.float32)  # which rankers would do, and np.isfinite is faster on
    if rows.missing:
        missing[rows.missing] = True
        if missing.sum() != len(rows.missing):
            return _nothing(column, count)
        there, values = values, np.zeros((count, column.width), values.dtype)
        values[~missing] = there
    if values.dtype.kind == "f":
        missing |= ~np.isfinite(values).all(axis=1)
    return values, missing


def _rank(
    snapshot: Snapshot,
    stack: Stack,
    query: Query,
    ids: Sequence[str],
    scores: Mapping[str, NDArray[np.float64]],
    features: Callable[[str], NDArray[Any]],
    work: Work,
) -> Ranking:
    """Score n documents by each signal of a stack, and order them.

    scores: lexical signal -> (n,). features: ranker -> (n, width).
    """
    raw = np.zeros((len(ids), len(stack.signals)))
    for place, name in enumerate(stack.signals):
        if name in FIRST_STAGES:
            raw[:, place] = scores[name]
            continue
        with work.stage("encode"):
            values = features(name)
            begin = time.thread_time()
            encoded = snapshot.rankers[name].encode_query(query)
            work.costs[name] = time.thread_time() - begin
        with work.stage("score"):
            raw[:, place] = snapshot.rankers[name].score(encoded, values)
    with work.stage("score"):
        return stack.rank(ids, raw)


def _with_categories(
    snapshot: Snapshot,
    stack: Stack,
    query: Query,
    voters: Callable[[], Sequence[tuple[float, Sequence[str]]]],
) -> Query:
    """Infer a query's categories as the pipeline does: if it brings none and a signal reads them."""
    if not snapshot.pipeline.infers(query, stack.signals):
        return query
    return replace(query, categories=infer_categories(voters()))


def _query(text: str, categories: Sequence[str] | None) -> Query:
    if not text.strip():
        raise UsageError("the query is empty; give some words to search for")
    return Query("query", clean(text, LONGEST_QUERY), tuple(categories or ()))


def _document(number: int, given: str | TextDocument) -> Document:
    # Its place in the request is its id: it settles ties.
    if isinstance(given, str):
        return Document(f"{number:09}", text=clean(given))
    return Document(
        f"{number:09}", clean(given.title or ""), clean(given.text or ""), tuple(given.categories or ())
    )


def _returned(given: str | TextDocument) -> dict[str, Any]:
    return {"text": given} if isinstance(given, str) else given.model_dump(exclude_unset=True)
