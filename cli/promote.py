"""``rerank promote``: put a tuned stack in use, if it is not worse than the stack in use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rerank.text import plural

from . import options, output
from .hints import suggested

if TYPE_CHECKING:
    from rerank.workflows.promote import Promotion


@click.command("promote")
@click.argument("stack", required=False)
@options.common
@options.queries
@click.option("--qrels", required=True, metavar="FILE", help="Judgments to compare on, BEIR or TREC.")
@options.conflicts
@click.option(
    "--measure",
    metavar="NAME",
    help="Measure that compares both. Default: the measure that the stack was tuned for.",
)
@options.ignore_categories
@options.infer
@click.option("--dry-run", is_flag=True, help="Only compare.")
@options.seed
def command(
    stack: str | None, folder: str, as_json: bool, queries: str, qrels: str, conflicts: str, **settings: Any
) -> None:
    """Compare STACK, as it was tuned last, with the stack in use, and put it in use if it is not worse.

    Without STACK: the signals of the stack in use. A running service follows within a second or so. Use
    queries that neither was trained or tuned on. Exit code 1 if STACK is worse; then nothing is changed.
    """
    from rerank.evaluation.leakage import format_leakage
    from rerank.formats import read_qrels, read_queries
    from rerank.workflows.promote import promote
    from rerank.workspace import Workspace

    report = promote(
        Workspace.open(folder),
        stack,
        queries=read_queries(queries),
        qrels=read_qrels(qrels, conflicts=conflicts),
        progress=output.Bar(quiet=as_json),
        **settings,
    )
    if report.leaks:
        output.note(f"{format_leakage(report.leaks, report.queries)}: compare on others")
    for name in report.newer:
        output.note(f"{name} was trained again after {report.name} was tuned; this is the version before")
    if as_json:
        output.print_json(report)
    else:
        _show(report)
    if report.value < report.before_value:
        sys.exit(1)


def _show(report: Promotion) -> None:
    """Print both stacks, how they compare, and which one is in use."""
    for what, value, one in (
        ("in use", report.before_value, report.before),
        ("candidate", report.value, report.stack),
    ):
        click.echo(f"{what:<9}  {value:.4f}")
        output.show_weights(one)
    click.echo(
        f"{report.measure} of {plural(report.queries, 'quer[y|ies]')}: {report.wins} better,"
        f" {report.losses} worse, p {output.p_value(report.p)}"
    )
    if report.promoted:
        click.echo(f"in use now: version {report.version}; {suggested('rollback')} undoes this")
    elif report.value < report.before_value:
        use = suggested("stack", "use", report.name)
        click.echo(f"worse, so nothing was changed; {use} puts it in use nevertheless")
    else:
        click.echo("not worse; nothing was changed")
