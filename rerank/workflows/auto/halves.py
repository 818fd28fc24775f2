"""Measure a stack on random halves of few judged queries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from rerank.common.values import items_at, only
from rerank.documents.records import Qrels
from rerank.evaluation.protocols import Protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.stack.normalize import PER_QUERY
from rerank.stack.stack import Stack
from rerank.tuning.measure import TuningQuery, judge, values_by_query
from rerank.tuning.score_table import ScoreTable
from rerank.tuning.tune import TuningResult, tune
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workspace.workspace import Workspace

DRAWS = 20
"""Random divisions into two halves."""


@dataclass(frozen=True)
class Halves:
    """Weights tuned on one half of the queries and measured on the other, in both directions.

    value, first_stage_value: means of all halves. spread: standard deviation of the gain of a division.
    """

    measure: str
    queries: int
    value: float
    first_stage_value: float
    spread: float

    def __str__(self) -> str:
        gain = self.value - self.first_stage_value
        return (
            f"{self.measure} {self.value:.4f}, {self.first_stage_value:.4f} of the first stage: {gain:+.4f}"
            f" (standard deviation {self.spread:.4f}), on {DRAWS} random halves of {self.queries} queries"
        )


@dataclass(frozen=True)
class _Tuner:
    """Tunes the signals of a stack on some queries, and measures the weights on other ones."""

    stack: Stack
    measure: str
    normalizations: tuple[str, ...]
    table: ScoreTable
    qrels: Qrels

    @property
    def rank_measure(self) -> RankMeasure:
        """The measure, up to the depth of the stack."""
        return RankMeasure.parse(self.measure, self.stack.depth)

    def tune(self, signals: Sequence[str], queries: Collection[str]) -> TuningResult:
        """Find the weights of the signals on these queries, by the same search as :func:`rerank.tune`."""
        qrels = Qrels(only(self.qrels, queries))
        return tune(
            self.table,
            qrels,
            first_stage=self.stack.first_stage,
            signals=signals,
            measure=self.measure,
            cut=self.stack.depth,
            normalizations=self.normalizations,
        )

    def values_after_tuning(
        self, tuned_queries: Sequence[TuningQuery], held_out: Sequence[TuningQuery]
    ) -> dict[str, float]:
        """Tune on some queries, and return the values of the other ones: query -> value."""
        result = self.tune(self.stack.signals, {query.query for query in tuned_queries})
        return values_by_query(held_out, result.combiner, self.rank_measure)


def tune_on_halves(
    workspace: Workspace,
    stack: Stack,
    measure: str,
    judged: JudgedQueries,
    normalizations: tuple[str, ...] = (),
) -> Halves:
    """Tune the signals of a stack on random halves of the queries, and measure on the other halves.

    The rankers are not trained again, so queries of their training must not be among these.

    normalizations: as for :func:`rerank.tune`.
    """
    experiment = Experiment.of_stacks(workspace, [stack], judged)
    table, _ = experiment.table(
        protocol=Protocol(stack.depth),
        signals=list(dict.fromkeys((*stack.signals, stack.first_stage))),
        first_stage=stack.first_stage,
        retrieve=stack.retrieve,
        search=stack.search,
    )
    scales_vary = stack.search is not None or workspace.engine.shared
    tried = normalizations or (PER_QUERY if scales_vary else ())
    tuner = _Tuner(stack, measure, tried, table, experiment.qrels)
    queries, _ = judge(table.select_signals(stack.signals), experiment.qrels, tuner.rank_measure)
    first_stage = tuner.tune((stack.first_stage,), experiment.qrels.keys())
    first_stage_value = fmean(first_stage.per_query.values())
    draw_values: list[float] = []
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(queries)).tolist()
        middle = len(order) // 2
        half = items_at(queries, order[:middle])
        other_half = items_at(queries, order[middle:])
        values = tuner.values_after_tuning(half, other_half) | tuner.values_after_tuning(other_half, half)
        draw_values.append(fmean(values.values()))
    return Halves(
        measure=measure,
        queries=len(queries),
        value=fmean(draw_values),
        first_stage_value=first_stage_value,
        spread=stdev(value - first_stage_value for value in draw_values),
    )
