"""``rerank hook``: rerank every search of an OpenSearch index."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rerank.text import plural

from . import options, output
from .hints import located

if TYPE_CHECKING:
    from rerank.hook import Hook, InstallReport, SearchTrial, Status, TrialReport

Function = TypeVar("Function", bound=Callable[..., Any])
Report = TypeVar("Report", "InstallReport", "TrialReport", "Status", "SearchTrial")


@click.group("hook")
def command() -> None:
    """Have OpenSearch rerank searches of the workspace's index, by `rerank serve`."""


def _pipeline(function: Function) -> Function:
    """Add the options of every subcommand: workspace, route and name of the pipeline."""
    name = click.option(
        "--name", metavar="NAME", help="The pipeline. Default: rerank-INDEX, or rerank-INDEX-stock."
    )
    route = click.option(
        "--route",
        type=click.Choice(["plugin", "stock"]),
        default="plugin",
        show_default=True,
        help="How the cluster calls the service: by our plugin, or by OpenSearch's own processors.",
    )
    return options.common(name(route(function)))


_dry_run = click.option("--dry-run", is_flag=True, help="Only show the requests.")


@command.command()
@_pipeline
@click.option(
    "--service",
    required=True,
    multiple=True,
    metavar="URL",
    help="The service, as the cluster's nodes reach it; several are tried in turn.",
)
@click.option("--stack", metavar="STACK", help="Signals or weights. Default: the service's.")
@click.option(
    "--depth",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Candidates of a search.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001, max=60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a search may wait for the service.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["first_stage", "error"]),
    default="first_stage",
    show_default=True,
    help="Answer of a search that cannot be reranked.",
)
@click.option(
    "--add-to",
    metavar="PIPELINE",
    help="Route plugin: add the processors of this pipeline, for example of a hybrid query.",
)
@click.option("--shadow", is_flag=True, help="Score and count searches, and leave them as they are.")
@click.option(
    "--share",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    metavar="PERCENT",
    help="Share of the searches that are reranked, always of the same clients.",
)
@click.option("--token-name", metavar="NAME", help="The nodes' token: rerank.tokens.NAME, not rerank.token.")
@click.option("--default", is_flag=True, help="For every search of the index that names no other.")
@_dry_run
@click.option("--token-file", metavar="FILE", help="Route stock: the token that the service wants.")
@click.option("--id-field", metavar="FIELD", help="Route stock: the field that repeats _id.")
def install(
    route: str,
    default: bool,
    dry_run: bool,
    token_file: str | None,
    id_field: str | None,
    folder: str,
    name: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Make the search pipeline, once every node has the plugin."""
    of_stock = {"--token-file": token_file, "--id-field": id_field}
    unread = [option for option, value in of_stock.items() if value and route != "stock"]
    if unread:
        raise click.UsageError(f"{unread[0]} is for --route stock")
    if given["add_to"] and route == "stock":
        raise click.UsageError("--add-to is for --route plugin")

    def act(hook: Hook) -> InstallReport:
        from rerank.hook import HookOptions, StockOptions
        from rerank.service.settings import read_token

        wanted = HookOptions(**given)
        if route == "stock":
            token = read_token(token_file) if token_file else ""
            wanted = StockOptions(**given, token=token, id_field=id_field)
        return hook.install(wanted, default=default, dry_run=dry_run)

    _report(act, _show_done, folder, route, name, as_json)


@command.command()
@_pipeline
def status(**where: Any) -> None:
    """Show the pipeline, plugin, service and counters, and report problems.

    Exit code 1 if there is a problem.
    """
    if _report(lambda hook: hook.status(), _show_status, **where).problems:
        sys.exit(1)


@command.command()
@_pipeline
@_dry_run
def remove(dry_run: bool, **where: Any) -> None:
    """Take the pipeline away, and the default before it."""
    _report(lambda hook: hook.remove(dry_run=dry_run), _show_done, **where)


@command.command("test")
@click.argument("query", metavar="[QUERY]", required=False)
@_pipeline
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="Hits.")
@click.option(
    "--template",
    metavar="FILE|stored:ID",
    help="The search that production sends: measure it with and without the hook.",
)
@click.option("--queries", metavar="FILE", help="With --template: queries, JSON lines.")
@click.option("--qrels", metavar="FILE", help="With --template: their judgments.")
@options.seed
def test(
    query: str | None,
    count: int,
    template: str | None,
    queries: str | None,
    qrels: str | None,
    seed: int,
    **where: Any,
) -> None:
    """Compare a search through the pipeline with `rerank query`, or judged queries with and without it.

    Exit code 1 for another order, or a worse mean.
    """
    if (query is None) == (template is None):
        raise click.UsageError("give a QUERY, or --template with --queries and --qrels")
    if template is not None:
        if not queries or not qrels:
            raise click.UsageError("--template needs --queries and --qrels")
        measured = _report(
            lambda hook: _gate(hook, template, queries, qrels, count, seed), _show_gate, **where
        )
        if measured.hooked < measured.plain:
            sys.exit(1)
        return
    assert query is not None
    if not _report(lambda hook: _trial(hook, query, count), _show_trial, **where).same:
        sys.exit(1)


def _trial(hook: Hook, query: str, count: int) -> SearchTrial:
    from rerank.hook import trial

    return trial(hook, query, count)


def _gate(hook: Hook, template: str, queries: str, qrels: str, count: int, seed: int) -> TrialReport:
    from rerank.formats import read_qrels, read_queries, read_template
    from rerank.hook import gate

    search = read_template(template if template.startswith("stored:") else f"template:{template}")
    assert search is not None
    return gate(hook, search, read_queries(queries), read_qrels(qrels), count=count, seed=seed)


def _report(
    act: Callable[[Hook], Report],
    show: Callable[[Report], None],
    folder: str,
    route: str,
    name: str | None,
    as_json: bool,
) -> Report:
    """Act by the hook of a workspace, and say what came of it."""
    from contextlib import closing

    from rerank.hook import hook as make
    from rerank.service.settings import read_token
    from rerank.workspace import Workspace

    with closing(make(Workspace.open(folder), route, name, read_token(None))) as hook:
        report = act(hook)
    for line in getattr(report, "warnings", ()):
        output.note(f"warning: {line}")
    if as_json:
        output.print_json(report)
    else:
        show(report)
    return report


def _show_done(report: InstallReport) -> None:
    for request in report.requests:
        click.echo(f"{'would ' if report.dry_run else ''}{request}")
    if report.dry_run or not report.requests:
        click.echo("nothing was changed" if report.requests else "nothing to change")
    for line in report.rest:
        output.note(line)


def _show_status(report: Status) -> None:
    click.echo(f"pipeline {report.pipeline}: {'there' if report.there else 'not there'}")
    for name, value in (report.config or {}).items():
        click.echo(f"  {name}: {value}")
    if report.of is not None:
        output.show_weights(report.of)
    click.echo(f"default of: {', '.join(report.default_of) or 'no index'}")
    for node, plugin in report.nodes.items():
        click.echo(f"plugin on {node}: {plugin or 'missing'}")
    if report.service is not None:
        known = f"its own stack is {report.service['stack']}" if "stack" in report.service else ""
        click.echo(f"service: ready, {known or 'and shows what it serves only with its token'}")
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
    """The counters of searches in the shadow, which stay when the shadow has ended."""
    count = shadow["count"]
    first, last = (shadow[name][:16].replace("T", " ") for name in ("first", "last"))
    moved, took = shadow["moved"] / count, shadow["total_ms"] / count
    return (
        f"shadow: {plural(count, 'search[|es]')} from {first} to {last} UTC;"
        f" {moved:.1f} of the first ten would move; {took:.1f} ms each"
    )


def _show_trial(report: SearchTrial) -> None:
    reason = f" ({report.reason})" if report.reason else ""
    click.echo(f"{report.stack}, depth {report.depth}: {report.outcome}{reason}")
    if used := report.weights:
        click.echo(output.weights_line(used["stack"], used["normalization"], used["case"]))
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


def _show_gate(report: TrialReport) -> None:
    click.echo(f"{report.measure} of {report.template}, {plural(report.queries, 'quer[y|ies]')}")
    click.echo(f"without the hook {report.plain:.4f}, with it {report.hooked:.4f}", nl=False)
    click.echo(f" (p {output.p_value(report.p)}, {report.wins} better, {report.losses} worse)")
    for outcome, n in report.outcomes.items():
        click.echo(f"  {outcome}: {n}")
    for taken in report.weights if len(report.weights) > 1 else ():
        weights = output.weights_of(taken["stack"], taken["normalization"], taken["case"])
        click.echo(f"  {plural(taken['searches'], 'search[|es]')}, {weights}")
