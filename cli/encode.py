"""``rerank encode``: features of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.text import plural

from . import options
from .options import Output, option

if TYPE_CHECKING:
    from rerank import Workspace
    from rerank.workflows.encode import EncodeReport


@options.command(
    "encode",
    option("--retrieve NAME,...", "Rankers that also retrieve, by k-NN fields.", callback=options.retrievers),
    option("--force", "Encode all documents again."),
)
def command(workspace: Workspace, **settings: Any) -> Output:
    """Compute the missing features of trained rankers.

    The command continues an interrupted encoding. It also encodes changed documents of an attached index.
    """
    report = rerank.encode(workspace, **settings)
    return Output(report, lambda: _show(report))


def _show(report: EncodeReport) -> None:
    for name, count in report.encoded.items():
        click.echo(f"{name}: {plural(count, 'document[|s]')} encoded")
    if not report.encoded:
        click.echo("no ranker is trained; nothing to encode")
