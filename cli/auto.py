"""``rerank auto``: a folder of files -> a tuned stack."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import rerank

from . import cluster, evaluate, options
from .options import Output, option

if TYPE_CHECKING:
    from rerank.workflows.auto.run import AutoReport


@options.command(
    "auto",
    options.argument("source", metavar="FOLDER"),
    "Input",
    options.lang,
    "Training",
    option("--model NAME", "Encoder of dense: folder or model. Default: MiniLM for English texts."),
    options.measure,
    option("--minutes X", "Time for all steps. Trainings end when it is over.", type=float, default=10.0),
    "Connection",
    *cluster.connection,
    options.GENERAL,
    options.seed,
)
def command(folder: str, source: str, **settings: Any) -> Iterator[Output]:
    """Ingest, train, tune and evaluate the collection in FOLDER, with reasons for each choice.

    FOLDER contains corpus.jsonl, queries.jsonl, and qrels.tsv or qrels/train.tsv, dev.tsv and test.tsv. If
    interrupted, the same command continues.
    """
    report = rerank.auto(source, folder, opensearch=cluster.settings(settings), **settings)
    yield Output(report)
    click.echo("\nTest queries; they were not used for training, choices or tuning.\n")
    evaluate.show(report.evaluated)
    evaluate.show_remarks(report.evaluated)
    first_stage = report.stack.first_stage
    same = report.stack.signals == (first_stage,)
    if same:
        click.echo(f"\nNo stack is better than {first_stage}. {first_stage} is active.")
    else:
        relation = "is" if report.better else "is NOT"
        click.echo(f"\nThe stack {relation} significantly better than {first_stage}. The stack is active.")
    if report.without_categories is not None:
        _show_without_categories(report)
    if report.halves is not None:
        click.echo(f"Few queries are judged, so one split can mislead. Random halves: {report.halves}.")
    for choice in report.choices:
        if choice.cut:
            click.echo(f"A larger --minutes may help: {choice}")
    click.echo(f"Query by query: {report.page}\n\nNext:")
    workspace = f"-w {shlex.quote(folder)}"
    test = f"--queries {shlex.quote(str(report.queries))} --qrels {shlex.quote(str(report.splits['test']))}"
    stack = f"--stack {','.join(report.stack.tuned_for)} --baseline {first_stage}"
    for line in (
        f'rerank query "..." --explain {workspace}',
        *([] if same else [f"rerank evaluate {stack} {test} {workspace}"]),
        f"rerank serve {workspace}",
    ):
        click.echo(f"  {line}")


def _show_without_categories(report: AutoReport) -> None:
    """Print the gain with and without the categories of the queries."""
    assert report.without_categories is not None
    gains = []
    for evaluated in (report.evaluated, report.without_categories):
        baseline = evaluated.results[0].measures[evaluated.compared[0]]
        gains.append(evaluated.results[-1].measures[evaluated.compared[0]] - baseline)
    measure = report.evaluated.compared[0]
    click.echo(
        f"Gain of the stack in {measure}: {gains[0]:+.4f} with the categories of the queries,"
        f" {gains[1]:+.4f} without them."
    )
