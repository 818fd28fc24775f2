"""``rerank hook``: rerank the searches of an index."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from rerank.results import table
from rerank.text import plural

from . import options, output
from .options import Output, option
from .output import located

if TYPE_CHECKING:
    from rerank import Workspace
    from rerank.hook import Hook, InstallReport, SearchTrial, Status


@click.group("hook")
def command() -> None:
    """Rerank the searches of an OpenSearch index by `rerank serve`."""


_pipeline = (
    "Pipeline",
    option("--route plugin|stock", "Way to call the service.", default="plugin"),
    option("--name NAME", "Search pipeline. Default: rerank-INDEX, or rerank-INDEX-stock."),
    options.GENERAL,
)


def _hook(workspace: Workspace, route: str, name: str | None) -> Hook:
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
    option("--shadow", "Score and count searches, but do not change their results."),
    option("--default", "Use the pipeline for all searches without a pipeline."),
    option("--add-to PIPELINE", "Plugin: also run this pipeline."),
    option("--id-field FIELD", "Stock: field that contains _id. Default: id or _id."),
    *_pipeline,
    options.dry_run,
    group=command,
)
def install(
    workspace: Workspace,
    progress: output.Bar,
    route: str,
    name: str | None,
    default: bool,
    dry_run: bool,
    token_file: str | None,
    id_field: str | None,
    **given: Any,
) -> Output:
    """Create or replace the search pipeline. Every node needs the plugin first."""
    from rerank.hook import HookOptions
    from rerank.service.settings import read_token

    of_stock = {"--token-file": token_file, "--id-field": id_field}
    unread = [option for option, value in of_stock.items() if value and route != "stock"]
    if unread:
        raise click.UsageError(f"{unread[0]} is for --route stock")
    token = read_token(token_file) if token_file else ""
    wanted = HookOptions(**given, token=token, id_field=id_field)
    return _installed(_hook(workspace, route, name).install(wanted, default=default, dry_run=dry_run))


@options.command("status", *_pipeline, group=command)
def status(workspace: Workspace, progress: output.Bar, route: str, name: str | None) -> Output:
    """Show the pipeline, plugin, service and counters, and report problems.

    Exit code 1 if there is a problem.
    """
    report = _hook(workspace, route, name).status()
    return Output(report, lambda: _show_status(report), int(bool(report.problems)))


@options.command("remove", *_pipeline, options.dry_run, group=command)
def remove(workspace: Workspace, progress: output.Bar, route: str, name: str | None, dry_run: bool) -> Output:
    """Remove the pipeline, and stop using it as default."""
    return _installed(_hook(workspace, route, name).remove(dry_run=dry_run))


@options.command(
    "test",
    options.argument("query"),
    option("-k N", "Number of documents to compare.", dest="count", default=10),
    *_pipeline,
    group=command,
)
def test(
    workspace: Workspace, progress: output.Bar, route: str, name: str | None, query: str, count: int
) -> Output:
    """Compare a search for QUERY with `rerank query`. Exit code 1 if the order differs."""
    from rerank.hook import try_search

    trial = try_search(_hook(workspace, route, name), query, count)
    return Output(trial, lambda: _show_trial(trial), int(not trial.same))


def _installed(report: InstallReport) -> Output:
    for line in report.warnings:
        output.note(f"warning: {line}")
    lines = [f"{'would ' if report.dry_run else ''}{request}" for request in report.requests]
    if report.dry_run or not lines:
        lines.append("nothing was changed" if lines else "nothing to change")
    return Output(report, lambda: click.echo("\n".join(lines)))


def _show_status(report: Status) -> None:
    click.echo(f"pipeline {report.pipeline}: {'exists' if report.there else 'missing'}")
    for name, value in (report.config or {}).items():
        click.echo(f"  {name}: {value}")
    if report.of is not None:
        output.show_weights(report.of)
    click.echo(f"default of: {', '.join(report.default_of) or 'no index'}")
    for node, plugin in report.nodes.items():
        click.echo(f"plugin on {node}: {plugin or 'missing'}")
    if report.service is not None:
        click.echo(f"service: ready, its stack: {report.service.get('stack', 'shown only with its token')}")
    for url, found in report.statistics.items():
        passed, failed = (sum(found[kind].values()) for kind in ("passed", "failed"))
        click.echo(f"{url}: {found['reranked']} reranked, {passed} passed through, {failed} failed")
        if found["shadow"]["count"]:
            click.echo(f"  {_shadow(found['shadow'])}")
        for kind in ("passed", "failed"):
            for reason, n in found[kind].items():
                click.echo(f"  {kind}, {reason}: {n}")
    for line in report.problems:
        click.echo(f"problem: {located(line)}")


def _shadow(shadow: dict[str, Any]) -> str:
    count = shadow["count"]
    moved, took = shadow["moved"] / count, shadow["total_ms"] / max(count - 1, 1)  # of all but the first
    return (
        f"shadow: {plural(count, 'search[|es]')}; {moved:.1f} of the first ten would move; {took:.1f} ms each"
    )


def _show_trial(report: SearchTrial) -> None:
    reason = f" ({report.reason})" if report.reason else ""
    click.echo(f"{report.stack}, depth {report.depth}: {report.outcome}{reason}")
    if used := report.weights:
        click.echo(output.weights_line(used["stack"], used["normalization"], used["case"]))
    columns = zip_longest(report.plain, report.reranked, report.expected, fillvalue="")
    rows = [[str(place), *ids] for place, ids in enumerate(columns, 1)]
    click.echo(table(["", "without", "with the hook", "rerank query"], rows, left=range(4)))
    click.echo(f"the order {'is the same' if report.same else 'DIFFERS'}")
    if report.difference is not None:
        click.echo(f"scores differ by {report.difference:.1g} at most")
