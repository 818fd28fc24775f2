"""Tables of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rerank.evaluation.judged import TOP, JudgedHits, count_judged, has_irrelevant
from rerank.evaluation.leakage import Leak
from rerank.evaluation.measures import Evaluation, evaluate_runs
from rerank.evaluation.significance import Comparison, compare, holm
from rerank.records import Qrels
from rerank.results import Report
from rerank.scoring.build_table import ScoringReport
from rerank.stack.ranking import Hit
from rerank.stack.stack import Stack

PAGE_MARK = 'name="generator" content="rerank"'
"""Text in every page. Other existing files are not replaced."""


@dataclass
class Row:
    """Means of a stack under one protocol.

    stack: name; text: weights. leaks: rankers and weights fitted on these queries. judged_at_10: how many of
    its hits at ranks 1 to 10 are judged.
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
    """Share of relevant documents per retriever and ``together``."""

    protocol: str
    retrieve: tuple[str, ...]
    recall: dict[str, float]


@dataclass
class EvaluationReport(Report):
    """Tables of one evaluation. The fields from per_query on are not in the JSON.

    compared: measures. scoring: protocol -> counts. new_documents: tables without relevant documents of
    training queries, or None. pairs: number of relevant documents. seen_pairs: also relevant in training.
    runs: written files. per_query: protocol -> values. kept: protocol -> stack -> query -> first hits, then
    other relevant documents. relevant: query -> document -> grade. top: number of first hits. stacks, leaks:
    label -> stack, and its training on these queries. irrelevant_judged: whether a judgment has grade 0.
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
    kept: dict[str, dict[str, dict[str, list[Hit]]]] = field(default_factory=dict, repr=False)
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
        self.queries, self.none_relevant = len(evaluation.query_ids), len(evaluation.none_relevant)
        self.per_query[protocol] = evaluation
        self.irrelevant_judged = has_irrelevant(qrels)
        for label, run in runs.items():
            row = Row(label, protocol, evaluation.means(label), label, leaks=self.leaks.get(label, []))
            row.judged_at_10 = count_judged(run, qrels)
            if stack := self.stacks.get(label):
                row.text, row.weights = str(stack), stack.combiner.weights_by_signal()
                row.normalization = stack.combiner.normalization
                row.first_stage, row.retrieve = stack.first_stage, stack.retrievers
            self.results.append(row)
        comparisons = compare(evaluation, self.baseline, measures=self.compared, seed=seed)
        self.comparisons += [replace(one, protocol=protocol) for one in comparisons]
        return evaluation

    def better(self, stack: str) -> bool:
        """Whether a stack beats the baseline by the first compared measure, p < 0.05."""
        return any(
            (one.stack, one.measure) == (stack, self.compared[0]) and one.delta > 0 and one.p_holm < 0.05
            for one in self.comparisons
        )

    def correct(self, *others: EvaluationReport) -> None:
        """Correct the p-values of all tables of a page by Holm, also of new documents and other reports."""
        tables = [self, *others]
        for report in (self, *others):
            if report.new_documents is not None:
                tables.append(report.new_documents)
        p_values = [comparison.p for table in tables for comparison in table.comparisons]
        corrected = iter(holm(p_values))
        for table in tables:
            table.comparisons = [replace(one, p_holm=next(corrected)) for one in table.comparisons]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per result."""
        found = {(c.protocol, c.stack, c.measure): c for c in self.comparisons}
        rows = []
        for row in self.results:
            cells: dict[str, Any] = {"protocol": row.protocol, "stack": row.stack, **row.measures}
            cells[f"judged@{TOP}"] = row.judged_at_10.share
            for place, name in enumerate(self.compared):
                one, of = found.get((row.protocol, row.stack, name)), f" {name}" if place else ""
                cells[f"delta{of}"] = one.delta if one else None
                cells[f"p_holm{of}"] = one.p_holm if one else None
            rows.append(cells)
        return rows
