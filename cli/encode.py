"""``rerank encode``: the missing features of trained rankers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import click

from rerank.text import plural

from . import options, output
from .hints import located

if TYPE_CHECKING:
    from rerank.workflows.ingest import EncodeReport
    from rerank.workspace import Workspace


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """60s, 5m, 1h, or seconds alone."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)([smh]?)", value)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{value!r} is no time, for example 60s, 5m or 1h")
    return int(found[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]


def _show(report: EncodeReport, *, changes_only: bool = False) -> None:
    for name, count in report.encoded.items():
        if count or not changes_only:
            click.echo(f"{name}: {plural(count, 'document[|s]')} encoded")
    if report.reused:
        what = "stored feature[|s] reused: the documents were moved, or written again with the same text"
        click.echo(plural(report.reused, what))


def _repeat(
    workspace: Workspace, once: Callable[[bool], EncodeReport], force: bool, every: float
) -> NoReturn:
    """Encode again and again; a failure is reported once, and tried again."""
    import time

    from rerank.errors import RerankError

    said = ""
    while True:
        begin = time.monotonic()
        try:
            workspace.forget_rankers()
            _show(once(force), changes_only=True)
            force, said = False, ""
        except RerankError as error:
            message = located(str(error))
            if message != said:
                output.note(f"{message}; trying again every {every:g} s")
            said = message
        time.sleep(max(every - (time.monotonic() - begin), 0.1))


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
@click.option("--force", is_flag=True, help="Encode every document anew.")
@click.option(
    "--every",
    metavar="TIME",
    callback=_seconds,
    help="Go on for ever, and look for changes so often: 60s, 5m, 1h.",
)
def command(
    folder: str, as_json: bool, part: str, retrieve: tuple[str, ...], force: bool, every: float | None
) -> None:
    """Compute the features that trained rankers lack, going on where an interruption left off.

    Of an attached index, documents that somebody has changed are encoded again.
    """
    number, _, total = part.partition("/")
    if not (number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total) <= 1024):
        raise click.UsageError(f"--slice {part!r} is not I/N, for example 1/4 (N up to 1024)")

    from rerank.workflows.ingest import encode
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)

    def once(force: bool) -> EncodeReport:
        return encode(
            workspace,
            retrieve=retrieve,
            part=(int(number) - 1, int(total)),
            force=force,
            progress=output.Bar(quiet=as_json or every is not None),
        )

    if every is not None:
        if as_json:
            raise click.UsageError("--every has no end and no JSON; leave --json out")
        _repeat(workspace, once, force, every)
    report = once(force)
    if as_json:
        output.print_json(report)
    elif report.encoded:
        _show(report)
    else:
        click.echo("no ranker is trained; there is nothing to encode")
