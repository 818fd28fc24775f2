"""``rerank encode`` and ``rerank compact``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rerank.text import plural

from . import options, output
from .options import Output, option
from .output import located

if TYPE_CHECKING:
    from rerank.workflows.encode import EncodeReport
    from rerank.workspace import Workspace


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = re.fullmatch(r"([1-9]\d*)([smh]?)", value)
    if match is None:
        raise click.BadParameter(f"must be a time, for example 60s, 5m or 1h, not {value!r}")
    return int(match[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def _part(context: click.Context, option: click.Parameter, value: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 1024:
        raise click.BadParameter(f"must be I/N, for example 1/4, with N at most 1024, not {value!r}")
    return int(match[1]) - 1, int(match[2])


@options.command(
    "encode",
    option("--slice I/N", "Encode slice I of N (OpenSearch).", dest="part", default="1/1", callback=_part),
    option("--retrieve NAME,...", "Rankers that also retrieve, by k-NN fields.", callback=options.retrievers),
    option("--force", "Encode all documents again."),
    option("--every TIME", "Repeat with this interval, for example 5m.", callback=_seconds),
)
def command(
    workspace: Workspace, progress: output.Bar, force: bool, every: float | None, **settings: Any
) -> Output:
    """Compute the missing features of trained rankers.

    The command continues an interrupted encoding. It also encodes changed documents of an attached index.
    """
    from rerank.workflows.encode import encode

    if every is not None:
        if progress.quiet:
            raise click.UsageError("--every and --json exclude each other; leave --json out")
        quiet = output.Bar(quiet=True)
        _repeat(
            workspace, lambda force: encode(workspace, force=force, progress=quiet, **settings), force, every
        )
    report = encode(workspace, force=force, progress=progress, **settings)
    return Output(report, lambda: _show(report))


def _show(report: EncodeReport, *, changes_only: bool = False) -> None:
    for name, count in report.encoded.items():
        if count or not changes_only:
            click.echo(f"{name}: {plural(count, 'document[|s]')} encoded")
    if report.reused:
        click.echo(plural(report.reused, "stored feature[|s] reused for documents with unchanged text"))
    if not report.encoded and not changes_only:
        click.echo("no ranker is trained; nothing to encode")


def _repeat(
    workspace: Workspace, once: Callable[[bool], EncodeReport], force: bool, every: float
) -> NoReturn:
    """Encode repeatedly; report a repeated failure once."""
    from rerank.errors import RerankError

    last = ""
    while True:
        begin = time.monotonic()
        try:
            workspace.forget_rankers()
            _show(once(force), changes_only=True)
            force, last = False, ""
        except RerankError as error:
            message = located(str(error))
            if message != last:
                output.note(f"{message}; next try in {every:g} s")
            last = message
        time.sleep(max(every - (time.monotonic() - begin), 0.1))


@options.command("compact")
def compact(workspace: Workspace, progress: output.Bar) -> Output:
    """Reclaim the disk space of deleted and replaced documents (local engine).

    `rerank ingest` does this when more than half of the stored data is unused.
    """
    from rerank.workflows.encode import compact

    done = compact(workspace)
    rows = plural(done.rows, "former document[|s]")
    size = f"{done.before / 1e6:.1f} MB -> {done.after / 1e6:.1f} MB"
    return Output(done, lambda: click.echo(f"{rows} removed: {size}"))
