"""``rerank evaluate``: stacks against a baseline, with significance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from rerank.text import plural

from . import options, output

if TYPE_CHECKING:
    from rerank.report_page.tables import EvaluationReport
    from rerank.workspace import Workspace


measures = click.option(
    "--measure",
    "--measures",
    "measures",
    multiple=True,
    metavar="NAMES",
    callback=lambda _, __, texts: tuple(" ".join(texts).replace(",", " ").split()),
    help="Measures, as nDCG@10 or RR (ir_measures), or AUC; repeatable, or with commas. Stacks are compared"
    " by each of them.",
)


@click.command("evaluate")
@options.common
@click.option(
    "--stack",
    "stacks",
    multiple=True,
    metavar="STACK",
    help="Signals or a stack file; repeatable. Default: the stack in use.",
)
@click.option(
    "--baseline",
    metavar="STACK",
    help="Compare the stacks with this one. Default: the first stage.",
)
@options.queries
@click.option(
    "--qrels", required=True, metavar="FILE", help="Judgments to measure with (test), BEIR or TREC."
)
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    default=["retrieved:1000"],
    show_default=True,
    metavar="KIND:N",
    help="retrieved:N, pool-random:N, pool-first:N or judged; repeatable.",
)
@measures
@click.option(
    "--rerank-only", is_flag=True, help="Also measure each stack without the score of its first stage."
)
@click.option("--also-grade-one", is_flag=True, help="Also measure without the documents of grade 2 and up.")
@click.option(
    "--category-overlap",
    is_flag=True,
    help="Also show how many categories queries share with relevant documents.",
)
@options.conflicts
@click.option("--allow-leakage", is_flag=True, help="Do not warn about queries of the training set.")
@click.option("--save-run", metavar="DIR", help="Write each ranking as a TREC run into this folder.")
@click.option("--per-query", metavar="FILE", help="Write the measures of each query into this file, as TSV.")
@click.option("--report", "page", metavar="FILE", help="Write an HTML page with all results, query by query.")
@options.first_stage_or_run
@options.retrieve
@options.filters
@options.ignore_categories
@options.infer
@options.seed
def command(
    folder: str,
    as_json: bool,
    stacks: tuple[str, ...],
    queries: str,
    qrels: str,
    conflicts: str,
    allow_leakage: bool,
    per_query: str | None,
    page: str | None,
    **settings: Any,
) -> None:
    """Measure stacks on judged queries and compare them with a baseline (paired randomization test)."""
    from pathlib import Path

    from rerank.files import check_output, write_text
    from rerank.formats import read_qrels, read_queries
    from rerank.report_page.tables import PER_QUERY
    from rerank.workflows.evaluate import evaluate
    from rerank.workflows.evaluated import remember_files
    from rerank.workflows.report import PAGE_MARK
    from rerank.workspace import Workspace

    if per_query is not None:
        check_output(per_query, PER_QUERY)
    if page is not None:
        check_output(page, PAGE_MARK)
    workspace, asked = Workspace.open(folder), read_queries(queries)
    stacks = stacks or (in_use(workspace),)
    report = evaluate(
        workspace,
        stacks,
        queries=asked,
        qrels=read_qrels(qrels, conflicts=conflicts),
        keep=10 if page else 0,
        progress=output.Bar(quiet=as_json),
        **settings,
    )
    if "-" not in (queries, qrels):
        settings.pop("save_run")
        remember_files(
            workspace, {"stacks": stacks, "conflicts": conflicts, **settings}, queries=queries, qrels=qrels
        )
    if per_query is not None:
        write_text(per_query, report.per_query_table(), follow=True)
    if page is not None:
        from rerank.report_page.page import evaluation_page

        write_text(page, evaluation_page(workspace, report, asked, Path(qrels).name), follow=True)
    if as_json:
        output.print_json(report)
        return
    show(report, allow_leakage=allow_leakage, category_overlap=settings["category_overlap"])
    said: list[object] = []
    for scoring in report.scoring.values():
        if scoring not in said:
            output.remarks(scoring)
            said.append(scoring)
    for path in (per_query, page):
        if path is not None:
            output.note(f"written to {path}")


def in_use(workspace: Workspace) -> str:
    """Return the stack in use, by its signals in their order."""
    name = workspace.default_stack
    signals = workspace.stack(name).tuned_for
    return ",".join(signals) if workspace.stack_path(signals).stem == name else name


QUERIES = "quer[y|ies]"
LEAK = "†"
"""Marks a stack in a table that was trained or tuned on some of the queries."""


def show(report: EvaluationReport, *, allow_leakage: bool = False, category_overlap: bool = False) -> None:
    """Print the tables; a line above them names what was learned from these queries."""
    from rerank.evaluation.leakage import format_leakage

    leaks = [] if allow_leakage else [leak for row in report.results for leak in row.leaks]
    if leaks:
        click.echo(
            f"{format_leakage(leaks, report.queries + report.none_relevant)}: rows with {LEAK} do not show"
            " the quality for new queries; measure on others\n"
        )
    for number, protocol in enumerate(report.per_query):
        click.echo(("\n" if number else "") + f"{protocol}, {plural(report.queries, QUERIES)}")
        click.echo(_table(report, protocol, marked=not allow_leakage))
        for found in report.candidate_recall:
            if found.protocol == protocol:
                click.echo(output.recall_line(found.recall))
    _show_candidates(report)
    _show_new_documents(report)
    _show_cases(report)
    for line in output.counted(
        (
            report.grade_one_queries or 0,
            "quer[y has|ies have] documents of grade 1: that column is for [it|them]",
        ),
        (report.none_relevant, "judged quer[y has|ies have] no relevant document and [is|are] left out"),
        *_without_value(report),
    ):
        output.note(line)
    if category_overlap and report.category_overlap:
        _show_overlap(report)
    for path in report.runs:
        output.note(f"run written to {path}")


def _show_candidates(report: EvaluationReport) -> None:
    """Print which stacks rank other candidates, if the stacks have different retrievers."""
    by: dict[tuple[str, ...], dict[str, None]] = {}
    for row in report.results:
        by.setdefault(row.retrieve, {})[row.stack] = None
    if len(by) > 1 and any(protocol.startswith("retrieved") for protocol in report.per_query):
        each = "; ".join(f"of {' and '.join(names)}: {', '.join(stacks)}" for names, stacks in by.items())
        click.echo(f"not the same candidates: {each}")


def _show_cases(report: EvaluationReport) -> None:
    """Print the means of each case, and the weights of stacks with several signals."""
    for protocol, case, queries in dict.fromkeys(
        (one.protocol, one.case, one.queries) for one in report.cases
    ):
        click.echo(f"\n{protocol}, {plural(queries, output.CASES[case])}")
        rows = [one for one in report.cases if (one.protocol, one.case) == (protocol, case)]
        body = [[one.stack, *(f"{value:.4f}" for value in one.measures.values())] for one in rows]
        click.echo(output.table(["", *rows[0].measures], body))
    for result in report.results:
        if len(result.weights) > 1 and result.protocol == report.results[0].protocol:
            click.echo(f"{result.stack}: {result.text} ({result.normalization})")


def _table(report: EvaluationReport, protocol: str, *, marked: bool) -> str:
    """Lay out a line for each stack: its measures, and its differences to the baseline."""
    comparisons = {(one.stack, one.measure): one for one in report.comparisons if one.protocol == protocol}
    body = []
    for row in report.results:
        if row.protocol != protocol:
            continue
        cells = [f"{row.stack} {LEAK}" if marked and row.leaks else row.stack]
        cells += [f"{value:.4f}" for value in row.measures.values()]
        for name in report.compared:
            one = comparisons.get((row.stack, name))
            cells += ["", ""] if one is None else [f"{one.delta:+.4f}", output.p_value(one.p_holm)]
        body.append(cells)
    compared = [
        f"{sign} {name}{of}" for name in report.compared for sign, of in (("Δ", ""), ("p", " (Holm)"))
    ]
    return output.table(["", *report.results[0].measures, *compared], body)


def _without_value(report: EvaluationReport) -> list[tuple[int, str]]:
    """Return how many queries have no value of a measure, with a text, for each measure."""
    evaluation = next(iter(report.per_query.values()), None)
    values = next(iter(evaluation.values.values())) if evaluation is not None else {}
    text = "quer[y|ies] without judged documents of both kinds [is|are] left out of"
    return [(sum(map(math.isnan, found.tolist())), f"{text} {name}") for name, found in values.items()]


def _show_overlap(report: EvaluationReport) -> None:
    """Print the histogram of the categories that queries share with relevant documents, by grade."""
    found = report.category_overlap
    click.echo("\nshare of a relevant document's categories that its query has")
    body = [
        [
            bucket.bucket,
            *(f"{100 * of.buckets[at].share:.1f} %  {of.buckets[at].pairs:>7,}" for of in found),
        ]
        for at, bucket in enumerate(found[0].buckets)
    ]
    body += [
        ["the query has none", *(f"{of.without_query:,}" for of in found)],
        ["the document has none", *(f"{of.without_document:,}" for of in found)],
    ]
    head = ["all" if of.grade is None else f"grade {of.grade}" for of in found]
    click.echo(output.table(["", *head], body))


def _show_new_documents(report: EvaluationReport) -> None:
    """Print the tables without the relevant documents that are known from training."""
    if not report.seen_pairs:
        return
    known = (
        f"{100 * report.seen_pairs / report.pairs:.0f} % of the relevant documents were also relevant for"
        " training queries"
    )
    new = report.new_documents
    if new is None:
        click.echo(f"\n{known}: these queries cannot show the quality for new documents")
        return
    click.echo(f"\n{known}. The others:")
    for protocol in new.per_query:
        click.echo(f"{protocol}, {plural(new.queries, QUERIES)}")
        click.echo(_table(new, protocol, marked=False))
