"""``rerank remove``: a ranker, or one version of it."""

from __future__ import annotations

from collections.abc import Iterator

import click

import rerank

from . import options, output
from .options import Output, option


@options.command(
    "remove",
    options.argument("ranker"),
    option("--version VERSION", "Remove only this version. `rerank status` lists the versions."),
)
def command(
    workspace: rerank.Workspace, progress: output.Bar, ranker: str, version: str | None
) -> Iterator[Output]:
    """Remove RANKER. A ranker of the active stack is refused.

    Stacks with this ranker can then only be tuned again.
    """
    removed = workspace.remove_ranker(ranker, version)
    yield Output({"ranker": ranker, "removed": removed})
    click.echo(f"{ranker}: removed {', '.join(removed)}")
