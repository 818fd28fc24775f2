"""An evaluation as one HTML page, ``templates/evaluation.html``: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rerank.combiners.surface import WeightSurface
from rerank.evaluation.leakage import format_leakage
from rerank.evaluation.overlap import Overlap
from rerank.evaluation.significance import Comparison
from rerank.records import Query
from rerank.report_page.charts import (
    curve_chart,
    depth_chart,
    differences_chart,
    gains_chart,
    loss_chart,
    overlap_chart,
    shades,
    surface_chart,
)
from rerank.report_page.facts import coverage, histories, latency, splits
from rerank.report_page.tables import EvaluationReport, Shown
from rerank.report_page.template import render
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

MOST_QUERIES = 1000
"""Queries whose rankings are on the page: those that gain or lose most."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Asked:
    """One query on the page: what it gained, and both rankings."""

    id: str
    text: str
    before: float
    after: float
    baseline: Sequence[Shown]
    stack: Sequence[Shown]

    @property
    def gain(self) -> float:
        """What the stack adds."""
        return self.after - self.before


def evaluation_page(
    workspace: Workspace,
    report: EvaluationReport,
    queries: Sequence[Query],
    split: str = "",
    others: Mapping[str, EvaluationReport] | None = None,
) -> str:
    """Write the page of an evaluation that was made with ``keep``. split: what the judgments are called.

    Gains and losses are those of the last stack against the baseline, by the first measure, under the first
    protocol. A few of the queries are asked again, to measure the latency of a query. others: heading ->
    another evaluation, of which the page shows only the table of measures.
    """
    protocol = next(iter(report.per_query))
    evaluation, measure = report.per_query[protocol], report.compared[0]
    rows = [row for row in report.results if row.protocol == protocol]
    stack = list(report.stacks)[-1]
    asked, gains = _asked(report, protocol, measure, stack, {query.id: query.text for query in queries})
    ids = sorted({hit.id for one in asked for hit in (*one.baseline, *one.stack)})
    documents = (d for d in workspace.engine.get(ids) if d is not None)
    intervals = _intervals(report)
    found = report.stacks
    leaky = [leak for row in report.results for leak in row.leaks]
    seen = format_leakage(leaky, report.queries + report.none_relevant)
    leaks = [f"{seen}: rows with † say nothing about new queries."] if leaky else []
    overlaps = [one for one in report.category_overlap if one.pairs]
    overlaps = overlaps[1:] or overlaps  # by grade, where there are several
    top = max((bucket.share for one in overlaps for bucket in one.buckets), default=0.0)
    judged = set(evaluation.query_ids)
    timed, stages = latency(workspace, report.stacks[stack], [q for q in queries if q.id in judged])
    return render(
        "evaluation.html",
        r=report,
        split=split,
        splits=splits(workspace, found, evaluation.query_ids),
        leaks=leaks,
        others=others or {},
        compared=_compared,
        intervals_of=_intervals,
        protocol=protocol,
        measure=measure,
        stack=stack,
        asked=asked,
        left_out=len(gains) - len(asked),
        gains=int((gains > 0).sum()),
        losses=int((gains < 0).sum()),
        titles={d.id: (d.title or d.text)[:160] for d in documents},
        stacks={row.stack: row for row in rows},
        tuned={label: one.tuned for label, one in found.items() if one.tuned.get("single_signal")},
        surfaces={label: _surfaces(one) for label, one in found.items()},
        chart=gains_chart(gains, f"{measure}, {stack} less {report.baseline}"),
        differences=differences_chart(report, intervals, measure),
        depths=depth_chart(report.by_depth, f"nDCG of {stack} by candidates") if report.by_depth else None,
        overlaps=[
            (one, overlap_chart(one.buckets, f"Relevant documents{_grade(one)}", top)) for one in overlaps
        ],
        curves=[
            (
                name,
                history,
                curve_chart(history, f"Training of {name}"),
                loss_chart(history, f"Loss of {name}"),
            )
            for name, history in histories(workspace, list(found.values())).items()
        ],
        timed=timed,
        latency=stages,
        coverage=coverage(workspace, report, list(found.values())),
    )


def _compared(report: EvaluationReport) -> dict[tuple[str, str], Comparison]:
    """(Protocol, stack) -> its comparison with the baseline by the first measure."""
    return {(c.protocol, c.stack): c for c in report.comparisons if c.measure == report.compared[0]}


def _intervals(report: EvaluationReport) -> dict[tuple[str, str, str], tuple[float, float]]:
    """(Protocol, stack, measure) -> the 95 % interval of the difference to the baseline."""
    intervals = {}
    for c in report.comparisons:
        evaluation = report.per_query[c.protocol]
        if c.measure in evaluation.measures:
            values = evaluation.values
            differences = values[c.stack][c.measure] - values[c.baseline][c.measure]
            intervals[c.protocol, c.stack, c.measure] = interval(differences)
    return intervals


def _asked(
    report: EvaluationReport, protocol: str, measure: str, stack: str, texts: dict[str, str]
) -> tuple[list[Asked], NDArray[np.float64]]:
    """The queries that are shown, and the gains of all, the largest gain first."""
    evaluation, kept = report.per_query[protocol], report.kept[protocol]
    before, after = (evaluation.values[name][measure] for name in (report.baseline, stack))
    order = np.argsort(before - after, kind="stable")[: int((~np.isnan(before)).sum())]
    half = MOST_QUERIES // 2
    shown = order if len(order) <= MOST_QUERIES else np.r_[order[:half], order[-half:]]
    asked = [
        Asked(
            id=(id := evaluation.query_ids[i]),
            text=texts.get(id, ""),
            before=float(before[i]),
            after=float(after[i]),
            baseline=kept[report.baseline].get(id, ()),
            stack=kept[stack].get(id, ()),
        )
        for i in shown.tolist()
    ]
    return asked, np.asarray(after - before)[order]


def _surfaces(stack: Stack) -> list[tuple[WeightSurface, Markup, list[tuple[int, str]]]]:
    """What was reached while a stack was tuned: drawn, with the key of its shades."""
    drawn = []
    for one in stack.tuned.get("weight_surface", ()):
        try:
            found = WeightSurface(tuple(one["signals"]), tuple(one["rows"]))
            triangle = len(found.signals) > 2
            drawn.append(
                (found, surface_chart(found, stack.tuned["measure"]), shades(found) if triangle else [])
            )
        except (ValueError, KeyError, TypeError, IndexError):  # a file that somebody has edited
            continue
    return drawn


def _grade(one: Overlap) -> str:
    return "" if one.grade is None else f" of grade {one.grade}"


def interval(differences: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % of the means of samples drawn with replacement (bootstrap, percentiles).

    >>> interval(np.array([0.2, 0.2, 0.2]))
    (0.2, 0.2)
    """
    differences = differences[~np.isnan(differences)]
    n = len(differences)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.percentile(counts @ differences / n, [2.5, 97.5])
    return round(float(low), 6), round(float(high), 6)
