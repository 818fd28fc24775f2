"""``rerank mine``: labeled pairs and co-citations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from rerank.config import build
from rerank.rankers.concept.mining import PairMining
from rerank.text import plural

from . import config_options, options, output
from .options import Output, option

if TYPE_CHECKING:
    from rerank.records import Qrels
    from rerank.workflows.mine import CoCited, MinedPairs
    from rerank.workspace import Workspace


@click.group("mine")
def command() -> None:
    """Find labeled pairs and co-citations in the collection."""


def _shares(context: click.Context, option: click.Parameter, text: str) -> tuple[float, ...] | None:
    if text == "none":
        return None
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise click.BadParameter(f"must be shares like 70,15,15, or none, not {text!r}") from None


@options.command(
    "pairs",
    "Input",
    option("--from qrels|categories|links", "Relation.", dest="source", required=True),
    option("--qrels FILE", "Judgments, for --from qrels."),
    "Output",
    option(
        "--split A,B,C",
        "Shares of train, dev and test; none: one file.",
        default="70,15,15",
        callback=_shares,
    ),
    option("--out DIR", "Folder of the files.", default="pairs"),
    group=command,
    cls=config_options.SettingsCommand,
    families={"pairs": PairMining},
)
def pairs(
    workspace: Workspace,
    progress: output.Bar,
    source: Literal["qrels", "categories", "links"],
    qrels: Qrels | None,
    out: str,
    split: tuple[float, ...] | None,
    **how: Any,
) -> Output:
    """Draw related and unrelated pairs of documents and write them to files.

    Use them to train or measure concept if you have no labeled pairs.
    """
    from rerank.workflows.mine import mine_pairs

    mining = build(PairMining, config_options.given(how, None))
    found = mine_pairs(workspace, source, out=out, qrels=qrels, split=split, mining=mining, progress=progress)
    return Output(found, lambda: _show_pairs(found))


def _show_pairs(found: MinedPairs) -> None:
    header = ["file", "documents", "groups", "related", "unrelated", "of one topic"]
    rows = [
        [str(one.path), *map(str, (one.documents, one.groups, one.related, one.unrelated, one.hard))]
        for one in found.files
    ]
    click.echo(output.table(header, rows))
    if found.left_out:
        of = plural(found.documents, "document[|s]")
        output.note(f"{found.left_out} of {of} related to none and left out")


@options.command(
    "cocitation",
    option("--out FILE", "Write all pairs with their counts to this file, TSV."),
    group=command,
)
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
    click.echo(output.table(["cited together in", "groups", "largest", "references", "pairs"], rows))
    if found.out:
        output.note(f"pairs: {found.out}")


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
