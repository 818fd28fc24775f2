"""``rerank evaluate``: stacks against a baseline, with significance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options, output
from .tune import recall_line, remarks

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
@click.option("--rerank-only", is_flag=True, help="Also show each stack without its first stage's score.")
@click.option("--grade-one-only", is_flag=True, help="Also measure without the documents of grade 2 and up.")
@click.option(
    "--overlap", is_flag=True, help="Also show how many categories queries share with relevant documents."
)
@click.option("--save-run", metavar="DIR", help="Write each ranking as a TREC run into this folder.")
@options.retrieve
@options.ignore_categories
@options.infer
@options.seed
def command(
    folder: str,
    as_json: bool,
    stacks: tuple[str, ...],
    baseline: str,
    queries: str,
    qrels: str,
    protocols: tuple[str, ...],
    measures: tuple[str, ...],
    rerank_only: bool,
    grade_one_only: bool,
    overlap: bool,
    save_run: str | None,
    retrieve: str | None,
    ignore_categories: bool,
    infer: bool,
    seed: int,
) -> None:
    """Measure stacks on judged queries and compare them with a baseline (paired randomization test)."""
    from rerank.actions.evaluate import evaluate
    from rerank.formats import read_qrels, read_queries
    from rerank.stack.parse import parse_retrieve
    from rerank.workspace import Workspace

    report = evaluate(
        Workspace.open(folder),
        stacks,
        baseline,
        read_queries(queries),
        read_qrels(qrels),
        retrieve=parse_retrieve(retrieve) if retrieve is not None else (),
        protocols=protocols,
        measures=measures or None,
        rerank_only=rerank_only,
        grade_one_only=grade_one_only,
        overlap=overlap,
        save_run=save_run,
        ignore_categories=ignore_categories,
        infer=infer,
        seed=seed,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(report.to_json())
        return
    show(report)
    said: list[object] = []
    for scoring in report.scoring.values():
        if scoring not in said:
            remarks(scoring)
            said.append(scoring)


def show(report: EvaluationReport) -> None:
    """Print the tables."""
    for number, protocol in enumerate(dict.fromkeys(row.protocol for row in report.results)):
        rows = [row for row in report.results if row.protocol == protocol]
        names = list(rows[0].measures)
        p = {(c.stack, c.measure): c for c in report.comparisons[protocol]}
        lead = names[0]
        click.echo(("\n" if number else "") + f"{protocol}, {report.queries} queries")
        body = []
        for row in rows:
            found = p.get((row.label, lead))
            delta, value = (f"{found.delta:+.4f}", output.p_value(found.p_holm)) if found else ("", "")
            body.append([row.label, *(f"{row.measures[m]:.4f}" for m in names), delta, value])
        click.echo(output.table(["", *names, f"Δ {lead}", "p (Holm)"], body))
        for recall in report.candidate_recall.get(protocol, {}).values():
            click.echo(recall_line(recall))
    for row in report.results:
        if row.weights and row.protocol == report.results[0].protocol:
            click.echo(f"{row.label}: {row.stack_text} ({row.normalisation})")
    if report.grade_one_queries is not None:
        output.note(f"{report.grade_one_queries} queries have documents of grade 1: that column is theirs")
    if report.none_relevant:
        output.note(f"{report.none_relevant} judged queries have no relevant document and are left out")
    if report.overlap:
        click.echo("\nshare of a relevant document's categories that its query has")
        for bucket, share, count in report.overlap:
            click.echo(f"  {bucket:>8} {100 * share:5.1f} % {count:>8}")
    for path in report.saved:
        output.note(f"run written to {path}")
