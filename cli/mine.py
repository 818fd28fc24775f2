"""``rerank mine``: what a training would learn from."""

from __future__ import annotations

from typing import Any

import click

from rerank.training.dense.fit import RELATED, TRAINING, remarks

from . import options, output, settings


@click.group("mine")
def command() -> None:
    """Show what a training would learn from."""


@command.command("structure", cls=settings.Command, families={"encoder": TRAINING})
@options.common
@click.option(
    "--sample", type=click.IntRange(min=1), default=20, show_default=True, help="Quintuplets that are shown."
)
def structure(folder: str, as_json: bool, sample: int, **values: Any) -> None:
    """Show quintuplets, drawn as the training of an encoder on related documents draws them.

    Where torch or the model is not installed, words stand for the model's tokens.
    """
    from rerank.actions.mine import mine_structure
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    config = TRAINING.configure(settings.given(values), values["preset"] or "default")
    found = mine_structure(workspace, config, sample=sample, progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(found)
        return
    click.echo(
        f"{found.documents} documents, {found.train_links + found.held_out} pairs"
        f" {RELATED[found.structure_from]} ({found.train_links} to learn from, {found.held_out} held out);"
        f" {found.related} have related ones"
    )
    for line in remarks(vars(found)):
        output.note(line)
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
