"""Build score tables for tuning and evaluation."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from rerank.common.errors import InputError, UsageError
from rerank.common.progress import SILENT, Progress
from rerank.common.values import items_at, items_not_in
from rerank.documents.filters import Filter
from rerank.documents.records import Candidates, Qrels, Query, SearchTemplate
from rerank.engines.base import Engine
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.evaluation.protocols import Protocol
from rerank.scoring.pipeline import Pipeline
from rerank.scoring.scorer import FEEDBACK_DEPTH, Scorer, ScoringInput, ScoringResult
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import leg_names, ranker_names
from rerank.tuning.score_table import ScoreTable


@dataclass
class ScoringReport:
    """Counts from building a score table.

    queries:             number of queries.
    unknown_queries:     number of judged queries that are not among the queries.
    unknown_documents:   number of relevant documents that the engine does not have.
    unknown_categories:  number of queries with categories that no ranker knows; these are ignored.
    without_hits:        number of queries without candidates.
    inferred_categories: number of queries whose categories were inferred.
    recomputed:          ranker -> number of features that were computed.
    candidate_recall:    retriever, or ``together`` -> mean recall; empty for judged documents.
    not_found:           retriever -> number of documents that it cannot find, without features.
    silent:              ids of the queries without candidates.
    """

    queries: int = 0
    unknown_queries: int = 0
    unknown_documents: int = 0
    unknown_categories: int = 0
    without_hits: int = 0
    inferred_categories: int = 0
    recomputed: Counter[str] = field(default_factory=Counter)
    candidate_recall: dict[str, float] = field(default_factory=dict)
    not_found: dict[str, int] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def note(self, scored: ScoringResult) -> None:
        """Count the result of one query: its candidates, inferred categories and computed features."""
        if not len(scored.ids):
            self.silent.append(scored.query.id)
        self.without_hits = len(self.silent)
        self.inferred_categories += scored.inferred
        self.recomputed.update(scored.recomputed)

    def add(self, report: ScoringReport) -> None:
        """Add the report of the same queries with another first stage.

        A query counts once: numbers of queries are the larger of both.
        """
        self.queries = report.queries
        self.unknown_documents = report.unknown_documents
        self.unknown_categories = max(self.unknown_categories, report.unknown_categories)
        if report.without_hits >= self.without_hits:
            self.without_hits = report.without_hits
            self.silent = report.silent
        self.inferred_categories = max(self.inferred_categories, report.inferred_categories)
        self.recomputed.update(report.recomputed)
        self.not_found |= report.not_found


@dataclass(frozen=True, eq=False, kw_only=True)
class TableRequest:
    """Queries, candidates and signals of a score table.

    signals:     S names.
    first_stage: the signal that orders the candidates.
    protocol:    decides which documents are the candidates.
    retrieve:    retrievers, if the candidates are retrieved.
    search:      the user's search, if it is the first stage.
    filters:     conditions for retrieved candidates.
    every_case:  whether to add rows with the scores that each query has without its categories.

    Raises UsageError for filters or a search if the judgments decide which documents are the candidates.
    """

    queries: Sequence[Query]
    qrels: Qrels
    signals: Sequence[str]
    first_stage: str
    protocol: Protocol
    retrieve: Sequence[str] = ()
    search: SearchTemplate | None = None
    filters: Sequence[Filter] = ()
    every_case: bool = False

    def __post_init__(self) -> None:
        if self.retrieved:
            return
        object.__setattr__(self, "retrieve", ())
        for name, value in (("--filter", self.filters), ("--first-stage", self.search)):
            if value:
                raise UsageError(
                    f"{self.protocol}: the judgments decide which documents are ranked; leave {name} out, or"
                    " use --protocol retrieved:N"
                )

    @property
    def retrieved(self) -> bool:
        """Whether retrievers find the candidates, and not the judgments."""
        return self.protocol.cut is not None


def score_table(
    pipeline: Pipeline, request: TableRequest, progress: Progress = SILENT
) -> tuple[ScoreTable, ScoringReport]:
    """Score the candidates of queries. Return the table and a report.

    The table has one row for each query, or one for each query and category case.

    Raises InputError if the engine has none of the relevant documents.
    """
    scorer = pipeline.scorer(request.signals, request.first_stage)
    report = ScoringReport(queries=len(request.queries))
    queries: list[Query] = []
    for query in request.queries:
        query, unknown_categories = scorer.with_known_categories(query)
        queries.append(query)
        if unknown_categories:
            report.unknown_categories += 1
    request = replace(request, queries=queries)
    report.unknown_documents = _count_unknown_documents(pipeline.engine, request.qrels)
    for name in ranker_names(retriever_depths(request.retrieve)):
        missing_vectors = pipeline.engine.count_missing_vectors(name, pipeline.rankers[name].version)
        report.not_found[name] = missing_vectors or 0

    rows: list[tuple[str, Sequence[str], np.ndarray, str]] = []
    recall: dict[str, list[float]] = {}
    retrieved = _candidates(pipeline, request, scorer.features)
    retrieved = progress.over(retrieved, "score candidates", len(request.queries), "query")
    for query, candidates in retrieved:
        if request.retrieved:
            query_recall = _recall(candidates, request.qrels.relevant(query.id), request.first_stage)
            for name, value in query_recall.items():
                recall.setdefault(name, []).append(value)
        scores_by_case = _by_case(request, scorer, query, candidates)
        report.note(next(iter(scores_by_case.values())))
        for case, result in scores_by_case.items():
            rows.append((query.id, candidates.ids, result.raw, case))
    report.candidate_recall = {name: math.fsum(values) / len(values) for name, values in recall.items()}
    return ScoreTable.build(request.signals, rows), report


def _count_unknown_documents(engine: Engine, qrels: Qrels) -> int:
    """Return the number of relevant documents that the engine does not have.

    A document that is relevant for several queries counts as often. Raises InputError if it has none.
    """
    relevant: list[str] = []
    for query_id in qrels:
        relevant += qrels.relevant(query_id)
    existing = engine.contains(relevant)
    if relevant and not existing:
        raise InputError(
            "none of the relevant documents is in the workspace; check that the qrels are of its collection"
        )
    return sum(id not in existing for id in relevant)


def _by_case(
    request: TableRequest, scorer: Scorer, query: Query, candidates: Candidates
) -> dict[str, ScoringResult]:
    """Return case -> scores, starting with the query's case."""
    feedback_candidates = _find_feedback_candidates(request, scorer, query)
    inputs = ScoringInput.from_candidates(candidates, request.first_stage)
    if request.every_case and len(candidates):
        inputs = scorer.load_missing_scores_and_features(query, inputs)

    def score(case_scorer: Scorer, case_query: Query) -> tuple[str, ScoringResult]:
        result = case_scorer.score(case_query, inputs, feedback_candidates=feedback_candidates)
        if len(result.ids) or case_query.categories:
            return result.case, result
        # Without candidates no category can be inferred: use the case that candidates would give.
        return "inferred" if case_scorer.infers else "none", result

    case, result = score(scorer, query)
    scores_by_case = {case: result}
    if request.every_case:
        without_categories = replace(query, categories=())
        case_scorers = [scorer] if scorer.infers else []
        for case_scorer in (*case_scorers, replace(scorer, infer=False)):
            case, result = score(case_scorer, without_categories)
            scores_by_case.setdefault(case, result)
    return scores_by_case


def _find_feedback_candidates(request: TableRequest, scorer: Scorer, query: Query) -> Candidates | None:
    """Return the documents that categories are inferred from; None: from the candidates of the query.

    Judged documents need separate feedback: the relevant ones must not reveal categories.
    """
    if request.retrieved or query.categories:
        return None
    text = query.search_text(scorer.engine.lang)
    return scorer.engine.find(SearchRequest(text, request.first_stage, FEEDBACK_DEPTH))


def _recall(candidates: Candidates, relevant: Mapping[str, int], first_stage: str) -> dict[str, float]:
    """Return retriever -> share of the relevant documents that it found, also of all ``together``."""
    if not relevant:
        return {}
    hits = np.array([id in relevant for id in candidates.ids], np.bool_)
    hits_by_retriever = {name: hits & rows for name, rows in candidates.retrieved_by.items()}
    if not hits_by_retriever:
        hits_by_retriever = {first_stage: hits}
    if len(hits_by_retriever) > 1:
        hits_by_retriever["together"] = hits
    return {name: int(rows.sum()) / len(relevant) for name, rows in hits_by_retriever.items()}


def _pools(engine: Engine, request: TableRequest) -> dict[str, list[str]]:
    """Return the documents that each query ranks: the judged ones, or the documents of a pool."""
    protocol = request.protocol
    if request.retrieved or protocol.pool is None:
        return {query.id: list(request.qrels[query.id]) for query in request.queries}
    select_documents = _pool_selector(engine, protocol)
    pools: dict[str, list[str]] = {}
    for query in request.queries:
        relevant = request.qrels.relevant(query.id)
        enough = protocol.size + len(relevant)  # even if all relevant documents are among them
        documents = select_documents(query, enough)
        irrelevant = items_not_in(documents, relevant)
        pools[query.id] = [*relevant, *irrelevant[: protocol.size]]
    return pools


def _pool_selector(engine: Engine, protocol: Protocol) -> Callable[[Query, int], list[str]]:
    """Return the function that chooses the documents of a pool, by the query and their maximum number."""
    if protocol.pool == "random":
        return partial(_draw, engine.ids())
    return partial(_find, engine)


def _find(engine: Engine, query: Query, count: int) -> list[str]:
    """Return at most ``count`` documents by TF-IDF."""
    return engine.find(SearchRequest(query.search_text(engine.lang), "tfidf", count)).ids


def _draw(ids: Sequence[str], query: Query, count: int) -> list[str]:
    """Return at most ``count`` random ids. The query decides, so other queries do not change them."""
    seed = hashlib.sha256(query.id.encode()).digest()[:8]
    positions = np.random.default_rng([*seed]).choice(len(ids), min(len(ids), count), replace=False)
    return items_at(ids, positions.tolist())


def _candidates(
    pipeline: Pipeline, request: TableRequest, features: Mapping[str, str]
) -> Iterator[tuple[Query, Candidates]]:
    """Return each query with its candidates, and with the stored features of these rankers.

    features: ranker -> version of its features.
    """
    search = request.search
    pools = _pools(pipeline.engine, request)
    searches = [
        SearchRequest(
            query.search_text(pipeline.engine.lang),
            request.first_stage,
            request.protocol.cut or 0,
            request.filters,
            None if request.retrieved else pools[query.id],
            retrievers=pipeline.retrievers(query, request.retrieve),
            features={} if search else features,
            template=FilledTemplate(search, query) if search else None,
            legs=leg_names(request.signals),
        )
        for query in request.queries
    ]
    yield from zip(request.queries, pipeline.engine.search(searches), strict=True)
