"""``rerank stack``: the stacks of a workspace, and which one is in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rerank.text import join_names, plural

from . import options, output

if TYPE_CHECKING:
    from rerank.workflows.status import StackState


@click.group("stack")
def command() -> None:
    """List the stacks, and choose the stack that is in use."""


@command.command("list")
@options.common
def list_stacks(folder: str, as_json: bool) -> None:
    """List the candidates and all versions that are or were in use, with their weights."""
    from rerank.workflows.status import stacks
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    found = stacks(workspace)
    if as_json:
        output.print_json(found)
        return
    show(found.stacks, found.releases)
    if not found.releases:
        click.echo(f"in use: {workspace.default_stack} alone")


@command.command("use")
@click.argument("stack")
@options.common
def use(stack: str, folder: str, as_json: bool) -> None:
    """Make STACK the default of `query`, `serve` and the hook.

    STACK is signals that were tuned together, weights, a stack file, or the number of a version, as
    `rerank stack list` shows it. Signals name the stack that was tuned last for them. `rerank promote`
    compares it with the stack in use first.
    """
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    used = workspace.use_stack(stack)
    if as_json:
        output.print_json(used)
        return
    click.echo(f"in use: version {workspace.releases.number}")
    output.show_weights(used)


def show(stacks: Sequence[StackState], releases: Sequence[StackState], most: int | None = None) -> None:
    """Print the candidates that are no version, and the newest versions, each with its weights."""
    versions = [row.of for row in releases]
    for row in (*(row for row in stacks if row.of not in versions), *releases[:most]):
        what = f"candidate {row.name}" if row.version is None else f"version {row.version}"
        if row.since is not None:
            what += f"{', in use' if row.in_use else ', last in use'} since {row.since}"
        click.echo(f"{what}: {plural(row.depth, 'candidate[|s]')} by {' and '.join(row.retrieve)}")
        output.show_weights(row.of)
        if row.gate:
            measure, value, before = (row.gate[name] for name in ("measure", "value", "before_value"))
            p = output.p_value(row.gate["p"])
            click.echo(f"  promoted with {measure} {value:.4f} against {before:.4f} (p {p})")
        if row.outdated:
            click.echo(f"  tuned before {join_names(row.outdated)} was trained again: tune it again")
