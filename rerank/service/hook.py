"""``POST /v1/hook``: order the hits of a search by a stack. Unscored hits keep their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import InputError, NotTrainedError, RerankError, TrainingError, UsageError
from rerank.common.values import items_at, without_empty, without_none
from rerank.documents.records import Document, Query
from rerank.documents.text import language_or_none
from rerank.engines.opensearch.columns import DOCUMENT, Column, feature_key
from rerank.scoring.candidate_pool import CandidatePool, rank_pool
from rerank.scoring.scorer import Scorer, ScoringInput, ScoringResult
from rerank.scoring.unscored import ScorableInput, select_rows, select_scorable
from rerank.service import logs
from rerank.service.context import DeadlineError, RequestContext
from rerank.service.endpoints import make_query
from rerank.service.experiment import Experiment
from rerank.service.hook_hits import HookHits, as_computed
from rerank.service.hook_search import HookSearch, is_free
from rerank.service.retrieve import Added, Features, check_first, cut_to_depth, vector_queries
from rerank.service.schemas import FRAME, HookCall, SearchOptions, Values
from rerank.service.snapshot import Snapshot
from rerank.service.ubi_log import MOST_HITS, SearchRecord
from rerank.stack.parse import retriever_depths
from rerank.stack.ranking import Hit, Ranking
from rerank.stack.signals import is_field, leg_names, lexical_names, ranker_names
from rerank.stack.stack import Stack

_LONGEST_ANSWER = 2**24 - 1
"""Bytes of the JSON of an answer."""


class NotRerankedError(Exception):
    """A search keeps its order. The message is counted, so it must not contain names or texts of users.

    requested_fields: the fields that the next call must send; None: the answer does not name them.
    """

    def __init__(self, message: str, requested_fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.fields = without_none({"requested_fields": requested_fields})


@dataclass(frozen=True, slots=True)
class _Search:
    """A call and its scorer.

    by_id:      whether scoring needs the ids of the hits, because a signal is read from the engine.
    unknown:    categories of the request that no ranker knows.
    first:      number of hits of the query; the other hits were added because a ranker retrieves them.
    experiment: interleaves the hits, by the coins; None: the hits are ranked by the stack.
    """

    context: RequestContext
    call: HookCall
    hits: HookHits
    options: SearchOptions
    query: Query
    stack: Stack
    scorer: Scorer
    by_id: bool
    unknown: Sequence[str]
    first: int
    experiment: Experiment | None
    coins: bytes


def hook(snapshot: Snapshot, call: HookCall, context: RequestContext) -> bytes:
    """``POST /v1/hook``: put the hits of a search in the order of a stack.

    Returns the framed answer. A search that cannot be reranked keeps its order, and the answer has the reason
    as ``passed``.

    Raises RerankError for a call with an error of the caller, DeadlineError if the time is over.
    """
    try:
        return _rerank(snapshot, call, context)
    except NotRerankedError as reason:
        context.passed = str(reason)
        return _framed({"passed": context.passed, **reason.fields})
    except Exception as error:
        if not _is_error_of_one_search(error):
            raise
        # A status of 500 would stop the plugin's calls for all searches.
        logs.problem("failed", path="/v1/hook", kind=type(error).__name__, places=logs.places(error))
        context.passed = "scoring failed"
        return _framed({"passed": context.passed})


def _is_error_of_one_search(error: Exception) -> bool:
    """Return whether an error is neither the caller's nor one of the whole service: a ranker is broken."""
    if isinstance(error, TrainingError) and not isinstance(error, NotTrainedError):
        return True
    return not isinstance(error, (DeadlineError, ModuleNotFoundError, RerankError))


def _rerank(snapshot: Snapshot, call: HookCall, context: RequestContext) -> bytes:
    search = _parse(snapshot, call, context)
    inputs = _stored(snapshot, search)
    added = _added(snapshot, search, inputs)
    selected = _select(search, select_rows(inputs, added.kept_rows), added.kept_rows)
    scored = _score(search, selected.inputs)
    return _answer(search, added, selected, scored)


def _parse(snapshot: Snapshot, call: HookCall, context: RequestContext) -> _Search:
    """Read a call, and note its text. Raises NotRerankedError if it has no text, no hits or no right."""
    count = len(call.ids)
    context.check_count(count, "hits")
    search = HookSearch.read(snapshot, call.body, context)
    if not search.has_words:
        raise NotRerankedError("the query has no text")
    if not count:
        raise NotRerankedError("the search has no hits")
    stack = search.stack
    options = search.options
    by_id = _needs_ids(stack)
    is_chosen_by_user = options.stack is not None and not call.body.stack_allowed
    if is_chosen_by_user and (by_id or not is_free(snapshot, options.stack or "", stack)):
        raise NotRerankedError("the pipeline does not allow this stack")
    query = make_query(search.text, options.categories, lang=language_or_none(options.lang))
    query, unknown = search.scorer.with_known_categories(query)
    return _Search(
        context=context,
        call=call,
        hits=HookHits(snapshot.pipeline.engine, call),
        options=options,
        query=query,
        stack=stack,
        scorer=search.scorer,
        by_id=by_id,
        unknown=unknown,
        first=check_first(call.body.first, count),
        experiment=search.experiment,
        coins=search.coins,
    )


def _needs_ids(stack: Stack) -> bool:
    """Return whether a stack has signals that only the engine can compute: lexical ones, and fields."""
    from_engine = set(lexical_names(stack.signals)) - {stack.first_stage}
    from_engine.update(filter(is_field, stack.signals))
    return bool(from_engine)


def _stored_features(
    snapshot: Snapshot, search: _Search, name: str, version: str
) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
    """Return the features of the hits, and (n,) bool: missing; None if neither call nor files have them."""
    if search.hits.attached:
        return search.hits.features(name, version)
    key = feature_key(name, version)
    if key not in search.call.stored:
        return None
    return _decode(snapshot.columns[key], search.call.stored[key])


def _stored(snapshot: Snapshot, search: _Search) -> ScoringInput:
    """Return the input of the scorer: scores and features of the call, the files or the engine."""
    context = search.context
    hits = search.hits
    scorer = search.scorer
    features: dict[str, NDArray[Any]] = {}
    missing: dict[str, NDArray[np.bool_]] = {}
    categories: dict[str, Sequence[str]] = {}
    with context.stage("decode"):
        for name, version in scorer.features.items():
            stored = _stored_features(snapshot, search, name, version)
            if stored is None:
                context.missing[name] = len(hits.ids)
            else:
                features[name], missing[name] = stored
        if search.by_id or context.missing or search.first < len(hits.ids):
            hits.find_ids()
        if hits.repeated:  # of two indices behind an alias, or two shards: a score could belong to either
            raise NotRerankedError("two hits have the same id")
        if scorer.infers and not search.query.categories:
            categories = hits.categories(search.call.scores)
    ids = hits.ids

    def read(ids_to_read: Sequence[str]) -> list[Document | None]:
        position = {id: i for i, id in enumerate(ids)}
        return hits.documents(items_at(position, ids_to_read))

    scores = {search.stack.first_stage: search.call.scores, **_leg_scores(search)}
    inputs = ScoringInput(ids, scores, features, missing, categories, read)
    with context.stage("engine"):
        inputs = scorer.load_missing_scores_and_features(search.query, inputs)
    return replace(inputs, candidates=None)


def _added(snapshot: Snapshot, search: _Search, inputs: ScoringInput) -> Added:
    """Cut the documents that the stack retrieves to the depth of each retriever."""
    count = len(inputs.ids)
    if search.first == count:
        return Added(np.arange(count), {})
    with search.context.stage("decode"):
        queries = vector_queries(snapshot, search.stack, search.query)
        features: Features = {}
        for query in queries:
            name = query.name
            is_scored = search.scorer.features.get(name) == query.version
            if is_scored and name in inputs.features:
                features[name] = (inputs.features[name], inputs.missing[name])
                continue
            stored = _stored_features(snapshot, search, name, query.version)
            if stored is not None:
                features[name] = stored
        return cut_to_depth(queries, inputs.ids, search.first, features)


def _select(search: _Search, inputs: ScoringInput, positions: NDArray[np.int64]) -> ScorableInput:
    """Select the hits that can be scored, and note how many cannot.

    positions: (n,) positions of the hits in the call.
    """
    context = search.context
    owned = search.hits.ours[positions]
    selected = select_scorable(search.scorer, inputs, context, owned)
    foreign = np.count_nonzero(~owned)
    missing = np.count_nonzero(owned & ~selected.scorable)
    context.unscored = without_empty({"foreign": int(foreign), "missing": int(missing)})
    context.without_features = selected.without_features
    if not selected.scorable.any():
        raise NotRerankedError("the engine knows none of the hits")
    return selected


def _score(search: _Search, inputs: ScoringInput) -> ScoringResult:
    context = search.context
    scored = search.scorer.score(search.query, inputs, timer=context)
    for name, count in scored.recomputed.items():
        context.missing.setdefault(name, count)
    return scored


def _answer(search: _Search, added: Added, selected: ScorableInput, scored: ScoringResult) -> bytes:
    context = search.context
    read_documents = selected.inputs.documents
    assert read_documents is not None
    stack = search.stack.for_case(scored.case)
    ids = items_at(search.hits.ids, added.kept_rows.tolist())
    answer: dict[str, Any] = {"requested_fields": _requested_fields(search)}
    if search.experiment is None:
        pool = CandidatePool(ids, selected.scorable, added.found_by, scored)
        ranking = rank_pool(stack, pool, context, read_documents)
    else:
        found_by = {stack.first_stage: added.kept_rows < search.first, **added.found_by}
        pool = CandidatePool(ids, selected.scorable, found_by, scored)
        ranking = search.experiment.rank(search.coins, pool, context, read_documents)
        answer["experiment"] = search.experiment.to_json(ranking)
    context.late = ranking.late
    context.record = _record(search, added.kept_rows[ranking.order], answer.get("experiment", {}))

    if search.call.body.first is not None:
        answer["dropped"] = len(search.hits.ids) - len(added.kept_rows)
    if search.call.body.min_score is not None:
        ranking = _above(ranking, search.call.body.min_score)
        answer["removed"] = ranking.removed
    # Without raw values, a user could test which hidden categories exist.
    unknown_categories = list(search.unknown) if search.call.body.raw_values else []
    limits = {
        "late": ranking.late,
        "unknown_categories": unknown_categories,
        "without_features": context.without_features,
    }
    answer |= without_empty(limits)
    if search.options.explain:
        answer |= _explanation(search, ranking, has_added=bool(added.found_by))
        # Without the inferred categories: the user may not be allowed to read them.
        answer["weights"] = {
            "stack": str(stack),
            "normalization": stack.combiner.normalization,
            "case": scored.case,
        }
    positions = added.kept_rows[ranking.order]
    return _framed(answer, positions.astype(">i4").tobytes(), ranking.scores.astype(">f4").tobytes())


def _record(search: _Search, positions: NDArray[np.int64], experiment: dict[str, str]) -> SearchRecord | None:
    """Return the record of a search whose hits have these positions in the call, best first."""
    if not search.context.logs_searches or search.call.body.shadow:
        return None
    hits = search.hits
    options = search.options
    if hits.attached:
        hits.find_ids()
    ids = items_at(hits.ids, positions[:MOST_HITS].tolist())
    hit_ids = ["" if id.startswith("\0") else id for id in ids]
    return SearchRecord(search.query.text, options.query_id, options.client_id, hit_ids, experiment)


def _above(ranking: Ranking, min_score: float) -> Ranking:
    """Return the ranking without hits below a probability. Raises NotRerankedError."""
    if not 0 <= min_score <= 1:
        raise NotRerankedError("min_score is not from 0 to 1")
    if ranking.relevance is None:
        raise NotRerankedError("the stack has no probabilities")
    return ranking.above(min_score)


def _explanation(search: _Search, ranking: Ranking, *, has_added: bool) -> dict[str, Any]:
    """Return the parts of an answer that explain each hit. has_added: rankers have added hits."""
    hits = list(ranking)
    shows_values = search.call.body.raw_values
    explanation: dict[str, Any] = {"signals": [_signals(hit, shows_values) for hit in hits]}
    if has_added:
        explanation["found_by"] = [list(hit.found_by) for hit in hits]
    if ranking.is_calibrated:
        explanation["relevance"] = [hit.relevance for hit in hits]
    return explanation


def _signals(hit: Hit, shows_values: bool) -> dict[str, dict[str, float]]:
    """Return signal -> scores of a hit.

    shows_values: include raw scores. They can be values of a field that the user may not see.
    """
    scores_by_signal = hit.explanation()
    if not shows_values:
        for scores in scores_by_signal.values():
            del scores["raw"]
    return scores_by_signal


def _framed(answer: dict[str, Any], *numbers: bytes) -> bytes:
    """Return an answer: the length of its JSON, the JSON, and arrays of numbers. Raises UsageError."""
    head = msgspec.json.encode(answer)
    if len(head) > _LONGEST_ANSWER:
        raise UsageError(f"an explanation of {len(head):,} bytes; ask without it, or for fewer hits")
    return b"".join((len(head).to_bytes(FRAME, "big"), head, *numbers))


def _requested_fields(search: _Search) -> dict[str, Any]:
    """Return the fields that the next call must send: ids, and stored values of each hit."""
    hits = search.hits
    features: list[str] = []
    if not hits.sidecar:
        if hits.locatable:
            features.append(DOCUMENT)
        features += [feature_key(name, version) for name, version in search.scorer.features.items()]
        if search.call.body.first is not None:  # to cut added hits
            features += [feature_key(name, search.stack.versions[name]) for name in _retrieving(search)]
    return {"features": [*features, *leg_names(search.stack.signals)], "ids": not hits.locatable}


def _leg_scores(search: _Search) -> dict[str, NDArray[np.float64]]:
    """Return leg -> (n,) scores. Raises NotRerankedError if the call does not have the scores of a leg."""
    scores: dict[str, NDArray[np.float64]] = {}
    for name in leg_names(search.stack.signals):
        stored = search.call.stored.get(name)
        if stored is None:
            raise NotRerankedError("the scores of a leg are missing", _requested_fields(search))
        rows, missing = stored.of_size(8)
        scores[name] = np.zeros(len(missing))
        scores[name][~missing] = np.frombuffer(rows.tobytes(), ">f8")
        if not np.isfinite(scores[name]).all():
            raise InputError("the score of a leg is not a number")
    return scores


def _retrieving(search: _Search) -> list[str]:
    """Return the rankers that only retrieve."""
    names = ranker_names(retriever_depths(search.stack.retrieve))
    return [name for name in names if name not in search.scorer.features and name in search.stack.versions]


def _decode(column: Column, stored: Values) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return features of n hits, and (n,) bool: missing or of another size."""
    rows, missing = stored.of_size(column.stored_bytes)
    return as_computed(column.fill(rows, missing)), missing
