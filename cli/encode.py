"""``rerank encode``: the missing features of trained rankers."""

from __future__ import annotations

import click

from . import options, output


@click.command("encode")
@options.common
def command(folder: str, as_json: bool) -> None:
    """Compute the features that trained rankers lack, going on where an interruption left off."""
    from rerank.ingesting import encode
    from rerank.workspace import Workspace

    encoded = encode(Workspace.open(folder), progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json({"encoded": encoded})
    elif encoded:
        for name, count in encoded.items():
            click.echo(f"{name}: {count} documents encoded")
    else:
        click.echo("no ranker is trained; there is nothing to encode")
