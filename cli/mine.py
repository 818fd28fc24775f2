"""``rerank mine``: what a training on links would learn from."""

from __future__ import annotations

import click

from . import options, output


@click.command("mine", cls=options.Sections)
@click.argument("what", type=click.Choice(["structure"]), metavar="WHAT")
@options.common
@click.option(
    "--sample", type=click.IntRange(min=1), default=20, show_default=True, help="Quintuplets that are shown."
)
@click.option(
    "--preset", type=options.PRESET, default="default", show_default=True, help="Settings of the paper."
)
@click.option("--batch", type=click.IntRange(min=2), help="Anchors in a batch. Default: 64.")
@options.structure
@options.seed
def command(
    what: str,
    folder: str,
    as_json: bool,
    sample: int,
    preset: str,
    batch: int | None,
    seed: int,
    **given: object,
) -> None:
    """Show what a training would learn from.

    WHAT is `structure`: quintuplets, drawn as `rerank train dense` draws them. Where torch or the model is
    not installed, words stand for the model's tokens.
    """
    from rerank.actions.train_dense import mine_structure

    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    config = options.dense_config(given, preset=preset, seed=seed, batch=batch)
    found = mine_structure(workspace, config, sample=sample, progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(found)
        return
    click.echo(
        f"{found.documents} documents, {found.train_links + found.held_out} pairs"
        f" {output.RELATED[found.structure_from]} ({found.train_links} to learn from, {found.held_out} held"
        f" out); {found.related} have related ones"
    )
    output.left_out(found)
    if found.missing:
        output.note(
            f"{found.missing} is not installed: words stand for the model's tokens, and the nearest other"
            " text is left out"
        )
    header = ["level", "anchor", "nearer", "farther", "nearest other of the batch"]
    rows = [
        [str(e.level or "-"), *(output.short(t, 34) for t in (e.anchor, e.positive, e.negative, e.hardest))]
        for e in found.examples
    ]
    columns = len(header) - bool(found.missing)
    click.echo(output.table(header[:columns], [row[:columns] for row in rows], left=columns))
