"""``rerank hook``: rerank the searches of an index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.results import table
from rerank.text import plural

from . import options, output
from .options import Output, option
from .output import with_workspace_option

if TYPE_CHECKING:
    from rerank.hook import Hook, InstallReport


@click.group("hook")
def command() -> None:
    """Rerank the searches of an OpenSearch index by `rerank serve`."""


_pipeline = (
    "Pipeline",
    option("--route plugin|stock", "Way to call the service.", default="plugin"),
    option("--name NAME", "Search pipeline. Default: rerank-INDEX, or rerank-INDEX-stock."),
    options.GENERAL,
)


def _hook(workspace: rerank.Workspace, route: str, name: str | None) -> Hook:
    from rerank.hook import hook
    from rerank.service.settings import read_token

    return hook(workspace, route, name, read_token(None))


@options.command(
    "install",
    "Service",
    option("--service URL", "URL of the service for the nodes.", required=True),
    option("--timeout SECONDS", "Time limit of a call, at most 60.", type=float, default=1.0),
    option("--on-failure first_stage|error", "Answer if the service fails.", default="first_stage"),
    option("--token-file FILE", "Stock: token of the service."),
    "Searches",
    option("--stack STACK", "Signals or weights. Default: the stack of the service."),
    option("--depth N", "Number of candidates of a search.", type=options.Whole(1, 10_000), default=100),
    option("--min-score P", "Plugin: leave out hits with a smaller probability (0 to 1).", type=float),
    option("--shadow", "Score and count searches, but do not change their results."),
    option("--default", "Use the pipeline for all searches without a pipeline."),
    option("--add-to PIPELINE", "Plugin: also run a copy of this pipeline, until `hook remove`."),
    option("--id-field FIELD", "Stock: field that contains _id. Default: id or _id."),
    *_pipeline,
    options.dry_run,
    group=command,
)
def install(
    workspace: rerank.Workspace,
    progress: output.Bar,
    route: str,
    name: str | None,
    default: bool,
    dry_run: bool,
    token_file: str | None,
    id_field: str | None,
    **given: Any,
) -> Iterator[Output]:
    """Create or replace the search pipeline. Every node needs the plugin first."""
    from rerank.hook import HookOptions
    from rerank.service.settings import read_token

    of_stock = {"--token-file": token_file, "--id-field": id_field}
    unread = [option for option, value in of_stock.items() if value and route != "stock"]
    if unread:
        raise click.UsageError(f"{unread[0]} is for --route stock")
    token = read_token(token_file) if token_file else ""
    wanted = HookOptions(**given, token=token, id_field=id_field)
    yield from _installed(_hook(workspace, route, name).install(wanted, default=default, dry_run=dry_run))


@options.command("status", *_pipeline, group=command)
def status(
    workspace: rerank.Workspace, progress: output.Bar, route: str, name: str | None
) -> Iterator[Output]:
    """Show the pipeline, plugin, service and counters, and report problems.

    Exit code 1 if there is a problem.
    """
    report = _hook(workspace, route, name).status()
    yield Output(report, int(bool(report.problems)))
    click.echo(f"pipeline {report.pipeline}: {'exists' if report.there else 'missing'}")
    for key, value in (report.config or {}).items():
        click.echo(f"  {key}: {value}")
    if report.of is not None:
        output.show_weights(report.of)
    click.echo(f"default of: {', '.join(report.default_of) or 'no index'}")
    for node, plugin in report.nodes.items():
        click.echo(f"plugin on {node}: {plugin or 'missing'}")
    if report.service is not None:
        click.echo(f"service: ready, its stack: {report.service.get('stack', 'shown only with its token')}")
    for url, counters in report.statistics.items():
        _show_counters(url, counters)
    for line in report.problems:
        click.echo(f"problem: {with_workspace_option(line)}")


@options.command("remove", *_pipeline, options.dry_run, group=command)
def remove(
    workspace: rerank.Workspace, progress: output.Bar, route: str, name: str | None, dry_run: bool
) -> Iterator[Output]:
    """Remove the pipeline, and stop using it as default."""
    yield from _installed(_hook(workspace, route, name).remove(dry_run=dry_run))


@options.command(
    "test",
    options.argument("query"),
    option("-k N", "Number of documents to compare.", dest="count", default=10),
    *_pipeline,
    group=command,
)
def test(
    workspace: rerank.Workspace, progress: output.Bar, route: str, name: str | None, query: str, count: int
) -> Iterator[Output]:
    """Compare a search for QUERY with `rerank query`. Exit code 1 if the order differs."""
    from rerank.hook import try_search

    trial = try_search(_hook(workspace, route, name), query, count)
    yield Output(trial, int(not trial.same))
    reason = f" ({trial.reason})" if trial.reason else ""
    click.echo(f"{trial.stack}, depth {trial.depth}: {trial.outcome}{reason}")
    if used := trial.weights:
        click.echo(output.weights_line(used["stack"], used["normalization"], used["case"]))
    columns = zip_longest(trial.plain, trial.reranked, trial.expected, fillvalue="")
    rows = [[str(place), *ids] for place, ids in enumerate(columns, 1)]
    click.echo(table(["", "without", "with the hook", "rerank query"], rows, left=range(4)))
    click.echo(f"the order {'is the same' if trial.same else 'DIFFERS'}")
    if trial.difference is not None:
        click.echo(f"scores differ by {trial.difference:.1g} at most")


def _installed(report: InstallReport) -> Iterator[Output]:
    for line in report.warnings:
        output.note(f"warning: {line}")
    yield Output(report)
    for request in report.requests:
        click.echo(f"{'would ' if report.dry_run else ''}{request}")
    if report.dry_run or not report.requests:
        click.echo("nothing was changed" if report.requests else "nothing to change")


def _show_counters(url: str, counters: dict[str, Any]) -> None:
    passed, failed = (sum(counters[kind].values()) for kind in ("passed", "failed"))
    click.echo(f"{url}: {counters['reranked']} reranked, {passed} passed through, {failed} failed")
    shadow = counters["shadow"]
    if count := shadow["count"]:
        moved, took = shadow["moved"] / count, shadow["total_ms"] / max(count - 1, 1)  # of all but the first
        searches = plural(count, "search[|es]")
        click.echo(f"  shadow: {searches}; {moved:.1f} of the first ten would move; {took:.1f} ms each")
    for kind in ("passed", "failed"):
        for reason, number in counters[kind].items():
            click.echo(f"  {kind}, {reason}: {number}")
