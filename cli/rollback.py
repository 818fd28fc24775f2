"""``rerank rollback``: put the stack in use that was in use before."""

from __future__ import annotations

import click

from rerank.text import plural

from . import options, output
from .hints import suggested


@click.command("rollback")
@options.common
@click.option("--dry-run", is_flag=True, help="Only show the two versions.")
def command(folder: str, as_json: bool, dry_run: bool) -> None:
    """Put the stack in use that was in use before; a running service follows within a second or so.

    The version that was in use stays: `rerank stack use VERSION` puts it in use again.
    """
    from rerank.workflows.promote import rollback
    from rerank.workspace import Workspace

    report = rollback(Workspace.open(folder), dry_run=dry_run, progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(report)
        return
    would, again = ("would be ", "would put") if dry_run else ("", "puts")
    click.echo(f"{would}in use again: version {report.version}")
    output.show_weights(report.stack)
    click.echo(
        f"{would}rolled back: version {report.rolled_back_version};"
        f" {suggested('stack', 'use', str(report.rolled_back_version))} {again} it in use again"
    )
    output.show_weights(report.rolled_back)
    for name, count in report.encoded.items():
        click.echo(f"{name}: {plural(count, 'document[|s]')} encoded, which had come since")
