"""``rerank stack``: stacks of a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.text import join_names, plural

from . import options, output
from .options import Output, option
from .output import suggested

if TYPE_CHECKING:
    from rerank import Stack, Workspace
    from rerank.workflows.promote import Promotion, Rollback
    from rerank.workflows.status import StackState


@click.group("stack")
def command() -> None:
    """List the stacks of a workspace, and choose the active stack."""


@options.command("list", group=command)
def list_stacks(workspace: Workspace, progress: output.Bar) -> Output:
    """List the candidates and all versions, with their weights."""
    from rerank.workflows.status import stacks

    found = stacks(workspace)

    def show_all() -> None:
        show(found.stacks, found.releases)
        if not found.releases:
            click.echo(f"active: {workspace.default_stack}")

    return Output(found, show_all)


_STACK = options.argument("stack", required=False)


@options.command("show", _STACK, group=command)
def show_stack(workspace: Workspace, progress: output.Bar, stack: str | None) -> Output:
    """Show the weights and candidates of STACK. Default: the active stack."""
    found = workspace.stack(stack or workspace.default_stack)
    return Output(found, lambda: _show_stack(found, _candidates(found)))


def _show_stack(stack: Stack, title: str) -> None:
    click.echo(title)
    output.show_weights(stack)


def _candidates(stack: Stack) -> str:
    return f"{plural(stack.depth, 'candidate[|s]')} by {' and '.join(stack.retrievers)}"


@options.command("use", options.argument("stack"), group=command)
def use(workspace: Workspace, progress: output.Bar, stack: str) -> Output:
    """Activate STACK for `query`, `serve` and the hook, without a comparison.

    STACK is tuned signals, weights, a stack file, or a version of `rerank stack list`.
    """
    used = workspace.use_stack(stack)
    return Output(used, lambda: _show_stack(used, f"active: version {workspace.releases.number}"))


@options.command(
    "promote",
    _STACK,
    "Input",
    *options.judged,
    options.ignore_categories,
    "Candidates",
    options.infer,
    options.GENERAL,
    option("--measure NAME", "Measure that compares the stacks. Default: the measure of the tuning."),
    options.seed,
    options.dry_run,
    group=command,
)
def promote(workspace: Workspace, stack: str | None, **settings: Any) -> Output:
    """Activate STACK if it is not worse than the active stack.

    STACK is the candidate that was last tuned for its signals. Default: the signals of the active stack.
    Use queries that neither stack was trained or tuned on. Exit code 1 if STACK is worse.
    """
    from rerank.evaluation.leakage import format_leakage

    report = rerank.promote(workspace, stack, **settings)
    if report.leaks:
        output.note(f"{format_leakage(report.leaks, report.queries)}: compare on other queries")
    for name in report.newer:
        output.note(f"{name} was trained again after {report.name} was tuned; the earlier version is used")
    return Output(report, lambda: _show_promotion(report), code=int(report.value < report.before_value))


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


@options.command("rollback", options.dry_run, group=command)
def rollback(workspace: Workspace, **settings: Any) -> Output:
    """Activate the previous stack again.

    The version that was active is kept.
    """
    report = rerank.rollback(workspace, **settings)
    return Output(report, lambda: _show_rollback(report))


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
        _show_stack(row.of, f"{title}: {_candidates(row.of)}")
        if row.gate:
            measure, value, before = (row.gate[name] for name in ("measure", "value", "before_value"))
            p = output.p_value(row.gate["p"])
            click.echo(f"  promoted with {measure} {value:.4f} against {before:.4f} (p {p})")
        if row.outdated:
            click.echo(f"  outdated: {join_names(row.outdated)} was trained again; tune the stack again")
