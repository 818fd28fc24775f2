"""``rerank judge``: make judgments, and compare stacks by clicks."""

from __future__ import annotations

import click

from . import clicks, pool

SUBCOMMANDS = (clicks.command, pool.command)


@click.group("judge", commands=SUBCOMMANDS)
def command() -> None:
    """Make judgments from clicks and by hand."""
