"""``rerank encode``: the missing features of trained rankers."""

from __future__ import annotations

import click

from . import options, output


@click.command("encode")
@options.common
@click.option(
    "--slice",
    "part",
    metavar="I/N",
    default="1/1",
    show_default=True,
    help="Do the I-th of N parts, for N processes side by side (OpenSearch).",
)
@click.option(
    "--retrieve",
    callback=options.retrievers,
    metavar="NAME[,NAME...]",
    help="Have these rankers retrieve, too (OpenSearch: fills a field for its k-NN search).",
)
def command(folder: str, as_json: bool, part: str, retrieve: tuple[str, ...]) -> None:
    """Compute the features that trained rankers lack, going on where an interruption left off."""
    number, _, total = part.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total) <= 1024):
        raise click.UsageError(f"--slice {part!r} is not I/N, for example 1/4 (N up to 1024)")

    from rerank.actions.ingest import encode
    from rerank.workspace import Workspace

    report = encode(
        Workspace.open(folder),
        retrieve=retrieve,
        part=(int(number) - 1, int(total)),
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(report)
    elif report.encoded:
        for name, count in report.encoded.items():
            click.echo(f"{name}: {count} documents encoded")
    else:
        click.echo("no ranker is trained; there is nothing to encode")
