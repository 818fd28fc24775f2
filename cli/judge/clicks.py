"""``rerank judge clicks``: judgments from a click log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from .. import options, output
from ..options import Output, option


@options.command(
    "clicks",
    options.argument("logs", nargs=-1, metavar="[FILE]..."),
    "Input",
    option("--ubi URL", "Cluster with the indices ubi_queries and ubi_events."),
    options.GENERAL,
    option("--out DIR", "Folder for queries.jsonl, train.tsv, dev.tsv and report.json.", required=True),
)
def command(folder: str, progress: output.Bar, logs: tuple[str, ...], **settings: Any) -> Iterator[Output]:
    """Make judgments from the impressions and clicks of a search log."""
    if not logs and not settings["ubi"]:
        raise click.UsageError("the click log is missing: give files, or --ubi URL")
    raise click.UsageError("this version cannot read click logs")
