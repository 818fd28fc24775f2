"""Rankings of judged queries, and run files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.files import check_output
from rerank.common.order import rank
from rerank.common.values import items_at
from rerank.documents.records import SearchTemplate
from rerank.evaluation.protocols import Protocol
from rerank.formats import check_run_ids, write_run
from rerank.reports.evaluation import EvaluationReport, Recall
from rerank.scoring.build_table import ScoringReport
from rerank.scoring.pipeline import template_of
from rerank.scoring.second_phase import rescore
from rerank.stack.ranking import Hit, Ranking
from rerank.stack.signals import SEARCH
from rerank.stack.stack import Stack
from rerank.tuning.score_table import ScoreRow, ScoreTable
from rerank.workflows.experiment import Experiment

Ranked = dict[str, tuple[list[str], NDArray[np.float64]]]
"""Query -> document ids and their scores, best first."""


def ids_of(
    rankings: Mapping[str, Ranked], without: Iterable[tuple[str, str]] = ()
) -> dict[str, dict[str, list[str]]]:
    """Return stack -> query -> ids, without these (query, document) pairs."""
    excluded = set(without)
    runs: dict[str, dict[str, list[str]]] = {label: {} for label in rankings}
    for label, ranked in rankings.items():
        for query, (ids, _) in ranked.items():
            runs[label][query] = [id for id in ids if (query, id) not in excluded]
    return runs


class _Retrieval(NamedTuple):
    """What decides the candidates of a query, so that stacks with the same values share them."""

    first_stage: str
    retrieve: tuple[str, ...]
    search: SearchTemplate | None


def _labels_by_retrieval(stacks: Mapping[str, Stack], protocol: Protocol) -> dict[_Retrieval, list[str]]:
    """Return the labels of the stacks that rank the same candidates under a protocol."""
    labels: dict[_Retrieval, list[str]] = {}
    for label, stack in stacks.items():
        retrieve = stack.retrieve if protocol.cut is not None else ()
        labels.setdefault(_Retrieval(stack.first_stage, retrieve, stack.search), []).append(label)
    return labels


def rank_all(
    experiment: Experiment, stacks: Mapping[str, Stack], protocol: Protocol, report: EvaluationReport
) -> dict[str, Ranked]:
    """Rank the candidates of all queries: stack -> rankings. The report receives counts, recall and hits."""
    scoring = ScoringReport(unknown_queries=experiment.unknown_queries)
    report.scoring[str(protocol)] = scoring
    ranked: dict[str, Ranked] = {}
    for (first_stage, retrieve, search), labels in _labels_by_retrieval(stacks, protocol).items():
        signals = chain.from_iterable(stacks[label].signals for label in labels)
        table, counts = experiment.table(
            signals=list(dict.fromkeys((*signals, first_stage))),
            protocol=protocol,
            first_stage=first_stage,
            retrieve=retrieve,
            search=search,
        )
        scoring.add(counts)
        if counts.candidate_recall:
            recall = Recall(str(protocol), retrieve or (first_stage,), counts.candidate_recall)
            report.candidate_recall.append(recall)
        for label in labels:
            ranked[label], hits = _rank(experiment, table, stacks[label], report.top, protocol.cut)
            if report.top:
                report.kept_hits.setdefault(str(protocol), {})[label] = hits
    return {label: ranked[label] for label in stacks}


def ranked_ids(experiment: Experiment, stack: Stack, cut: int) -> dict[str, list[str]]:
    """Rank with the stack's own retrievers: query -> ``cut`` ids."""
    if stack.first_stage == SEARCH:
        template_of(stack)  # raises if its file is missing
    ranked = rank_all(experiment, {"": stack}, Protocol(stack.depth), EvaluationReport(""))
    return {query: ids[:cut] for query, (ids, _) in ranked[""].items()}


def _rank(
    experiment: Experiment, table: ScoreTable, stack: Stack, keep: int, cut: int | None
) -> tuple[Ranked, dict[str, list[Hit]]]:
    """Return the rankings of a stack, and for each query the first hits and all relevant ones.

    keep: number of the first hits; 0: no hit is returned. cut: length of a ranking; None: all candidates.
    """
    queries = {query.id: query for query in experiment.queries}
    ranked: Ranked = {}
    hits: dict[str, list[Hit]] = {}
    for row in table.rows:
        ranking = _rank_row(table, row, stack, by_first_stage=bool(keep))
        if stack.second_phase is not None:
            get_documents = experiment.pipeline.engine.get
            ranking = rescore(ranking, queries[row.query], stack.second_phase, get_documents)
        ranked[row.query] = ranking.ids[:cut], ranking.scores[:cut]
        if keep:
            hits[row.query] = _kept_hits(ranking, keep, experiment.qrels.relevant(row.query))
    return ranked, hits


def _kept_hits(ranking: Ranking, keep: int, relevant: Mapping[str, int]) -> list[Hit]:
    """Return the first hits, and the relevant ones after them."""
    hits: list[Hit] = []
    for position, id in enumerate(ranking.ids):
        if position < keep or id in relevant:
            hits.append(ranking[position])
    return hits


def _rank_row(table: ScoreTable, row: ScoreRow, stack: Stack, *, by_first_stage: bool) -> Ranking:
    """Rank the candidates of a query.

    by_first_stage: order them first by the first stage, so that hits have their ranks in it.
    """
    ids = row.ids
    scores = row.scores
    if by_first_stage:
        order = rank(ids, scores[:, table.signals.index(stack.first_stage)])
        ids = tuple(items_at(ids, order.tolist()))
        scores = scores[order]
    columns = [table.signals.index(name) for name in stack.signals]
    return stack.for_case(row.case).rank(ids, scores[:, columns])


def check_run_files(
    folder: Path, labels: Iterable[str], protocols: Iterable[Protocol], queries: Iterable[str]
) -> None:
    """Raise UsageError or InputError for runs that cannot be written."""
    check_run_ids(queries)
    labels = list(labels)
    for protocol in protocols:
        for file in _run_files(folder, labels, protocol).values():
            check_output(file, " Q0 ")


def save_runs(folder: Path, protocol: Protocol, rankings: Mapping[str, Ranked]) -> list[Path]:
    """Write a TREC run per stack. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = _run_files(folder, rankings, protocol)
    for label, ranked in rankings.items():
        tag = _replace_signs(label, except_for=",._-*+")
        run = {query: list(zip(ids, scores.tolist())) for query, (ids, scores) in ranked.items()}
        write_run(files[label], run, tag)
    return list(files.values())


def _run_files(folder: Path, labels: Iterable[str], protocol: Protocol) -> dict[str, Path]:
    """Return label -> file. Labels that differ only in replaced characters get different numbers."""
    ending = f"{str(protocol).replace(':', '-')}.run"
    files: dict[str, Path] = {}
    for label in labels:
        name = _replace_signs(label, except_for=",._-")
        file = folder / f"{name}.{ending}"
        number = 1
        while file in files.values():
            number += 1
            file = folder / f"{name}-{number}.{ending}"
        files[label] = file
    return files


def _replace_signs(label: str, *, except_for: str) -> str:
    """Replace all characters by ``_``, except letters, digits and some signs."""
    replaced = {sign for sign in label if not sign.isalnum()} - {*except_for}
    return label.translate(dict.fromkeys(map(ord, replaced), "_"))
