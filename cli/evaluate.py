"""``rerank evaluate``: measures of stacks on judged queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.results import cell, table
from rerank.text import plural

from . import options, output
from .options import Output, option

if TYPE_CHECKING:
    from rerank.report_page.tables import EvaluationReport


def _measure_names(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    from rerank.evaluation.measures import split_measures

    return tuple(split_measures(" ".join(texts)))


measures = option(
    "--measure NAME,... ...",
    "Measures of ir_measures, for example nDCG@10 or RR. Stacks are compared by each."
    " Default: nDCG@10, nDCG, RR and R@100, compared by nDCG@10.",
    dest="measures",
    callback=_measure_names,
)


@options.command(
    "evaluate",
    "Input",
    *options.judged,
    options.ignore_categories,
    "Stacks",
    option(
        "--stack STACK...",
        "Signals, weights or a file. Repeatable. Default: the active stack.",
        dest="stacks",
    ),
    option("--baseline STACK", "Stack to compare with. Default: the first stage of the first stack."),
    "Candidates",
    option(
        "--protocol KIND:N...",
        "retrieved:N or judged. Repeatable.",
        dest="protocols",
        default=["retrieved:1000"],
    ),
    options.first_stage_or_run,
    options.retrieve,
    options.filters,
    options.infer,
    "Measures",
    measures,
    "Output",
    option("--report FILE", "Write an HTML page: the last stack against the baseline.", dest="page"),
    option("--save-run DIR", "Write each ranking as a TREC run to this folder."),
    options.GENERAL,
    options.seed,
)
def command(
    workspace: rerank.Workspace,
    stacks: tuple[str, ...],
    queries: str,
    qrels: str,
    page: str | None,
    **settings: Any,
) -> Iterator[Output]:
    """Measure stacks on judged queries and compare them with a baseline (paired randomization test)."""
    from rerank.files import check_output, write_text
    from rerank.report_page.tables import PAGE_MARK

    if page is not None:
        check_output(page, PAGE_MARK)
    asked = rerank.read_queries(queries)
    report = rerank.evaluate(
        workspace,
        stacks or [in_use(workspace)],
        queries=asked,
        qrels=qrels,
        keep=10 if page else 0,
        **settings,
    )
    if page is not None:
        html = rerank.evaluation_page(workspace, report, asked, Path(qrels).name)
        write_text(page, html, follow=True)
        output.note(f"written to {page}")
    yield Output(report)
    show(report)
    show_remarks(report)


def show_remarks(report: EvaluationReport) -> None:
    """Print the remarks of each scoring once, and whether most of the best hits are not judged."""
    scorings = list(report.scoring.values())
    for place, scoring in enumerate(scorings):
        if scoring not in scorings[:place]:
            output.remarks(scoring)
    # With the protocol `judged`, every hit is judged, so these rows are never the worst ones.
    hits = {f"{row.stack} ({row.protocol})": row.judged_at_10 for row in report.results}
    output.warn_of_unjudged(hits, report.irrelevant_judged)


def in_use(workspace: rerank.Workspace) -> str:
    """Signals of the active stack."""
    name = workspace.default_stack
    signals = workspace.stack(name).tuned_for
    return ",".join(signals) if workspace.stack_path(signals).stem == name else name


LEAK = "†"
"""Mark of a stack that was trained or tuned on some of the queries."""


def show(report: EvaluationReport) -> None:
    """Print the tables; first warn about training and tuning queries."""
    from rerank.evaluation.leakage import format_leakage

    if leaks := [leak for row in report.results for leak in row.leaks]:
        click.echo(
            f"{format_leakage(leaks, report.queries + report.none_relevant)}: rows with {LEAK} do not show"
            " the quality for new queries; measure on others\n"
        )
    for number, protocol in enumerate(report.per_query):
        click.echo(("\n" if number else "") + f"{protocol}, {plural(report.queries, output.QUERIES)}")
        click.echo(_table(report, protocol))
        for found in report.candidate_recall:
            if found.protocol == protocol:
                click.echo(output.recall_line(found.recall))
    _show_intervals(report)
    _show_new_documents(report)
    for result in report.results:
        if len(result.weights) > 1 and result.protocol == report.results[0].protocol:
            click.echo(f"{result.stack}: {result.text} ({result.normalization})")
    if report.none_relevant:
        text = "judged quer[y has|ies have] no relevant document and [is|are] left out"
        output.note(plural(report.none_relevant, text))
    for path in report.runs:
        output.note(f"run written to {path}")


def _table(report: EvaluationReport, protocol: str, *, marked: bool = True) -> str:
    from rerank.evaluation.judged import TOP

    comparisons = {(one.stack, one.measure): one for one in report.comparisons if one.protocol == protocol}
    body = []
    for row in report.results:
        if row.protocol != protocol:
            continue
        cells = [f"{row.stack} {LEAK}" if marked and row.leaks else row.stack]
        cells += [f"{value:.4f}" for value in row.measures.values()]
        cells.append(cell(row.judged_at_10.share))
        for name in report.compared:
            one = comparisons.get((row.stack, name))
            cells += ["", ""] if one is None else [f"{one.delta:+.4f}", output.p_value(one.p_holm)]
        body.append(cells)
    compared = [
        f"{sign} {name}{of}" for name in report.compared for sign, of in (("Δ", ""), ("p", " (Holm)"))
    ]
    return table(["", *report.results[0].measures, f"judged@{TOP}", *compared], body)


def _show_intervals(report: EvaluationReport) -> None:
    """Print the gains by the first measure with their intervals."""
    from rerank.evaluation.significance import Gain

    for comparison in report.comparisons:
        if comparison.measure == report.compared[0] and len(report.per_query) == 1:
            interval = Gain(comparison.delta, comparison.low, comparison.high, comparison.smallest)
            gain = output.gain(interval, comparison.measure, report.queries)
            click.echo(f"{comparison.stack} against {report.baseline}: {gain}")


def _show_new_documents(report: EvaluationReport) -> None:
    if not report.seen_pairs:
        return
    known = (
        f"{100 * report.seen_pairs / report.pairs:.0f} % of the relevant documents were also relevant for"
        " training queries"
    )
    new = report.new_documents
    if new is None:
        click.echo(f"\n{known}; no queries are left to measure new documents")
        return
    click.echo(f"\n{known}. All other documents:")
    for protocol in new.per_query:
        click.echo(f"{protocol}, {plural(new.queries, output.QUERIES)}")
        click.echo(_table(new, protocol, marked=False))
