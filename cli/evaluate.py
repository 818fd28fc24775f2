"""``rerank evaluate``: measure stacks on judged queries."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

import rerank
from rerank.common.results import cell, table
from rerank.documents.text import count_of

from . import output
from .options import (
    OUTPUT,
    Command,
    filter_option,
    first_stage_option,
    ignore_categories_option,
    infer_option,
    json_option,
    option,
    qrels_option,
    queries_option,
    retrieve_option,
    seed_option,
    workspace_option,
)

if TYPE_CHECKING:
    from rerank.evaluation.significance import Comparison
    from rerank.reports.evaluation import EvaluationReport, Row

LEAK = "†"
"""Mark of a stack that was trained or tuned on some of the queries."""


def _split_measures(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the measures of all --measure options. A measure can contain commas itself."""
    from rerank.evaluation.measures import split_measures

    return tuple(split_measures(" ".join(texts)))


@click.command("evaluate", cls=Command)
@queries_option
@qrels_option
@ignore_categories_option
@option(
    "--stack",
    "stacks",
    metavar="STACK",
    multiple=True,
    group="Stacks",
    help="Signals, weights or a file. Repeatable. Default: the active stack.",
)
@option(
    "--baseline",
    metavar="STACK",
    group="Stacks",
    help="Stack to compare with. Default: the first stage of the first stack.",
)
@option(
    "--protocol",
    "protocols",
    metavar="KIND:N",
    multiple=True,
    default=["retrieved:1000"],
    group="Candidates",
    help="retrieved:N, judged, pool-random:N or pool-tfidf:N. Repeatable.",
)
@first_stage_option(group="Candidates", runs=True)
@retrieve_option
@filter_option("Candidates")
@infer_option("Candidates")
@option(
    "--measure",
    "measures",
    metavar="NAME,...",
    multiple=True,
    callback=_split_measures,
    group="Measures",
    help="Measures of ir_measures, for example nDCG@10 or RR. Stacks are compared by each."
    " Default: nDCG@10, nDCG, RR and R@100, compared by nDCG@10.",
)
@option(
    "--report",
    "page",
    metavar="FILE",
    type=OUTPUT,
    group="Output",
    help="Write an HTML page: the last stack against the baseline.",
)
@option(
    "--save-run",
    metavar="DIR",
    type=OUTPUT,
    group="Output",
    help="Write each ranking as a TREC run to this folder.",
)
@seed_option
@workspace_option
@json_option
def command(
    folder: str,
    queries: str,
    qrels: str,
    ignore_categories: bool,
    stacks: tuple[str, ...],
    baseline: str | None,
    protocols: tuple[str, ...],
    first_stage: str | None,
    retrieve: tuple[str, ...],
    filter: tuple[str, ...],
    infer: bool,
    measures: tuple[str, ...],
    page: str | None,
    save_run: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure stacks on judged queries and compare them with a baseline (paired randomization test)."""
    from rerank.common.files import check_new_file, write_text
    from rerank.reports.evaluation import PAGE_MARK

    workspace = rerank.Workspace.open(folder)
    if page is not None:
        check_new_file(page, PAGE_MARK)  # raises before the long work
    all_queries = rerank.read_queries(queries)
    report = rerank.evaluate(
        workspace,
        stacks or [active_stack(workspace)],
        queries=all_queries,
        qrels=qrels,
        baseline=baseline,
        first_stage=first_stage,
        retrieve=retrieve,
        filter=filter,
        protocols=protocols,
        measures=measures,
        save_run=save_run,
        keep=10 if page else 0,
        ignore_categories=ignore_categories,
        infer=infer,
        seed=seed,
        progress=output.Bar(hidden=as_json),
    )
    if page is not None:
        html = rerank.evaluation_page(workspace, report, all_queries, Path(qrels).name)
        write_text(page, html, follow=True)
        output.note(f"written to {page}")
    output.print_report(report, _show_all, as_json=as_json)


def _show_all(report: EvaluationReport) -> None:
    show(report)
    show_remarks(report)


def active_stack(workspace: rerank.Workspace) -> str:
    """Return the signals of the active stack, or its name if its file has another name."""
    name = workspace.default_stack
    signals = workspace.stack(name).tuned_for
    return ",".join(signals) if workspace.stack_path(signals).stem == name else name


def show_remarks(report: EvaluationReport) -> None:
    """Print the notes of each scoring once, and whether most of the best hits are not judged."""
    shown: list[object] = []
    for scoring in report.scoring.values():
        if scoring not in shown:
            output.print_scoring_notes(scoring)
            shown.append(scoring)
    # With the protocol `judged`, every hit is judged, so these rows are never the worst ones.
    judged_hits = {f"{row.stack} ({row.protocol})": row.judged_at_10 for row in report.results}
    output.warn_of_unjudged(judged_hits, report.irrelevant_judged)


def show(report: EvaluationReport) -> None:
    """Print the tables and the weights. A warning comes first if queries were used to train or to tune."""
    from rerank.evaluation.leakage import format_leakage

    leaks = list(chain.from_iterable(row.leaks for row in report.results))
    if leaks:
        click.echo(
            f"{format_leakage(leaks, report.queries + report.none_relevant)}: rows with {LEAK} do not show"
            " the quality for new queries; measure on others\n"
        )
    for position, protocol in enumerate(report.per_query):
        if position:
            click.echo()
        _show_table(report, protocol)
    _show_intervals(report)
    _show_new_documents(report)
    for row in report.results:
        if len(row.weights) > 1 and row.protocol == report.results[0].protocol:
            click.echo(f"{row.stack}: {row.text} ({row.normalization})")
    if report.none_relevant:
        output.note(f"{count_of(report.none_relevant, 'judged query')} without a relevant document; left out")
    for path in report.runs:
        output.note(f"run written to {path}")


def _show_table(report: EvaluationReport, protocol: str) -> None:
    """Print the rows of a protocol, and the recall of its candidates."""
    click.echo(f"{protocol}, {count_of(report.queries, 'query')}")
    click.echo(_table(report, protocol, mark_leaks=True))
    printed: set[str] = set()
    for candidates in report.candidate_recall:
        # The first stage of a baseline is often also a retriever of the stack.
        if candidates.protocol == protocol and not candidates.recall.keys() <= printed:
            click.echo(output.recall_line(candidates.recall))
            printed.update(candidates.recall)


def _table(report: EvaluationReport, protocol: str, *, mark_leaks: bool) -> str:
    from rerank.evaluation.judged import TOP

    header = ["", *report.results[0].measures, f"judged@{TOP}"]
    for measure in report.compared:
        header += [f"Δ {measure}", f"p {measure} (Holm)"]
    comparisons: dict[tuple[str, str], Comparison] = {}
    for comparison in report.comparisons:
        if comparison.protocol == protocol:
            comparisons[comparison.stack, comparison.measure] = comparison
    body: list[list[str]] = []
    for row in report.results:
        if row.protocol == protocol:
            body.append(_table_row(row, report.compared, comparisons, mark_leaks))
    return table(header, body)


def _table_row(
    row: Row,
    compared: list[str],
    comparisons: dict[tuple[str, str], Comparison],
    mark_leaks: bool,
) -> list[str]:
    """Return the cells of a stack. The baseline has no differences."""
    is_marked = mark_leaks and bool(row.leaks)
    cells = [f"{row.stack} {LEAK}" if is_marked else row.stack]
    cells += [f"{value:.4f}" for value in row.measures.values()]
    cells.append(cell(row.judged_at_10.share))
    for measure in compared:
        cells += _difference_cells(comparisons.get((row.stack, measure)))
    return cells


def _difference_cells(comparison: Comparison | None) -> list[str]:
    """Return the cells with the difference from the baseline and its p-value."""
    if comparison is None:
        return ["", ""]
    return [f"{comparison.delta:+.4f}", output.p_value(comparison.p_holm)]


def _show_intervals(report: EvaluationReport) -> None:
    """Print the gains by the first measure with their intervals."""
    from rerank.evaluation.significance import Gain

    if len(report.per_query) != 1:
        return
    for comparison in report.comparisons:
        if comparison.measure == report.compared[0]:
            interval = Gain(comparison.delta, comparison.low, comparison.high, comparison.smallest)
            gain = output.gain(interval, comparison.measure, report.queries)
            click.echo(f"{comparison.stack} against {report.baseline}: {gain}")


def _show_new_documents(report: EvaluationReport) -> None:
    """Print the quality for documents that were not relevant for a training query."""
    if not report.seen_pairs:
        return
    percentage = 100 * report.seen_pairs / report.pairs
    share = f"{percentage:.0f} % of the relevant documents were also relevant for training or tuning queries"
    new_documents = report.new_documents
    if new_documents is None:
        click.echo(f"\n{share}; no queries are left to measure new documents")
        return
    click.echo(f"\n{share}. All other documents:")
    for protocol in new_documents.per_query:
        click.echo(f"{protocol}, {count_of(new_documents.queries, 'query')}")
        click.echo(_table(new_documents, protocol, mark_leaks=False))
