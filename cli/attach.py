"""``rerank attach``: an index that others write, used as it is."""

from __future__ import annotations

from typing import Any

import click

from rerank.text import plural

from . import cluster as clusters
from . import options, output
from .hints import suggested


@click.command("attach")
@click.argument("fields", nargs=-1, metavar="[NAME=FIELD]...")
@options.common
@clusters.options
@click.option(
    "--field", "more", multiple=True, metavar="NAME=FIELD[,FIELD...]", help="Where NAME is; repeatable."
)
@click.option("--categories", metavar="FILE", help="The category graph: child and parent, tab between.")
@click.option("--lang", help="Language of the documents (en, it, ...).")
@click.option("--dry-run", is_flag=True, help="Only show what would be attached.")
def command(
    fields: tuple[str, ...],
    folder: str,
    as_json: bool,
    cluster: dict[str, Any],
    more: tuple[str, ...],
    categories: str | None,
    lang: str | None,
    dry_run: bool,
) -> None:
    """Make a workspace for an existing index, or connect an existing workspace to other nodes.

    NAME is title, text, categories, links or lang, and FIELD the field of the index that holds it:
    --field title=name text=body,summary categories=tags. The index stays as it is: features are kept in the
    workspace. In an existing workspace of the same index, --url and the other connection options replace
    those of rerank.toml; leave the fields out.
    """
    from rerank.workflows.attach import attach

    named: dict[str, list[str]] = {}
    for pair in (*more, *fields):
        name, separator, paths = pair.partition("=")
        if not separator or not paths:
            raise click.UsageError(f"{pair!r} is not NAME=FIELD, for example text=body")
        named.setdefault(name, []).extend(path for path in paths.split(",") if path)
    report = attach(
        folder,
        named,
        opensearch=clusters.settings(cluster),
        lang=lang,
        categories=categories,
        dry_run=dry_run,
    )
    if as_json:
        output.print_json(report)
        return
    for name, found in report.fields.items():
        click.echo(f"{name}: {', '.join(found)}")
    if dry_run:
        click.echo(
            f"{plural(report.documents, 'document[|s]')} of {', '.join(report.indices)}; nothing was made"
        )
        return
    indices = ", ".join(report.indices)
    click.echo(plural(report.documents, f"document[|s] of {indices} [is|are] ready in {folder}"))
    assert report.workspace is not None
    if report.workspace.trained():
        click.echo(f"next: {suggested('encode')}")
    else:
        click.echo(f"next: {suggested('train', 'text', '--queries', 'QUERIES', '--qrels', 'QRELS')}")
