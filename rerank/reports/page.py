"""The HTML page of an evaluation, and the templates of all pages. Scripts are allowed by their hashes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import rerank
from rerank.evaluation.leakage import format_leakage
from rerank.evaluation.significance import Comparison
from rerank.formats.inputs import Queries, as_queries
from rerank.records import Query
from rerank.reports.evaluation import EvaluationReport
from rerank.stack.ranking import Hit
from rerank.text import count_of
from rerank.workspace import Workspace, WorkspaceOrPath

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
    measure, stack = report.compared[0], list(report.stacks)[-1]
    queries_by_id = {query.id: query for query in as_queries(queries)}
    rows, left_out = _query_rows(report, protocol, measure, stack, queries_by_id)
    leaks = [leak for row in report.results for leak in row.leaks]
    return (
        make_environment()
        .get_template("evaluation.html")
        .render(
            **read_script("page.js"),
            r=report,
            verdict=_verdict(report, protocol, stack, measure),
            collection=f"{workspace.folder.resolve().name}, {count_of(len(workspace.engine), 'document')}",
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            version=rerank.__version__,
            split=split,
            leaks=format_leakage(leaks, report.queries + report.none_relevant) if leaks else "",
            others=others or {},
            compared=_compared,
            protocol=protocol,
            measure=measure,
            stack=stack,
            rows=rows,
            left_out=left_out,
            signals=_signals(report, stack),
            titles=_titles(workspace, rows),
            weights=_weights(report, protocol),
            tuned={
                label: one.tuned for label, one in report.stacks.items() if one.tuned.get("single_signal")
            },
        )
    )


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


def _verdict(report: EvaluationReport, protocol: str, stack: str, measure: str) -> str:
    c = _compared(report).get((protocol, stack))
    if c is None:
        values = {(one.protocol, one.stack): one.measures[measure] for one in report.results}
        return f"{values[protocol, stack]:.4f} {measure} over {count_of(report.queries, 'query')}"
    delta = f"{c.delta:+.2f}" if abs(c.delta) >= 0.01 else f"{c.delta:+.4f}"
    p = f"p = {c.p_holm:.4f}" if c.p_holm >= 0.0001 else "p < 0.0001"
    equal, better = report.queries - c.wins - c.losses, count_of(c.wins, "query")
    return f"{delta} {measure} ({p}): {better} better, {c.losses} worse, {equal} equal"


def _compared(report: EvaluationReport) -> dict[tuple[str, str], Comparison]:
    return {(c.protocol, c.stack): c for c in report.comparisons if c.measure == report.compared[0]}


def _query_rows(
    report: EvaluationReport, protocol: str, measure: str, stack: str, queries: Mapping[str, Query]
) -> tuple[list[dict[str, Any]], int]:
    """Return the queries, largest loss first, and the number omitted.

    baseline, stack: first hits with score bars. outside: other relevant documents: (id, grade, rank by the
    baseline, rank by the stack); ranks may be None.
    """
    evaluation, kept = report.per_query[protocol], report.kept[protocol]
    before, after = (evaluation.values[name][measure] for name in (report.baseline, stack))
    order = np.argsort(after - before, kind="stable")
    half = MOST_QUERIES // 2
    shown = order if len(order) <= MOST_QUERIES else np.r_[order[:half], order[-half:]]
    colors = {name: n for n, name in enumerate(_signals(report, stack))}
    rows = []
    for i in shown.tolist():
        id = evaluation.query_ids[i]
        runs = kept[report.baseline].get(id, []), kept[stack].get(id, [])
        ranks = [{hit.id: hit.rank for hit in run} for run in runs]
        first = [[hit for hit in run if hit.rank <= report.top] for run in runs]
        hits = [list(zip(some, _score_bars(some, colors))) for some in first]
        grades = report.relevant.get(id, {})
        rest = grades.keys() - {hit.id for some in first for hit in some}
        outside = [(d, grades[d], ranks[0].get(d), ranks[1].get(d)) for d in rest]
        rows.append(
            {
                "query": queries.get(id, Query(id, "")),
                "before": float(before[i]),
                "after": float(after[i]),
                "outcome": "better" if after[i] > before[i] else "worse" if after[i] < before[i] else "equal",
                "baseline": hits[0],
                "stack": hits[1],
                "grades": grades,
                "outside": sorted(outside, key=lambda one: (one[3] is None, one[3] or 0, one[0])),
                "no_relevant": not any(d in rank for d in grades for rank in ranks),
            }
        )
    return rows, len(order) - len(rows)


def _score_bars(hits: Sequence[Hit], colors: Mapping[str, int]) -> list[Markup]:
    """Return a bar per hit, a color per signal. Negative parts extend left."""
    parts = [[signal.weighted for signal in hit.signals.values()] for hit in hits]
    low = min((sum(min(value, 0) for value in row) for row in parts), default=0.0)
    high = max((sum(max(value, 0) for value in row) for row in parts), default=0.0)
    scale = 100 / ((high - low) or 1)
    bars = []
    for hit, row in zip(hits, parts):
        left = right = -low * scale
        rects = []
        for name, value in zip(hit.signals, row):
            width = abs(value) * scale
            begin = right if value >= 0 else left - width
            left, right = min(left, begin), max(right, begin + width)
            if width >= 0.01:
                color = colors.get(name, COLORS)
                kind = f"c{color}" if color < COLORS else "other"
                rects.append(f'<rect x="{begin:.2f}" width="{width:.2f}" class="{kind}"/>')
        bars.append(
            Markup(
                '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
                f"{''.join(rects)}</svg>"
            )
        )
    return bars


def _signals(report: EvaluationReport, stack: str) -> list[str]:
    return list(dict.fromkeys((*report.stacks[report.baseline].signals, *report.stacks[stack].signals)))


def _titles(workspace: Workspace, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    ids = {hit.id for row in rows for hit, _ in (*row["baseline"], *row["stack"])}
    ids |= {one[0] for row in rows for one in row["outside"]}
    documents = (d for d in workspace.engine.get(sorted(ids)) if d is not None)
    return {d.id: (d.title or d.text)[:160] for d in documents}
