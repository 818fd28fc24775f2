"""``rerank encode``: compute the features of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of

from . import output
from .options import Command, json_option, option, split_at_commas, workspace_option

if TYPE_CHECKING:
    from rerank.workflows.encode import EncodeReport


@click.command("encode", cls=Command)
@option(
    "--retrieve",
    metavar="NAME,...",
    callback=split_at_commas,
    help="Rankers that also retrieve, by k-NN fields.",
)
@option("--force", is_flag=True, help="Encode all documents again.")
@option(
    "--slice",
    "index_slice",
    metavar="NUMBER/COUNT",
    help="Encode one of COUNT parts of an OpenSearch index, for example 3/8. Machines with copies of the"
    " workspace can encode different parts at the same time.",
)
@workspace_option
@json_option
def command(
    folder: str, retrieve: tuple[str, ...], force: bool, index_slice: str | None, as_json: bool
) -> None:
    """Compute the missing features of trained rankers.

    The command continues an interrupted encoding. It also encodes changed documents of an attached index.
    """
    progress = output.Bar(hidden=as_json)
    report = rerank.encode(folder, retrieve=retrieve, force=force, slice=index_slice, progress=progress)
    output.print_report(report, _show, as_json=as_json)


def _show(report: EncodeReport) -> None:
    for name, count in report.encoded.items():
        click.echo(f"{name}: {count_of(count, 'document')} encoded")
    if not report.encoded:
        click.echo("no ranker is trained; nothing to encode")
