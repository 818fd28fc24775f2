"""Measure a stack on random halves of few judged queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from rerank.evaluation.protocols import Protocol
from rerank.evaluation.ranks import RankMeasure
from rerank.records import Qrels
from rerank.stack.normalize import PER_QUERY, TRIED
from rerank.stack.stack import Stack
from rerank.tuning.measure import judge, values_by_query
from rerank.tuning.tune import tune
from rerank.workflows.experiment import Experiment, JudgedQueries
from rerank.workspace import Workspace

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


def tune_on_halves(workspace: Workspace, stack: Stack, measure: str, qrels: Qrels, **judged: Any) -> Halves:
    """Tune the signals of a stack on random halves of the queries, and measure on the other halves.

    judged: other fields of :class:`JudgedQueries`. The rankers are not trained again, so queries of their
    training must not be among these.
    """
    experiment = Experiment.of_stacks(workspace, [stack], JudgedQueries.of(qrels=qrels, **judged))
    table, _ = experiment.table(
        protocol=Protocol(stack.depth),
        signals=list(dict.fromkeys((*stack.signals, stack.first_stage))),
        first_stage=stack.first_stage,
        retrieve=stack.retrieve,
        search=stack.search,
    )
    shared = stack.search is not None or workspace.engine.shared
    options: dict[str, Any] = {
        "first_stage": stack.first_stage,
        "signals": stack.signals,
        "measure": measure,
        "cut": stack.depth,
        "normalizations": PER_QUERY if shared else TRIED,
    }
    scored, _ = judge(
        table.select_signals(stack.signals), experiment.qrels, RankMeasure.parse(measure, stack.depth)
    )
    first = tune(table, experiment.qrels, **{**options, "signals": (stack.first_stage,)}).per_query
    gains = []
    values: list[Mapping[str, float]] = []
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(scored)).tolist()
        middle = len(order) // 2
        held_out: dict[str, float] = {}
        for tuned, measured in ((order[:middle], order[middle:]), (order[middle:], order[:middle])):
            ids = {scored[index].query for index in tuned}
            half = Qrels({query: experiment.qrels[query] for query in experiment.qrels if query in ids})
            combiner = tune(table, half, **options).combiner
            queries = [scored[index] for index in measured]
            held_out |= values_by_query(queries, combiner, RankMeasure.parse(measure, stack.depth))
        values.append(held_out)
        gains.append(fmean(held_out.values()) - fmean(first.values()))
    return Halves(
        measure=measure,
        queries=len(scored),
        value=fmean(fmean(draw_values.values()) for draw_values in values),
        first_stage_value=fmean(first.values()),
        spread=stdev(gains),
    )
