"""``rerank demo``: all steps on the bundled collection."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import click

from . import options, output
from .options import Output


@options.command(
    "demo",
    options.workspace(".rerank-demo", "Workspace folder of the demo. An earlier demo in it is replaced."),
    options.seed,
)
def command(folder: str, progress: output.Bar, seed: int) -> Iterator[Output]:
    """Ingest, train, tune, evaluate and explain 1,979 eLife articles. Needs no network."""
    from rerank.demo import FIRST_STAGE, PAGE, run_demo

    from . import evaluate, query

    begin = time.perf_counter()
    progress.say("1,979 eLife articles. The queries are the first two sentences of lay summaries.\n")
    demo = run_demo(folder, seed=seed, progress=progress)
    seconds = time.perf_counter() - begin
    yield Output(demo)
    count = demo.evaluated.queries
    click.echo(f"\n{count} summaries as test queries. The weights were tuned on other queries.\n")
    evaluate.show(demo.evaluated)
    click.echo("\nShort queries: a heading of 3 to 8 words from the article, which is not indexed.\n")
    evaluate.show(demo.short)
    click.echo("\nThe summaries with subject headings*:\n")
    evaluate.show(demo.with_headings)
    click.echo("* These are the headings of the relevant article. These figures are an upper bound.\n")
    relation = "is" if demo.better else "is NOT"
    click.echo(
        f"Without headings, {demo.stack} {relation} significantly better than {FIRST_STAGE} by nDCG@10."
    )
    for asked, answer, hits in demo.examples:
        click.echo("\n" + textwrap.fill(f"Query {asked.id}: {asked.text}", 100))
        query.show(answer, demo.tuned.stack, hits, explain=True)
    click.echo(f"\nAll tables, and both rankings of every query: {Path(folder) / PAGE}")
    click.echo(f"\n{seconds:.0f} s. Try your own query:")
    click.echo(
        f'  rerank query "how do bacteria become resistant" -w {folder} --stack {demo.stack} --explain'
    )
