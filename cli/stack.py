"""``rerank stack``: the active stack of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import rerank
from rerank.text import plural

from . import options, output
from .options import Output, option
from .output import suggested


@click.group("stack")
def command() -> None:
    """Choose the active stack. `rerank status` lists all stacks."""


@options.command("use", options.argument("stack"), group=command)
def use(workspace: rerank.Workspace, progress: output.Bar, stack: str) -> Iterator[Output]:
    """Activate STACK for `query`, `serve` and the hook, without a comparison.

    STACK is tuned signals, weights, a stack file, or a version of `rerank status`.
    """
    used = workspace.use_stack(stack)
    yield Output(used)
    click.echo(f"active: version {workspace.releases.number}")
    output.show_weights(used)


@options.command(
    "promote",
    options.argument("stack", required=False),
    "Input",
    *options.judged,
    options.ignore_categories,
    "Candidates",
    options.infer,
    options.GENERAL,
    option("--measure NAME", "Measure that compares the stacks. Default: the measure of the tuning."),
    options.seed,
    option("--force", "Activate STACK also if no gain is shown."),
    options.dry_run,
    group=command,
)
def promote(workspace: rerank.Workspace, stack: str | None, **settings: Any) -> Iterator[Output]:
    """Activate STACK if it is better than the active stack (p < 0.05), or with --force.

    STACK is the candidate that was last tuned for its signals. Default: the signals of the active stack.
    Use queries that neither stack was trained or tuned on. Exit code 1 if no gain is shown.
    """
    from rerank.evaluation.leakage import format_leakage

    report = rerank.promote(workspace, stack, **settings)
    if report.leaks:
        output.note(f"{format_leakage(report.leaks, report.queries)}: compare on other queries")
    for name in report.newer:
        output.note(f"{name} was trained again after {report.name} was tuned; the earlier version is used")
    yield Output(report, code=int(not report.shown and not report.promoted))
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
    elif report.shown:
        click.echo("a gain is shown; nothing was changed")
    else:
        click.echo(
            "not shown: no gain with p < 0.05; nothing was changed; judge more queries, or activate the stack"
            " with --force"
        )


@options.command("rollback", options.dry_run, group=command)
def rollback(workspace: rerank.Workspace, **settings: Any) -> Iterator[Output]:
    """Activate the previous stack again.

    The version that was active is kept.
    """
    report = rerank.rollback(workspace, **settings)
    yield Output(report)
    would = "would be " if report.dry_run else ""
    click.echo(f"{would}active again: version {report.version}")
    output.show_weights(report.stack)
    again = suggested("stack", "use", str(report.rolled_back_version))
    click.echo(f"{would}rolled back: version {report.rolled_back_version}; undo with {again}")
    output.show_weights(report.rolled_back)
    for name, count in report.encoded.items():
        click.echo(f"{name}: {plural(count, 'new document[|s]')} encoded")
