"""``rerank status``: what a workspace holds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rerank.text import plural

from . import options, output, stack
from .hints import suggested

if TYPE_CHECKING:
    from rerank.workspace import Workspace

RELEASES = 4
"""Versions of the stacks that are shown."""


@click.command("status")
@click.option(
    "--verify",
    is_flag=True,
    help="Compare all files with their checksums instead; exit code 1 if one is corrupted.",
)
@options.common
def command(folder: str, as_json: bool, verify: bool) -> None:
    """Show a workspace's documents, rankers and stacks, and what was interrupted."""
    from rerank.workflows.status import status
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    if verify:
        _verify(workspace, as_json)
        return
    found = status(workspace)
    if as_json:
        output.print_json(found)
        return
    documents = plural(found.documents, "document[|s]")
    click.echo(f"{documents} ({found.lang or 'no one language'}) in {found.place}")
    for left in found.unfinished:
        how = f"{left.done} of {left.of} {left.unit}s" if left.done else "its starts are tried"
        called = ["--as", left.name] if left.name != left.variant else []
        click.echo(
            f"training of {left.name} was interrupted ({how}): {suggested('train', left.variant, *called)},"
            " with the options it had, goes on; --restart drops it"
        )
    for ranker in found.rankers:
        if ranker.error:
            click.echo(f"ranker {ranker.name}: {ranker.error}")
            continue
        lacking = ranker.missing_features
        state = "features stored"
        if lacking:
            state = f"{plural(lacking, 'feature[|s]')} missing: run {suggested('encode')}"
        older = f"; stacks need {', '.join(ranker.older)}, too" if ranker.older else ""
        click.echo(f"ranker {ranker.name} {ranker.version}: {state}{older}")
    stack.show(found.stacks, found.releases, RELEASES)
    if len(found.releases) > RELEASES:
        older = plural(len(found.releases) - RELEASES, "older version[|s]")
        click.echo(f"{older}: {suggested('stack', 'list')}")
    if found.rankers and not found.releases:
        click.echo(f"in use: {workspace.default_stack} alone")


def _verify(workspace: Workspace, as_json: bool) -> None:
    """Print the corrupted files of a workspace."""
    corrupted = workspace.verify()
    if as_json:
        output.print_json({"corrupted": corrupted})
    for file, problem in () if as_json else corrupted.items():
        click.echo(f"{file}: {problem}")
    if corrupted:
        sys.exit(1)
    output.note("no file is corrupted")
