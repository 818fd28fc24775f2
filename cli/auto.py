"""``rerank auto``: a folder of files -> a tuned stack."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from . import cluster, evaluate, options, output
from .options import declare, option

if TYPE_CHECKING:
    from rerank.workflows.auto import AutoReport


@click.command("auto", cls=options.Command)
@click.argument("source", metavar="FOLDER")
@declare(
    "Input",
    option("--lang TEXT", "Language of the documents, for example en. Default: their `lang` field."),
    options.conflicts,
    "Training",
    option("--model NAME", "Encoder of dense: folder or model. Default: MiniLM for English texts."),
    option("--minutes X", "Approximate time limit.", type=options.POSITIVE, default=10.0),
    "Connection",
    *cluster.connection,
    options.GENERAL,
    options.seed,
    *options.common,
)
def command(
    source: str,
    folder: str,
    as_json: bool,
    profile: str | None,
    url: tuple[str, ...],
    index: str | None,
    **settings: Any,
) -> None:
    """Ingest, train, tune and evaluate the collection in FOLDER, with reasons for each choice.

    FOLDER contains corpus.jsonl (or articles in JATS), queries.jsonl, and qrels/train.tsv, dev.tsv and
    test.tsv, or one file of judgments. If interrupted, the same command continues.
    """
    from rerank.workflows.auto import auto

    opensearch = cluster.settings(profile, url, index)
    report = auto(source, folder, opensearch=opensearch, progress=output.Bar(quiet=as_json), **settings)
    output.result(report, as_json, lambda report: _show(report, folder))


def _show(report: AutoReport, folder: str) -> None:
    click.echo("\nTest queries; they were not used for training, choices or tuning.\n")
    evaluate.show(report.evaluated)
    for scoring in report.evaluated.scoring.values():
        output.remarks(scoring)
    first_stage = report.stack.first_stage
    same = report.stack.signals == (first_stage,)
    if same:
        click.echo(f"\nNo stack is better than {first_stage}. {first_stage} is active.")
    else:
        relation = "is" if report.better else "is NOT"
        click.echo(f"\nThe stack {relation} significantly better than {first_stage}. The stack is active.")
    click.echo(f"Query by query: {report.page}\n\nNext:")
    where = f"-w {shlex.quote(folder)}"
    test = f"--queries {shlex.quote(str(report.queries))} --qrels {shlex.quote(str(report.splits['test']))}"
    stack = f"--stack {','.join(report.stack.signals)} --baseline {first_stage}"
    for line in (
        f'rerank query "..." --explain {where}',
        *([] if same else [f"rerank evaluate {stack} {test} {where}"]),
        f"rerank serve {where}",
    ):
        click.echo(f"  {line}")
