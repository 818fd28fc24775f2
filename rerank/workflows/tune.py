"""Tune stacks on judged queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from rerank.common.errors import InputError, UsageError
from rerank.common.files import check_output
from rerank.common.order import rank
from rerank.common.progress import SILENT, Progress, ignore_count
from rerank.common.results import Report, to_json_value
from rerank.common.values import items_at, items_in, items_not_in, with_keys
from rerank.documents.records import Qrels, SearchTemplate
from rerank.documents.text import count_of
from rerank.evaluation.judged import TOP, JudgedHits, count_judged, has_irrelevant
from rerank.evaluation.leakage import Leak, TrainingRecord, leakage
from rerank.evaluation.protocols import Protocol, parse_protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.formats.inputs import Judgments, Queries, as_list
from rerank.scoring.build_table import ScoringReport
from rerank.scoring.second_phase import rescore
from rerank.stack.file import MODEL, STACK, SecondPhase, parse_second_phase
from rerank.stack.linear import CASES, Linear
from rerank.stack.normalize import PER_QUERY, check_normalization
from rerank.stack.parse import parse_stack, retriever_depths
from rerank.stack.signals import DEFAULT_FIRST_STAGE, SEARCH, first_stages, ranker_names
from rerank.stack.stack import Stack
from rerank.tuning.score_table import ScoreTable
from rerank.tuning.tune import TuningResult, grid_limits
from rerank.tuning.tune import tune as tune_table
from rerank.workflows.calibrate import relevance_model
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

LEAST_QUERIES = 5
"""With fewer judged queries, weights without a gain are not written."""

ScoredJudgments = tuple[ScoreTable, Qrels]
"""Scores of candidates, and the judgments of the same queries."""


@dataclass
class TuneReport(Report):
    """A tuned stack.

    cases: case -> result, the main weights first; "" for all queries. dropped: signal without weight -> its
    value. protocol: candidates. leaks: rankers trained on these queries. second_phase: its weights, if any.
    judged_at_10: signal -> how many of the ten best candidates by its score are judged; empty if only
    judged documents are ranked. irrelevant_judged: whether a judgment has grade 0.
    """

    stack: Stack
    cases: Mapping[str, TuningResult]
    dropped: Mapping[str, float]
    leaks: list[Leak]
    path: Path
    scoring: ScoringReport
    protocol: str
    second_phase: TuningResult | None = None
    judged_at_10: Mapping[str, JudgedHits] = field(default_factory=dict)
    irrelevant_judged: bool = False

    @property
    def tuned(self) -> TuningResult:
        """The result of the main weights, which are used for queries of all cases without own weights."""
        return next(iter(self.cases.values()))

    def to_json(self) -> dict[str, Any]:
        """Return the stack file with details of the tuning."""
        details = {
            "file": self.path,
            "leaks": self.leaks,
            "scoring": self.scoring,
            "judged_at_10": self.judged_at_10,
        }
        return {**self.stack.to_json(), **to_json_value(details)}

    def rows(self) -> list[dict[str, Any]]:
        """Return for each signal its weight, its own value, and the value of the stack without it."""
        rows = [
            {
                "signal": name,
                "weight": weight,
                "single_signal": self.tuned.single_signal[name],
                "ablation": self.tuned.ablation.get(name),
            }
            for name, weight in self.tuned.combiner.weights_by_signal().items()
        ]
        for name, value in self.dropped.items():
            rows.append({"signal": name, "weight": 0.0, "single_signal": value, "ablation": self.tuned.value})
        if self.judged_at_10:
            for row in rows:
                row[f"judged@{TOP}"] = self.judged_at_10[str(row["signal"])].share
        return rows


def tune(
    workspace: WorkspaceOrPath,
    stack: str,
    *,
    queries: Queries,
    qrels: Judgments,
    measure: str = "nDCG@10",
    first_stage: str | None = None,
    retrieve: str | Sequence[str] = (),
    filter: str | Sequence[str] = (),
    depth: int = 1000,
    protocol: str | None = None,
    normalizations: str | Sequence[str] = (),
    least_share: float = 0.0,
    out: str | os.PathLike[str] | None = None,
    ignore_categories: bool = False,
    infer: bool = True,
    second_phase: str | None = None,
    top: int | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> TuneReport:
    """Find the weights and normalization of a stack on judged queries and write the stack file.

    first_stage: also ``template:FILE`` or ``run:FILE``. Without a weight, it only retrieves.
    measure: ``nDCG``, ``RR`` or ``AP``, with or without a cutoff.
    retrieve: retrievers, to ``depth`` or their own depth (``s2net:200``). Default: the first stage.
    protocol: candidates, as for :func:`evaluate`. Default: ``retrieved:DEPTH``.
    filter: see :meth:`Workspace.search`.
    second_phase: ``cross-encoder:FOLDER`` orders the best ``top`` documents again. Default: 20.
    normalizations: the ones to try. Default: min-max, z-score, fitted, and ``none`` for 200 queries or more.
        If other clients search the index, the scales of these two vary by query, and ``rank`` replaces them.
    least_share: smallest share of the weight for the first stage, for example 0.3 with judgments from clicks.

    Raises UsageError for a stack that cannot be tuned or an unknown measure, InputError if no judged query
    has a text and a relevant document, or if few queries give no useful weights.

    >>> report = tune(workspace, "tfidf,bm25", queries=queries, qrels=qrels)
    >>> report.tuned.value, str(report.stack)
    (1.0, 'bm25*1.00')
    >>> workspace.stack("tfidf,bm25") == report.stack
    True
    """
    workspace = Workspace.open(workspace)
    retrieve = as_list(retrieve)
    normalizations = tuple(as_list(normalizations))
    signals = _signals(stack, allow_single=second_phase is not None)
    _check_options(measure, normalizations, out)
    phase = None if second_phase is None else parse_second_phase(second_phase, top)
    parsed_protocol = Protocol(depth) if protocol is None else parse_protocol(protocol)
    judged = JudgedQueries.of(
        queries, qrels, filter, ignore_categories=ignore_categories, infer=infer, seed=seed, progress=progress
    )
    first, search = _first_stage(workspace, signals, retrieve, first_stage)
    grid_limits(signals, first, least_share)
    equal = Linear(signals, (1.0,) * len(signals))
    start = Stack(equal, first, parsed_protocol.cut or depth, tuple(retrieve), search=search)
    tuner = _StackTuner(workspace, start, judged, parsed_protocol)
    tuner.tune(measure, normalizations, least_share)
    return tuner.report(phase, out)


def _check_options(measure: str, normalizations: Sequence[str], out: str | os.PathLike[str] | None) -> None:
    """Raise an error before the long work."""
    if out is not None:
        check_output(out, '"rerank_stack"')
    RankMeasure.parse(measure)
    for normalization in normalizations:
        check_normalization(normalization)


def _signals(stack: str, *, allow_single: bool) -> tuple[str, ...]:
    """Parse the signals. allow_single: accept one signal, whose weight with the second phase is tuned."""
    signals, weights = parse_stack(stack)
    if weights is not None:
        raise UsageError(f"{stack!r} has weights already; name only the signals: {','.join(signals)}")
    if len(signals) == 1 and not allow_single:
        second = "text" if first_stages(signals) else DEFAULT_FIRST_STAGE
        two_signals = (second, *signals)
        example = ",".join((*first_stages(two_signals), *ranker_names(two_signals)))
        raise UsageError(
            f"{stack!r} is one signal, so there is nothing to tune; name two or more: --stack {example}"
        )
    return signals


def _first_stage(
    workspace: Workspace, signals: Sequence[str], retrieve: Sequence[str], first_stage: str | None
) -> tuple[str, SearchTemplate | None]:
    """Return the first stage and the user's search."""
    named_stages = first_stages((*retriever_depths(retrieve), *signals))
    # A first stage that is a signal comes before one that only retrieves.
    among_signals = items_in(named_stages, signals)
    first = next(iter(among_signals or named_stages), SEARCH)
    if first_stage is not None or first == SEARCH:
        return workspace.first_stage_of(first_stage)
    return first, None


class _StackTuner:
    """Finds the weights of each category case, and leaves out the signals that get no weight.

    start: the stack with equal weights.
    """

    def __init__(self, workspace: Workspace, start: Stack, judged: JudgedQueries, protocol: Protocol) -> None:
        self.workspace = workspace
        self.protocol = protocol
        self.progress = judged.progress
        self.dropped: dict[str, float] = {}
        self.experiment = Experiment.of_stacks(workspace, [start], judged)
        self.start = replace(start, search=next(iter(self.experiment.searches), None))
        self.ids = [query.id for query in self.experiment.queries]

    def tune(self, measure: str, normalizations: tuple[str, ...], least_share: float) -> None:
        """Score the candidates once, and search weights until each signal has one.

        Sets ``signals``, the signals with weight, and by case ``tables``, their scores, and ``tuned``, their
        weights.
        """
        start = self.start
        scales_vary = start.search is not None or self.workspace.engine.shared
        self.measure = measure
        self.normalizations = normalizations or (PER_QUERY if scales_vary else ())
        self.least_share = least_share
        scorer = self.experiment.pipeline.scorer(start.signals, start.first_stage)
        category_signals = {signal.name for signal in scorer.signals if signal.uses_categories}
        table, self.scoring = self.experiment.table(
            protocol=self.protocol,
            signals=list(dict.fromkeys((*start.signals, start.first_stage))),
            first_stage=start.first_stage,
            retrieve=start.retrieve,
            search=start.search,
            every_case=bool(category_signals),
        )
        self.signals = start.signals
        while True:
            reads_categories = not category_signals.isdisjoint(self.signals)
            self.tables = _cases(table, self.experiment.qrels, reads_categories)
            self.tuned: dict[str, TuningResult] = {}
            with self.progress.step("weights", unit="query") as advance:
                for case, scored in self.tables.items():
                    self.tuned[case] = self._search_weights(
                        scored,
                        self.signals,
                        first_stage=start.first_stage,
                        least_share=self.least_share,
                        progress=advance,
                    )
            weighted = _signals_with_weight(self.tuned.values())
            if weighted.issuperset(self.signals):
                return
            single_signal = next(iter(self.tuned.values())).single_signal
            self.dropped |= with_keys(single_signal, items_not_in(self.signals, weighted))
            self.signals = tuple(items_in(self.signals, weighted))

    def _search_weights(
        self,
        scored: ScoredJudgments,
        signals: Sequence[str],
        *,
        first_stage: str,
        least_share: float = 0.0,
        progress: Callable[[int], object] = ignore_count,
    ) -> TuningResult:
        table, qrels = scored
        return tune_table(
            table,
            qrels,
            first_stage=first_stage,
            signals=signals,
            measure=self.measure,
            cut=self.protocol.cut,
            normalizations=self.normalizations,
            least_share=least_share,
            progress=progress,
        )

    def report(self, phase: SecondPhase | None, out: str | os.PathLike[str] | None) -> TuneReport:
        """Tune the second phase, and save the stack.

        Raises InputError if few queries give weights that are worse than the first stage, or find nothing.
        """
        tuned = next(iter(self.tuned.values()))
        is_worse = tuned.value == 0 or tuned.value < tuned.first_stage_value
        if tuned.queries < LEAST_QUERIES and is_worse:
            raise InputError(
                f"{count_of(tuned.queries, 'judged query')}: the best weights have {tuned.measure}"
                f" {tuned.value:.4f}, {self.start.first_stage} {tuned.first_stage_value:.4f}; nothing is"
                f" written; judge more queries, {LEAST_QUERIES} or more"
            )
        stack = self.stack()
        second = None
        if phase is not None:
            stack, second = self.second_phase(stack, phase)
        path = self.workspace.stack_path(stack.tuned_for) if out is None else Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.save(path, follow=out is not None)
        better = stack.tuned["value"] >= stack.tuned["first_stage_value"]
        is_first_stack = out is None and not self.workspace.releases.history
        if is_first_stack and better:
            self.workspace.use_stack(stack)
        return TuneReport(
            stack=stack,
            cases=self.tuned,
            dropped=self.dropped,
            leaks=leakage(self.workspace.training_records(stack), "", self.ids, ["trained"]),
            path=path,
            scoring=self.scoring,
            protocol=str(self.protocol),
            second_phase=second,
            judged_at_10=self._count_judged(),
            irrelevant_judged=has_irrelevant(self.experiment.qrels),
        )

    def _count_judged(self) -> dict[str, JudgedHits]:
        """Return signal -> how many of the ten best candidates by its score are judged."""
        if self.protocol.cut is None:
            return {}
        table, qrels = next(iter(self.tables.values()))
        counts: dict[str, JudgedHits] = {}
        for signal in self.start.signals:
            column = table.signals.index(signal)
            run: dict[str, list[str]] = {}
            for row in table.rows:
                best = rank(row.ids, row.scores[:, column])[:TOP]
                run[row.query] = items_at(row.ids, best.tolist())
            counts[signal] = count_judged(run, qrels)
        return counts

    def stack(self) -> Stack:
        """Return the stack with the weights of all cases, its relevance model and the ranker versions."""
        combiners = {case: result.combiner for case, result in self.tuned.items()}
        main = combiners.pop(next(iter(combiners)))
        stack = replace(self.start, combiner=replace(main, cases=combiners))
        rankers = self.experiment.pipeline.rankers
        return replace(
            stack,
            versions={name: rankers[name].version for name in stack.rankers},
            relevance=relevance_model(self.experiment, self.tables, self.tuned, stack.first_stage),
            tuned=self._record(),
        )

    def second_phase(self, stack: Stack, second_phase: SecondPhase) -> tuple[Stack, TuningResult]:
        """Tune the weights of a second phase. Without weight, it is left out of the stack."""
        main, qrels = next(iter(self.tables.values()))
        table = main.select_signals(self.signals)
        queries = {query.id: query for query in self.experiment.queries}
        get_documents = self.experiment.pipeline.engine.get
        rows: list[tuple[str, list[str], Any]] = []
        for row in self.progress.over(table.rows, "second phase", len(table.rows), "query"):
            ranking = stack.rank(row.ids, row.scores)
            rescored = rescore(ranking, queries[row.query], second_phase, get_documents).second_phase
            raw = () if rescored is None else rescored.raw
            rows.append((row.query, ranking.ids[: second_phase.top], raw))
        scores = ScoreTable.build((STACK, MODEL), rows)
        tuned = self._search_weights((scores, qrels), scores.signals, first_stage=STACK)
        if not tuned.combiner.weights_by_signal()[MODEL]:
            return stack, tuned
        weights = {"stack": str(tuned.combiner), "normalization": tuned.combiner.normalization}
        version = second_phase.encoder().version
        second_phase = msgspec.structs.replace(second_phase, version=version, **weights)
        values = {"value": round(tuned.value, 6), "first_stage_value": round(tuned.first_stage_value, 6)}
        return replace(stack, second_phase=second_phase, tuned={**stack.tuned, "second_phase": values}), tuned

    def _record(self) -> dict[str, Any]:
        records = {case: result.record() for case, result in self.tuned.items()}
        main = next(iter(records))
        recall = self.scoring.candidate_recall
        record = {
            **records[main],
            "signals": list(self.start.signals),
            "protocol": str(self.protocol),
            "candidate_recall": {name: round(share, 6) for name, share in recall.items()},
            "seen": TrainingRecord.from_queries(self.experiment.qrels, tuned=self.ids).to_json(),
        }
        if main:
            record["cases"] = {case: _main_values(case_record) for case, case_record in records.items()}
        if self.least_share:
            record["least_share"] = self.least_share
        if self.dropped:
            record["dropped"] = {name: round(value, 6) for name, value in self.dropped.items()}
        if self.experiment.filters:
            record["filters"] = [str(condition) for condition in self.experiment.filters]
        return record


def _main_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of queries of a case, and the values of its weights and of the first stage."""
    return with_keys(record, ("queries", "value", "first_stage_value"))


def _signals_with_weight(results: Iterable[TuningResult]) -> set[str]:
    """Return the signals that have a weight in one of the cases."""
    weighted: set[str] = set()
    for result in results:
        for name, weight in result.combiner.weights_by_signal().items():
            if weight:
                weighted.add(name)
    return weighted


def _cases(table: ScoreTable, qrels: Qrels, reads_categories: bool) -> dict[str, ScoredJudgments]:
    """Return the case -> scores and judgments to tune; one case "" if no signal reads categories."""
    if not reads_categories:
        return {"": (_one_row_per_query(table), qrels)}
    cases: dict[str, ScoredJudgments] = {}
    for case in CASES:
        case_table = table.rows_of_case(case)
        case_qrels = Qrels({row.query: qrels[row.query] for row in case_table.rows})
        if _has_relevant(case_qrels):
            cases[case] = case_table, case_qrels
    return cases or {"": (table, qrels)}


def _one_row_per_query(table: ScoreTable) -> ScoreTable:
    """Return the scores without categories of queries that have a row for each case."""
    queries = {row.query for row in table.rows}
    return table if len(queries) == len(table.rows) else table.rows_of_case("none")


def _has_relevant(qrels: Qrels) -> bool:
    return any(qrels.relevant(query) for query in qrels)
