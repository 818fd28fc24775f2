"""The HTML page of an evaluation, and the templates of all pages. Scripts are allowed by their hashes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import rerank
from rerank.documents.records import Query
from rerank.documents.text import count_of
from rerank.evaluation.leakage import format_leakage
from rerank.formats.inputs import Queries, as_queries
from rerank.reports.evaluation import EvaluationReport
from rerank.stack.ranking import Hit
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

MOST_QUERIES = 1000
"""Largest number of queries on the page; losses and gains of the same number."""
COLORS = 7
"""Colors of signals; all later signals are gray."""


def evaluation_page(
    workspace: WorkspaceOrPath,
    report: EvaluationReport,
    queries: Queries,
    split: str = "",
    others: Mapping[str, EvaluationReport] | None = None,
) -> str:
    """Return the HTML page of an evaluation that was made with ``keep``.

    Compares the last stack with the baseline, by the first measure and protocol.

    split: name of the judgments. others: heading -> evaluation.

    >>> from rerank import evaluate
    >>> report = evaluate(workspace, "bm25", queries=queries, qrels=qrels, keep=10)
    >>> evaluation_page(workspace, report, queries)[:15]
    '<!DOCTYPE html>'
    """
    workspace = Workspace.open(workspace)
    protocol = next(iter(report.per_query))
    measure = report.compared[0]
    stack = list(report.stacks)[-1]
    queries_by_id = {query.id: query for query in as_queries(queries)}
    rows, left_out = _query_rows(report, protocol, stack, queries_by_id)
    leaks = [leak for row in report.results for leak in row.leaks]
    return (
        make_environment()
        .get_template("evaluation.html")
        .render(
            **read_script("page.js"),
            r=report,
            verdict=_verdict(report, protocol, stack),
            collection=f"{workspace.folder.resolve().name}, {count_of(len(workspace.engine), 'document')}",
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            version=rerank.__version__,
            split=split,
            leaks=format_leakage(leaks, report.queries + report.none_relevant) if leaks else "",
            others=others or {},
            protocol=protocol,
            measure=measure,
            stack=stack,
            rows=rows,
            left_out=left_out,
            signals=_signals(report, stack),
            titles=_titles(workspace, rows),
            weights=_weights(report, protocol),
            tuned=_tunings(report),
        )
    )


def _tunings(report: EvaluationReport) -> dict[str, Mapping[str, Any]]:
    """Return label -> record of the tuning, of the stacks that have the value of each signal."""
    tunings: dict[str, Mapping[str, Any]] = {}
    for label, stack in report.stacks.items():
        if stack.tuned.get("single_signal"):
            tunings[label] = stack.tuned
    return tunings


@cache
def make_environment() -> Environment:
    """Templates: strings are escaped, except Markup; undefined names are errors."""
    environment = Environment(
        loader=PackageLoader("rerank.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": "{:.4f}".format, "count": "{:,}".format}
    return environment


@cache
def read_script(name: str) -> Mapping[str, Markup | str]:
    """Return the script of a page and the hash that allows it, by their names in the templates."""
    script = (Path(__file__).parent / "templates" / name).read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": Markup(script), "script_hash": f"sha256-{digest}"}


CASES = {
    "given": "with categories",
    "inferred": "with inferred categories",
    "none": "without categories",
}
"""Kinds of queries with separate weights."""


def _weights(report: EvaluationReport, protocol: str) -> list[list[str]]:
    """Return rows: stack, queries, weights, normalization, retrievers, and the value on the dev queries."""
    rows = []
    for result in report.results:
        if result.protocol != protocol:
            continue
        stack = report.stacks[result.stack]
        retrievers = " and ".join(result.retrieve)
        values = stack.tuned.get("cases") or {"": stack.tuned}
        for case, tuned in values.items():
            combiner = stack.combiner.for_case(case)
            value = f"{stack.tuned['measure']} {tuned['value']:.4f}" if "value" in tuned else ""
            queries = CASES.get(case, "all")
            rows.append([result.stack, queries, str(combiner), combiner.normalization, retrievers, value])
    return rows


def _verdict(report: EvaluationReport, protocol: str, stack: str) -> str:
    """Return the heading: the gain of the stack by the first measure, and the number of better queries."""
    measure = report.compared[0]
    comparison = report.comparisons_by(measure).get((protocol, stack))
    if comparison is None:
        means = {(row.protocol, row.stack): row.measures for row in report.results}
        value = means[protocol, stack][measure]
        return f"{value:.4f} {measure} over {count_of(report.queries, 'query')}"
    delta = f"{comparison.delta:+.2f}" if abs(comparison.delta) >= 0.01 else f"{comparison.delta:+.4f}"
    p = f"p = {comparison.p_holm:.4f}" if comparison.p_holm >= 0.0001 else "p < 0.0001"
    better = count_of(comparison.wins, "query")
    equal = report.queries - comparison.wins - comparison.losses
    return f"{delta} {measure} ({p}): {better} better, {comparison.losses} worse, {equal} equal"


class Outside(NamedTuple):
    """A relevant document that is not among the first hits of either side. A rank is None if not ranked."""

    id: str
    grade: int
    baseline_rank: int | None
    stack_rank: int | None


@dataclass(frozen=True)
class QueryRow:
    """A query on the page.

    before, after: the measure of the baseline and of the stack.
    baseline, stack: their first hits, each with its score as a bar.
    grades:        document -> grade, of the relevant documents.
    outside:       relevant documents that are not among the first hits, best rank by the stack first.
    no_relevant:   whether neither side ranks a relevant document.
    """

    query: Query
    before: float
    after: float
    baseline: list[tuple[Hit, Markup]]
    stack: list[tuple[Hit, Markup]]
    grades: Mapping[str, int]
    outside: list[Outside]
    no_relevant: bool

    @property
    def outcome(self) -> str:
        """Return ``better``, ``worse`` or ``equal``: the stack compared with the baseline for a query."""
        if self.after == self.before:
            return "equal"
        return "better" if self.after > self.before else "worse"


def _query_rows(
    report: EvaluationReport, protocol: str, stack: str, queries: Mapping[str, Query]
) -> tuple[list[QueryRow], int]:
    """Return the queries, largest loss first, and the number omitted."""
    evaluation = report.per_query[protocol]
    measure = report.compared[0]
    before = evaluation.values[report.baseline][measure]
    after = evaluation.values[stack][measure]
    order = np.argsort(after - before, kind="stable")
    half = MOST_QUERIES // 2
    shown = order if len(order) <= MOST_QUERIES else np.r_[order[:half], order[-half:]]
    colors = {name: color for color, name in enumerate(_signals(report, stack))}
    baseline_hits = report.kept_hits[protocol][report.baseline]
    stack_hits = report.kept_hits[protocol][stack]
    rows: list[QueryRow] = []
    for position in shown.tolist():
        id = evaluation.query_ids[position]
        grades = report.relevant.get(id, {})
        baseline = _Side(baseline_hits.get(id, []), report.top)
        side = _Side(stack_hits.get(id, []), report.top)
        row = QueryRow(
            query=queries.get(id, Query(id, "")),
            before=float(before[position]),
            after=float(after[position]),
            baseline=baseline.with_bars(colors),
            stack=side.with_bars(colors),
            grades=grades,
            outside=_outside(grades, baseline, side),
            no_relevant=grades.keys().isdisjoint({*baseline.ranks, *side.ranks}),
        )
        rows.append(row)
    return rows, len(order) - len(rows)


class _Side:
    """The hits of one stack for a query.

    first: the hits that are shown. ranks: document -> rank, of all kept hits.
    """

    def __init__(self, hits: Sequence[Hit], top: int) -> None:
        self.first = [hit for hit in hits if hit.rank <= top]
        self.ranks = {hit.id: hit.rank for hit in hits}

    def with_bars(self, colors: Mapping[str, int]) -> list[tuple[Hit, Markup]]:
        return list(zip(self.first, _score_bars(self.first, colors)))


def _outside(grades: Mapping[str, int], baseline: _Side, stack: _Side) -> list[Outside]:
    """Return the relevant documents outside of both lists, the ones without a rank last."""
    shown = {hit.id for hit in (*baseline.first, *stack.first)}
    outside: list[Outside] = []
    for id, grade in grades.items():
        if id not in shown:
            outside.append(Outside(id, grade, baseline.ranks.get(id), stack.ranks.get(id)))

    def order(document: Outside) -> tuple[bool, int, str]:
        return document.stack_rank is None, document.stack_rank or 0, document.id

    return sorted(outside, key=order)


def _ends_of_bars(scores_of_hits: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the smallest sum of negative scores and the largest sum of positive scores of a hit, or 0."""
    lowest = 0.0
    highest = 0.0
    for scores in scores_of_hits:
        lowest = min(lowest, sum(min(score, 0.0) for score in scores))
        highest = max(highest, sum(max(score, 0.0) for score in scores))
    return lowest, highest


def _score_bars(hits: Sequence[Hit], colors: Mapping[str, int]) -> list[Markup]:
    """Return a bar for each hit, all on one scale. A signal has one color; negative scores extend left."""
    weighted_scores = [[signal.weighted for signal in hit.signals.values()] for hit in hits]
    lowest, highest = _ends_of_bars(weighted_scores)
    scale = 100 / ((highest - lowest) or 1)
    bars: list[Markup] = []
    for hit, scores in zip(hits, weighted_scores):
        parts = "".join(_bar_parts(list(hit.signals), scores, colors, zero=-lowest * scale, scale=scale))
        bars.append(
            Markup(
                '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
                f"{parts}</svg>"
            )
        )
    return bars


def _bar_parts(
    signals: Sequence[str], scores: Sequence[float], colors: Mapping[str, int], *, zero: float, scale: float
) -> Iterator[str]:
    """Yield a rectangle per signal. Positive scores follow each other to the right of zero, negative left."""
    left_end = zero
    right_end = zero
    for signal, score in zip(signals, scores):
        width = abs(score) * scale
        if score >= 0:
            begin = right_end
            right_end += width
        else:
            left_end -= width
            begin = left_end
        if width >= 0.01:
            color = colors.get(signal, COLORS)
            css_class = f"c{color}" if color < COLORS else "other"
            yield f'<rect x="{begin:.2f}" width="{width:.2f}" class="{css_class}"/>'


def _signals(report: EvaluationReport, stack: str) -> list[str]:
    """Return the signals of the baseline and of the stack; their positions choose their colors."""
    return list(dict.fromkeys((*report.stacks[report.baseline].signals, *report.stacks[stack].signals)))


def _titles(workspace: Workspace, rows: Sequence[QueryRow]) -> dict[str, str]:
    """Return document -> title, or the begin of its text, of all documents on the page."""
    ids: set[str] = set()
    for row in rows:
        ids.update(hit.id for hit, _ in (*row.baseline, *row.stack))
        ids.update(document.id for document in row.outside)
    titles: dict[str, str] = {}
    for document in workspace.engine.get(sorted(ids)):
        if document is not None:
            titles[document.id] = (document.title or document.text)[:160]
    return titles
