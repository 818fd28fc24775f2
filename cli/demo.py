"""``rerank demo``: all steps on the bundled collection."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options, output
from .options import Output

if TYPE_CHECKING:
    from rerank.demo import Demo


@options.command(
    "demo",
    options.workspace(".rerank-demo", "Workspace folder of the demo. An earlier demo in it is replaced."),
    options.seed,
)
def command(folder: str, progress: output.Bar, seed: int) -> Output:
    """Ingest, train, tune, evaluate and explain 1,979 eLife articles. Needs no network."""
    from rerank.demo import run_demo

    begin = time.perf_counter()
    progress.say("1,979 eLife articles. The queries are the first two sentences of lay summaries.\n")
    demo = run_demo(folder, seed=seed, progress=progress)
    return Output(demo, lambda: _show(demo, folder, time.perf_counter() - begin))


def _show(demo: Demo, folder: str, seconds: float) -> None:
    from rerank.demo import FIRST_STAGE, PAGE

    from . import evaluate, query

    count = demo.evaluated.queries
    click.echo(f"\n{count} test queries as people type them. The weights were tuned on other queries.\n")
    evaluate.show(demo.evaluated)
    click.echo("\nThe same queries with subject headings*:\n")
    evaluate.show(demo.with_headings)
    click.echo("* These are the headings of the relevant article. These figures are an upper bound.\n")
    relation = "is" if demo.better else "is NOT"
    click.echo(f"Without headings, {demo.stack} {relation} significantly better than {FIRST_STAGE} by nDCG.")
    for asked, answer, hits in demo.examples:
        click.echo("\n" + textwrap.fill(f"Query {asked.id}: {asked.text}", 100))
        query.show(answer, demo.tuned.stack, hits, explain=True)
    click.echo(f"\nBoth tables, and both rankings of every query: {Path(folder) / PAGE}")
    click.echo(f"\n{seconds:.0f} s. Try your own query:")
    click.echo(
        f'  rerank query "how do bacteria become resistant" -w {folder} --stack {demo.stack} --explain'
    )
