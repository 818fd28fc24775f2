"""``rerank hook``: rerank the searches of an index."""

from __future__ import annotations

import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.common.results import table
from rerank.documents.text import count_of

from . import output
from .options import (
    COUNT,
    Command,
    Function,
    WholeNumber,
    dry_run_option,
    json_option,
    option,
    workspace_option,
)

if TYPE_CHECKING:
    from rerank.hook import Hook, InstallReport, SearchTrial, Status


@click.group("hook")
def command() -> None:
    """Rerank the searches of an OpenSearch index by `rerank serve`."""


def pipeline_options(function: Function) -> Function:
    """Add --route and --name to a command: the options that identify a search pipeline."""
    route_option = option(
        "--route",
        metavar="plugin|stock",
        type=click.Choice(["plugin", "stock"]),
        default="plugin",
        group="Pipeline",
        help="Way to call the service.",
    )
    name_option = option(
        "--name",
        metavar="NAME",
        group="Pipeline",
        help="Search pipeline. Default: rerank-INDEX, or rerank-INDEX-stock.",
    )
    return route_option(name_option(function))


def _open_hook(folder: str, route: str, name: str | None) -> Hook:
    from rerank.hook import hook
    from rerank.service.settings import read_token

    return hook(rerank.Workspace.open(folder), route, name, read_token(None))


@command.command("install", cls=Command)
@option(
    "--service",
    metavar="URL",
    required=True,
    group="Service",
    help="URL of the service for the nodes. Plugin: several with commas share the searches.",
)
@option(
    "--timeout",
    metavar="SECONDS",
    type=float,
    default=1.0,
    group="Service",
    help="Time limit of a call, at most 60.",
)
@option(
    "--on-failure",
    metavar="first_stage|error",
    type=click.Choice(["first_stage", "error"]),
    default="first_stage",
    group="Service",
    help="Answer if the service fails.",
)
@option("--token-file", metavar="FILE", group="Service", help="Stock: token of the service.")
@option(
    "--stack",
    metavar="STACK",
    group="Searches",
    help="Signals or weights. Default: the stack of the service.",
)
@option(
    "--depth",
    metavar="N",
    type=WholeNumber(1, 10_000),
    default=100,
    group="Searches",
    help="Number of candidates of a search.",
)
@option(
    "--min-score",
    metavar="P",
    type=float,
    group="Searches",
    help="Plugin: leave out hits with a smaller probability (0 to 1).",
)
@option(
    "--shadow",
    is_flag=True,
    group="Searches",
    help="Score and count searches, but do not change their results.",
)
@option(
    "--retrieve/--no-retrieve",
    default=None,
    group="Searches",
    help="Plugin: add documents that the rankers of the stack retrieve. Default: if it was tuned with some.",
)
@option(
    "--default",
    is_flag=True,
    group="Searches",
    help="Use the pipeline for all searches without a pipeline.",
)
@option(
    "--add-to",
    metavar="PIPELINE",
    group="Searches",
    help="Plugin: also run a copy of this pipeline, until `hook remove`.",
)
@option(
    "--id-field",
    metavar="FIELD",
    group="Searches",
    help="Stock: field that contains _id. Default: id or _id.",
)
@pipeline_options
@dry_run_option
@workspace_option
@json_option
def install(
    folder: str,
    service: str,
    timeout: float,
    on_failure: str,
    token_file: str | None,
    stack: str | None,
    depth: int,
    min_score: float | None,
    shadow: bool,
    retrieve: bool | None,
    default: bool,
    add_to: str | None,
    id_field: str | None,
    route: str,
    name: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create or replace the search pipeline. Every node needs the plugin first."""
    from rerank.hook import HookOptions
    from rerank.service.settings import read_token

    for option_name, value in (("--token-file", token_file), ("--id-field", id_field)):
        if value and route != "stock":
            raise click.UsageError(f"{option_name} is for --route stock")
    hook_options = HookOptions(
        service,
        stack,
        depth,
        timeout,
        on_failure,
        add_to=add_to,
        min_score=min_score,
        shadow=shadow,
        retrieve=retrieve,
        token=read_token(token_file) if token_file else "",
        id_field=id_field,
    )
    report = _open_hook(folder, route, name).install(hook_options, default=default, dry_run=dry_run)
    _print_changes(report, as_json=as_json)


@command.command("status", cls=Command)
@pipeline_options
@workspace_option
@json_option
def status(folder: str, route: str, name: str | None, as_json: bool) -> None:
    """Show the pipeline, plugin, service and counters, and report problems.

    Exit code 1 if there is a problem.
    """
    report = _open_hook(folder, route, name).status()
    output.print_report(report, _show_status, as_json=as_json)
    if report.problems:
        sys.exit(1)


def _show_status(report: Status) -> None:
    _show_pipeline(report)
    _show_nodes(report)
    for url, counters in report.statistics.items():
        _show_counters(url, counters)
    for problem in report.problems:
        click.echo(f"problem: {output.current_session().with_workspace_option(problem)}")


def _show_pipeline(report: Status) -> None:
    """Print the settings and the stack of the pipeline, and the indices that use it."""
    click.echo(f"pipeline {report.pipeline}: {'exists' if report.exists else 'missing'}")
    config = report.config or {}
    for key, value in config.items():
        click.echo(f"  {key}: {value}")
    if report.stack is not None:
        output.show_weights(report.stack)
    click.echo(f"default of: {', '.join(report.default_of) or 'no index'}")


def _show_nodes(report: Status) -> None:
    """Print the version of the plugin on each node, and the stack of the service if it answers."""
    for node, plugin in report.nodes.items():
        click.echo(f"plugin on {node}: {plugin or 'missing'}")
    if report.service is not None:
        click.echo(f"service: ready, its stack: {report.service.get('stack', 'shown only with its token')}")


def _show_counters(url: str, counters: dict[str, Any]) -> None:
    passed = sum(counters["passed"].values())
    failed = sum(counters["failed"].values())
    click.echo(f"{url}: {counters['reranked']} reranked, {passed} passed through, {failed} failed")
    shadow = counters["shadow"]
    count = shadow["count"]
    if count:
        moved = shadow["moved"] / count
        milliseconds = shadow["total_ms"] / max(count - 1, 1)  # the sum leaves out the first search
        searches = count_of(count, "search")
        click.echo(
            f"  shadow: {searches}; {moved:.1f} of the first ten would move; {milliseconds:.1f} ms each"
        )
    added = counters.get("added", {})  # an older plugin adds nothing
    if added.get("searches"):
        mean = added["documents"] / added["searches"]
        click.echo(
            f"  retrieval: {count_of(added['searches'], 'search')}; {mean:.1f} documents added to each"
        )
        for reason, number in added["none"].items():
            click.echo(f"  nothing added, {reason}: {number}")
    for outcome in ("passed", "failed"):
        for reason, number in counters[outcome].items():
            click.echo(f"  {outcome}, {reason}: {number}")


@command.command("remove", cls=Command)
@pipeline_options
@dry_run_option
@workspace_option
@json_option
def remove(folder: str, route: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove the pipeline, and stop using it as default."""
    report = _open_hook(folder, route, name).remove(dry_run=dry_run)
    _print_changes(report, as_json=as_json)


def _print_changes(report: InstallReport, *, as_json: bool) -> None:
    """Print the warnings and the requests of an installation or a removal."""
    for warning in report.warnings:
        output.note(f"warning: {warning}")
    output.print_report(report, _show_requests, as_json=as_json)


def _show_requests(report: InstallReport) -> None:
    for request in report.requests:
        click.echo(f"would {request}" if report.dry_run else str(request))
    if not report.requests:
        click.echo("nothing to change")
    elif report.dry_run:
        click.echo("nothing was changed")


@command.command("test", cls=Command)
@click.argument("query")
@option("-k", "count", metavar="N", type=COUNT, default=10, help="Number of documents to compare.")
@pipeline_options
@workspace_option
@json_option
def test(folder: str, query: str, count: int, route: str, name: str | None, as_json: bool) -> None:
    """Compare a search for QUERY with `rerank query`.

    Exit code 1 if the order differs or nothing was reranked.
    """
    from rerank.hook import try_search

    trial = try_search(_open_hook(folder, route, name), query, count)
    output.print_report(trial, _show_trial, as_json=as_json)
    if trial.problem is not None or not trial.same:
        sys.exit(1)


def _show_trial(trial: SearchTrial) -> None:
    reason = f" ({trial.reason})" if trial.reason else ""
    click.echo(f"{trial.stack}, depth {trial.depth}: {trial.outcome}{reason}")
    weights = trial.weights
    if weights:
        click.echo(output.weights_line(weights["stack"], weights["normalization"], weights["case"]))
    rankings = zip_longest(trial.plain, trial.reranked, trial.expected, fillvalue="")
    rows = [[str(rank), *ids] for rank, ids in enumerate(rankings, 1)]
    click.echo(table(["", "without", "with the hook", "rerank query"], rows, left_aligned=range(4)))
    if trial.problem is not None:
        click.echo(output.current_session().with_workspace_option(trial.problem))
        return
    click.echo(f"the order {'is the same' if trial.same else 'DIFFERS'}")
    if trial.difference is not None:
        click.echo(f"scores differ by {trial.difference:.1g} at most")
