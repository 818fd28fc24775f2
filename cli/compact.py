"""``rerank compact``: reclaims the disk space of deleted documents."""

from __future__ import annotations

import click

from rerank.text import plural

from . import options, output


@click.command("compact")
@options.common
def command(folder: str, as_json: bool) -> None:
    """Give back the space of documents that were deleted or replaced (local engine).

    Readers notice nothing. `rerank ingest` does it by itself when more than half of what is stored is of such
    documents.
    """
    import dataclasses

    from rerank.workflows.compact import compact
    from rerank.workspace import Workspace

    done = compact(Workspace.open(folder))
    if as_json:
        output.print_json(dataclasses.asdict(done))
        return
    gone = plural(done.rows, "former document[|s]")
    click.echo(f"{gone} removed: {done.before / 1e6:.1f} MB -> {done.after / 1e6:.1f} MB")
