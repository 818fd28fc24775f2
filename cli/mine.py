"""``rerank mine``: co-citations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rerank.results import table
from rerank.text import plural

from . import options
from .options import Output

if TYPE_CHECKING:
    from rerank.workflows.mine import CoCited
    from rerank.workspace import Workspace


@click.group("mine")
def command() -> None:
    """Find co-citations in the collection."""


@options.command("cocitation", group=command)
def cocitation(workspace: Workspace, **settings: Any) -> Output:
    """Count references that are cited together in a sentence, a paragraph, a section or a document."""
    from rerank.workflows.mine import mine_cocitation

    found = mine_cocitation(workspace, **settings)
    return Output(found, lambda: _show_levels(found))


def _show_levels(found: CoCited) -> None:
    click.echo(
        f"{plural(found.citing, 'document[ cites|s cite]')} {plural(found.references, 'reference[|s]')}"
        f" {plural(found.mentions, 'time[|s]')};"
        f" {plural(found.outside, 'reference[ is|s are]')} not in the collection,"
        f" {plural(found.titled, '[has|have]')} a title"
    )
    rows = [
        [f"one {level}", *map(_count, (one.groups, one.largest, one.references, one.pairs))]
        for level, one in found.levels.items()
    ]
    click.echo(table(["cited together in", "groups", "largest", "references", "pairs"], rows))


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
