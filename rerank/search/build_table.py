"""Build score tables for tuning and evaluation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rerank.combiners.score_table import ScoreTable
from rerank.engines.base import Engine, FilledTemplate, SearchRequest
from rerank.errors import UsageError, WorkspaceError
from rerank.evaluation.protocols import JUDGED, Protocol
from rerank.files import parse_json
from rerank.filters import Filter
from rerank.progress import Progress
from rerank.records import Candidates, Qrels, Query, SearchTemplate
from rerank.search.pipeline import Pipeline
from rerank.search.scorer import INFERENCE_DEPTH, Scorer, ScoringInput, ScoringResult
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import is_of_now, learned

_NOTED = ("inferred_categories", "candidate_recall")  # report fields stored with a table


@dataclass
class ScoringReport:
    """Counts from building a table.

    unknown_categories: queries with ignored categories.
    candidate_recall: retriever, or ``together`` -> mean recall; empty for pools.
    not_found: retriever -> documents without features.
    silent: ids of queries without candidates.
    """

    queries: int = 0
    unknown_queries: int = 0
    unknown_documents: int = 0
    unknown_categories: int = 0
    without_hits: int = 0
    inferred_categories: int = 0
    recomputed: dict[str, int] = field(default_factory=dict)
    candidate_recall: dict[str, float] = field(default_factory=dict)
    not_found: dict[str, int] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    from_cache: bool = False

    def add(self, other: ScoringReport) -> None:
        """Add another first stage's report on the same queries."""
        self.queries, self.unknown_documents = other.queries, other.unknown_documents
        self.unknown_categories = max(self.unknown_categories, other.unknown_categories)
        if other.without_hits >= self.without_hits:
            self.without_hits, self.silent = other.without_hits, other.silent
        self.inferred_categories = max(self.inferred_categories, other.inferred_categories)
        for name, count in other.recomputed.items():
            self.recomputed[name] = self.recomputed.get(name, 0) + count
        self.not_found |= other.not_found


@dataclass(frozen=True, eq=False, kw_only=True)
class TableRequest:
    """Queries, candidates and signals of a table.

    protocol: selects candidates. retrieve: retrievers. search: the user's search.
    every_case: add rows for queries without categories.

    Raises UsageError for filters or a search with a pool.
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
    seed: int = 0

    def __post_init__(self) -> None:
        if self.retrieved:
            return
        object.__setattr__(self, "retrieve", ())
        if self.filters:
            raise UsageError(
                f"{self.protocol}: a pool holds the relevant documents, whatever they are; leave"
                f" --filter out, or use --protocol retrieved:N"
            )
        if self.search is not None:
            raise UsageError(
                f"{self.protocol}: a pool holds what no search has found, so {self.search} cannot score it;"
                f" use --protocol retrieved:N"
            )

    @property
    def retrieved(self) -> bool:
        """Whether retrievers find the candidates."""
        return self.protocol.kind == "retrieved"

    def key(self, pipeline: Pipeline, not_found: Mapping[str, int]) -> str:
        """Return a hash of all inputs."""
        depths = retriever_depths(self.retrieve)
        made_from = {
            "engine": pipeline.engine.version(),
            "signals": list(self.signals),
            "versions": pipeline.features((*self.signals, *depths)),
            "first_stage": self.first_stage,
            "retrieve": [(name, depth, not_found.get(name, 0)) for name, depth in depths.items()],
            "protocol": str(self.protocol),
            "infer": pipeline.infer_categories,
            "search": self.search.fingerprint if self.search is not None else None,
            "queries": [
                [q.id, q.text, q.lexical_text, list(q.categories), q.lang, dict(q.params)]
                for q in self.queries
            ],
            "judgments": {q: sorted(self.qrels[q].items()) for q in sorted(self.qrels)},
            "seed": self.seed,
            "every_case": self.every_case,
            "filters": [str(one) for one in self.filters],
        }
        return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def score_table(
    pipeline: Pipeline,
    request: TableRequest,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[ScoreTable, ScoringReport]:
    """Score candidates; return the table and a report.

    cache: folder for tables, unused if a signal decays from now.
    """
    scorer = pipeline.scorer(request.signals, request.first_stage)
    matched = [scorer.with_known_categories(query) for query in request.queries]
    request = replace(request, queries=[query for query, _ in matched])
    relevant = [d for q in request.qrels for d in request.qrels.relevant(q)]
    known = pipeline.engine.contains(relevant)
    report = ScoringReport(
        queries=len(request.queries),
        unknown_documents=sum(d not in known for d in relevant),
        unknown_categories=sum(bool(categories) for _, categories in matched),
    )
    for name in learned(retriever_depths(request.retrieve)):
        report.not_found[name] = pipeline.engine.prepared(name, pipeline.rankers[name].version) or 0
    key = request.key(pipeline, report.not_found)
    path = cache / f"scores-{key[:16]}.npz" if cache and not any(map(is_of_now, request.signals)) else None
    if path is not None and (table := _cached(path, key, report)) is not None:
        return table, report
    rows = _Rows(pipeline, request, scorer, report)
    candidates = _candidates(pipeline, request, known)
    candidates = (progress or Progress()).over(candidates, "score candidates", len(request.queries), "query")
    table = ScoreTable.build(request.signals, rows.of(candidates), cases=rows.cases)
    report.candidate_recall = {name: math.fsum(found) / len(found) for name, found in rows.recall.items()}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        noted = {name: getattr(report, name) for name in _NOTED}
        replace(table, key=f"{key} {json.dumps(noted)}").save(path)
    return table, report


def _cached(path: Path, key: str, report: ScoringReport) -> ScoreTable | None:
    try:
        table = ScoreTable.load(path) if path.exists() else None
    except WorkspaceError:
        return None
    if table is None or not table.key.startswith(f"{key} "):
        return None
    noted = parse_json(table.key.removeprefix(f"{key} "))
    report.from_cache = True
    report.silent = sorted({q for q, n in zip(table.query_ids, table.counts.tolist()) if not n})
    report.without_hits = len(report.silent)
    for name in _NOTED:
        setattr(report, name, noted[name])
    return table


class _Rows:
    """cases: one per row. recall: retriever -> recall per query."""

    def __init__(
        self, pipeline: Pipeline, request: TableRequest, scorer: Scorer, report: ScoringReport
    ) -> None:
        self._engine, self._request, self._scorer, self._report = pipeline.engine, request, scorer, report
        self._others = [scorer] * scorer.infers + [replace(scorer, infer=False)] if request.every_case else []
        self.cases: list[str] = []
        self.recall: dict[str, list[float]] = {}

    def of(
        self, found: Iterable[tuple[Query, Candidates]]
    ) -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
        """Yield query id, document ids and (n, S) scores."""
        request, scorer = self._request, self._scorer
        for query, candidates in found:
            if request.retrieved:
                relevant = request.qrels.relevant(query.id)
                for name, share in _recall(candidates, relevant, request.first_stage).items():
                    self.recall.setdefault(name, []).append(share)
            voters = self._voters(query)
            given = ScoringInput.found(candidates, request.first_stage)
            if request.every_case and len(candidates):
                given = scorer.fetched(query.lexical, given)
            scored = scorer.score(query, given, voters=voters)
            self._note(scored)
            cases = [_case(scored, scorer)]
            raws = [scored.raw]
            for one in self._others:
                scored = one.score(replace(query, categories=()), given, voters=voters)
                if (case := _case(scored, one)) not in cases:
                    cases.append(case)
                    raws.append(scored.raw)
            self.cases += cases
            for raw in raws:
                yield query.id, candidates.ids, raw

    def _voters(self, query: Query) -> Candidates | None:
        """A pool needs separate voters: its relevant documents must not reveal categories."""
        if self._request.retrieved or query.categories:
            return None
        return self._engine.find(SearchRequest(query.lexical, self._request.first_stage, INFERENCE_DEPTH))

    def _note(self, scored: ScoringResult) -> None:
        report = self._report
        if not len(scored.ids):
            report.silent.append(scored.query.id)
        report.without_hits = len(report.silent)
        report.inferred_categories += scored.inferred
        for name, count in scored.recomputed.items():
            report.recomputed[name] = report.recomputed.get(name, 0) + count


def _recall(candidates: Candidates, relevant: Mapping[str, int], first_stage: str) -> dict[str, float]:
    if not relevant:
        return {}
    hits = np.array([id in relevant for id in candidates.ids], np.bool_)
    if not candidates.retrieved_by:
        return {first_stage: int(hits.sum()) / len(relevant)}
    found = {name: int((hits & where).sum()) for name, where in candidates.retrieved_by.items()}
    if len(found) > 1:
        found["together"] = int(hits.sum())
    return {name: count / len(relevant) for name, count in found.items()}


def _case(scored: ScoringResult, scorer: Scorer) -> str:
    """Without candidates, return the expected case."""
    expected = "inferred" if scorer.infers and not len(scored.ids) else "none"
    return expected if scored.case == "none" else scored.case


def candidate_recall(table: ScoreTable, qrels: Qrels) -> float:
    """Return the mean recall of candidates."""
    shares = [
        len(relevant.keys() & ids) / len(relevant)
        for query, ids in zip(table.query_ids, map(set, table.document_ids))
        if (relevant := qrels.relevant(query))
    ]
    return math.fsum(shares) / len(shares)


def _candidates(
    pipeline: Pipeline, request: TableRequest, known: set[str]
) -> Iterator[tuple[Query, Candidates]]:
    """known: relevant documents in the engine."""
    features, first_stage, depth = (
        pipeline.features(request.signals),
        request.first_stage,
        request.protocol.count,
    )
    pools = iter(()) if request.retrieved else _pools(pipeline.engine, request, known)
    searches: list[SearchRequest] = []
    for query in request.queries:
        one = SearchRequest(query.lexical, first_stage, depth, features=features, filters=request.filters)
        if request.search is not None:
            one = replace(one, features={}, template=FilledTemplate(request.search, query))
        elif request.retrieved:
            one = replace(one, retrievers=pipeline.retrievers(query, request.retrieve))
        else:
            one = replace(one, ids=next(pools))
        searches.append(one)
    yield from zip(request.queries, pipeline.engine.search(searches), strict=True)


def _pools(engine: Engine, request: TableRequest, known: set[str]) -> Iterator[list[str]]:
    """Yield document ids per query."""
    kind, count, qrels = request.protocol.kind, request.protocol.count, request.qrels
    everything = engine.ids() if kind == "pool-random" else []
    for query in request.queries:
        if kind == JUDGED:
            yield list(qrels[query.id])
            continue
        relevant = [d for d in qrels.relevant(query.id) if d in known]
        excluded = set(relevant)
        if kind == "pool-random":
            # The seed contains the query: removing a query does not change other pools.
            rng = np.random.default_rng([request.seed, *hashlib.sha256(query.id.encode()).digest()[:8]])
            size = min(len(everything), count + len(excluded))
            drawn = [everything[i] for i in rng.choice(len(everything), size=size, replace=False).tolist()]
        else:
            drawn = engine.find(SearchRequest(query.lexical, request.first_stage, count + len(excluded))).ids
        yield relevant + [d for d in drawn if d not in excluded][:count]


def top(table: ScoreTable, first_stage: str, depth: int) -> ScoreTable:
    """Keep the ``depth`` best candidates per query by the first stage."""
    column = table.signals.index(first_stage)

    def rows() -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
        for i, query in enumerate(table.query_ids):
            scores = table.scores[i, : table.counts[i]]
            # Documents are in id order, so a stable sort breaks ties by id.
            kept = np.sort(np.argsort(-scores[:, column], kind="stable")[:depth])
            yield query, [table.document_ids[i][d] for d in kept.tolist()], scores[kept]

    return ScoreTable.build(table.signals, rows(), cases=table.cases)
