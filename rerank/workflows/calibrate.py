"""Fit the relevance models of a tuned stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import RerankError
from rerank.common.order import rank
from rerank.common.progress import SILENT
from rerank.documents.records import Qrels, Query
from rerank.evaluation.protocols import Protocol
from rerank.stack.linear import Linear
from rerank.stack.relevance import RelevanceModel, query_length
from rerank.tuning.calibrate import LIST_SIZE, CandidateList, fit_calibration
from rerank.tuning.score_table import ScoreRow, ScoreTable
from rerank.tuning.tune import TuningResult
from rerank.workflows.experiment import Experiment

Array = NDArray[np.float64]

_FOREIGN = 10
"""Best candidates of another query, which are examples of lists without an answer."""

_JUDGED = Protocol(None)


def relevance_model(
    experiment: Experiment,
    tables: Mapping[str, tuple[ScoreTable, Qrels]],
    tuned: Mapping[str, TuningResult],
    first_stage: str,
) -> RelevanceModel:
    """Return the relevance model of a stack, with the models of its cases.

    tables: case -> scores of the dev candidates and their judgments, the main one first.
    tuned: case -> result.
    """
    foreign = _foreign_scores(experiment, tables, tuned, first_stage)
    models: dict[str, RelevanceModel] = {}
    for case, (table, qrels) in tables.items():
        combiner = tuned[case].fitted
        selected = table.select_signals(combiner.signals)
        lists = _lists(selected, qrels, combiner, experiment.queries, foreign.get(case, {}))
        models[case] = RelevanceModel(combiner, fit_calibration(lists))
    main = next(iter(models))
    return replace(models.pop(main), cases=models)


def _lists(
    table: ScoreTable,
    qrels: Qrels,
    combiner: Linear,
    queries: Sequence[Query],
    foreign: Mapping[str, ScoreRow],
) -> list[CandidateList]:
    """Return the scores of the best candidates of each judged query, and of candidates without an answer.

    foreign: query id -> the scores of the candidates of another query.
    """
    lengths = {query.id: query_length(query) for query in queries}
    lists: list[CandidateList] = []
    for row in table.rows:
        if not row.ids or row.query not in qrels:
            continue
        scores, _, _ = combiner.combine(row.scores)
        best = rank(row.ids, scores)[:LIST_SIZE]
        relevant = qrels.relevant(row.query)
        is_relevant = np.array([row.ids[position] in relevant for position in best.tolist()], np.bool_)
        foreign_scores = _combine(combiner, foreign.get(row.query))
        lists.append(CandidateList(scores[best], is_relevant, foreign_scores, lengths[row.query]))
    return lists


def _combine(combiner: Linear, row: ScoreRow | None) -> Array:
    """Return the scores of the candidates of a row, (n,); (0,) without candidates."""
    if row is None or not row.ids:
        return np.zeros(0)
    scores, _, _ = combiner.combine(row.scores)
    return scores


def _foreign_scores(
    experiment: Experiment,
    tables: Mapping[str, tuple[ScoreTable, Qrels]],
    tuned: Mapping[str, TuningResult],
    first_stage: str,
) -> dict[str, dict[str, ScoreRow]]:
    """Return case -> query id -> scores of the best candidates of the next query.

    Empty if the user's own search or a filter finds the candidates: they cannot score other documents.
    """
    if experiment.searches or experiment.filters:
        return {}
    foreign = Qrels(_foreign_candidates(experiment, tables, tuned))
    if not foreign:
        return {}
    signals = next(iter(tuned.values())).fitted.signals
    rows: dict[str, dict[str, ScoreRow]] = {case: {} for case in tables}
    queries = [query for query in experiment.queries if query.id in foreign]
    with suppress(RerankError):  # without them, only the candidates of each query are used
        scored, _ = replace(experiment, queries=queries, qrels=foreign, progress=SILENT).table(
            protocol=_JUDGED,
            signals=list(dict.fromkeys((*signals, first_stage))),
            first_stage=first_stage,
            every_case=len(tables) > 1,
        )
        for row in scored.select_signals(signals).rows:
            for case in {"", row.case} & rows.keys():
                rows[case].setdefault(row.query, row)
    return rows


def _foreign_candidates(
    experiment: Experiment,
    tables: Mapping[str, tuple[ScoreTable, Qrels]],
    tuned: Mapping[str, TuningResult],
) -> Iterator[tuple[str, str, int]]:
    """Yield a query and a document among the best of the next query, as a judgment with grade 0."""
    for case, (table, _) in tables.items():
        combiner = tuned[case].fitted
        selected = table.select_signals(combiner.signals)
        for row, following in zip(selected.rows, (*selected.rows[1:], *selected.rows[:1])):
            if following.query == row.query:
                continue
            scores, _, _ = combiner.combine(following.scores)
            relevant = experiment.qrels.relevant(row.query)
            for position in rank(following.ids, scores)[:_FOREIGN].tolist():
                if following.ids[position] not in relevant:
                    yield row.query, following.ids[position], 0
