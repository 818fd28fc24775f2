"""``rerank status``: contents of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import rerank
from rerank.text import plural

from . import options, output, stack
from .options import Output, option
from .output import suggested

if TYPE_CHECKING:
    from rerank import Workspace
    from rerank.workflows.status import StatusReport

RELEASES = 4
"""Number of versions to show."""


@options.command(
    "status", option("--verify", "Check all files for corruption. Exit code 1 if a file is corrupted.")
)
def command(workspace: Workspace, progress: output.Bar, verify: bool) -> Output:
    """Show documents, rankers, and stacks of a workspace."""
    if verify:
        corrupted = workspace.verify()
        return Output({"corrupted": corrupted}, lambda: _show_corrupted(corrupted), int(bool(corrupted)))
    report = rerank.status(workspace)
    return Output(report, lambda: _show(report, workspace.default_stack))


def _show(report: StatusReport, default: str) -> None:
    documents = plural(report.documents, "document[|s]")
    click.echo(f"{documents} ({report.lang or 'no one language'}) in {report.place}")
    for ranker in report.rankers:
        if ranker.error:
            click.echo(f"ranker {ranker.name}: {ranker.error}")
            continue
        state = "features stored"
        if ranker.missing_features:
            missing = plural(ranker.missing_features, "feature[|s]")
            state = f"{missing} missing: run {suggested('encode')}"
        older = f"; stacks also use {', '.join(ranker.older)}" if ranker.older else ""
        click.echo(f"ranker {ranker.name} {ranker.version}: {state}{older}")
    stack.show(report.stacks, report.releases, RELEASES)
    if len(report.releases) > RELEASES:
        older = plural(len(report.releases) - RELEASES, "older version[|s]")
        click.echo(f"{older}: {suggested('stack', 'list')}")
    if report.rankers and not report.releases:
        click.echo(f"active: {default}")


def _show_corrupted(corrupted: dict[str, str]) -> None:
    for file, problem in corrupted.items():
        click.echo(f"{file}: {problem}")
    if not corrupted:
        output.note("no file is corrupted")
