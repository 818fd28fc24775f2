"""``rerank evaluate``: stacks against a baseline, with significance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rerank.wording import amount

from . import options, output

if TYPE_CHECKING:
    from rerank.actions.tables import EvaluationReport
    from rerank.workspace import Workspace


measures = click.option(
    "--measure",
    "--measures",
    "measures",
    multiple=True,
    metavar="NAMES",
    callback=lambda _, __, texts: tuple(" ".join(texts).replace(",", " ").split()),
    help="nDCG@10, RR, ... as ir_measures names them, or AUC; repeatable, or with commas. All that are named"
    " are compared.",
)


@click.command("evaluate")
@options.common
@click.option(
    "--stack",
    "stacks",
    multiple=True,
    metavar="STACK",
    help="Signals or a file; repeatable. Default: the stack in use.",
)
@click.option(
    "--baseline",
    metavar="STACK",
    help="What the stacks are compared with. Default: the first stage alone (--first-stage).",
)
@options.queries
@click.option(
    "--qrels", required=True, metavar="FILE", help="Judgements to measure with (test), BEIR or TREC."
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
    "--also-rerank-only", is_flag=True, help="Show each stack without its first stage's score, too."
)
@click.option("--also-grade-one", is_flag=True, help="Measure without the documents of grade 2 and up, too.")
@click.option(
    "--overlap", is_flag=True, help="Also show how many categories queries share with relevant documents."
)
@options.conflicts
@click.option("--allow-overlap", is_flag=True, help="Say nothing of queries that were learned from.")
@click.option("--save-run", metavar="DIR", help="Write each ranking as a TREC run into this folder.")
@click.option("--per-query", metavar="FILE", help="Write each query's measures, tab between.")
@click.option("--report", "page", metavar="FILE", help="Write all of it, query by query, as an HTML page.")
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
    allow_overlap: bool,
    per_query: str | None,
    page: str | None,
    **settings: Any,
) -> None:
    """Measure stacks on judged queries and compare them with a baseline (paired randomization test)."""
    from pathlib import Path

    from rerank.actions.evaluate import evaluate
    from rerank.actions.evaluated import remember_files
    from rerank.actions.report import PAGE_MARK
    from rerank.actions.tables import PER_QUERY
    from rerank.files import check_output, write_text
    from rerank.formats import read_qrels, read_queries
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
        from rerank.reports.evaluation.page import evaluation_page

        write_text(page, evaluation_page(workspace, report, asked, Path(qrels).name), follow=True)
    if as_json:
        output.print_json(report)
        return
    show(report, allow_overlap=allow_overlap, overlap=settings["overlap"])
    said: list[object] = []
    for scoring in report.scoring.values():
        if scoring not in said:
            output.remarks(scoring)
            said.append(scoring)
    for path in (per_query, page):
        if path is not None:
            output.note(f"written to {path}")


def in_use(workspace: Workspace) -> str:
    """The stack in use, its signals in their order."""
    name = workspace.default_stack
    signals = workspace.stack(name).tuned_for
    return ",".join(signals) if workspace.stack_path(signals).stem == name else name


QUERIES = "quer[y|ies]"
LEAK = "†"
"""Marks a row of a table that says nothing about new queries."""


def show(report: EvaluationReport, *, allow_overlap: bool = False, overlap: bool = False) -> None:
    """Print the tables; a line above them says what was learned from these very queries."""
    from rerank.actions.leaks import said

    leaks = [leak for row in report.results for leak in row.leaks]
    if leaks and not allow_overlap:
        click.echo(
            f"{said(leaks, report.queries + report.none_relevant)}: rows with {LEAK} say nothing about new"
            " queries; measure on others\n"
        )
    for number, protocol in enumerate(report.per_query):
        click.echo(("\n" if number else "") + f"{protocol}, {amount(report.queries, QUERIES)}")
        click.echo(_table(report, protocol, marked=not allow_overlap))
        for found in report.candidate_recall:
            if found.protocol == protocol:
                click.echo(output.recall_line(found.recall))
    by: dict[tuple[str, ...], dict[str, None]] = {}
    for row in report.results:
        by.setdefault(row.retrieve, {})[row.stack] = None
    if len(by) > 1 and any(one.startswith("retrieved") for one in report.per_query):
        each = "; ".join(f"of {' and '.join(who)}: {', '.join(labels)}" for who, labels in by.items())
        click.echo(f"not the same candidates: {each}")
    _show_new_documents(report)
    for case in dict.fromkeys((one.protocol, one.case, one.queries) for one in report.cases):
        protocol, name, n = case
        click.echo(f"\n{protocol}, {amount(n, output.CASES[name])}")
        rows = [one for one in report.cases if (one.protocol, one.case) == (protocol, name)]
        body = [[one.stack, *(f"{value:.4f}" for value in one.measures.values())] for one in rows]
        click.echo(output.table(["", *rows[0].measures], body))
    for result in report.results:
        if len(result.weights) > 1 and result.protocol == report.results[0].protocol:
            click.echo(f"{result.stack}: {result.text} ({result.normalisation})")
    if report.grade_one_queries is not None:
        what = "quer[y has|ies have] documents of grade 1: that column is [its|theirs]"
        output.note(amount(report.grade_one_queries, what))
    if report.none_relevant:
        what = "judged quer[y has|ies have] no relevant document and [is|are] left out"
        output.note(amount(report.none_relevant, what))
    for name, count in _lacking(report).items():
        what = "quer[y|ies] without judged documents of both kinds [is|are] left out of"
        output.note(f"{amount(count, what)} {name}")
    if overlap and report.category_overlap:
        _show_overlap(report)
    for path in report.runs:
        output.note(f"run written to {path}")


def _table(report: EvaluationReport, protocol: str, *, marked: bool) -> str:
    """A line for each stack: its measures, and its differences to the baseline."""
    body = []
    leaky = {row.stack for row in report.results if row.leaks} if marked else set()
    head = [f"{sign} {name}" for name in report.compared for sign in ("Δ", "p")]
    for row in report.rows():
        if row.pop("protocol") != protocol:
            continue
        label = row.pop("stack")
        cells = {True: [f"{label} {LEAK}" if label in leaky else label], False: []}
        for name, value in row.items():
            of = name.split(" ")[0]
            text = "" if value is None else f"{value:.4f}"
            if value is not None and of in ("delta", "p_holm"):
                text = f"{value:+.4f}" if of == "delta" else output.p_value(value)
            cells[of not in ("delta", "p_holm")].append(text)
        body.append(cells[True] + cells[False])
    measures = list(report.results[0].measures)
    return output.table(["", *measures, *(f"{one} (Holm)" if one[0] == "p" else one for one in head)], body)


def _lacking(report: EvaluationReport) -> dict[str, int]:
    """Measure -> queries that have no value of it, where some have none."""
    evaluation = next(iter(report.per_query.values()), None)
    if evaluation is None:
        return {}
    values = next(iter(evaluation.values.values()))
    counts = {name: sum(value != value for value in found.tolist()) for name, found in values.items()}
    return {name: count for name, count in counts.items() if count}


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
        ["the query brings none", *(f"{of.without_query:,}" for of in found)],
        ["the document has none", *(f"{of.without_document:,}" for of in found)],
    ]
    head = ["all" if of.grade is None else f"grade {of.grade}" for of in found]
    click.echo(output.table(["", *head], body))


def _show_new_documents(report: EvaluationReport) -> None:
    """Print what is left without the relevant documents that something was learned from."""
    if not report.seen_pairs:
        return
    known = (
        f"{100 * report.seen_pairs / report.pairs:.0f} % of the relevant documents were relevant for queries"
        " that were learned from, too"
    )
    new = report.new_documents
    if new is None:
        click.echo(f"\n{known}: nothing here tells what becomes of new documents")
        return
    click.echo(f"\n{known}. The others:")
    for protocol in new.per_query:
        click.echo(f"{protocol}, {amount(new.queries, QUERIES)}")
        click.echo(_table(new, protocol, marked=False))
