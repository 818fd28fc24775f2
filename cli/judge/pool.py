"""``rerank judge pool``: choose queries and hits to judge by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of

from .. import output
from ..options import COUNT, OUTPUT, Command, json_option, option, seed_option, workspace_option

if TYPE_CHECKING:
    from rerank.judging.pool import PoolReport

SECONDS = 5
"""Seconds that a judge needs for a hit."""
_REASONS = {
    "traffic": "the most frequent ones",
    "random": "chosen at random",
    "difference": "on which the stacks differ most",
}


@click.command("pool", cls=Command)
@option(
    "--stack",
    "stacks",
    metavar="STACK",
    multiple=True,
    required=True,
    group="Input",
    help="Stacks whose best hits are judged: signals, weights or a file. Repeatable. Signals without tuned"
    " weights are pooled as two stacks: the first stage, and the rankers with equal weights. One other stack"
    " is pooled with its first stage.",
)
@option(
    "--queries",
    metavar="FILE",
    required=True,
    group="Input",
    help="Queries, JSON lines; `count`: number of searches.",
)
@option("--count", metavar="N", type=COUNT, default=50, group="Pool", help="Number of queries.")
@option(
    "--top",
    metavar="N",
    type=COUNT,
    default=10,
    group="Pool",
    help="Number of hits of each stack for a query.",
)
@option("--out", metavar="FILE", type=OUTPUT, required=True, help="File of the pool, for example pool.json.")
@seed_option
@workspace_option
@json_option
def command(
    folder: str,
    stacks: tuple[str, ...],
    queries: str,
    count: int,
    top: int,
    out: str,
    seed: int,
    as_json: bool,
) -> None:
    """Choose queries and pool the best hits of stacks, to be judged by hand.

    Half of the queries are the most frequent ones, or a random sample if no query has a `count`. On the other
    half, the stacks differ most. `rerank serve --judge` shows the pool on a page.
    """
    from rerank.common.files import check_new_file
    from rerank.judging.pool import POOL_MARK, PoolOptions, judged_file, make_pool

    workspace = rerank.Workspace.open(folder)
    check_new_file(out, POOL_MARK)  # raises before the long work
    judged = judged_file(out)
    pool_options = PoolOptions(count=count, top=top, seed=seed)
    report = make_pool(workspace, stacks, queries, pool_options, output.Bar(hidden=as_json))
    report.pool.save(out)
    output.print_report(report, partial(_show_file, out=out, judged=judged), as_json=as_json)


def _show_file(report: PoolReport, out: str, judged: Path) -> None:
    show(report)
    click.echo(f"\nwritten to {out}; {output.suggested('serve', '--judge', out)} shows it to judges")
    if judged.exists():
        output.note(f"{judged} has judgments already: they count for the hits that are also in this pool")


def show(report: PoolReport) -> None:
    """Print the size of the pool, and how its queries were chosen."""
    pool = report.pool
    minutes = max(round(pool.hits * SECONDS / 60), 1)
    click.echo(
        f"{count_of(len(pool.queries), 'query')}, {count_of(pool.hits, 'hit')} to judge: about"
        f" {count_of(minutes, 'minute')} at {SECONDS} seconds each"
    )
    for reason, count in report.reasons.items():
        click.echo(f"  {count_of(count, 'query')} {_REASONS[reason]}")
    for stack in pool.stacks:
        click.echo(f"  the best {pool.top} hits of {stack}")
    if report.repeated:
        output.note(f"left out {count_of(report.repeated, 'query')} with the words of another query")
    if report.without_hits:
        output.note(f"left out {count_of(report.without_hits, 'query')} without hits")
    if not report.difference and len(pool.stacks) > 1:
        output.note("the stacks return the same hits for all ranked queries")
