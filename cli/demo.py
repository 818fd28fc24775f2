"""``rerank demo``: the whole path on the collection that comes with the package."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import click

from . import options, output


@click.command("demo")
@click.option(
    "-w",
    "--workspace",
    "folder",
    default=".rerank-demo",
    show_default=True,
    metavar="DIR",
    help="Where the demo's workspace goes; an earlier demo's is replaced.",
)
@options.as_json
@options.seed
def command(folder: str, as_json: bool, seed: int) -> None:
    """Ingest, train, tune, evaluate and explain, on 1,979 eLife articles; needs no network."""
    from rerank.demo import PAGE, STACK, run_demo

    from . import evaluate, query

    begin = time.perf_counter()
    if not as_json:
        click.echo(
            "1,979 eLife articles: lay summaries search for the research."
            " Ingest, word vectors, training, tuning and evaluation follow.\n"
        )
    demo = run_demo(folder, seed=seed, progress=output.Bar(quiet=as_json))
    if as_json:
        output.print_json(demo)
        return
    click.echo("\nTest queries; the stack's weights were tuned on the dev queries.\n")
    evaluate.show(demo.evaluated)
    click.echo(
        "\nWithout the queries' subject headings (inferred from the first candidates; tuned for that):\n"
    )
    evaluate.show(demo.without_categories)
    if demo.better:
        click.echo(
            "\nThe stack is above its first stage. Most of the gain comes from `meta`, the learned match of a"
            "\nquery's subject headings and a document's subjects, keywords and organisms."
        )
    else:
        click.echo("\nThe stack is NOT significantly above its first stage on these queries.")
    for asked, answer, stack, hits in demo.examples:
        click.echo("\n" + textwrap.fill(f"Query {asked.id}: {asked.text}", 100))
        query.show(answer, stack, hits, explain=True)
    click.echo(f"\nQuery by query, with both rankings side by side: {Path(folder) / PAGE}")
    click.echo(f"\n{time.perf_counter() - begin:.0f} s. Ask something yourself:")
    click.echo(f'  rerank query "how do bacteria become resistant" -w {folder} --stack {STACK} --explain')
