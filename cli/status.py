"""``rerank status``: contents of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

import rerank
from rerank.text import join_names, plural

from . import options, output
from .options import Output
from .output import suggested

if TYPE_CHECKING:
    from rerank.workflows.status import StackState


@options.command("status")
def command(workspace: rerank.Workspace, progress: output.Bar) -> Iterator[Output]:
    """Show documents, rankers, and stacks of a workspace."""
    report = rerank.status(workspace)
    yield Output(report)
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
    versions = [stack.stack for stack in report.releases]
    for stack in (*(stack for stack in report.stacks if stack.stack not in versions), *report.releases):
        _show_stack(stack)
    if report.rankers and not report.releases:
        click.echo(f"active: {workspace.default_stack}")


def _show_stack(row: StackState) -> None:
    title = f"candidate {row.name}" if row.version is None else f"version {row.version}, {row.name}"
    if row.since is not None:
        title += f"{', active' if row.in_use else ', last active'} since {row.since}"
    retrievers = " and ".join(row.stack.retrievers)
    click.echo(f"{title}: {plural(row.stack.depth, 'candidate[|s]')} by {retrievers}")
    output.show_weights(row.stack)
    if row.gate:
        measure, value, before = (row.gate[name] for name in ("measure", "value", "before_value"))
        p = output.p_value(row.gate["p"])
        click.echo(f"  promoted with {measure} {value:.4f} against {before:.4f} (p {p})")
    if row.outdated:
        click.echo(f"  outdated: {join_names(row.outdated)} was trained again; tune the stack again")
