"""``rerank remove``: remove a ranker, or one version of it."""

from __future__ import annotations

import click

import rerank

from . import output
from .options import Command, json_option, option, workspace_option


@click.command("remove", cls=Command)
@click.argument("ranker")
@option("--version", metavar="VERSION", help="Remove only this version. `rerank status` lists the versions.")
@workspace_option
@json_option
def command(folder: str, ranker: str, version: str | None, as_json: bool) -> None:
    """Remove RANKER. A ranker of the active stack is refused.

    Stacks with this ranker can then only be tuned again.
    """
    removed = rerank.Workspace.open(folder).remove_ranker(ranker, version)
    if as_json:
        output.print_json({"ranker": ranker, "removed": removed})
        return
    click.echo(f"{ranker}: removed {', '.join(removed)}")
