"""``rerank demo``: all steps on the bundled collection."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import click

from . import evaluate, query
from .options import Command, json_option, make_workspace_option, seed_option
from .output import Bar, print_json


@click.command("demo", cls=Command)
@make_workspace_option(".rerank-demo", "Workspace folder of the demo. An earlier demo in it is replaced.")
@seed_option
@json_option
def command(folder: str, seed: int, as_json: bool) -> None:
    """Ingest, train, tune, evaluate and explain 1,979 eLife articles. Needs no network."""
    from rerank.workflows.demo import FIRST_STAGE, PAGE, run_demo

    progress = Bar(hidden=as_json)
    begin = time.perf_counter()
    progress.say("1,979 eLife articles. The queries are the first two sentences of lay summaries.\n")
    demo = run_demo(folder, seed=seed, progress=progress)
    seconds = time.perf_counter() - begin
    if as_json:
        print_json(demo)
        return
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
    for example_query, answer, hits in demo.examples:
        click.echo("\n" + textwrap.fill(f"Query {example_query.id}: {example_query.text}", 100))
        query.show(answer, demo.tuned.stack, hits, explain=True)
    click.echo(f"\nAll tables, and both rankings of every query: {Path(folder) / PAGE}")
    click.echo(f"\n{seconds:.0f} s. Try your own query:")
    click.echo(
        f'  rerank query "how do bacteria become resistant" -w {folder} --stack {demo.stack} --explain'
    )
