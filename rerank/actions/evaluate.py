"""Evaluate: stacks over judged queries of a workspace -> tables with significance."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.actions.experiment import only_judged
from rerank.actions.ingest import encode
from rerank.errors import EngineError, WorkspaceError
from rerank.evaluation.measures import Evaluation, evaluate_runs, grade_one_only
from rerank.evaluation.overlap import OVERLAP_BUCKETS, category_overlap
from rerank.evaluation.protocols import Protocol, parse_protocol
from rerank.evaluation.significance import Comparison, compare, holm
from rerank.formats import write_run
from rerank.progress import Progress
from rerank.records import Qrels, Query
from rerank.scoring.fill import ScoringReport, candidate_recall, judged_queries, score_table, top
from rerank.scoring.table import ScoreTable
from rerank.stack.parse import retriever_depths
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

MEASURES = ("nDCG", "nDCG@10", "RR", "R@1000")
GRADE_ONE = "nDCG grade 1 only"

Ranked = dict[str, tuple[list[str], NDArray[np.float64]]]
"""Query -> document ids and their scores, best first."""


@dataclass
class Row:
    """One line of the table: a stack under a protocol, with the means of its measures."""

    label: str
    stack: Stack
    protocol: str
    rerank_only: bool
    measures: dict[str, float]

    @property
    def stack_text(self) -> str:
        """The stack with its weights."""
        return str(self.stack)

    @property
    def normalisation(self) -> str:
        """How its signals are made comparable."""
        return self.stack.normalisation

    @property
    def weights(self) -> dict[str, float]:
        """Signal -> weight; empty for a single signal."""
        if len(self.stack.signals) == 1:
            return {}
        return dict(zip(self.stack.signals, self.stack.weight_values.tolist()))


@dataclass
class EvaluationReport:
    """All tables of one evaluation; ``comparisons`` and ``scoring`` go by protocol.

    candidate_recall: protocol -> retrievers, joined by commas -> retriever, and ``together`` -> share of the
        relevant documents that it found (:class:`ScoringReport`).
    """

    baseline: str
    queries: int
    none_relevant: int
    grade_one_queries: int | None = None
    results: list[Row] = field(default_factory=list)
    comparisons: dict[str, list[Comparison]] = field(default_factory=dict)
    scoring: dict[str, ScoringReport] = field(default_factory=dict)
    candidate_recall: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    overlap: list[tuple[str, float, int]] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    per_query: dict[str, Evaluation] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        results = [
            {
                "stack": row.label,
                "weights": dict(zip(row.stack.signals, row.stack.weight_values.tolist())),
                "normalisation": row.normalisation,
                "first_stage": row.stack.first_stage,
                "retrieve": list(row.stack.retrievers),
                "protocol": row.protocol,
                "rerank_only": row.rerank_only,
                "measures": row.measures,
            }
            for row in self.results
        ]
        comparisons = [
            {**asdict(comparison), "protocol": protocol}
            for protocol, found in self.comparisons.items()
            for comparison in found
        ]
        return {
            "baseline": self.baseline,
            "queries": self.queries,
            "none_relevant": self.none_relevant,
            "grade_one_queries": self.grade_one_queries,
            "results": results,
            "comparisons": comparisons,
            "scoring": {
                protocol: {k: v for k, v in asdict(scoring).items() if k != "candidate_recall"}
                for protocol, scoring in self.scoring.items()
            },
            "candidate_recall": [
                {"protocol": protocol, "retrieve": names.split(","), "recall": recall}
                for protocol, found in self.candidate_recall.items()
                for names, recall in found.items()
            ],
            "category_overlap": [{"bucket": b, "share": s, "pairs": n} for b, s, n in self.overlap],
            "runs": self.saved,
        }


def evaluate(
    workspace: Workspace,
    stacks: Sequence[str],
    baseline: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    retrieve: Sequence[str] = (),
    protocols: Sequence[str] = ("retrieved:1000",),
    measures: Sequence[str] | None = None,
    rerank_only: bool = False,
    grade_one_only: bool = False,
    overlap: bool = False,
    save_run: str | os.PathLike[str] | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Rank the judged queries by each stack under each protocol, measure, and compare with the baseline.

    The protocol decides the candidates, whatever the depth a stack was tuned at: ``retrieved:N`` takes the N
    best of each of its retrievers, or of those of ``retrieve`` (which leaves the baseline as it is); pools
    are drawn by the first stage alone. ``rerank_only`` adds each stack without its first stage's score, its
    other weights unchanged: the paper's plain reranking. Holm's correction is over all comparisons of the
    call.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.ingest(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    >>> qrels = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
    >>> report = evaluate(workspace, ["bm25"], "tfidf", queries, qrels, measures=["RR"])
    >>> {row.label: row.measures for row in report.results}
    {'tfidf': {'RR': 0.75}, 'bm25': {'RR': 1.0}}
    """
    parsed = [parse_protocol(text) for text in dict.fromkeys(protocols)]
    baseline_stack = workspace.stack(baseline)
    baseline = _label(baseline)
    chosen: dict[str, tuple[Stack, bool]] = {baseline: (baseline_stack, False)}
    for text in stacks:
        stack = workspace.stack(text)
        if retrieve:
            stack = replace(stack, retrieve=tuple(retrieve))
        label = _label(text)
        if chosen.get(label, (stack, False))[0] != stack:
            # Two files of one name in different folders, or the baseline with other retrievers.
            label = text if label != text else f"{text} by {','.join(stack.retrievers)}"
        chosen[label] = stack, False
        if rerank_only:
            plain = _without_first_stage(stack)
            if plain is not None:
                chosen[f"{label} (rerank only)"] = plain, True
    known, unknown = judged_queries(queries, qrels, ignore_categories)
    qrels = only_judged(qrels, known)
    signals = list(dict.fromkeys(name for stack, _ in chosen.values() for name in stack.signals))
    retrievers = {name for stack, _ in chosen.values() for name in retriever_depths(stack.retrieve)}
    pipeline = workspace.pipeline(signals, retrieve=sorted(retrievers), infer_categories=infer)
    with suppress(WorkspaceError, EngineError):  # busy or read-only: what is missing is computed on the way
        encode(workspace, pipeline.rankers, progress=progress)  # once, not again for every query
    report = EvaluationReport(baseline, 0, 0)
    largest = max((p.count for p in parsed if p.kind == "retrieved"), default=0)
    tables: dict[tuple[str, tuple[str, ...], str], tuple[ScoreTable, ScoringReport]] = {}
    for protocol in parsed:
        scoring = report.scoring[str(protocol)] = ScoringReport(unknown_queries=unknown)
        rankings: dict[str, Ranked] = {}
        groups: dict[tuple[str, tuple[str, ...]], dict[str, Stack]] = {}
        for label, (stack, _) in chosen.items():
            retrieve = stack.retrieve if protocol.kind == "retrieved" else ()
            groups.setdefault((stack.first_stage, retrieve), {})[label] = stack
        for (first, retrieve), stacks_of in groups.items():
            needed = [name for stack in stacks_of.values() for name in stack.signals]
            # What the first stage finds at a smaller depth is the top of what it finds at a larger one.
            shared = protocol.kind == "retrieved" and not retrieve
            asked = Protocol("retrieved", largest) if shared else protocol
            if (first, retrieve, str(asked)) not in tables:
                done = ScoringReport()
                table = score_table(
                    pipeline,
                    known,
                    qrels,
                    list(dict.fromkeys((*needed, first))),
                    first_stage=first,
                    retrieve=retrieve,
                    protocol=asked,
                    report=done,
                    seed=seed,
                    progress=progress,
                )
                tables[first, retrieve, str(asked)] = table, done
            table, done = tables[first, retrieve, str(asked)]
            scoring.add(done)
            recall = done.candidate_recall
            if asked != protocol:
                table = top(table, first, protocol.count)
                recall = {first: candidate_recall(table, qrels)}
            if recall:
                names = ",".join(retrieve or (first,))
                report.candidate_recall.setdefault(str(protocol), {})[names] = recall
            for label, stack in stacks_of.items():
                rankings[label] = _rank(table, stack)
        _measure(report, protocol, chosen, rankings, qrels, measures, grade_one_only, seed)
        if save_run is not None:
            _save(report, Path(save_run), protocol, {label: rankings[label] for label in chosen})
    flat = [c for found in report.comparisons.values() for c in found]
    corrected = iter(holm([c.p for c in flat]))
    report.comparisons = {
        protocol: [replace(c, p_holm=next(corrected)) for c in found]
        for protocol, found in report.comparisons.items()
    }
    if overlap:
        report.overlap = _overlap(workspace, known, qrels)
    return report


def _label(text: str) -> str:
    """What tables call a stack: as the user named it, a file by its name alone."""
    return Path(text).stem if text.endswith(".json") else text


def _without_first_stage(stack: Stack) -> Stack | None:
    """Drop the first stage's score; None when it is not there, or nothing else has a weight."""
    kept = [(n, w) for n, w in zip(stack.signals, stack.weights) if n != stack.first_stage]
    if len(kept) == len(stack.signals) or not any(weight for _, weight in kept):
        return None
    return replace(stack, signals=tuple(n for n, _ in kept), weights=tuple(w for _, w in kept))


def _rank(table: ScoreTable, stack: Stack) -> Ranked:
    """Rank every query; only ids and scores are kept, since thousands of rankings are held at once."""
    columns = [table.signals.index(name) for name in stack.signals]
    ranked: Ranked = {}
    for i, query in enumerate(table.query_ids):
        found = stack.rank(table.document_ids[i], table.scores[i, : table.counts[i]][:, columns])
        ranked[query] = found.ids, found.scores
    return ranked


def _measure(
    report: EvaluationReport,
    protocol: Protocol,
    chosen: dict[str, tuple[Stack, bool]],
    rankings: dict[str, Ranked],
    qrels: Qrels,
    measures: Sequence[str] | None,
    with_grade_one: bool,
    seed: int,
) -> None:
    runs = {label: {query: ids for query, (ids, _) in rankings[label].items()} for label in chosen}
    evaluation = evaluate_runs(runs, qrels, measures or MEASURES)
    comparisons = compare(evaluation, report.baseline, seed=seed)
    means = {label: {m: evaluation.mean(label, m) for m in evaluation.measures} for label in chosen}
    if with_grade_one:
        related = evaluate_runs(*grade_one_only(runs, qrels), ["nDCG"])
        report.grade_one_queries = len(related.query_ids)
        comparisons += [replace(c, measure=GRADE_ONE) for c in compare(related, report.baseline, seed=seed)]
        for label in chosen:
            means[label][GRADE_ONE] = related.mean(label, "nDCG")
    report.queries = len(evaluation.query_ids)
    report.none_relevant = len(evaluation.none_relevant)
    report.comparisons[str(protocol)] = comparisons
    report.per_query[str(protocol)] = evaluation
    for label, (stack, plain) in chosen.items():
        report.results.append(Row(label, stack, str(protocol), plain, means[label]))


def _save(report: EvaluationReport, folder: Path, protocol: Protocol, rankings: dict[str, Ranked]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for label, found in rankings.items():
        name = "".join(c if c.isalnum() or c in ",._-" else "_" for c in label)
        path = folder / f"{name}.{protocol.kind}-{protocol.count}.run"
        tag = "".join(c if c.isalnum() or c in ",._-*+" else "_" for c in label)
        write_run(
            path, {query: list(zip(ids, scores.tolist())) for query, (ids, scores) in found.items()}, tag
        )
        report.saved.append(str(path))


def _overlap(workspace: Workspace, queries: Sequence[Query], qrels: Qrels) -> list[tuple[str, float, int]]:
    wanted = {d for query in queries for d in qrels.relevant(query.id)}
    categories = {d.id: d.categories for d in workspace.engine.get(sorted(wanted)) if d is not None}
    pairs = (
        (query.categories, categories[d])
        for query in queries
        for d in qrels.relevant(query.id)
        if d in categories
    )
    histogram = category_overlap(pairs)
    return list(zip(OVERLAP_BUCKETS, np.asarray(histogram.shares).tolist(), histogram.counts))
