"""The endpoint for the search-pipeline processor: hits of somebody's search.

What comes with them is decoded, what is in a sidecar is looked up, and what nobody has stored is computed
from the documents, as many as there is time for. Hits that cannot be scored keep their places in the first
stage: those of other indices, and those whose features and documents are not at hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rerank.engines.opensearch.features import Column
from rerank.engines.opensearch.layout import feature_key
from rerank.errors import UsageError
from rerank.records import Document
from rerank.scoring.scorer import INFERENCE_DEPTH, Given
from rerank.service.bodies import NUMBERS_FOLLOW, HookCall, HookWishes, Rows
from rerank.service.known import ENCODED, Known, affordable
from rerank.service.query_text import clause_names, query_text
from rerank.service.snapshot import Snapshot
from rerank.service.work import Work, query_of, ranked
from rerank.stack.signals import CLAUSE, is_clause, is_field, lexical
from rerank.stack.stack import Stack
from rerank.vectors.fp16 import single

_NOTHING = np.empty(0, np.intp)
_NO_WISHES = HookWishes()
_SHORT, _QUICK = 2000, 0.003
"""Characters of a query, and seconds to encode one, that the event loop can wait for: a change of threads
would take a millisecond of its own, and no thread lets go of Python within five."""


def hook(snapshot: Snapshot, call: HookCall, work: Work) -> dict[str, Any] | bytes:
    """``POST /v1/hook``: hits of somebody's search, in the order of a stack.

    The stack's first stage has the scores that came. Features that did not come, in the version in use, are
    fetched from the engine, and computed if it has none.
    """
    said, ids, scores = call.said, call.ids, call.numbers.scores
    wishes = said.rerank or _NO_WISHES
    if len(scores) != len(ids):
        raise UsageError(f"{len(ids)} ids came with {len(scores)} scores; send one for each")
    rows = call.rows()
    work.takes(len(ids), "hits")
    text = wishes.query if wishes.query is not None else query_text(said.query, snapshot.words)
    work.query = text
    stack, scorer = snapshot.scorer_of(wishes.stack or said.stack)
    if text is None or not text.strip():
        work.passed = "the query has no text"
    elif not ids:
        work.passed = "there are no hits"
    elif len(set(ids)) < len(ids):
        work.passed = "two hits have the same id"
    if work.passed is not None or text is None:
        return {"passed": work.passed}
    clauses = _clauses(stack, call, "of that name" if wishes.stack else None)
    if isinstance(clauses, str):
        work.passed = clauses
        return {"passed": work.passed, "wishes": {"features": [], "voters": 0, "clauses": True}}
    query = query_of(text, wishes.categories, lang=wishes.lang)
    query, unknown_categories = scorer.with_known_categories(query)
    names, keys = list(scorer.features), {n: feature_key(n, v) for n, v in scorer.features.items()}
    if len(text) > _SHORT or any(work.costs.get(name, 1.0) > _QUICK for name in names):
        work.leaves()
    known = Known(snapshot.pipeline.engine, call, work)
    # The engine is asked by ids: for other signals, and for features that did not come.
    named = any(is_field(name) for name in stack.signals) or set(lexical(stack.signals)) - {stack.first_stage}
    with work.stage("decode"):
        sent = {}
        for name in names:
            if known.attached:
                sent[name] = known.features(name, scorer.features[name])
            elif keys[name] in rows:
                sent[name] = _decode(snapshot.columns[keys[name]], *rows[keys[name]], len(ids))
        if call.is_nameless and (named or len(sent) < len(names)):
            work.leaves()
            ids = known.names()
        categories: dict[str, Sequence[str]] = {**said.categories}
        if scorer.infers and not query.categories:
            categories |= known.categories(scores)
    scorable = known.ours.copy()
    documents: dict[str, Document] = {}
    lacks = [missing for _, missing in sent.values() if missing.any()]
    where = np.flatnonzero(np.logical_or.reduce(lacks) & known.ours) if lacks else _NOTHING
    if len(where):
        work.leaves()
        with work.stage("engine"):
            chosen = where[: affordable(work, said.timeout)].tolist()
            found = zip(chosen, known.documents(chosen))
            documents = {ids[i]: document for i, document in found if document is not None}
        scorable[[i for i in where.tolist() if ids[i] not in documents]] = False
    every = bool(scorable.all())
    if not every:
        foreign, missing = ~known.ours, known.ours & ~scorable
        reasons = (("foreign", np.count_nonzero(foreign)), ("missing", np.count_nonzero(missing)))
        work.unscored = {reason: int(count) for reason, count in reasons if count}
        if not scorable.any():
            work.passed = "the engine knows none of the hits"
            return {"passed": work.passed}

    def read(asked: Sequence[str]) -> list[Document | None]:
        if all(id in documents for id in asked):
            return [documents[id] for id in asked]
        place = {id: i for i, id in enumerate(ids)}
        return known.documents([place[id] for id in asked])

    those = slice(None) if every else np.flatnonzero(scorable)
    given = Given(
        ids if every else [ids[i] for i in np.flatnonzero(scorable).tolist()],
        {name: values[those] for name, values in {stack.first_stage: scores, **clauses}.items()},
        {name: values[those] for name, (values, _) in sent.items()},
        {name: missing[those] for name, (_, missing) in sent.items()},
        categories,
        read,
    )
    begin = time.monotonic()
    scored = scorer.score(query, given, stages=work)
    if documents:
        work.costs[ENCODED] = max((time.monotonic() - begin) / len(documents), 1e-6)
    work.missing = dict(scored.missing)
    if scored.missing and scored.unknown == len(ids):
        work.passed = "the engine knows none of the hits"
        return {"passed": work.passed}
    ranking = ranked(stack, scored, work)
    order, values = kept_places(scorable, ranking.order, ranking.scores)
    # Nor by places, which takes longer: documents of those that vote and whose categories did not come.
    reads = scorer.infers and not (known.beside or said.categories or query.categories)
    nameless = known.placed and not (named or reads)
    answer: dict[str, Any] = {
        "wishes": {
            "features": [] if known.beside else list(keys.values()),
            "voters": INFERENCE_DEPTH if scorer.infers and not known.beside else 0,
            "places": known.beside or nameless,
            "nameless": nameless,
            "clauses": bool(clauses),
            "numbers": True,
        },
    }
    if unknown_categories:
        answer["unknown_categories"] = list(unknown_categories)
    if wishes.explain:
        told = {hit.id: hit.explanation() for hit in ranking}
        answer["signals"] = [told.get(ids[i], {}) for i in order.tolist()]
        taken = stack.for_case(scored.case)
        # Not the categories that were inferred: a field of the hits may be hidden from who asks.
        answer["weights"] = {
            "stack": str(taken),
            "normalisation": taken.normalisation,
            "case": scored.case,
        }
    if not call.numbers_follow:
        return {"ids": [ids[i] for i in order.tolist()], "scores": values.tolist(), **answer}
    head = orjson.dumps(answer)
    if len(head) >= 1 << 24:  # its length is three bytes
        raise UsageError(f"an explanation of {len(head):,} bytes; ask without it, or for fewer hits")
    parts = order.astype(">i4").tobytes(), values.astype(">f4").tobytes()
    return b"".join((NUMBERS_FOLLOW, len(head).to_bytes(3, "big"), head, *parts))


def _clauses(stack: Stack, call: HookCall, called: str | None) -> dict[str, NDArray[np.float64]] | str:
    """Signal -> scores of the search's clauses that a stack reads; or why there are none.

    called: what a clause is called there; None: by its name. Reasons are counted, each for itself, so they
        must not hold what any user may write.
    """
    found: dict[str, NDArray[np.float64]] = {}
    for signal in filter(is_clause, stack.signals):
        name = signal.removeprefix(CLAUSE)
        if call.said.clauses is None:
            return "the scores of clauses did not come"
        if name not in call.said.clauses and name not in clause_names(call.said.query):
            return f"no clause {called or name}"[:64]
        found[signal] = np.array(call.said.clauses.get(name) or [0.0] * len(call.ids), np.float64)
        if len(found[signal]) != len(call.ids):
            raise UsageError(f"{len(call.ids)} ids came with other scores of the clause {name!r}")
    return found


def kept_places(
    scorable: NDArray[np.bool_], order: NDArray[np.int64], scores: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Put n hits in order, of which some keep their places; those get the score of the one before them.

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
    """Features of n hits, and where there are none; what is damaged counts as missing."""
    nothing = np.zeros((count, column.width), column.dtype), np.ones(count, np.bool_)
    if rows.bytes < column.bytes or rows.bytes >= column.bytes + 3:  # as stored: padded to a multiple of 3
        return nothing
    found = np.frombuffer(data, np.uint8).reshape(-1, rows.bytes)[:, : column.bytes]
    values = np.ascontiguousarray(found).view(column.dtype)
    missing = np.zeros(count, np.bool_)
    if values.dtype == np.float16:
        values = single(values)  # which rankers would do, and np.isfinite is faster on
    if rows.missing:
        missing[rows.missing] = True
        if missing.sum() != len(rows.missing):
            return nothing
        there, values = values, np.zeros((count, column.width), values.dtype)
        values[~missing] = there
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():  # by rows takes longer
        missing |= ~finite.all(axis=1)
    return values, missing
