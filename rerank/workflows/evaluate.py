"""Evaluate stacks on judged queries."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rerank.combiners.linear import CASES
from rerank.evaluation.leakage import leakage, without_training_documents
from rerank.evaluation.measures import (
    MEASURES,
    Evaluation,
    RankingAUC,
    check_measures,
    evaluate_runs,
    mean_of,
)
from rerank.evaluation.protocols import Protocol, parse_protocol
from rerank.inputs import Judgments, Queries, as_list
from rerank.progress import Progress
from rerank.records import Qrels
from rerank.report_page.tables import CaseRow, Entry, EvaluationReport, Row
from rerank.search.pipeline import template_of
from rerank.stack.parse import retriever_depths
from rerank.stack.signals import SEARCH
from rerank.stack.stack import Stack
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workflows.rankings import Rankings, check_run_files, rank_all, save_runs
from rerank.workspace import Workspace


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
    save_run: str | os.PathLike[str] | None = None,
    keep: int = 0,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Rank judged queries by each stack, measure, and compare with the baseline.

    baseline: Default: ``first_stage``, or the first stage of the workspace.
    first_stage: replaces the first stage of all stacks, also ``template:FILE``, ``stored:ID`` or
        ``run:FILE``.
    retrieve: retrievers of all stacks except the baseline. filter: see :meth:`Workspace.search`.
    protocols: candidates: ``retrieved:N`` (N per retriever, also the cutoff), ``pool-random:N``,
        ``pool-first:N`` or ``judged``.
    measures: Default: ``MEASURES``; only the first is compared. Given measures are all compared (Holm).
    save_run: folder for TREC runs. keep: hits to keep for :func:`rerank.evaluation_page`.

    >>> report = evaluate(workspace, ["bm25"], queries=queries, qrels=qrels, measures=["RR"])
    >>> {row.stack: row.measures for row in report.results}
    {'tfidf': {'RR': 0.75}, 'bm25': {'RR': 1.0}}
    """
    stacks, measures, protocols = as_list(stacks), as_list(measures), as_list(protocols)
    shared: dict[str, Any] = {"infer": infer, "seed": seed, "progress": progress}
    judged = JudgedQueries.of(queries, qrels, filter, ignore_categories=ignore_categories, **shared)
    queries, qrels, retrieve = judged.queries, judged.qrels, as_list(retrieve)
    parsed = [parse_protocol(text) for text in dict.fromkeys(protocols)]
    entries = _entries(workspace, stacks, baseline, first_stage, retrieve)
    if save_run is not None:  # before the long work
        check_run_files(Path(save_run), [entry.label for entry in entries], parsed, qrels)
    experiment = _experiment(workspace, entries, judged)
    compared = list(check_measures(measures) if measures else MEASURES[:1])
    report = EvaluationReport(baseline=entries[0].label, compared=compared, top=keep)
    report.relevant = {id: {d: qrels[id][d] for d in qrels.relevant(id)} for id in qrels} if keep else {}
    report.stacks = {entry.label: entry.stack for entry in entries}
    tables = _Tables(experiment, entries, measures or MEASURES, report)
    deepest = max((one.count for one in parsed if one.kind == "retrieved"), default=0)
    for protocol in parsed:
        rankings = tables.add(protocol, deepest)
        if save_run is not None:
            report.runs += save_runs(Path(save_run), protocol, rankings.ranked)
    report.correct()
    return report


def _entries(
    workspace: Workspace,
    stacks: Iterable[str | Stack],
    baseline: str | Stack | None,
    first_stage: str | None,
    retrieve: Sequence[str],
) -> list[Entry]:
    """Return the stacks, the baseline first."""
    first, search = (None, None) if first_stage is None else workspace.first_stage_of(first_stage)

    def find(text: str | Stack) -> Stack:
        stack = text if isinstance(text, Stack) else workspace.stack(text, latest=True)
        if search is not None:
            return stack.with_template(search)
        if stack.first_stage == SEARCH:
            template_of(stack)
        return stack if first is None else replace(stack, first_stage=first, retrieve=())

    baseline = baseline or first or workspace.first_stage
    entries = {_label(baseline): Entry(_label(baseline), find(baseline))}
    for text in stacks:
        stack, label = find(text), _label(text)
        if retrieve:
            stack = replace(stack, retrieve=tuple(retrieve))
        if label in entries and entries[label].stack != stack:
            # Files with the same name, or the baseline with other retrievers.
            label = str(text) if label != str(text) else f"{text} by {','.join(stack.retrievers)}"
        entries[label] = Entry(label, stack)
    return list(entries.values())


def _experiment(workspace: Workspace, entries: Sequence[Entry], judged: JudgedQueries) -> Experiment:
    stacks = [entry.stack for entry in entries]
    signals = dict.fromkeys(name for stack in stacks for name in stack.signals)
    retrievers = {name for stack in stacks for name in retriever_depths(stack.retrieve)}
    searches = dict.fromkeys(stack.search for stack in stacks if stack.search is not None)
    return Experiment.prepare(
        workspace, list(signals), judged, retrieve=sorted(retrievers - {SEARCH}), searches=list(searches)
    )


def _label(stack: str | Stack) -> str:
    text = str(stack)
    return Path(text).stem if text.endswith(".json") else text


class _Tables:
    def __init__(
        self,
        experiment: Experiment,
        entries: Sequence[Entry],
        measures: Sequence[str],
        report: EvaluationReport,
    ) -> None:
        self.experiment, self.measures, self.report = experiment, measures, report
        workspace, qrels = experiment.workspace, experiment.qrels
        queries = [query.id for query in experiment.queries]
        records = {entry.label: workspace.training_records(entry.stack) for entry in entries}
        self.entries = [
            replace(entry, leaks=leakage(records[entry.label], entry.label, queries)) for entry in entries
        ]
        every = (record for of_stack in records.values() for record in of_stack.values())
        self.new_qrels, self.dropped = without_training_documents(every, qrels)
        report.pairs = sum(len(qrels.relevant(query)) for query in queries)
        report.seen_pairs = len(self.dropped)
        # Dropped documents have grade 0, which AUC would count as judged irrelevant.
        self.ranked = [name for name in measures if RankingAUC.parse(name) is None]
        if self.ranked and 0 < report.seen_pairs < report.pairs:
            compared = list(check_measures(self.ranked[:1]))
            report.new_documents = EvaluationReport(baseline=report.baseline, compared=compared)

    def add(self, protocol: Protocol, deepest: int) -> Rankings:
        report, keep = self.report, self.report.top
        rankings = rank_all(
            self.experiment,
            {entry.label: entry.stack for entry in self.entries},
            protocol,
            deepest=deepest,
            keep=keep,
        )
        report.scoring[str(protocol)] = rankings.scoring
        report.candidate_recall += rankings.recall
        if keep:
            report.kept[str(protocol)] = rankings.kept
            report.query_cases = report.query_cases or rankings.cases
        evaluation = self._measure(report, rankings.ids(), self.experiment.qrels, self.measures, protocol)
        if any(entry.stack.combiner.cases for entry in self.entries):
            report.cases += _by_case(evaluation, rankings.cases, protocol)
        if report.new_documents is not None:
            ids = rankings.ids(without=self.dropped)
            self._measure(report.new_documents, ids, self.new_qrels, self.ranked, protocol)
        return rankings

    def _measure(
        self,
        report: EvaluationReport,
        runs: Mapping[str, Mapping[str, list[str]]],
        qrels: Qrels,
        measures: Sequence[str],
        protocol: Protocol,
    ) -> Evaluation:
        evaluation = evaluate_runs(runs, qrels, measures)
        rows = [Row.of(entry, str(protocol), evaluation) for entry in self.entries]
        report.add(str(protocol), evaluation, rows, self.experiment.seed)
        return evaluation


def _by_case(evaluation: Evaluation, cases: Mapping[str, str], protocol: Protocol) -> list[CaseRow]:
    of = [cases.get(query, "") for query in evaluation.query_ids]
    rows = []
    for case in (case for case in CASES if case in of and len(set(of)) > 1):
        inside = np.array([one == case for one in of])
        for label, values in evaluation.values.items():
            means = {name: mean_of(of_all[inside]) for name, of_all in values.items()}
            means = {name: value for name, value in means.items() if not math.isnan(value)}
            rows.append(CaseRow(str(protocol), case, int(inside.sum()), label, means))
    return rows
