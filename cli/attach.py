"""``rerank attach``: use an existing OpenSearch index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of

from . import output
from .cluster import connection_options, connection_settings
from .options import (
    Command,
    categories_option,
    dry_run_option,
    json_option,
    option,
    workspace_option,
)
from .output import suggested

if TYPE_CHECKING:
    from rerank.workflows.attach import AttachReport


@click.command("attach", cls=Command)
@click.argument("fields", nargs=-1, metavar="[NAME=FIELD]...")
@categories_option
@option(
    "--lang",
    metavar="TEXT",
    group="Input",
    help="Language of the documents, for example en. Default: of an index made by rerank.",
)
@connection_options
@dry_run_option
@workspace_option
@json_option
def command(
    folder: str,
    fields: tuple[str, ...],
    categories: str | None,
    lang: str | None,
    url: tuple[str, ...],
    index: str | None,
    profile: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a workspace for an existing index.

    NAME is title, text, categories, links or lang, and FIELD its field: title=name text=body,summary. The
    index stays unchanged. For an index of rerank, leave the fields out.
    """
    index_fields = _parse_fields(fields)
    opensearch = connection_settings(url, index, profile)
    if opensearch is None:
        raise click.UsageError("the cluster is missing: give --url and --index, or --profile")
    report = rerank.attach(
        folder, index_fields, opensearch=opensearch, lang=lang, categories=categories, dry_run=dry_run
    )
    output.print_report(report, partial(_show, folder=folder), as_json=as_json)


def _show(report: AttachReport, folder: str) -> None:
    """Print the fields of the index, and the next command for a workspace that was made."""
    for name, field_names in report.fields.items():
        click.echo(f"{name}: {', '.join(field_names)}")
    indices = ", ".join(report.indices)
    if report.workspace is None:
        click.echo(f"{count_of(report.documents, 'document')} of {indices}; nothing was changed")
        return
    click.echo(f"{folder} is ready: {count_of(report.documents, 'document')} of {indices}")
    rankers = ("text", "meta") if "categories" in report.fields else ("text",)
    click.echo(f"next: {suggested('train', *rankers, '--queries', 'QUERIES', '--qrels', 'QRELS')}")


def _parse_fields(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return name -> fields of the index, from texts such as ``text=body,summary``."""
    fields: dict[str, list[str]] = {}
    for text in texts:
        name, _, paths = text.partition("=")
        if not paths:
            raise click.UsageError(f"{text!r} is not NAME=FIELD, for example text=body")
        fields.setdefault(name, []).extend(path for path in paths.split(",") if path)
    return fields
