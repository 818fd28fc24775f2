"""``rerank report``: what a ranker has learned, as an HTML page."""

from __future__ import annotations

import click

from . import options, output


@click.command("report")
@click.argument("ranker", required=False, metavar="[RANKER]")
@options.common
@click.option("--out", metavar="FILE", help="Where the page goes. Default: RANKER.html.")
@click.option(
    "--sample",
    type=click.IntRange(min=2),
    default=500,
    show_default=True,
    help="Documents that distances are measured from, or that are mapped.",
)
@click.option("--pairs", metavar="FILE", help="Labelled pairs, for the report on concept: its components.")
@click.option(
    "--against",
    metavar="MODEL",
    default="untrained",
    show_default=True,
    help="The encoder that it is compared with: a model, or the one the training started from.",
)
@click.option(
    "--sensitivity", is_flag=True, help="Train short runs over gamma and the margins; goes on where it was."
)
@click.option("--steps", type=click.IntRange(min=1), help="Of each of these runs. Default: 60.")
@options.seed
def command(
    ranker: str | None,
    folder: str,
    as_json: bool,
    out: str | None,
    sample: int,
    pairs: str | None,
    against: str,
    sensitivity: bool,
    steps: int | None,
    seed: int,
) -> None:
    """Show what a trained encoder has learned, as one HTML page.

    Distances by links, levels and hops, margins, a map, before and after training; of concept the components
    of labelled pairs. RANKER may be left out where there is one encoder.
    """
    from rerank.actions.report import report
    from rerank.formats import read_labelled_pairs
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    labelled = read_labelled_pairs(pairs, workspace.engine.contains, remark=output.note) if pairs else ()
    found = report(
        workspace,
        ranker,
        out,
        sample=sample,
        pairs=labelled,
        against=against,
        sensitivity=sensitivity,
        steps=steps,
        seed=seed,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(found.to_json())
        return
    if not getattr(found, "same", True):
        output.note("documents or links have changed since the training: held-out links cannot be told")
    rows = found.rows()
    cells = [
        ["" if one is None else one if isinstance(one, str) else f"{one:.3f}" for one in row.values()]
        for row in rows
    ]
    click.echo(output.table(list(rows[0]), cells))
    click.echo(f"written to {found.out}")
