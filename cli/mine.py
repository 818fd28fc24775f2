"""``rerank mine``: what a training would learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from rerank.config import build
from rerank.rankers.dense.config import DenseConfig
from rerank.rankers.dense.fit import RELATED, remarks
from rerank.text import plural

from . import config_options, options, output

if TYPE_CHECKING:
    from rerank.workflows.cocitation import CoCited, Neighborhood

SHOWN = 10
"""Neighbors of a level that a terminal is shown."""


@click.group("mine")
def command() -> None:
    """Show what a training would learn from."""


@command.command("structure", cls=config_options.Command, families={"encoder": DenseConfig})
@options.common
@click.option(
    "--sample", type=click.IntRange(min=1), default=20, show_default=True, help="Quintuplets that are shown."
)
def structure(folder: str, as_json: bool, sample: int, **values: Any) -> None:
    """Show quintuplets, drawn as the training of an encoder on related documents draws them.

    Where torch or the model is not installed, words stand for the model's tokens.
    """
    from rerank.workflows.mine import mine
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    config = build(DenseConfig, config_options.given(values), values["preset"] or "default")
    found = mine(workspace, config, sample=sample, progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(found)
        return
    click.echo(
        f"{plural(found.documents, 'document[|s]')}, {plural(found.train_links + found.held_out, 'pair[|s]')}"
        f" {RELATED[found.structure_from]} ({found.train_links:,} to learn from, {found.held_out:,} held"
        f" out); {found.related:,} have related ones"
    )
    for line in remarks(vars(found)):
        output.note(line)
    if found.missing:
        output.note(
            f"{found.missing} is not installed: words stand for the model's tokens, and the nearest other"
            " text is left out"
        )
    header = ["level", "anchor", "nearer", "farther", "nearest other"]
    columns = len(header) - bool(found.missing)
    wide = max(output.room(len(header[0])) // (columns - 1) - 2, 16)
    rows = [
        [str(e.level or "-"), *(output.cut(t, wide) for t in (e.anchor, e.positive, e.negative, e.hardest))]
        for e in found.examples
    ]
    click.echo(output.table(header[:columns], [row[:columns] for row in rows], left=columns))


def _shares(context: click.Context, option: click.Parameter, text: str) -> tuple[float, ...] | None:
    """Read the value of --split."""
    if text == "none":
        return None
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise click.UsageError(f"--split takes shares as 70,15,15, or none, not {text!r}") from None


@command.command("pairs")
@options.common
@click.option(
    "--from",
    "source",
    type=click.Choice(["qrels", "categories", "links", "titles"]),
    required=True,
    help="What relates documents.",
)
@click.option("--qrels", metavar="FILE", help="Judgments, for --from qrels.")
@click.option("--out", metavar="DIR", default="pairs", show_default=True, help="Where the files of pairs go.")
@click.option(
    "--split",
    default="70,15,15",
    show_default=True,
    callback=_shares,
    metavar="A,B,C",
    help="Shares of train, dev and test, no group in two of them; none: one file.",
)
@click.option(
    "--each",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Related pairs that are drawn for a document.",
)
@click.option(
    "--negatives",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Unrelated pairs for each related one.",
)
@click.option(
    "--hard",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of the unrelated pairs that are of one topic.",
)
@click.option(
    "--smallest",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Documents of a category that is a group of its own.",
)
@click.option(
    "--largest",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.05,
    show_default=True,
    help="Share of the documents; a category with more of them relates none.",
)
@options.seed
def pairs(
    folder: str,
    as_json: bool,
    source: Literal["qrels", "categories", "links", "titles"],
    qrels: str | None,
    out: str,
    split: tuple[float, ...] | None,
    **how: Any,
) -> None:
    """Draw labeled pairs of documents, related and not, and write them to files.

    For learning relatedness, and for measuring it, where nobody has labeled pairs.
    """
    from rerank.formats import read_qrels
    from rerank.rankers.concept.mining import PairMining
    from rerank.workflows.mine_pairs import mine_pairs
    from rerank.workspace import Workspace

    found = mine_pairs(
        Workspace.open(folder),
        source,
        out=out,
        qrels=read_qrels(qrels) if qrels else None,
        split=split,
        mining=build(PairMining, how),
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(found)
        return
    header = ["file", "documents", "groups", "related", "unrelated", "of one topic"]
    rows = [
        [str(one.path), *map(str, (one.documents, one.groups, one.related, one.unrelated, one.hard))]
        for one in found.files
    ]
    click.echo(output.table(header, rows))
    if found.left_out:
        of = plural(found.documents, "document[|s]")
        output.note(f"{found.left_out} of {of} related to none and left out")


@command.command("cocitation")
@options.common
@click.option("--show", metavar="DOI|TITLE|ID", help="One reference, and what it is cited together with.")
@click.option("--out", metavar="FILE", help="Write all pairs, with counts by level, tab between.")
def cocitation(folder: str, as_json: bool, show: str | None, out: str | None) -> None:
    """Show what the documents cite together: in a sentence, a paragraph, a section, or a document."""
    from rerank.workflows.cocitation import mine_cocitation
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    found = mine_cocitation(workspace, show=show, out=out, progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(found)
        return
    if found.shown is None:
        _show_levels(found)
    else:
        _show_neighbors(found.shown)


def _show_levels(found: CoCited) -> None:
    """Print how much is cited together in a sentence, a paragraph, a section and a document."""
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


def _show_neighbors(shown: Neighborhood) -> None:
    """Print what one reference is cited together with, by level."""
    from rerank.rankers.graphs.cocitation import LEVELS

    click.echo(f"{shown.key} {shown.title}".rstrip())
    sizes = ", ".join(f"{shown.sizes[level]} in a {level}" for level in LEVELS)
    click.echo(
        f"cited by {plural(len(shown.cited_by), 'document[|s]')}, together with other references: {sizes}"
    )
    most = None if output.whole() else SHOWN
    for level in LEVELS:
        near = [one for one in shown.neighbors if one.level == level]
        if near:
            click.echo(f"\nin a {level}, and no smaller part:" if level != "sentence" else "\nin a sentence:")
        for one in near[:most]:
            times = f" ({plural(len(one.documents), 'document[|s]')})" if len(one.documents) > 1 else ""
            click.echo(output.indented(f"{one.key} {one.title}{times}", 2))
            for shared in filter(lambda sentence: sentence.text, one.sentences):
                click.echo(output.indented(f"{shared.document}: {shared.text}", 6))
        if most is not None and len(near) > most:
            click.echo(f"  and {len(near) - most} more; through a pipe, or with --json, all are shown")
