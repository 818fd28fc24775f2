"""``rerank judge pool``: queries and hits to judge by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.text import plural

from .. import options, output
from ..options import Output, option

if TYPE_CHECKING:
    from rerank.judging.pool import PoolReport

SECONDS = 5
"""Seconds that a judge needs for a hit."""
_REASONS = {
    "traffic": "the most frequent ones",
    "random": "chosen at random",
    "difference": "on which the stacks differ most",
}


@options.command(
    "pool",
    "Input",
    option(
        "--stack STACK...",
        "Stacks whose best hits are judged: signals, weights or a file. Repeatable. One stack is pooled with"
        " its first stage.",
        dest="stacks",
        required=True,
    ),
    option("--queries FILE", "Queries, JSON lines; `count`: number of searches.", required=True),
    "Pool",
    option("--count N", "Number of queries.", default=50),
    option("--top N", "Number of hits of each stack for a query.", default=10),
    options.GENERAL,
    option("--out FILE", "File of the pool, for example pool.json.", required=True),
    options.seed,
)
def command(
    workspace: rerank.Workspace,
    progress: output.Bar,
    stacks: tuple[str, ...],
    queries: str,
    out: str,
    **settings: Any,
) -> Iterator[Output]:
    """Choose queries and pool the best hits of stacks, to be judged by hand.

    Half of the queries are the most frequent ones, or a random sample if no query has a `count`. On the other
    half, the stacks differ most. `rerank serve --judge` shows the pool on a page.
    """
    from rerank.files import check_output
    from rerank.judging.pool import POOL_MARK, PoolOptions, judged_file, make_pool

    check_output(out, POOL_MARK)
    judged = judged_file(out)
    report = make_pool(workspace, stacks, queries, PoolOptions(**settings), progress)
    report.pool.save(out)
    yield Output(report)
    show(report)
    click.echo(f"\nwritten to {out}; {output.suggested('serve', '--judge', out)} shows it to judges")
    if judged.exists():
        output.note(f"{judged} has judgments already: they count for the hits that are also in this pool")


def show(report: PoolReport) -> None:
    """Print the size of the pool, and how its queries were chosen."""
    pool = report.pool
    minutes = max(round(pool.hits * SECONDS / 60), 1)
    click.echo(
        f"{plural(len(pool.queries), output.QUERIES)}, {plural(pool.hits, 'hit[|s]')} to judge: about"
        f" {plural(minutes, 'minute[|s]')} at {SECONDS} seconds each"
    )
    for reason, count in report.reasons.items():
        click.echo(f"  {plural(count, output.QUERIES)} {_REASONS[reason]}")
    for stack in pool.stacks:
        click.echo(f"  the best {pool.top} hits of {stack}")
    if report.without_hits:
        output.note(plural(report.without_hits, "quer[y has|ies have] no hits and [is|are] left out"))
    if not report.difference:
        output.note("the stacks return the same hits for all ranked queries")
