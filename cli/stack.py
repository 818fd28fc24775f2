"""``rerank stack``: which tuned stack ranks what names none."""

from __future__ import annotations

import click

from . import options, output


@click.group("stack")
def command() -> None:
    """Choose the stack that is in use."""


@command.command("use")
@click.argument("stack")
@options.common
def use(stack: str, folder: str, as_json: bool) -> None:
    """Make STACK the default of `query`, `serve` and the hook: signals that were tuned together, or a file.

    It is used as it was tuned last; a file is copied into the workspace. The first stack that is tuned in a
    workspace is in use by itself, later ones by this, or after a comparison by `rerank promote`.
    """
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    used = workspace.use_stack(stack)
    if as_json:
        output.print_json(used)
        return
    click.echo(f"in use: {used}   ({used.normalisation})")
