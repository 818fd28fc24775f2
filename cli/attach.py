"""``rerank attach``: use an existing OpenSearch index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import rerank
from rerank.text import plural

from . import cluster, options, output
from .options import Output, option
from .output import suggested


@options.command(
    "attach",
    options.argument("fields", nargs=-1, metavar="[NAME=FIELD]..."),
    "Input",
    options.categories,
    option("--lang TEXT", "Language of the documents, for example en. Default: of an index made by rerank."),
    "Connection",
    *cluster.connection,
    options.GENERAL,
    options.dry_run,
)
def command(folder: str, progress: output.Bar, fields: tuple[str, ...], **settings: Any) -> Iterator[Output]:
    """Make a workspace for an existing index.

    NAME is title, text, categories, links or lang, and FIELD its field: title=name text=body,summary. The
    index stays unchanged. For an index of rerank, leave the fields out.
    """
    named: dict[str, list[str]] = {}
    for pair in fields:
        name, _, paths = pair.partition("=")
        if not paths:
            raise click.UsageError(f"{pair!r} is not NAME=FIELD, for example text=body")
        named.setdefault(name, []).extend(path for path in paths.split(",") if path)
    opensearch = cluster.settings(settings)
    if opensearch is None:
        raise click.UsageError("the cluster is missing: give --url and --index, or --profile")
    report = rerank.attach(folder, named, opensearch=opensearch, **settings)
    yield Output(report)
    for name, index_fields in report.fields.items():
        click.echo(f"{name}: {', '.join(index_fields)}")
    indices = ", ".join(report.indices)
    if report.workspace is None:
        click.echo(f"{plural(report.documents, 'document[|s]')} of {indices}; nothing was changed")
        return
    click.echo(plural(report.documents, f"document[|s] of {indices} [is|are] ready in {folder}"))
    rankers = ("text", "meta") if "categories" in report.fields else ("text",)
    click.echo(f"next: {suggested('train', *rankers, '--queries', 'QUERIES', '--qrels', 'QRELS')}")
