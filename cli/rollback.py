"""``rerank rollback``: put the stack in use that was in use before."""

from __future__ import annotations

import click

from rerank.wording import amount

from . import options, output


@click.command("rollback")
@options.common
def command(folder: str, as_json: bool) -> None:
    """Put the stack in use that was in use before; a running service follows within a second or so.

    Three changes can be taken back, one after the other. What was taken back stays tuned, as a candidate.
    """
    from rerank.actions.promote import rollback
    from rerank.workspace import Workspace

    report = rollback(Workspace.open(folder), progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(report)
        return
    click.echo(f"in use again: {report.stack}   ({report.stack.normalisation})")
    click.echo(f"taken back: {report.taken_back}   ({report.taken_back.normalisation})")
    for name, count in report.encoded.items():
        click.echo(f"{name}: {amount(count, 'document[|s]')} encoded, which had come since")
