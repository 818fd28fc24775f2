"""``rerank encode``: features of documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import rerank
from rerank.text import plural

from . import options
from .options import Output, option


@options.command(
    "encode",
    option("--retrieve NAME,...", "Rankers that also retrieve, by k-NN fields.", callback=options.retrievers),
    option("--force", "Encode all documents again."),
)
def command(workspace: rerank.Workspace, **settings: Any) -> Iterator[Output]:
    """Compute the missing features of trained rankers.

    The command continues an interrupted encoding. It also encodes changed documents of an attached index.
    """
    report = rerank.encode(workspace, **settings)
    yield Output(report)
    for name, count in report.encoded.items():
        click.echo(f"{name}: {plural(count, 'document[|s]')} encoded")
    if not report.encoded:
        click.echo("no ranker is trained; nothing to encode")
