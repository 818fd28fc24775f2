"""Tables of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rerank.common.results import Report
from rerank.documents.records import Qrels
from rerank.evaluation.judged import TOP, JudgedHits, count_judged, has_irrelevant
from rerank.evaluation.leakage import Leak
from rerank.evaluation.measures import Evaluation, evaluate_runs
from rerank.evaluation.significance import Comparison, compare, holm
from rerank.scoring.build_table import ScoringReport
from rerank.stack.ranking import Hit
from rerank.stack.stack import Stack

PAGE_MARK = 'name="generator" content="rerank"'
"""Text in every page. Other existing files are not replaced."""


@dataclass
class Row:
    """The means of a stack under one protocol.

    stack:        its label in the report.
    text:         its weights.
    leaks:        rankers and weights that were fitted on these queries.
    judged_at_10: how many of its hits at ranks 1 to 10 are judged.
    """

    stack: str
    protocol: str
    measures: dict[str, float]
    text: str = field(repr=False)
    weights: dict[str, float] = field(default_factory=dict)
    normalization: str = ""
    first_stage: str = ""
    retrieve: tuple[str, ...] = ()
    leaks: list[Leak] = field(default_factory=list)
    judged_at_10: JudgedHits = field(default_factory=JudgedHits)


@dataclass
class Recall:
    """The share of relevant documents per retriever, and of all retrievers (``together``)."""

    protocol: str
    retrieve: tuple[str, ...]
    recall: dict[str, float]


@dataclass
class EvaluationReport(Report):
    """The tables of one evaluation. The fields from ``per_query`` on are not in the JSON.

    queries, none_relevant: numbers of judged queries with and without a relevant document.
    compared:         the measures that compare the stacks.
    scoring:          protocol -> counts of omissions and of recomputed features.
    pairs:            number of relevant documents, counted for each query.
    seen_pairs:       how many of these were also relevant in training.
    irrelevant_judged: whether a judgment has grade 0.
    new_documents:    the tables without relevant documents of training queries, or None.
    runs:             files of the written runs.
    per_query:        protocol -> values.
    kept:             protocol -> stack -> query -> first hits, then other relevant documents.
    relevant:         query -> document -> grade.
    top:              number of first hits that are kept.
    stacks, leaks:    label -> stack, and its training on these queries.
    """

    baseline: str
    queries: int = 0
    none_relevant: int = 0
    compared: list[str] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    scoring: dict[str, ScoringReport] = field(default_factory=dict)
    candidate_recall: list[Recall] = field(default_factory=list)
    pairs: int = 0
    seen_pairs: int = 0
    irrelevant_judged: bool = False
    new_documents: EvaluationReport | None = None
    runs: list[Path] = field(default_factory=list)
    per_query: dict[str, Evaluation] = field(default_factory=dict, repr=False)
    kept_hits: dict[str, dict[str, dict[str, list[Hit]]]] = field(default_factory=dict, repr=False)
    relevant: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)
    top: int = field(default=0, repr=False)
    stacks: dict[str, Stack] = field(default_factory=dict, repr=False)
    leaks: dict[str, list[Leak]] = field(default_factory=dict, repr=False)

    def measure(
        self,
        protocol: str,
        runs: Mapping[str, Mapping[str, Sequence[str]]],
        qrels: Qrels,
        measures: Sequence[str],
        seed: int,
    ) -> Evaluation:
        """Measure rankings under one protocol, and compare them with the baseline."""
        evaluation = evaluate_runs(runs, qrels, measures)
        self.queries = len(evaluation.query_ids)
        self.none_relevant = len(evaluation.none_relevant)
        self.irrelevant_judged = has_irrelevant(qrels)
        self.per_query[protocol] = evaluation
        for label, run in runs.items():
            row = self._row(label, protocol, evaluation.means(label))
            row.judged_at_10 = count_judged(run, qrels)
            self.results.append(row)
        for comparison in compare(evaluation, self.baseline, measures=self.compared, seed=seed):
            self.comparisons.append(replace(comparison, protocol=protocol))
        return evaluation

    def _row(self, label: str, protocol: str, means: dict[str, float]) -> Row:
        leaks = self.leaks.get(label, [])
        stack = self.stacks.get(label)
        if stack is None:
            return Row(label, protocol, means, label, leaks=leaks)
        return Row(
            label,
            protocol,
            means,
            str(stack),
            stack.combiner.weights_by_signal(),
            stack.combiner.normalization,
            stack.first_stage,
            stack.retrievers,
            leaks,
        )

    def better(self, stack: str) -> bool:
        """Return whether a stack beats the baseline by the first compared measure, p < 0.05."""
        for comparison in self.comparisons:
            is_of_stack = comparison.stack == stack and comparison.measure == self.compared[0]
            is_gain = comparison.delta > 0 and comparison.p_holm < 0.05
            if is_of_stack and is_gain:
                return True
        return False

    def correct(self, *other_reports: EvaluationReport) -> None:
        """Correct the p-values of all tables of a page by Holm, also of new documents and other reports."""
        tables = [self, *other_reports]
        for report in (self, *other_reports):
            if report.new_documents is not None:
                tables.append(report.new_documents)

        comparisons = chain.from_iterable(table.comparisons for table in tables)
        corrected = iter(_correct_p_values(list(comparisons)))
        for table in tables:
            table.comparisons = list(islice(corrected, len(table.comparisons)))

    def comparisons_by(self, measure: str) -> dict[tuple[str, str], Comparison]:
        """Return (protocol, stack) -> the comparison with the baseline by a measure."""
        comparisons: dict[tuple[str, str], Comparison] = {}
        for comparison in self.comparisons:
            if comparison.measure == measure:
                comparisons[comparison.protocol, comparison.stack] = comparison
        return comparisons

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per result. The baseline has no differences."""
        rows: list[dict[str, Any]] = []
        for result in self.results:
            row: dict[str, Any] = {"protocol": result.protocol, "stack": result.stack, **result.measures}
            row[f"judged@{TOP}"] = result.judged_at_10.share
            row |= self._differences(result)
            rows.append(row)
        return rows

    def _differences(self, result: Row) -> dict[str, float | None]:
        """Return the columns that compare a result with the baseline. Those of the baseline are None."""
        columns: dict[str, float | None] = {}
        for position, measure in enumerate(self.compared):
            comparison = self.comparisons_by(measure).get((result.protocol, result.stack))
            suffix = f" {measure}" if position else ""
            columns[f"delta{suffix}"] = None if comparison is None else comparison.delta
            columns[f"p_holm{suffix}"] = None if comparison is None else comparison.p_holm
        return columns


def _correct_p_values(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p-values that Holm corrects for their number."""
    p_values = holm([comparison.p for comparison in comparisons])
    return [replace(comparison, p_holm=p) for comparison, p in zip(comparisons, p_values)]
