"""``rerank mine``: what a training on links would learn from."""

from __future__ import annotations

import click

from . import options, output


@click.command("mine")
@click.argument("what", type=click.Choice(["structure"]), metavar="WHAT")
@options.common
@click.option(
    "--sample", type=click.IntRange(min=1), default=20, show_default=True, help="Quintuplets that are shown."
)
@options.dense
@options.seed
def command(what: str, folder: str, as_json: bool, sample: int, seed: int, **given: object) -> None:
    """Show what a training would learn from.

    WHAT is `structure`: quintuplets, drawn as `rerank train dense` draws them.
    """
    from rerank.fitting_dense import mine_structure
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    found = mine_structure(
        workspace, options.dense_config(given, seed), sample=sample, progress=output.Bar(quiet=as_json)
    )
    if as_json:
        output.print_json(found)
        return
    click.echo(
        f"{found.documents} documents, {found.links} links between them; {found.related} have related ones"
        f" ({found.train_links} linked pairs to learn from, {found.held_out} held out)"
    )
    output.left_out(found)
    rows = [
        [str(e.level or "-"), *(output.short(t, 34) for t in (e.anchor, e.positive, e.negative, e.hardest))]
        for e in found.examples
    ]
    header = ["level", "anchor", "nearer", "farther", "nearest other of the batch"]
    click.echo(output.table(header, rows, left=len(header)))
