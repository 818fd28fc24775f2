"""``rerank hook``: rerank the searches of an index."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rerank.text import plural

from . import options, output
from .options import declare, option
from .output import located

if TYPE_CHECKING:
    from rerank.hook import Hook, InstallReport, SearchTrial, Status, TrialReport

Report = TypeVar("Report", "InstallReport", "TrialReport", "Status", "SearchTrial")


@click.group("hook", cls=options.Group)
def command() -> None:
    """Rerank the searches of an OpenSearch index by `rerank serve`."""


_pipeline: tuple[options.Add | str, ...] = (
    option("--route plugin|stock", "Way to call the service.", default="plugin"),
    option("--name NAME", "Search pipeline. Default: rerank-INDEX, or rerank-INDEX-stock."),
    options.GENERAL,
    *options.common,
)


@command.command()
@declare(
    "Service",
    option("--service URL...", "URL of the service for the nodes. Repeatable.", required=True),
    option(
        "--timeout SECONDS", "Time limit of a call.", type=options.Number(0.001, 60, kind=float), default=1.0
    ),
    option("--on-failure first_stage|error", "Answer if the service fails.", default="first_stage"),
    option("--token-name NAME", "Plugin: use the token rerank.tokens.NAME.", rare=True),
    option("--token-file FILE", "Stock: token of the service.", rare=True),
    "Searches",
    option("--stack STACK", "Signals or weights. Default: the stack of the service."),
    option("--depth N", "Number of candidates of a search.", type=options.Number(1, 10_000), default=100),
    option("--shadow", "Score and count searches, but do not change their results."),
    option("--share PERCENT", "Share of searches to rerank.", type=options.Number(1, 100), default=100),
    option("--default", "Use the pipeline for all searches without a pipeline."),
    option("--add-to PIPELINE", "Plugin: also run this pipeline.", rare=True),
    option("--id-field FIELD", "Stock: field that contains _id. Default: id or _id.", rare=True),
    "Pipeline",
    *_pipeline,
    options.GENERAL,
    options.dry_run,
)
def install(default: bool, dry_run: bool, token_file: str | None, id_field: str | None, **given: Any) -> None:
    """Create or replace the search pipeline. Every node needs the plugin first."""
    where = {name: given.pop(name) for name in ("folder", "route", "name", "as_json")}
    route = where["route"]
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

    _report(act, _show_done, **where)


@command.command()
@declare("Pipeline", *_pipeline)
def status(**where: Any) -> None:
    """Show the pipeline, plugin, service and counters, and report problems.

    Exit code 1 if there is a problem.
    """
    if _report(lambda hook: hook.status(), _show_status, **where).problems:
        sys.exit(1)


@command.command()
@declare("Pipeline", *_pipeline, options.GENERAL, options.dry_run)
def remove(dry_run: bool, **where: Any) -> None:
    """Remove the pipeline, and stop using it as default."""
    _report(lambda hook: hook.remove(dry_run=dry_run), _show_done, **where)


@command.command("test")
@click.argument("query", required=False)
@declare(
    "Searches",
    option("-k N", "Number of documents to compare.", dest="count", default=10),
    option("--template FILE|stored:ID", "Search of your application, for judged queries."),
    "Input",
    option("--queries FILE", "With --template: queries, JSON lines."),
    option("--qrels FILE", "With --template: judgments."),
    "Pipeline",
    *_pipeline,
    options.GENERAL,
    options.seed,
)
def test(
    query: str | None, count: int, template: str | None, queries: str, qrels: str, seed: int, **where: Any
) -> None:
    """Compare a search for QUERY with `rerank query`, or measure judged queries with and without the hook.

    Exit code 1 if the order differs, or if the mean is lower with the hook.
    """
    if (query is None) == (template is None):
        raise click.UsageError("give a QUERY, or --template with --queries and --qrels")
    if template is not None and not (queries and qrels):
        raise click.UsageError("--template needs --queries and --qrels")

    def search(hook: Hook) -> SearchTrial:
        from rerank.hook import try_search

        return try_search(hook, query or "", count)

    def measure(hook: Hook) -> TrialReport:
        from rerank.formats import read_template
        from rerank.hook import try_queries

        name = str(template)
        search = read_template(name if name.startswith("stored:") else f"template:{name}")
        assert search is not None
        return try_queries(
            hook, search, *options.read_judged(queries, qrels).values(), count=count, seed=seed
        )

    if template is None:
        worse = not _report(search, _show_trial, **where).same
    else:
        report = _report(measure, _show_gate, **where)
        worse = report.hooked < report.plain
    if worse:
        sys.exit(1)


def _report(
    act: Callable[[Hook], Report],
    show: Callable[[Report], None],
    folder: str,
    route: str,
    name: str | None,
    as_json: bool,
) -> Report:
    from contextlib import closing

    from rerank.hook import hook as make
    from rerank.service.settings import read_token
    from rerank.workspace import Workspace

    with closing(make(Workspace.open(folder), route, name, read_token(None))) as hook:
        report = act(hook)
    for line in getattr(report, "warnings", ()):
        output.note(f"warning: {line}")
    output.result(report, as_json, show)
    return report


def _show_done(report: InstallReport) -> None:
    for request in report.requests:
        click.echo(f"{'would ' if report.dry_run else ''}{request}")
    if report.dry_run or not report.requests:
        click.echo("nothing was changed" if report.requests else "nothing to change")
    for line in report.rest:
        output.note(line)


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
        stack = report.service.get("stack", "shown only with its token")
        click.echo(f"service: ready, its stack: {stack}")
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
    click.echo(f"the order {'is the same' if report.same else 'DIFFERS'}")
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
        weights = output.weights_line(taken["stack"], taken["normalization"], taken["case"])
        click.echo(f"  {plural(taken['searches'], 'search[|es]')}, {weights}")
