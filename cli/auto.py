"""``rerank auto``: a folder of files -> a tuned stack."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

import rerank

from . import cluster, evaluate, options
from .options import Output, option


@options.command(
    "auto",
    options.argument("source", metavar="FOLDER"),
    "Input",
    options.lang,
    "Training",
    option("--model NAME", "Encoder of dense: folder or model. Default: MiniLM for English texts."),
    options.measure,
    option("--minutes X", "Approximate time on two idle cores.", type=float, default=10.0),
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
    for choice in report.choices:
        if choice.minutes is not None:
            click.echo(f"A larger --minutes may help: {choice}")
    click.echo(f"Query by query: {report.page}\n\nNext:")
    where = f"-w {shlex.quote(folder)}"
    test = f"--queries {shlex.quote(str(report.queries))} --qrels {shlex.quote(str(report.splits['test']))}"
    stack = f"--stack {','.join(report.stack.tuned_for)} --baseline {first_stage}"
    for line in (
        f'rerank query "..." --explain {where}',
        *([] if same else [f"rerank evaluate {stack} {test} {where}"]),
        f"rerank serve {where}",
    ):
        click.echo(f"  {line}")
