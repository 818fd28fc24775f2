"""``rerank auto``: from a folder of files to a tuned, measured stack."""

from __future__ import annotations

import shlex
from typing import Any

import click

from . import cluster as clusters
from . import options, output


@click.command("auto")
@click.argument("source", metavar="FOLDER")
@options.common
@click.option("--lang", help="Language of the documents (en, it, ...). Default: their `lang` field's.")
@click.option(
    "--model",
    metavar="NAME",
    help="Encoder of dense: a folder, or a model on this machine. Default: MiniLM, where all is in English.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="N",
    help="About how long it may take: rankers that would take longer are left out, or end early.",
)
@options.conflicts
@options.seed
@clusters.engine
@clusters.options
def command(
    source: str, folder: str, as_json: bool, engine: str | None, cluster: dict[str, Any], **settings: Any
) -> None:
    """Ingest, train, tune, evaluate and report, choosing what the files in FOLDER allow, and saying why.

    FOLDER has corpus.jsonl (or articles in JATS), queries.jsonl, and qrels/train.tsv, dev.tsv and test.tsv,
    or some or one of them. What is missing is drawn from the others; test queries are measured on alone.
    Interrupted, it goes on when the same command is run again.
    """
    from rerank.workflows.auto import auto
    from rerank.workflows.evaluated import remember_files

    from . import evaluate

    opensearch = clusters.location(folder, engine, cluster)
    report = auto(source, folder, opensearch=opensearch, progress=output.Bar(quiet=as_json), **settings)
    measured = {"stacks": [",".join(report.stack.signals)], "baseline": report.stack.first_stage}
    files = {"queries": str(report.queries), "qrels": str(report.splits["test"])}
    remember_files(report.workspace, {**measured, "seed": settings["seed"]}, **files)
    if as_json:
        output.print_json(report)
        return
    click.echo("\nTest queries; nothing was trained, chosen or tuned on them.\n")
    evaluate.show(report.evaluated)
    for scoring in report.evaluated.scoring.values():
        output.remarks(scoring)
    alone = report.stack.signals == (report.stack.first_stage,)
    if alone:
        click.echo(f"\nNothing that was tried is above {report.stack.first_stage} alone. It is in use.")
    elif report.better:
        click.echo(f"\nThe stack is above {report.stack.first_stage} alone. It is in use.")
    else:
        click.echo(f"\nThe stack is NOT significantly above {report.stack.first_stage} alone. It is in use.")
    click.echo(f"Query by query: {report.page}\n\nNext:")
    where = f"-w {shlex.quote(folder)}"
    test = f"--queries {shlex.quote(str(report.queries))} --qrels {shlex.quote(str(report.splits['test']))}"
    stack = f"--stack {','.join(report.stack.signals)} --baseline {report.stack.first_stage}"
    for line in (
        f'rerank query "..." --explain {where}',
        *([] if alone else [f"rerank evaluate {stack} {test} {where}"]),
        f"rerank serve {where}",
    ):
        click.echo(f"  {line}")
