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
    help="Documents that distances are measured from.",
)
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
    against: str,
    sensitivity: bool,
    steps: int | None,
    seed: int,
) -> None:
    """Show what a trained encoder has learned, as one HTML page.

    Distances by links, levels and hops, margins, a map, before and after training. RANKER may be left out
    where there is one encoder.
    """
    from rerank.actions.report import report
    from rerank.workspace import Workspace

    found = report(
        Workspace.open(folder),
        ranker,
        out,
        sample=sample,
        against=against,
        sensitivity=sensitivity,
        steps=steps,
        seed=seed,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(found.to_json())
        return
    if not found.same:
        output.note("documents or links have changed since the training: held-out links cannot be told")
    sides = [("before", found.before)] if found.before is not None else []
    sides.append(("after", found.after))
    rows = [
        [
            name,
            *(
                "" if value is None else f"{value:.3f}"
                for value in (
                    side.linked.nearer,
                    side.held_out.nearer,
                    side.level_order.correlation if side.level_order else None,
                    side.hop_order.correlation if side.hop_order else None,
                )
            ),
        ]
        for name, side in sides
    ]
    click.echo(output.table(["", "linked nearer", "held-out nearer", "levels", "hops"], rows))
    click.echo(f"written to {found.out}")
