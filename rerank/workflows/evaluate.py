"""Evaluate stacks on judged queries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rerank.common.progress import SILENT, Progress
from rerank.documents.records import Qrels
from rerank.evaluation.leakage import TrainingRecord, leakage, without_training_documents
from rerank.evaluation.measures import MEASURES, check_measures
from rerank.evaluation.protocols import parse_protocol
from rerank.formats.inputs import Judgments, Queries, as_list
from rerank.reports.evaluation import EvaluationReport
from rerank.scoring.pipeline import template_of
from rerank.stack.signals import SEARCH
from rerank.stack.stack import Stack
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workflows.rankings import check_run_files, ids_of, rank_all, save_runs
from rerank.workspace.workspace import Workspace, WorkspaceOrPath


def evaluate(
    workspace: WorkspaceOrPath,
    stacks: str | Stack | Iterable[str | Stack],
    *,
    queries: Queries,
    qrels: Judgments,
    baseline: str | Stack | None = None,
    first_stage: str | None = None,
    retrieve: str | Sequence[str] = (),
    filter: str | Sequence[str] = (),
    protocols: str | Sequence[str] = ("retrieved:1000",),
    measures: str | Sequence[str] = (),
    save_run: str | os.PathLike[str] | None = None,
    keep: int = 0,
    ignore_categories: bool = False,
    infer: bool = True,
    seed: int = 0,
    progress: Progress = SILENT,
) -> EvaluationReport:
    """Rank judged queries by each stack, measure, and compare with the baseline.

    baseline: Default: ``first_stage``, or else the first stage of the first stack.
    first_stage: replaces the first stage of all stacks, also ``template:FILE`` or ``run:FILE``.
    retrieve: retrievers of all stacks except the baseline. filter: see :meth:`Workspace.search`.
    protocols: candidates: ``retrieved:N`` (N per retriever, also the cutoff), ``judged``, or a pool of all
        relevant documents and N others (``pool-random:N``, ``pool-tfidf:N``).
    measures: Default: ``MEASURES``; only the first is compared. Given measures are all compared (Holm).
    save_run: folder for TREC runs. keep: hits to keep for :func:`rerank.evaluation_page`.

    >>> report = evaluate(workspace, ["tfidf", "bm25"], queries=queries, qrels=qrels, measures=["RR"])
    >>> {row.stack: row.measures for row in report.results}
    {'tfidf': {'RR': 0.75}, 'bm25': {'RR': 1.0}}
    """
    workspace = Workspace.open(workspace)
    measures = as_list(measures)
    judged = JudgedQueries.of(
        queries, qrels, filter, ignore_categories=ignore_categories, infer=infer, seed=seed, progress=progress
    )
    parsed = [parse_protocol(text) for text in dict.fromkeys(as_list(protocols))]
    labeled = _stacks_by_label(workspace, as_list(stacks), baseline, first_stage, as_list(retrieve))
    if save_run is not None:  # before the long work
        check_run_files(Path(save_run), labeled, parsed, judged.qrels)
    experiment = Experiment.of_stacks(workspace, labeled.values(), judged)
    compared = list(check_measures(measures) if measures else MEASURES[:1])
    measures = measures or MEASURES
    report = EvaluationReport(baseline=next(iter(labeled)), compared=compared, top=keep, stacks=labeled)
    if keep:
        report.relevant = {query: dict(judged.qrels.relevant(query)) for query in judged.qrels}
    new_qrels, dropped = _find_leaks(report, experiment)
    for protocol in parsed:
        ranked = rank_all(experiment, labeled, protocol, report)
        report.measure(str(protocol), ids_of(ranked), experiment.qrels, measures, seed)
        if report.new_documents is not None:
            new_ranked = ids_of(ranked, dropped)
            report.new_documents.measure(str(protocol), new_ranked, new_qrels, measures, seed)
        if save_run is not None:
            report.runs += save_runs(Path(save_run), protocol, ranked)
    report.correct()
    return report


def _stacks_by_label(
    workspace: Workspace,
    stacks: Sequence[str | Stack],
    baseline: str | Stack | None,
    first_stage: str | None,
    retrieve: Sequence[str],
) -> dict[str, Stack]:
    """Return the stacks by their labels, the baseline first."""
    load = partial(_load_stack, workspace, first_stage=first_stage)
    if baseline is None:
        baseline = _default_baseline(workspace, stacks, first_stage)
    labeled = {_baseline_label(baseline): load(baseline)}
    for text in stacks:
        stack = load(text)
        if retrieve:
            stack = replace(stack, retrieve=tuple(retrieve))
        label = _label(text)
        if label in labeled and labeled[label] != stack:
            label = _longer_label(text, stack)
        labeled[label] = stack
    return labeled


def _baseline_label(baseline: str | Stack) -> str:
    """Return the label of a baseline. A search of the user alone has a long name, and is ``search``."""
    is_only_search = isinstance(baseline, Stack) and baseline.signals == (SEARCH,)
    return SEARCH if is_only_search else _label(baseline)


def _default_baseline(
    workspace: Workspace, stacks: Sequence[str | Stack], first_stage: str | None
) -> str | Stack:
    """Return the first stage that a user names, or the one of the first stack."""
    if first_stage is not None:
        return workspace.first_stage_of(first_stage)[0]
    first_stack = _load_stack(workspace, stacks[0] if stacks else workspace.first_stage, None)
    if first_stack.search is None:
        return first_stack.first_stage
    return replace(Stack.parse(SEARCH), search=first_stack.search)


def _longer_label(text: str | Stack, stack: Stack) -> str:
    """Return the label of a file with the name of another one, or of the baseline with other retrievers."""
    name = str(text)
    return name if _label(text) != name else f"{name} by {','.join(stack.retrievers)}"


def _load_stack(workspace: Workspace, text: str | Stack, first_stage: str | None) -> Stack:
    """Load a stack, with another first stage if one is named."""
    stack = workspace.stack(text, latest=True)
    if first_stage is not None:
        signal, search = workspace.first_stage_of(first_stage)
        if search is not None:
            return stack.with_template(search)
    if stack.first_stage == SEARCH:
        template_of(stack)  # raises if its file is missing
    return stack if first_stage is None else replace(stack, first_stage=signal, retrieve=())


def _label(stack: str | Stack) -> str:
    text = str(stack)
    return Path(text).stem if text.endswith(".json") else text


def _find_leaks(report: EvaluationReport, experiment: Experiment) -> tuple[Qrels, list[tuple[str, str]]]:
    """Return judgments without training documents, and these (query, document) pairs."""
    query_ids = [query.id for query in experiment.queries]
    all_records: list[TrainingRecord] = []
    for label, stack in report.stacks.items():
        records = experiment.workspace.training_records(stack)
        report.leaks[label] = leakage(records, label, query_ids)
        all_records += records.values()
    new_qrels, dropped = without_training_documents(all_records, experiment.qrels)
    report.pairs = sum(len(experiment.qrels.relevant(query)) for query in query_ids)
    report.seen_pairs = len(dropped)
    if 0 < report.seen_pairs < report.pairs:
        report.new_documents = EvaluationReport(
            report.baseline, compared=report.compared[:1], stacks=report.stacks, leaks=report.leaks
        )
    return new_qrels, dropped
