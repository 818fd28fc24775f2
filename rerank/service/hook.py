"""``POST /v1/hook``: the hits of a search, in the order of a stack.

Stored features come with the call, or are read from the sidecar of an attached index. A few documents without
features are encoded. Hits that cannot be scored keep their place in the first stage: documents of other
indices, and documents whose features are missing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.arrays import to_float32
from rerank.engines.opensearch.features import Column
from rerank.engines.opensearch.layout import feature_key
from rerank.errors import UsageError
from rerank.records import Document, Query
from rerank.search.scorer import INFERENCE_DEPTH, Given, Scored, Scorer
from rerank.service.endpoints import RequestContext, query_of, ranked
from rerank.service.hook_hits import ENCODED, HookHits, affordable
from rerank.service.query_text import clause_names, query_text
from rerank.service.schemas import NUMBERS_FOLLOW, HookCall, Rows, SearchOptions
from rerank.service.snapshot import Snapshot
from rerank.stack.signals import CLAUSE, is_clause, is_field, lexical
from rerank.stack.stack import Stack

_NO_OPTIONS = SearchOptions()
_NO_CLAUSES = {"features": [], "category_votes": 0, "clauses": True}
"""Requested for a stack whose clauses did not come."""
_SHORT, _QUICK = 2000, 0.003
"""Characters of a query, and seconds to encode one, that the event loop can wait for. A change of threads
would take a millisecond, and no thread releases Python within five."""

_UNKNOWN = "the engine knows none of the hits"


class PassedError(Exception):
    """A search keeps its order. The message is counted, so it must not contain text of a user."""

    def __init__(self, reason: str, requested_fields: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.answer = {"passed": reason} | (
            {"requested_fields": requested_fields} if requested_fields else {}
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """A call and the scorer of its hits.

    keys:    ranker -> name of its stored features. rows: that name -> the features that came.
    clauses: signal -> scores of a named clause.
    unknown_categories: categories of the user that no document has.
    by_id:   whether the engine scores the hits by other signals, which needs ids.
    """

    call: HookCall
    options: SearchOptions
    query: Query
    stack: Stack
    scorer: Scorer
    keys: dict[str, str]
    rows: dict[str, tuple[bytes, Rows]]
    clauses: dict[str, NDArray[np.float64]]
    unknown_categories: Sequence[str]
    by_id: bool


@dataclass(frozen=True, slots=True)
class _Features:
    """The n hits with everything that is stored.

    stored:     ranker -> features, and (n,) bool where they are missing.
    scorable:   (n,) which hits can be scored. documents: documents to encode, by id.
    categories: id -> categories of the first hits.
    """

    hits: HookHits
    ids: list[str]
    stored: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]
    scorable: NDArray[np.bool_]
    documents: dict[str, Document]
    categories: dict[str, Sequence[str]]

    def read(self, asked: Sequence[str]) -> list[Document | None]:
        """The documents of these ids."""
        if all(id in self.documents for id in asked):
            return [self.documents[id] for id in asked]
        place = {id: i for i, id in enumerate(self.ids)}
        return self.hits.documents([place[id] for id in asked])


def hook(snapshot: Snapshot, call: HookCall, work: RequestContext) -> dict[str, Any] | bytes:
    """``POST /v1/hook``: hits of a search, in the order of a stack.

    The scores that came are the scores of the stack's first stage. Features that did not come, in the version
    in use, are read from the engine, and computed if it has none.
    """
    try:
        search = _parse(snapshot, call, work)
        found = _look_up(snapshot, search, work)
        scored = _score(search, found, work)
    except PassedError as passed:
        work.passed = str(passed)
        return passed.answer
    ranking = ranked(search.stack, scored, work)
    order, scores = kept_places(found.scorable, ranking.order, ranking.scores)
    answer: dict[str, Any] = {"requested_fields": _requested_fields(search, found.hits)}
    if search.unknown_categories:
        answer["unknown_categories"] = list(search.unknown_categories)
    if work.without_features:
        answer["without_features"] = work.without_features
    if search.options.explain:
        signals = {hit.id: hit.explanation() for hit in ranking}
        answer["signals"] = [signals.get(found.ids[i], {}) for i in order.tolist()]
        answer["weights"] = _weights(search.stack, scored.case)
    if call.numbers_follow:
        return _as_bytes(answer, order, scores)
    return {"ids": [found.ids[i] for i in order.tolist()], "scores": scores.tolist(), **answer}


def _parse(snapshot: Snapshot, call: HookCall, work: RequestContext) -> _Search:
    """Read the words, the stack and the clauses of a call. Raises PassedError, UsageError."""
    ids, options = call.ids, call.said.rerank or _NO_OPTIONS
    if len(call.numbers.scores) != len(ids):
        raise UsageError(f"{len(ids)} ids came with {len(call.numbers.scores)} scores; send one for each")
    rows = call.rows()
    work.takes(len(ids), "hits")
    text = options.query if options.query is not None else query_text(call.said.query, snapshot.words)
    work.query = text
    stack, scorer = snapshot.scorer_of(options.stack or call.said.stack)
    if text is None or not text.strip():
        raise PassedError("the query has no text")
    if not ids:
        raise PassedError("there are no hits")
    if len(set(ids)) < len(ids):
        raise PassedError("two hits have the same id")
    if len(text) > _SHORT or any(work.costs.get(name, 1.0) > _QUICK for name in scorer.features):
        work.leaves()
    keys = {name: feature_key(name, version) for name, version in scorer.features.items()}
    clauses = _clauses(stack, call, "of that name" if options.stack else None)
    query = query_of(text, options.categories, lang=options.lang)
    query, unknown = scorer.with_known_categories(query)
    by_id = any(is_field(name) for name in stack.signals) or bool(
        set(lexical(stack.signals)) - {stack.first_stage}
    )
    return _Search(call, options, query, stack, scorer, keys, rows, clauses, unknown, by_id)


def _look_up(snapshot: Snapshot, search: _Search, work: RequestContext) -> _Features:
    """Read stored features, and the documents that can be encoded in time. Raises PassedError."""
    call, scorer = search.call, search.scorer
    hits = HookHits(snapshot.pipeline.engine, call, work)
    ids = call.ids
    with work.stage("decode"):
        stored = {}
        for name, key in search.keys.items():
            if hits.attached:
                stored[name] = hits.features(name, scorer.features[name])
            elif key in search.rows:
                stored[name] = _decode(snapshot.columns[key], *search.rows[key], len(ids))
        if call.has_no_ids and (search.by_id or len(stored) < len(search.keys)):
            work.leaves()
            ids = hits.names()
        categories: dict[str, Sequence[str]] = {**call.said.categories}
        if scorer.infers and not search.query.categories:
            categories |= hits.categories(call.numbers.scores)
    scorable = hits.ours.copy()
    documents: dict[str, Document] = {}
    lacks = [missing for _, missing in stored.values() if missing.any()]
    if lacks and len(where := np.flatnonzero(np.logical_or.reduce(lacks) & hits.ours)):
        work.leaves()
        with work.stage("engine"):
            chosen = where[: affordable(work, call.said.timeout)].tolist()
            pairs = zip(chosen, hits.documents(chosen))
            documents = {ids[i]: document for i, document in pairs if document is not None}
        scorable[[i for i in where.tolist() if ids[i] not in documents]] = False
        counts = {"encoded": len(documents), "unscored": len(where) - len(documents)}
        work.without_features = {name: count for name, count in counts.items() if count}
    foreign, missing = ~hits.ours, hits.ours & ~scorable
    reasons = (("foreign", np.count_nonzero(foreign)), ("missing", np.count_nonzero(missing)))
    work.unscored = {reason: int(count) for reason, count in reasons if count}
    if not scorable.any():
        raise PassedError(_UNKNOWN)
    return _Features(hits, ids, stored, scorable, documents, categories)


def _score(search: _Search, found: _Features, work: RequestContext) -> Scored:
    """Score the hits that can be scored. Raises PassedError."""
    every = bool(found.scorable.all())
    those = slice(None) if every else np.flatnonzero(found.scorable)
    scores = {search.stack.first_stage: search.call.numbers.scores, **search.clauses}
    given = Given(
        found.ids if every else [found.ids[i] for i in np.flatnonzero(found.scorable).tolist()],
        {name: values[those] for name, values in scores.items()},
        {name: values[those] for name, (values, _) in found.stored.items()},
        {name: missing[those] for name, (_, missing) in found.stored.items()},
        found.categories,
        found.read,
    )
    begin = time.monotonic()
    scored = search.scorer.score(search.query, given, stages=work)
    if found.documents:
        work.costs[ENCODED] = max((time.monotonic() - begin) / len(found.documents), 1e-6)
    work.missing = dict(scored.missing)
    if scored.missing and scored.unknown == len(found.ids):
        raise PassedError(_UNKNOWN)
    return scored


def _requested_fields(search: _Search, hits: HookHits) -> dict[str, Any]:
    """The fields of the next call."""
    said, infers = search.call.said, search.scorer.infers
    # Documents are found by ids faster than by places: if their categories are needed and did not come.
    reads = infers and not (hits.beside or said.categories or search.query.categories)
    without_ids = hits.placed and not (search.by_id or reads)
    return {
        "features": [] if hits.beside else list(search.keys.values()),
        "category_votes": INFERENCE_DEPTH if infers and not hits.beside else 0,
        "places": hits.beside or without_ids,
        "without_ids": without_ids,
        "clauses": bool(search.clauses),
        "numbers": True,
    }


def _weights(stack: Stack, case: str) -> dict[str, str]:
    """The weights of a case, without the inferred categories: they may be hidden from the user."""
    used = stack.for_case(case)
    return {"stack": str(used), "normalization": used.combiner.normalization, "case": case}


def _as_bytes(answer: dict[str, Any], order: NDArray[np.int64], scores: NDArray[np.float64]) -> bytes:
    """An answer whose places and scores are bytes after the JSON. Raises UsageError if it is too long."""
    head = msgspec.json.encode(answer)
    if len(head) >= 1 << 24:  # its length is three bytes
        raise UsageError(f"an explanation of {len(head):,} bytes; ask without it, or for fewer hits")
    parts = order.astype(">i4").tobytes(), scores.astype(">f4").tobytes()
    return b"".join((NUMBERS_FOLLOW, len(head).to_bytes(3, "big"), head, *parts))


def _clauses(stack: Stack, call: HookCall, called: str | None) -> dict[str, NDArray[np.float64]]:
    """Signal -> scores of the clauses of the search that a stack reads.

    called: the name of a clause in a reason; None: its own. Raises PassedError if one is missing.
    """
    found: dict[str, NDArray[np.float64]] = {}
    for signal in filter(is_clause, stack.signals):
        name = signal.removeprefix(CLAUSE)
        if call.said.clauses is None:
            raise PassedError("the scores of clauses did not come", _NO_CLAUSES)
        if name not in call.said.clauses and name not in clause_names(call.said.query):
            raise PassedError(f"no clause {called or name}"[:64], _NO_CLAUSES)
        found[signal] = np.array(call.said.clauses.get(name) or [0.0] * len(call.ids), np.float64)
        if len(found[signal]) != len(call.ids):
            raise UsageError(f"{len(call.ids)} ids came with other scores of the clause {name!r}")
    return found


def kept_places(
    scorable: NDArray[np.bool_], order: NDArray[np.int64], scores: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Put n hits in order. Some keep their place and get the score of the hit before them.

    scorable: (n,) bool. order: the m that are, best first, counted among themselves; scores: (m,) of them.

    >>> kept_places(np.array([False, True, True, True]), np.array([2, 0, 1]), np.array([3.0, 2.0, 1.0]))
    (array([0, 3, 1, 2]), array([3., 3., 2., 1.]))
    """
    if len(order) == len(scorable):
        return order, scores
    positions = np.flatnonzero(scorable)[order]
    merged = np.arange(len(scorable))
    merged[scorable] = positions
    values = np.empty(len(scorable))
    values[scorable] = scores
    before = np.maximum(np.cumsum(scorable) - 1, 0)
    values[~scorable] = scores[before[~scorable]]
    return merged, values


def _decode(column: Column, data: bytes, rows: Rows, count: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Features of n hits, and where they are missing; corrupted features count as missing."""
    nothing = np.zeros((count, column.width), column.dtype), np.ones(count, np.bool_)
    if rows.bytes < column.bytes or rows.bytes >= column.bytes + 3:  # as stored: padded to a multiple of 3
        return nothing
    found = np.frombuffer(data, np.uint8).reshape(-1, rows.bytes)[:, : column.bytes]
    values = np.ascontiguousarray(found).view(column.dtype)
    missing = np.zeros(count, np.bool_)
    if values.dtype == np.float16:
        values = to_float32(values)  # which rankers would do, and np.isfinite is faster on
    if rows.missing:
        missing[rows.missing] = True
        if missing.sum() != len(rows.missing):
            return nothing
        there, values = values, np.zeros((count, column.width), values.dtype)
        values[~missing] = there
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():  # by rows takes longer
        missing |= ~finite.all(axis=1)
    return values, missing
