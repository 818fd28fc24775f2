"""``rerank evaluate``: stacks against a baseline, with significance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from rerank.actions.evaluate import EvaluationReport


@click.command("evaluate")
@options.common
@click.option(
    "--stack", "stacks", required=True, multiple=True, metavar="STACK", help="Signals or a file; repeatable."
)
@click.option(
    "--baseline",
    default="tfidf",
    show_default=True,
    metavar="STACK",
    help="What the stacks are compared with.",
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
    help="retrieved:N, pool-random:N or pool-first:N; repeatable.",
)
@click.option(
    "--measure", "measures", multiple=True, metavar="NAME", help="As ir_measures names them; repeatable."
)
@click.option(
    "--also-rerank-only", is_flag=True, help="Show each stack without its first stage's score, too."
)
@click.option("--also-grade-one", is_flag=True, help="Measure without the documents of grade 2 and up, too.")
@click.option(
    "--overlap", is_flag=True, help="Also show how many categories queries share with relevant documents."
)
@click.option("--save-run", metavar="DIR", help="Write each ranking as a TREC run into this folder.")
@options.retrieve
@options.ignore_categories
@options.infer
@options.seed
def command(
    folder: str, as_json: bool, stacks: tuple[str, ...], queries: str, qrels: str, **settings: Any
) -> None:
    """Measure stacks on judged queries and compare them with a baseline (paired randomization test)."""
    from rerank.actions.evaluate import evaluate
    from rerank.formats import read_qrels, read_queries
    from rerank.workspace import Workspace

    report = evaluate(
        Workspace.open(folder),
        stacks,
        queries=read_queries(queries),
        qrels=read_qrels(qrels),
        progress=output.Bar(quiet=as_json),
        **settings,
    )
    if as_json:
        output.print_json(report)
        return
    show(report)
    said: list[object] = []
    for scoring in report.scoring.values():
        if scoring not in said:
            output.remarks(scoring)
            said.append(scoring)


def show(report: EvaluationReport) -> None:
    """Print the tables."""
    for number, protocol in enumerate(report.scoring):
        click.echo(("\n" if number else "") + f"{protocol}, {report.queries} queries")
        body = []
        for row in report.rows():
            if row.pop("protocol") == protocol:
                label, delta, p = row.pop("stack"), row.pop("delta"), row.pop("p_holm")
                compared = ["", ""] if p is None else [f"{delta:+.4f}", output.p_value(p)]
                names = list(row)
                body.append([label, *(f"{value:.4f}" for value in row.values()), *compared])
        click.echo(output.table(["", *names, f"Δ {names[0]}", "p (Holm)"], body))
        for found in report.candidate_recall:
            if found.protocol == protocol:
                click.echo(output.recall_line(found.recall))
    for result in report.results:
        if len(result.weights) > 1 and result.protocol == report.results[0].protocol:
            click.echo(f"{result.stack}: {result.text} ({result.normalisation})")
    if report.grade_one_queries is not None:
        output.note(f"{report.grade_one_queries} queries have documents of grade 1: that column is theirs")
    if report.none_relevant:
        output.note(f"{report.none_relevant} judged queries have no relevant document and are left out")
    if report.category_overlap:
        click.echo("\nshare of a relevant document's categories that its query has")
        for one in report.category_overlap:
            click.echo(f"  {one.bucket:>8} {100 * one.share:5.1f} % {one.pairs:>8}")
    for path in report.runs:
        output.note(f"run written to {path}")
