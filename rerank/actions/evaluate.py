"""Evaluate: stacks over judged queries of a workspace -> tables with significance."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.actions.depths import AtDepth, by_depth
from rerank.actions.evaluated import remember
from rerank.actions.experiment import Experiment
from rerank.actions.leaks import Leak, leaks, seen_by, unseen
from rerank.evaluation.auc import RankingAUC
from rerank.evaluation.measures import (
    MEASURES,
    Evaluation,
    check_measures,
    evaluate_runs,
    grade_one_only,
    mean_of,
)
from rerank.evaluation.overlap import Overlap, category_overlap
from rerank.evaluation.protocols import Protocol, parse_protocol
from rerank.evaluation.significance import Comparison, compare, holm
from rerank.files import check_output
from rerank.filters import filters_of
from rerank.formats import check_run_ids, write_run
from rerank.inputs import Judgments, Queries, as_list, as_qrels, as_queries
from rerank.order import rank
from rerank.progress import Progress
from rerank.records import Qrels, Query, SearchTemplate
from rerank.results import Report
from rerank.scoring.fill import ScoringReport
from rerank.scoring.pipeline import template_of
from rerank.scoring.table import ScoreTable
from rerank.stack.cases import CASES
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import SEARCH
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

GRADE_ONE = "nDCG grade 1 only"
PER_QUERY = "protocol\tstack\tquery-id"
"""The start of a table of all queries."""

Ranked = dict[str, tuple[list[str], NDArray[np.float64]]]
"""Query -> document ids and their scores, best first."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A hit that is kept: its rank and that of the first stage, its grade, and what each signal gave it."""

    id: str
    rank: int
    before: int
    grade: int
    score: float
    signals: Mapping[str, float]


@dataclass
class Row:
    """One line of the table: a stack under a protocol, with the means of its measures.

    stack: as it was named; text: with its weights. rerank_only: without its first stage's score.
    leaks: what of it was learned from queries that are measured here.
    """

    stack: str
    weights: dict[str, float]
    normalisation: str
    first_stage: str
    retrieve: tuple[str, ...]
    protocol: str
    rerank_only: bool
    measures: dict[str, float]
    leaks: list[Leak]
    text: str = field(repr=False)


@dataclass
class CaseRow:
    """A stack's means over the queries of one case (``rerank.stack.cases``)."""

    protocol: str
    case: str
    queries: int
    stack: str
    measures: dict[str, float]


@dataclass
class Recall:
    """Share of the relevant documents that each retriever found, and all ``together``: the ceiling."""

    protocol: str
    retrieve: tuple[str, ...]
    recall: dict[str, float]


@dataclass
class EvaluationReport(Report):
    """All tables of one evaluation.

    compared:  the measures that stacks are compared by.
    new_documents: the same, without the relevant documents that were relevant for what was learned from, too;
        None where there are no such. seen_pairs, pairs: how many of the relevant documents those are.
    scoring:   protocol -> what was scored, and what was left out.
    cases:     of a stack that tells queries with and without categories apart: its means for each.
    by_depth:  of the last stack, with fewer candidates, where rankings are kept.
    runs:      files with the rankings.
    per_query: protocol -> the values that the means are of; not in the JSON.
    kept:      protocol -> stack -> query -> its first hits, as many as were to be kept; not in the JSON.
    stacks:    the stacks by their names in the table, but those without their first stage's score; not in
        the JSON.
    """

    baseline: str
    queries: int = 0
    none_relevant: int = 0
    grade_one_queries: int | None = None
    compared: list[str] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    scoring: dict[str, ScoringReport] = field(default_factory=dict)
    candidate_recall: list[Recall] = field(default_factory=list)
    category_overlap: list[Overlap] = field(default_factory=list)
    by_depth: list[AtDepth] = field(default_factory=list)
    pairs: int = 0
    seen_pairs: int = 0
    new_documents: EvaluationReport | None = None
    cases: list[CaseRow] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    per_query: dict[str, Evaluation] = field(default_factory=dict, repr=False)
    kept: dict[str, dict[str, dict[str, list[Shown]]]] = field(default_factory=dict, repr=False)
    stacks: dict[str, Stack] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON's values; the candidates' recall is told by itself alone."""
        values = super().to_json()
        for scoring in values["scoring"].values():
            del scoring["candidate_recall"]
        return values

    def per_query_table(self) -> str:
        """Write each query's measures under each protocol and stack as tab-separated lines with a header."""
        names = [name for name in self.results[0].measures if name != GRADE_ONE]
        lines = ["\t".join((PER_QUERY, *names))]
        for protocol, evaluation in self.per_query.items():
            for stack, values in evaluation.values.items():
                columns = zip(*(values[name].tolist() for name in names))
                for query, cells in zip(evaluation.query_ids, columns):
                    texts = ("" if math.isnan(cell) else f"{cell:.6f}" for cell in cells)
                    lines.append("\t".join((protocol, stack, query, *texts)))
        return "\n".join(lines) + "\n"

    def rows(self) -> list[dict[str, Any]]:
        """Return each result with its measures, and the differences to the baseline in those compared."""
        found = {(c.protocol, c.stack, c.measure): c for c in self.comparisons}
        rows = []
        for row in self.results:
            cells: dict[str, Any] = {"protocol": row.protocol, "stack": row.stack, **row.measures}
            for place, name in enumerate(self.compared):
                one, of = found.get((row.protocol, row.stack, name)), f" {name}" if place else ""
                cells[f"delta{of}"] = one.delta if one else None
                cells[f"p_holm{of}"] = one.p_holm if one else None
            rows.append(cells)
        return rows


def evaluate(
    workspace: Workspace,
    stacks: str | Stack | Iterable[str | Stack],
    *,
    queries: Queries,
    qrels: Judgments,
    baseline: str | Stack | None = None,
    first_stage: str | None = None,
    retrieve: Sequence[str] = (),
    filter: str | Sequence[str] = (),
    protocols: Sequence[str] = ("retrieved:1000",),
    measures: Sequence[str] = (),
    also_rerank_only: bool = False,
    also_grade_one: bool = False,
    overlap: bool = False,
    save_run: str | os.PathLike[str] | None = None,
    keep: int = 0,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Rank the judged queries by each stack under each protocol, measure, and compare with the baseline.

    The protocol decides the candidates, whatever the depth a stack was tuned at: ``retrieved:N`` takes the N
    best of each of its retrievers, or of those of ``retrieve`` (which leaves the baseline as it is), and
    measures the first N documents of each ranking; pools
    are drawn by the first stage alone, and ``judged`` is all that is judged. The baseline is the engine's own
    first stage unless it is named. With a search of the user's own as ``first_stage`` (``template:FILE``,
    ``stored:ID``, ``run:FILE``), every stack ranks what that search has found, and its scores stand for those
    of the stack's first stage, as in the hook; its own order is the baseline then. ``filter``: what every
    candidate must fulfil, as :meth:`Workspace.search`.

    ``also_rerank_only`` adds each stack without its first stage's score (plain reranking), with the weights
    that ``tune`` has found for that, or its others unchanged; ``also_grade_one`` a measure without documents
    of grade 2 and up. Without ``measures`` they are ``MEASURES``, and stacks are compared by the first of
    them; those that are named are all compared. Holm's correction is over these comparisons, of all stacks
    and protocols of the call. The report keeps the first ``keep`` hits of each ranking.
    The workspace remembers the last evaluation, for a page on it.

    >>> import tempfile
    >>> from rerank import Document, Qrels, Query, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> queries = [Query("q1", "hunts at night"), Query("q2", "mice")]
    >>> qrels = Qrels([("q1", "owl", 1), ("q2", "fox", 1)])
    >>> report = evaluate(workspace, ["bm25"], queries=queries, qrels=qrels, measures=["RR"])
    >>> {row.stack: row.measures for row in report.results}
    {'tfidf': {'RR': 0.75}, 'bm25': {'RR': 1.0}}
    """
    stacks, measures, protocols = as_list(stacks), as_list(measures), as_list(protocols)
    queries, qrels, retrieve = as_queries(queries), as_qrels(qrels), as_list(retrieve)
    settings = {
        "stacks": stacks,
        "baseline": baseline,
        "first_stage": first_stage,
        "retrieve": retrieve,
        "filter": filter,
        "protocols": protocols,
        "measures": measures,
        "also_rerank_only": also_rerank_only,
        "also_grade_one": also_grade_one,
        "overlap": overlap,
        "ignore_categories": ignore_categories,
        "infer": infer,
        "seed": seed,
    }
    asked = [parse_protocol(text) for text in dict.fromkeys(protocols)]
    first, search = (None, None) if first_stage is None else workspace.first_stage_of(first_stage)
    baseline = baseline or first or workspace.first_stage
    chosen = _chosen(workspace, stacks, baseline, retrieve, also_rerank_only, first, search)
    if save_run is not None:  # before the long work
        check_run_ids(qrels)
        for file in (_run_file(Path(save_run), label, protocol) for label in chosen for protocol in asked):
            check_output(file, " Q0 ")
    searches = {stack.search: None for stack, _ in chosen.values() if stack.search is not None}
    retrievers = {name for stack, _ in chosen.values() for name in retriever_depths(stack.retrieve)}
    signals = list(dict.fromkeys(name for stack, _ in chosen.values() for name in stack.signals))
    experiment = Experiment.prepare(
        workspace,
        signals,
        queries,
        qrels,
        sorted(retrievers - {SEARCH}),
        ignore_categories,
        infer,
        seed,
        progress,
        searches=list(searches),
        filters=filters_of(filter),
    )
    compared = [*(check_measures(measures) if measures else MEASURES[:1]), *[GRADE_ONE] * also_grade_one]
    report = EvaluationReport(baseline=_label(baseline), compared=compared)
    report.stacks = {label: stack for label, (stack, rerank_only) in chosen.items() if not rerank_only}
    seen = {label: seen_by(workspace, stack) for label, (stack, _) in chosen.items()}
    judged = [query.id for query in experiment.queries]
    found = {label: leaks(known, label, judged) for label, known in seen.items()}
    new, dropped = unseen((one for known in seen.values() for one in known.values()), experiment.qrels)
    report.pairs = sum(len(experiment.qrels.relevant(query)) for query in judged)
    report.seen_pairs = len(dropped)
    # What was dropped is judged 0 there: for AUC it would be a document that somebody has refused.
    ranked = [name for name in measures or MEASURES if RankingAUC.parse(name) is None]
    if ranked and dropped and len(dropped) < report.pairs:
        by = list(check_measures(ranked[:1]))
        report.new_documents = EvaluationReport(baseline=report.baseline, compared=by)
    deepest = max((one.count for one in asked if one.kind == "retrieved"), default=0)
    for protocol in asked:
        cases: dict[str, str] = {}
        rankings = _rankings(experiment, chosen, protocol, deepest, keep, report, cases)
        runs = {label: {query: ids for query, (ids, _) in one.items()} for label, one in rankings.items()}
        of = protocol, chosen, found, seed
        _measure(report, runs, experiment.qrels, also_grade_one, measures or MEASURES, *of)
        report.cases += _by_case(report.per_query[str(protocol)], cases, protocol)
        if report.new_documents is not None:
            _measure(report.new_documents, _without(runs, dropped), new, False, ranked, *of)
        if save_run is not None:
            report.runs += _save(Path(save_run), protocol, rankings)
    for one in (report, report.new_documents):
        if one is not None:
            corrected = holm([c.p for c in one.comparisons])
            one.comparisons = [replace(c, p_holm=p) for c, p in zip(one.comparisons, corrected)]
    if overlap or keep:
        report.category_overlap = _overlap(workspace, queries, experiment.qrels)
    remember(workspace, settings, queries=queries, qrels=qrels)
    return report


def _chosen(
    workspace: Workspace,
    stacks: Sequence[str | Stack],
    baseline: str | Stack,
    retrieve: Sequence[str],
    also_rerank_only: bool,
    first_stage: str | None,
    search: SearchTemplate | None,
) -> dict[str, tuple[Stack, bool]]:
    """Label -> a stack to measure, and whether it is without its first stage's score; the baseline first."""

    def found(text: str | Stack) -> Stack:
        stack = text if isinstance(text, Stack) else workspace.stack(text, latest=True)
        if search is not None:
            return stack.over(search)
        if stack.first_stage == SEARCH:
            template_of(stack)
        return stack if first_stage is None else replace(stack, first_stage=first_stage, retrieve=())

    chosen = {_label(baseline): (found(baseline), False)}
    for text in stacks:
        stack = found(text)
        if retrieve:
            stack = replace(stack, retrieve=tuple(retrieve))
        label = _label(text)
        if chosen.get(label, (stack, False))[0] != stack:
            # Two files of one name in different folders, or the baseline with other retrievers.
            label = str(text) if label != str(text) else f"{text} by {','.join(stack.retrievers)}"
        chosen[label] = stack, False
        plain = stack.without_first_stage() if also_rerank_only else None
        if plain is not None:
            chosen[f"{label} (rerank only)"] = plain, True
    return chosen


def _label(stack: str | Stack) -> str:
    """What tables call a stack: as the user named it, a file by its name alone."""
    text = str(stack)
    return Path(text).stem if text.endswith(".json") else text


def _rank(
    table: ScoreTable, stack: Stack, first: str, keep: int, qrels: Qrels, cut: int | None
) -> tuple[Ranked, dict[str, list[Shown]]]:
    """Rank every query, to ``cut`` documents. But for ``keep`` hits, only ids and scores are held."""
    lead = table.signals.index(first)
    columns = [table.signals.index(name) for name in stack.signals]
    ranked: Ranked = {}
    shown: dict[str, list[Shown]] = {}
    for i, query in enumerate(table.query_ids):
        ids, scores = table.document_ids[i], table.scores[i, : table.counts[i]]
        found = stack.for_case(table.cases[i]).rank(ids, scores[:, columns])
        ranked[query] = found.ids[:cut], found.scores[:cut]
        if not keep:
            continue
        places = np.empty(len(ids), dtype=np.int64)
        places[rank(ids, scores[:, lead])] = np.arange(1, len(ids) + 1)
        shown[query] = [
            Shown(
                hit.id,
                hit.rank,
                int(places[hit.first_stage_rank - 1]),
                qrels[query].get(hit.id, 0),
                hit.score,
                {name: signal.weighted for name, signal in hit.signals.items()},
            )
            for hit in found.top(keep)
        ]
    return ranked, shown


def _rankings(
    experiment: Experiment,
    chosen: Mapping[str, tuple[Stack, bool]],
    protocol: Protocol,
    deepest: int,
    keep: int,
    report: EvaluationReport,
    cases: dict[str, str],
) -> dict[str, Ranked]:
    """Rank by every stack; those with the same candidates share a table.

    cases: is given the case of each query, where a stack tells cases apart.
    """
    scoring = report.scoring[str(protocol)] = ScoringReport(unknown_queries=experiment.unknown_queries)
    groups: dict[tuple[str, tuple[str, ...], SearchTemplate | None], dict[str, Stack]] = {}
    for label, (stack, _) in chosen.items():
        retrieve = stack.retrieve if protocol.kind == "retrieved" else ()
        groups.setdefault((stack.first_stage, retrieve, stack.search), {})[label] = stack
    rankings: dict[str, Ranked] = {}
    shown = None if report.by_depth else [label for label, (_, plain) in chosen.items() if not plain][-1]
    for (first, retrieve, search), group in groups.items():
        signals = list(dict.fromkeys((*(name for stack in group.values() for name in stack.signals), first)))
        table, done = experiment.table(protocol, signals, first, retrieve, search=search, deepest=deepest)
        scoring.add(done)
        if done.candidate_recall:
            report.candidate_recall.append(Recall(str(protocol), retrieve or (first,), done.candidate_recall))
        for label, stack in group.items():
            rankings[label], kept = _rank(table, stack, first, keep, experiment.qrels, protocol.cut)
            if keep:
                report.kept.setdefault(str(protocol), {})[label] = kept
            if keep and label == shown and not retrieve and protocol.kind == "retrieved":
                bare = stack.without_first_stage()
                report.by_depth = by_depth(table, stack, bare, first, experiment.qrels)
        if any(stack.cases for stack in group.values()):
            cases.update(zip(table.query_ids, table.cases))
    return {label: rankings[label] for label in chosen}


def ranked_ids(experiment: Experiment, stack: Stack, cut: int) -> dict[str, list[str]]:
    """Rank every query's candidates by a stack, those that its own retrievers find: query -> ``cut`` ids."""
    if stack.first_stage == SEARCH:
        template_of(stack)  # raises for one that cannot be made again
    protocol, report = Protocol("retrieved", stack.depth), EvaluationReport("")
    found = _rankings(experiment, {"": (stack, False)}, protocol, stack.depth, 0, report, {})
    return {query: ids[:cut] for query, (ids, _) in found[""].items()}


def _by_case(evaluation: Evaluation, cases: Mapping[str, str], protocol: Protocol) -> list[CaseRow]:
    """Means over the queries of each case; none where all are of one."""
    of = [cases.get(query, "") for query in evaluation.query_ids]
    rows = []
    for case in (case for case in CASES if case in of and len(set(of)) > 1):
        inside = np.array([one == case for one in of])
        for label, values in evaluation.values.items():
            means = {name: mean_of(found[inside]) for name, found in values.items()}
            means = {name: value for name, value in means.items() if not math.isnan(value)}
            rows.append(CaseRow(str(protocol), case, int(inside.sum()), label, means))
    return rows


def _without(
    runs: Mapping[str, Mapping[str, list[str]]], dropped: Iterable[tuple[str, str]]
) -> dict[str, dict[str, list[str]]]:
    """Take (query, document) pairs out of the rankings."""
    gone = set(dropped)
    return {
        label: {query: [d for d in ids if (query, d) not in gone] for query, ids in run.items()}
        for label, run in runs.items()
    }


def _measure(
    report: EvaluationReport,
    runs: Mapping[str, Mapping[str, list[str]]],
    qrels: Qrels,
    also_grade_one: bool,
    measures: Sequence[str],
    protocol: Protocol,
    chosen: Mapping[str, tuple[Stack, bool]],
    found: Mapping[str, list[Leak]],
    seed: int,
) -> None:
    evaluation = evaluate_runs(runs, qrels, measures)
    by = [name for name in report.compared if name != GRADE_ONE]
    comparisons = compare(evaluation, report.baseline, measures=by, seed=seed)
    means = {label: {name: evaluation.mean(label, name) for name in evaluation.measures} for label in runs}
    if also_grade_one:
        related = evaluate_runs(*grade_one_only(runs, qrels), ["nDCG"])
        report.grade_one_queries = len(related.query_ids)
        compared = compare(related, report.baseline, seed=seed)
        comparisons += [replace(c, measure=GRADE_ONE) for c in compared]
        for label in runs:
            means[label][GRADE_ONE] = related.mean(label, "nDCG")
    report.queries = len(evaluation.query_ids)
    report.none_relevant = len(evaluation.none_relevant)
    report.comparisons += [replace(c, protocol=str(protocol)) for c in comparisons]
    report.per_query[str(protocol)] = evaluation
    for label, (stack, rerank_only) in chosen.items():
        report.results.append(
            Row(
                stack=label,
                weights=dict(zip(stack.signals, stack.weight_values.tolist())),
                normalisation=stack.normalisation,
                first_stage=stack.first_stage,
                retrieve=stack.retrievers,
                protocol=str(protocol),
                rerank_only=rerank_only,
                measures=means[label],
                leaks=found[label],
                text=str(stack),
            )
        )


def _run_file(folder: Path, label: str, protocol: Protocol) -> Path:
    name = "".join(c if c.isalnum() or c in ",._-" else "_" for c in label)
    return folder / f"{name}.{str(protocol).replace(':', '-')}.run"


def _save(folder: Path, protocol: Protocol, rankings: Mapping[str, Ranked]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for label, found in rankings.items():
        saved.append(_run_file(folder, label, protocol))
        tag = "".join(c if c.isalnum() or c in ",._-*+" else "_" for c in label)
        run = {query: list(zip(ids, scores.tolist())) for query, (ids, scores) in found.items()}
        write_run(saved[-1], run, tag)
    return saved


def _overlap(workspace: Workspace, queries: Sequence[Query], qrels: Qrels) -> list[Overlap]:
    """Of the queries as they came, also where their categories are ignored."""
    wanted = {d for query in queries for d in qrels.relevant(query.id)}
    categories = {d.id: d.categories for d in workspace.engine.get(sorted(wanted)) if d is not None}
    return category_overlap(
        (grade, query.categories, categories[d])
        for query in queries
        for d, grade in qrels.relevant(query.id).items()
        if d in categories
    )
