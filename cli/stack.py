"""``rerank stack``: choose the active stack of a workspace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of

from . import output
from .options import (
    Command,
    dry_run_option,
    ignore_categories_option,
    infer_option,
    json_option,
    option,
    qrels_option,
    queries_option,
    seed_option,
    workspace_option,
)
from .output import suggested

if TYPE_CHECKING:
    from rerank.workflows.promote import Promotion, Rollback


@click.group("stack")
def command() -> None:
    """Choose the active stack. `rerank status` lists all stacks."""


@command.command("use", cls=Command)
@click.argument("stack")
@workspace_option
@json_option
def use(folder: str, stack: str, as_json: bool) -> None:
    """Activate STACK for `query`, `serve` and the hook, without a comparison.

    STACK is tuned signals, weights, a stack file, or a version of `rerank status`.
    """
    workspace = rerank.Workspace.open(folder)
    active_stack = workspace.use_stack(stack)
    if as_json:
        output.print_json(active_stack)
        return
    click.echo(f"active: version {workspace.releases.number}")
    output.show_weights(active_stack)


@command.command("promote", cls=Command)
@click.argument("stack", required=False)
@queries_option
@qrels_option
@ignore_categories_option
@infer_option("Candidates")
@option(
    "--measure", metavar="NAME", help="Measure that compares the stacks. Default: the measure of the tuning."
)
@seed_option
@option("--force", is_flag=True, help="Activate STACK also if no gain is shown.")
@dry_run_option
@workspace_option
@json_option
def promote(
    folder: str,
    stack: str | None,
    queries: str,
    qrels: str,
    ignore_categories: bool,
    infer: bool,
    measure: str | None,
    seed: int,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Activate STACK if it is better than the active stack (p < 0.05), or with --force.

    STACK is the candidate that was last tuned for its signals. Default: the signals of the active stack.
    Use queries that neither stack was trained or tuned on. Exit code 1 if no gain is shown.
    """
    from rerank.evaluation.leakage import format_leakage

    report = rerank.promote(
        folder,
        stack,
        queries=queries,
        qrels=qrels,
        measure=measure,
        ignore_categories=ignore_categories,
        infer=infer,
        force=force,
        dry_run=dry_run,
        seed=seed,
        progress=output.Bar(hidden=as_json),
    )
    if report.leaks:
        output.note(f"{format_leakage(report.leaks, report.queries)}: compare on other queries")
    for name in report.newer:
        output.note(f"{name} was trained again after {report.name} was tuned; the earlier version is used")
    output.print_report(report, _show_promotion, as_json=as_json)
    if not report.shown and not report.promoted:
        sys.exit(1)


def _show_promotion(report: Promotion) -> None:
    click.echo(f"active     {report.before_value:.4f}")
    output.show_weights(report.before)
    click.echo(f"candidate  {report.value:.4f}")
    output.show_weights(report.stack)
    click.echo(
        f"{report.measure} of {count_of(report.queries, 'query')}: {report.wins} better,"
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


@command.command("rollback", cls=Command)
@dry_run_option
@workspace_option
@json_option
def rollback(folder: str, dry_run: bool, as_json: bool) -> None:
    """Activate the previous stack again.

    The version that was active is kept.
    """
    report = rerank.rollback(folder, dry_run=dry_run, progress=output.Bar(hidden=as_json))
    output.print_report(report, _show_rollback, as_json=as_json)


def _show_rollback(report: Rollback) -> None:
    would_be = "would be " if report.dry_run else ""
    click.echo(f"{would_be}active again: version {report.version}")
    output.show_weights(report.stack)
    undo = suggested("stack", "use", str(report.rolled_back_version))
    click.echo(f"{would_be}rolled back: version {report.rolled_back_version}; undo with {undo}")
    output.show_weights(report.rolled_back)
    for name, count in report.encoded.items():
        click.echo(f"{name}: {count_of(count, 'new document')} encoded")
