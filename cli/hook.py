"""``rerank hook``: rerank every search of an OpenSearch index."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from . import options, output

if TYPE_CHECKING:
    from rerank.hooking import Done, Status, Trial

_ONLY = {
    "service": ("install",),
    "stack": ("install",),
    "depth": ("install",),
    "timeout": ("install",),
    "on_failure": ("install",),
    "default": ("install",),
    "token_file": ("install",),
    "id_field": ("install",),
    "cluster_settings": ("install",),
    "dry_run": ("install", "remove"),
    "query": ("test",),
    "count": ("test",),
}
"""Which options belong to which actions."""

_STOCK = ("token_file", "id_field", "cluster_settings")
"""Options that only --route stock has."""


@click.command("hook")
@click.argument("action", type=click.Choice(["install", "status", "remove", "test"]))
@click.argument("query", required=False, metavar="QUERY")
@options.common
@click.option("--service", metavar="URL", help="install: the service, as the cluster's nodes reach it.")
@click.option("--stack", metavar="STACK", help="install: signals or weights. Default: the service's.")
@click.option(
    "--depth",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="install: candidates of a search.",
)
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="MS",
    help="install: milliseconds that a search may wait for the service.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["first_stage", "error"]),
    default="first_stage",
    show_default=True,
    help="install: what a search that cannot be reranked answers.",
)
@click.option("--name", metavar="NAME", help="The pipeline. Default: rerank-INDEX, or rerank-INDEX-stock.")
@click.option("--default", is_flag=True, help="install: for every search of the index that names no other.")
@click.option("--dry-run", is_flag=True, help="install, remove: only show the requests.")
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="test: hits.")
@click.option(
    "--route",
    type=click.Choice(["plugin", "stock"]),
    default="plugin",
    show_default=True,
    help="How the cluster calls the service: by our plugin, or by OpenSearch's own processors.",
)
@click.option("--token-file", metavar="FILE", help="stock install: the token that the service wants.")
@click.option("--id-field", metavar="FIELD", help="stock install: the field that repeats _id.")
@click.option(
    "--cluster-settings", is_flag=True, help="stock install: change the settings that forbid the call."
)
def command(
    action: str,
    query: str | None,
    folder: str,
    as_json: bool,
    service: str | None,
    stack: str | None,
    depth: int,
    timeout: int,
    on_failure: str,
    name: str | None,
    default: bool,
    dry_run: bool,
    count: int,
    route: str,
    token_file: str | None,
    id_field: str | None,
    cluster_settings: bool,
) -> None:
    """Have OpenSearch rerank searches of the workspace's index, by `rerank serve`.

    install makes the search pipeline, status shows what is there, remove takes it away, and test QUERY
    compares a search through it with `rerank query`.
    """
    _check(action, route)
    if action == "install" and service is None:
        raise click.UsageError("install needs --service URL, where `rerank serve` listens")
    if action == "test" and query is None:
        raise click.UsageError("test needs a QUERY")
    from contextlib import closing

    from rerank.hooking import StockWanted, Wanted, as_dict
    from rerank.hooking import hook as make
    from rerank.workspace import Workspace

    report: Done | Status | Trial
    with closing(make(Workspace.open(folder), route, name)) as hook:
        if action == "install":
            given = (str(service), stack, depth, timeout, on_failure)
            wanted = Wanted(*given)
            if route == "stock":
                wanted = StockWanted(*given, _token(token_file), id_field, cluster_settings)
            report = hook.install(wanted, default=default, dry_run=dry_run)
        elif action == "remove":
            report = hook.remove(dry_run=dry_run)
        elif action == "status":
            report = hook.status()
        else:
            report = hook.test(str(query), count)
    for line in getattr(report, "warnings", ()):
        output.note(f"warning: {line}")
    if as_json:
        output.print_json(as_dict(report))
    else:
        _show(report)
    if getattr(report, "same", True) is False:
        sys.exit(1)


def _token(path: str | None) -> str:
    if path is None:
        return ""
    from rerank.service.settings import read_token

    return read_token(path)


def _check(action: str, route: str) -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        known = parameter.name or ""
        given = context.get_parameter_source(known) is ParameterSource.COMMANDLINE
        if given and action not in _ONLY.get(known, (action,)):
            name = "QUERY" if known == "query" else parameter.opts[0]
            raise click.UsageError(f"{name} is for {' and '.join(_ONLY[known])}, not for {action}")
        if given and known in _STOCK and route != "stock":
            raise click.UsageError(f"{parameter.opts[0]} is for --route stock")


def _show(report: Done | Status | Trial) -> None:
    from rerank.hooking import Done, Status

    if isinstance(report, Done):
        for request in report.requests:
            click.echo(f"{'would ' if report.dry_run else ''}{request}")
        if report.dry_run or not report.requests:
            click.echo("nothing was changed" if report.requests else "nothing to change")
    elif isinstance(report, Status):
        _show_status(report)
    else:
        _show_trial(report)


def _show_status(report: Status) -> None:
    click.echo(f"pipeline {report.pipeline}: {'there' if report.there else 'not there'}")
    for name, value in (report.config or {}).items():
        click.echo(f"  {name}: {value}")
    click.echo(f"default of: {', '.join(report.default_of) or 'no index'}")
    for node, plugin in report.nodes.items():
        click.echo(f"plugin on {node}: {plugin or 'missing'}")
    if report.service is not None:
        click.echo(f"service: ready, its own stack is {report.service.get('stack')}")
    for url, found in report.statistics.items():
        passed, failed = (sum(found[kind].values()) for kind in ("passed", "failed"))
        click.echo(f"{url}: {found['reranked']} reranked, {passed} passed through, {failed} failed")
        for kind in ("passed", "failed"):
            for reason, n in found[kind].items():
                click.echo(f"  {kind}, {reason}: {n}")
    for line in report.problems:
        click.echo(f"problem: {line}")


def _show_trial(report: Trial) -> None:
    reason = f" ({report.reason})" if report.reason else ""
    click.echo(f"{report.stack}, depth {report.depth}: {report.outcome}{reason}")
    rows = [
        [str(place + 1), *(ids[place] if place < len(ids) else "" for ids in columns)]
        for columns in [(report.plain, report.reranked, report.expected)]
        for place in range(max(map(len, columns)))
    ]
    click.echo(output.table(["", "without", "with the hook", "rerank query"], rows, left=4))
    click.echo("the order is that of `rerank query`" if report.same else "the order is NOT `rerank query`'s")
    if report.difference is not None:
        click.echo(f"scores differ by {report.difference:.1g} at most")
    times = report.milliseconds
    click.echo(
        f"{times['plain']:.1f} ms without, {times['reranked']:.1f} ms with the hook,"
        f" {times['candidates']:.1f} ms for all {report.depth} candidates without"
    )
