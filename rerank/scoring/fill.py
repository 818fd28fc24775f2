"""Candidates of many queries scored by every signal: the table that tuning and evaluation read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rerank.engines.base import Engine, FilledTemplate, SearchRequest
from rerank.errors import UsageError, WorkspaceError, setting_hint
from rerank.evaluation.protocols import JUDGED, Protocol
from rerank.files import parse_json
from rerank.filters import Filter
from rerank.progress import Progress
from rerank.records import Candidates, Qrels, Query, SearchTemplate
from rerank.scoring.pipeline import Pipeline
from rerank.scoring.scorer import INFERENCE_DEPTH, Given, Scored, Scorer
from rerank.scoring.table import ScoreTable
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import SEARCH, is_of_now, learned

_NOTED = ("inferred_categories", "candidate_recall")  # of the report: kept with a table


@dataclass
class ScoringReport:
    """What was scored, and what was left out or computed anew on the way.

    unknown_categories: queries with categories that no signal knows; these categories are ignored.
    candidate_recall: retriever, and ``together`` for all of them -> mean share of a query's relevant
        documents that are among what it found: no ranking of these candidates can find the others. Empty
        for pools.
    not_found: retriever -> documents that have no feature of it, and so cannot be found by it.
    silent: queries that retrieve nothing, by their ids.
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
        """Take in what another first stage gave for the same queries."""
        self.queries, self.unknown_documents = other.queries, other.unknown_documents
        self.unknown_categories = max(self.unknown_categories, other.unknown_categories)
        if other.without_hits >= self.without_hits:
            self.without_hits, self.silent = other.without_hits, other.silent
        self.inferred_categories = max(self.inferred_categories, other.inferred_categories)
        for name, count in other.recomputed.items():
            self.recomputed[name] = self.recomputed.get(name, 0) + count
        self.not_found |= other.not_found


def score_table(
    pipeline: Pipeline,
    queries: Sequence[Query],
    qrels: Qrels,
    signals: Sequence[str],
    *,
    first_stage: str,
    protocol: Protocol,
    retrieve: Sequence[str] = (),
    search: SearchTemplate | None = None,
    filters: Sequence[Filter] = (),
    every_case: bool = False,
    seed: int = 0,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> tuple[ScoreTable, ScoringReport]:
    """Score the candidates of each query by each signal, once; and what is to be said of it.

    protocol: which documents are candidates. retrieve: the retrievers, as in a stack; pools are drawn by the
    first stage alone. search: the user's own, where ``first_stage`` is ``search``. filters: what candidates
    that are retrieved must fulfil. every_case: a row for each case that a query can be in, also as if it had
    brought no categories. cache: folder where tables are kept; one made from the same documents, rankers,
    queries and settings is read back instead, but none with a decay from now.
    """
    progress = progress or Progress()
    scorer = pipeline.scorer(signals, first_stage)
    matched = [scorer.with_known_categories(query) for query in queries]
    queries = [query for query, _ in matched]
    known = pipeline.engine.contains(d for q in qrels for d in qrels.relevant(q))
    unknown = sum(d not in known for q in qrels for d in qrels.relevant(q))
    report = ScoringReport(
        queries=len(queries),
        unknown_documents=unknown,
        unknown_categories=sum(bool(categories) for _, categories in matched),
    )
    retrieved = protocol.kind == "retrieved"
    retrieve = tuple(retrieve) if retrieved else ()
    depths = retriever_depths(retrieve)
    for name in learned(depths):
        report.not_found[name] = pipeline.engine.prepared(name, pipeline.rankers[name].version) or 0
    lacking = [(name, depth, report.not_found.get(name, 0)) for name, depth in depths.items()]
    made_from = {
        "engine": pipeline.engine.version(),
        "signals": list(signals),
        "versions": pipeline.features((*signals, *depths)),
        "first_stage": first_stage,
        "retrieve": lacking,
        "protocol": str(protocol),
        "infer": pipeline.infer_categories,
        "search": search.fingerprint if search is not None else None,
        "queries": [
            [q.id, q.text, q.lexical_text, list(q.categories), q.lang, dict(q.params)] for q in queries
        ],
        "judgments": {q: sorted(qrels[q].items()) for q in sorted(qrels)},
        "seed": seed,
        "every_case": every_case,
        "filters": [str(one) for one in filters],
    }
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    if any(map(is_of_now, signals)):
        cache = None
    path = cache / f"scores-{key[:16]}.npz" if cache is not None else None
    if path is not None and path.exists():
        try:
            table = ScoreTable.load(path)
        except WorkspaceError:
            table = None
        if table is not None and table.key.startswith(f"{key} "):
            noted = parse_json(table.key.removeprefix(f"{key} "))
            report.from_cache = True
            report.silent = sorted({q for q, n in zip(table.query_ids, table.counts.tolist()) if not n})
            report.without_hits = len(report.silent)
            for name in _NOTED:
                setattr(report, name, noted[name])
            return table, report
    shares: dict[str, list[float]] = {}
    others = [scorer] * scorer.infers + [replace(scorer, infer=False)]
    cases: list[str] = []

    def rows() -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
        found = _candidates(
            pipeline, queries, qrels, signals, first_stage, retrieve, search, filters, protocol, seed, known
        )
        for query, candidates in progress.over(found, "score candidates", len(queries), "query"):
            if retrieved:
                for name, share in _recall(candidates, qrels.relevant(query.id), first_stage).items():
                    shares.setdefault(name, []).append(share)
            voters = None
            if not retrieved and not query.categories:
                # A pool holds documents because they are relevant: those must not tell the categories.
                voters = pipeline.engine.find(SearchRequest(query.lexical, first_stage, INFERENCE_DEPTH))
            given = Given.found(candidates, first_stage)
            if every_case and len(candidates):
                given = scorer.fetched(query.lexical, given)
            scored = scorer.score(query, given, voters=voters)
            cases.append(_case(scored, scorer))
            if not len(candidates):
                report.silent.append(query.id)
            report.without_hits = len(report.silent)
            report.inferred_categories += scored.inferred
            for name, count in scored.recomputed.items():
                report.recomputed[name] = report.recomputed.get(name, 0) + count
            yield query.id, candidates.ids, scored.raw
            done = {cases[-1]}
            for one in others if every_case else ():
                scored = one.score(replace(query, categories=()), given, voters=voters)
                case = _case(scored, one)
                if case not in done:
                    done.add(case)
                    cases.append(case)
                    yield query.id, candidates.ids, scored.raw

    table = ScoreTable.build(signals, rows(), cases=cases)
    report.candidate_recall = {name: math.fsum(values) / len(values) for name, values in shares.items()}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        noted = {name: getattr(report, name) for name in _NOTED}
        replace(table, key=f"{key} {json.dumps(noted)}").save(path)
    return table, report


def _recall(candidates: Candidates, relevant: Mapping[str, int], first_stage: str) -> dict[str, float]:
    """Share of the relevant documents that each retriever found; nothing where none is relevant."""
    if not relevant:
        return {}
    hits = np.array([id in relevant for id in candidates.ids], np.bool_)
    if not candidates.found:
        return {first_stage: int(hits.sum()) / len(relevant)}
    found = {name: int((hits & where).sum()) for name, where in candidates.found.items()}
    if len(found) > 1:
        found["together"] = int(hits.sum())
    return {name: count / len(relevant) for name, count in found.items()}


def _case(scored: Scored, scorer: Scorer) -> str:
    """The case of a query; one without candidates is of the case that it would be with some."""
    expected = "inferred" if scorer.infers and not len(scored.ids) else "none"
    return expected if scored.case == "none" else scored.case


def candidate_recall(table: ScoreTable, qrels: Qrels) -> float:
    """Mean share of the relevant documents that are in the table, over queries that have some."""
    shares = [
        len(relevant.keys() & ids) / len(relevant)
        for query, ids in zip(table.query_ids, map(set, table.document_ids))
        if (relevant := qrels.relevant(query))
    ]
    return math.fsum(shares) / len(shares)


def _candidates(
    pipeline: Pipeline,
    queries: Sequence[Query],
    qrels: Qrels,
    signals: Sequence[str],
    first_stage: str,
    retrieve: Sequence[str],
    search: SearchTemplate | None,
    filters: Sequence[Filter],
    protocol: Protocol,
    seed: int,
    known: set[str],
) -> Iterator[tuple[Query, Candidates]]:
    engine, features = pipeline.engine, pipeline.features(signals)
    if filters and protocol.kind != "retrieved":
        raise UsageError(
            f"{protocol}: a pool holds the relevant documents, whatever they are; leave"
            f" {setting_hint('filter')} out, or use {setting_hint('protocol', 'retrieved:N')}"
        )
    if search is not None:
        if protocol.kind != "retrieved":
            raise UsageError(
                f"{protocol}: a pool holds what no search has found, so {search} cannot score it; use"
                f" {setting_hint('protocol', 'retrieved:N')}"
            )
        requests = [
            SearchRequest(query.lexical, SEARCH, protocol.count, template=FilledTemplate(search, query))
            for query in queries
        ]
    elif protocol.kind == "retrieved":
        requests = [
            SearchRequest(
                query.lexical,
                first_stage,
                depth=protocol.count,
                features=features,
                retrievers=pipeline.retrievers(query, retrieve),
                filters=filters,
            )
            for query in queries
        ]
    else:
        pools = _pools(engine, queries, qrels, first_stage, protocol, seed, known)
        requests = [
            SearchRequest(query.lexical, first_stage, features=features, ids=pool)
            for query, pool in zip(queries, pools, strict=True)
        ]
    yield from zip(queries, engine.search(requests), strict=True)


def _pools(
    engine: Engine,
    queries: Sequence[Query],
    qrels: Qrels,
    first_stage: str,
    protocol: Protocol,
    seed: int,
    known: set[str],
) -> Iterator[list[str]]:
    """The documents to score for each query: the judged ones, or the relevant ones and others."""
    everything = engine.ids() if protocol.kind == "pool-random" else []
    for query in queries:
        if protocol.kind == JUDGED:
            yield list(qrels[query.id])
            continue
        relevant = [d for d in qrels.relevant(query.id) if d in known]
        excluded = set(relevant)
        if protocol.kind == "pool-random":
            # Seeded by the query too, so that leaving a query out changes no other pool.
            rng = np.random.default_rng([seed, *hashlib.sha256(query.id.encode()).digest()[:8]])
            size = min(len(everything), protocol.count + len(excluded))
            drawn = [everything[i] for i in rng.choice(len(everything), size=size, replace=False).tolist()]
        else:
            depth = protocol.count + len(excluded)
            drawn = engine.find(SearchRequest(query.lexical, first_stage, depth)).ids
        yield relevant + [d for d in drawn if d not in excluded][: protocol.count]


def top(table: ScoreTable, first_stage: str, depth: int) -> ScoreTable:
    """Keep each query's ``depth`` best candidates by the first stage: the table at a smaller depth."""
    column = table.signals.index(first_stage)

    def rows() -> Iterator[tuple[str, Sequence[str], np.ndarray]]:
        for i, query in enumerate(table.query_ids):
            scores = table.scores[i, : table.counts[i]]
            # Documents are in id order, so a stable sort breaks ties by id.
            kept = np.sort(np.argsort(-scores[:, column], kind="stable")[:depth])
            yield query, [table.document_ids[i][d] for d in kept.tolist()], scores[kept]

    return ScoreTable.build(table.signals, rows(), cases=table.cases)
