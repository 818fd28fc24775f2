"""``rerank judge``: make judgments, and compare stacks by clicks."""

from __future__ import annotations

import click

from . import clicks, convert, interleaving, pool

SUBCOMMANDS = (clicks.command, pool.command, convert.command, interleaving.command)


@click.group("judge", commands=SUBCOMMANDS)
def command() -> None:
    """Make judgments from clicks and by hand."""
