"""An evaluation as one HTML page, ``templates/evaluation.html``: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rerank.actions.evaluate import EvaluationReport, Shown
from rerank.actions.leaks import said
from rerank.errors import RerankError
from rerank.reports.dense.svg import Scale, drawing, line, text, ticks
from rerank.reports.pages import render
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


def evaluation_page(workspace: Workspace, report: EvaluationReport, texts: Mapping[str, str]) -> str:
    """Write the page of an evaluation that was made with ``keep``. texts: query -> its text.

    Gains and losses are those of the last stack against the baseline, by the first measure, under the first
    protocol.
    """
    protocol = next(iter(report.per_query))
    evaluation, measure = report.per_query[protocol], report.compared[0]
    stack = report.results[-1].stack
    before, after = (evaluation.values[name][measure] for name in (report.baseline, stack))
    order = np.argsort(before - after, kind="stable")
    half = MOST_QUERIES // 2
    shown = order if len(order) <= MOST_QUERIES else np.r_[order[:half], order[-half:]]
    kept = report.kept[protocol]
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
    ids = sorted({hit.id for one in asked for hit in (*one.baseline, *one.stack)})
    documents = (d for d in workspace.engine.get(ids) if d is not None)
    titles = {d.id: d.title or d.text[:100] for d in documents}
    intervals = {
        (c.protocol, c.stack, c.measure): interval(
            report.per_query[c.protocol].values[c.stack][c.measure]
            - report.per_query[c.protocol].values[c.baseline][c.measure]
        )
        for c in report.comparisons
        if c.measure in report.per_query[c.protocol].measures
    }
    stacks = {row.stack: row for row in report.results if row.protocol == protocol}
    tuned = {}
    for label in stacks:
        try:
            found: Stack = workspace.stack(label, latest=True)
        except RerankError:  # a label that names a file elsewhere, or is no name of a stack
            continue
        if found.tuned.get("alone"):
            tuned[label] = found.tuned
    leaky = [leak for row in report.results for leak in row.leaks]
    leaks = [f"{said(leaky, len(texts))}: rows with † say nothing about new queries."] if leaky else []
    return render(
        "evaluation.html",
        r=report,
        leaks=leaks,
        compared={(c.protocol, c.stack): c for c in report.comparisons if c.measure == measure},
        protocol=protocol,
        measure=measure,
        stack=stack,
        asked=asked,
        left_out=len(order) - len(shown),
        gains=int((after > before).sum()),
        losses=int((after < before).sum()),
        titles=titles,
        intervals=intervals,
        stacks=stacks,
        tuned=tuned,
        chart=gains_chart(np.asarray(after - before)[order], f"{measure}, {stack} less {report.baseline}"),
        differences=differences_chart(report, intervals, measure),
    )


def interval(differences: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % of the means of samples drawn with replacement (bootstrap, percentiles).

    >>> interval(np.array([0.2, 0.2, 0.2]))
    (0.2, 0.2)
    """
    n = len(differences)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.percentile(counts @ differences / n, [2.5, 97.5])
    return round(float(low), 6), round(float(high), 6)


def gains_chart(gains: NDArray[np.float64], title: str) -> Markup:
    """A bar for each query, the largest gain first."""
    width, height, left = 760, 220, 44
    reach = max(float(np.abs(gains).max(initial=0.0)), 1e-9)
    y = Scale(-reach, reach, height - 12, 12)
    x = Scale(0, max(len(gains), 1), left, width - 8)
    parts = [
        part
        for value in ticks(-reach, reach, 5)
        for part in (
            line(left, y(value), width - 8, y(value), "grid"),
            text(left - 6, y(value) + 4, f"{value:+.2g}", "soft", "end"),
        )
    ]
    each = max((width - 8 - left) / max(len(gains), 1), 0.3)
    for place, gain in enumerate(gains.tolist()):
        if gain:
            top = min(y(gain), y(0))
            kind = "gain" if gain > 0 else "loss"
            parts.append(
                f'<rect x="{x(place):g}" y="{top:g}" width="{each:.2f}" height="{abs(y(gain) - y(0)):.2f}"'
                f' class="{kind}"/>'
            )
    parts.append(line(left, y(0), width - 8, y(0), "axis"))
    about = f"{int((gains > 0).sum())} queries gain, {int((gains < 0).sum())} lose"
    return drawing(width, height, title, parts, about)


def differences_chart(
    report: EvaluationReport, intervals: Mapping[tuple[str, str, str], tuple[float, float]], measure: str
) -> Markup:
    """Each stack's difference to the baseline with its interval, one below the other."""
    found = [c for c in report.comparisons if c.measure == measure]
    width, left, row = 760, 260, 26
    height = row * max(len(found), 1) + 30
    ends: list[Any] = [end for c in found for end in intervals[c.protocol, c.stack, c.measure]]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    pad = 0.05 * (high - low) or 0.01
    x = Scale(low - pad, high + pad, left, width - 12)
    parts = [
        part
        for value in ticks(low, high, 6)
        for part in (
            line(x(value), 6, x(value), height - 22, "grid"),
            text(x(value), height - 6, f"{value:+.3g}", "soft", "middle"),
        )
    ]
    parts.append(line(x(0), 6, x(0), height - 22, "axis"))
    for place, c in enumerate(found):
        y = row * place + row / 2 + 4
        begin, end = intervals[c.protocol, c.stack, c.measure]
        several = len(report.per_query) > 1
        parts.append(text(left - 10, y + 4, f"{c.stack}, {c.protocol}" if several else c.stack, "", "end"))
        parts.append(line(x(begin), y, x(end), y, "whisker after"))
        parts.append(f'<circle cx="{x(c.delta):g}" cy="{y:g}" r="4" class="point after"/>')
    return drawing(width, height, f"Difference to {report.baseline} in {measure}", parts)
