"""``rerank status``: show the contents of a workspace."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of, join_names

from . import output
from .options import Command, json_option, workspace_option
from .output import suggested

if TYPE_CHECKING:
    from rerank.workflows.status import RankerState, StackState, StatusReport


@click.command("status", cls=Command)
@workspace_option
@json_option
def command(folder: str, as_json: bool) -> None:
    """Show documents, rankers, and stacks of a workspace."""
    workspace = rerank.Workspace.open(folder)
    report = rerank.status(workspace)
    output.print_report(report, partial(_show, workspace), as_json=as_json)


def _show(workspace: rerank.Workspace, report: StatusReport) -> None:
    """Print the documents, rankers and stacks of a workspace."""
    documents = count_of(report.documents, "document")
    click.echo(f"{documents} ({report.lang or 'no single language'}) in {report.location}")
    for ranker in report.rankers:
        click.echo(_ranker_line(ranker))
    for state in (*_candidates(report), *report.releases):
        _show_stack(state)
    if report.rankers and not report.releases:
        click.echo(f"active: {workspace.default_stack}")


def _candidates(report: StatusReport) -> list[StackState]:
    """Return the tuned stacks that were never active."""
    active_stacks = [state.stack for state in report.releases]
    return [state for state in report.stacks if state.stack not in active_stacks]


def _ranker_line(ranker: RankerState) -> str:
    if ranker.error:
        return f"ranker {ranker.name}: {ranker.error}"
    state = "features stored"
    if ranker.missing_features:
        missing = count_of(ranker.missing_features, "feature")
        state = f"{missing} missing: run {suggested('encode')}"
    older_versions = f"; stacks also use {', '.join(ranker.older)}" if ranker.older else ""
    return f"ranker {ranker.name} {ranker.version}: {state}{older_versions}"


def _show_stack(state: StackState) -> None:
    title = f"candidate {state.name}" if state.version is None else f"version {state.version}, {state.name}"
    if state.since is not None:
        title += f"{', active' if state.in_use else ', last active'} since {state.since}"
    retrievers = " and ".join(state.stack.retrievers)
    click.echo(f"{title}: {count_of(state.stack.depth, 'candidate')} by {retrievers}")
    output.show_weights(state.stack)
    if state.gate:
        measure = state.gate["measure"]
        value = state.gate["value"]
        previous_value = state.gate["before_value"]
        p = output.p_value(state.gate["p"])
        click.echo(f"  promoted with {measure} {value:.4f} against {previous_value:.4f} (p {p})")
    if state.outdated:
        click.echo(f"  outdated: {join_names(state.outdated)}, trained again since; tune the stack again")
    if state.missing:
        click.echo(f"  missing: {join_names(state.missing)}; train again, or use another stack")
