"""``rerank stack``: stacks of a workspace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rerank.text import join_names, plural

from . import options, output
from .options import declare, option
from .output import suggested

if TYPE_CHECKING:
    from rerank.stack.stack import Stack
    from rerank.workflows.promote import Promotion, Rollback
    from rerank.workflows.status import StackState
    from rerank.workspace import Workspace


@click.group("stack", cls=options.Group)
def command() -> None:
    """List the stacks of a workspace, and choose the active stack."""


@command.command("list")
@declare(*options.common)
def list_stacks(folder: str, as_json: bool) -> None:
    """List the candidates and all versions, with their weights."""
    from rerank.workflows.status import stacks
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)

    def show_all(found: Any) -> None:
        show(found.stacks, found.releases)
        if not found.releases:
            click.echo(f"active: {workspace.default_stack}")

    output.result(stacks(workspace), as_json, show_all)


@command.command("show")
@click.argument("stack", required=False)
@declare(*options.common)
@options.reports(lambda stack: _show_stack(stack))
def show_stack(workspace: Workspace, progress: output.Bar, stack: str | None) -> Stack:
    """Show the weights and candidates of STACK. Default: the active stack."""
    return workspace.stack(stack or workspace.default_stack)


def _show_stack(stack: Any) -> None:
    click.echo(f"{plural(stack.depth, 'candidate[|s]')} by {' and '.join(stack.retrievers)}")
    output.show_weights(stack)


@command.command("use")
@click.argument("stack")
@declare(*options.common)
def use(stack: str, folder: str, as_json: bool) -> None:
    """Activate STACK for `query`, `serve` and the hook, without a comparison.

    STACK is tuned signals, weights, a stack file, or a version of `rerank stack list`.
    """
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)

    def show_used(used: Any) -> None:
        click.echo(f"active: version {workspace.releases.number}")
        output.show_weights(used)

    output.result(workspace.use_stack(stack), as_json, show_used)


@command.command()
@click.argument("stack", required=False)
@declare(
    "Input",
    *options.judged,
    options.ignore_categories,
    "Candidates",
    options.infer,
    options.GENERAL,
    option("--measure NAME", "Measure that compares the stacks. Default: the measure of the tuning."),
    options.seed,
    options.dry_run,
    *options.common,
)
def promote(
    stack: str | None, folder: str, as_json: bool, queries: str, qrels: str, conflicts: str, **settings: Any
) -> None:
    """Activate STACK if it is not worse than the active stack.

    STACK is the candidate that was last tuned for its signals. Default: the signals of the active stack.
    Use queries that neither stack was trained or tuned on. Exit code 1 if STACK is worse.
    """
    from rerank.evaluation.leakage import format_leakage
    from rerank.workflows.promote import promote
    from rerank.workspace import Workspace

    report = promote(
        Workspace.open(folder),
        stack,
        **options.read_judged(queries, qrels, conflicts),
        progress=output.Bar(quiet=as_json),
        **settings,
    )
    if report.leaks:
        output.note(f"{format_leakage(report.leaks, report.queries)}: compare on other queries")
    for name in report.newer:
        output.note(f"{name} was trained again after {report.name} was tuned; the earlier version is used")
    output.result(report, as_json, _show_promotion)
    if report.value < report.before_value:
        sys.exit(1)


def _show_promotion(report: Promotion) -> None:
    for name, value, one in (
        ("active", report.before_value, report.before),
        ("candidate", report.value, report.stack),
    ):
        click.echo(f"{name:<9}  {value:.4f}")
        output.show_weights(one)
    click.echo(
        f"{report.measure} of {plural(report.queries, output.QUERIES)}: {report.wins} better,"
        f" {report.losses} worse, p {output.p_value(report.p)}"
    )
    if report.promoted:
        click.echo(f"active now: version {report.version}; {suggested('stack', 'rollback')} undoes this")
    elif report.value < report.before_value:
        use = suggested("stack", "use", report.name)
        click.echo(f"worse, nothing was changed; {use} activates it without a comparison")
    else:
        click.echo("not worse; nothing was changed")


@command.command()
@declare(options.dry_run, *options.common)
@options.reports(lambda report: _show_rollback(report))
def rollback(workspace: Workspace, progress: output.Bar, dry_run: bool) -> Rollback:
    """Activate the previous stack again.

    The version that was active is kept.
    """
    from rerank.workflows.promote import rollback

    return rollback(workspace, dry_run=dry_run, progress=progress)


def _show_rollback(report: Rollback) -> None:
    would = "would be " if report.dry_run else ""
    click.echo(f"{would}active again: version {report.version}")
    output.show_weights(report.stack)
    again = suggested("stack", "use", str(report.rolled_back_version))
    click.echo(f"{would}rolled back: version {report.rolled_back_version}; undo with {again}")
    output.show_weights(report.rolled_back)
    for name, count in report.encoded.items():
        click.echo(f"{name}: {plural(count, 'new document[|s]')} encoded")


def show(stacks: Sequence[StackState], releases: Sequence[StackState], most: int | None = None) -> None:
    """Print candidates without a version, and the newest versions."""
    versions = [row.of for row in releases]
    for row in (*(row for row in stacks if row.of not in versions), *releases[:most]):
        title = f"candidate {row.name}" if row.version is None else f"version {row.version}"
        if row.since is not None:
            title += f"{', active' if row.in_use else ', last active'} since {row.since}"
        click.echo(f"{title}: {plural(row.depth, 'candidate[|s]')} by {' and '.join(row.retrieve)}")
        output.show_weights(row.of)
        if row.gate:
            measure, value, before = (row.gate[name] for name in ("measure", "value", "before_value"))
            p = output.p_value(row.gate["p"])
            click.echo(f"  promoted with {measure} {value:.4f} against {before:.4f} (p {p})")
        if row.outdated:
            click.echo(f"  outdated: {join_names(row.outdated)} was trained again; tune the stack again")
