"""``rerank judge clicks``: judgments from a click log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.results import table
from rerank.text import plural

from .. import cluster, options, output
from ..options import Output, option

if TYPE_CHECKING:
    from rerank.judging.clicks import ClickReport

_SHOWN_RANKS = 10


def _names(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """Value of --impressions and --clicks."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise click.BadParameter("name one action or more.")
    return names


def _moment(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Value of --from and --to."""
    from rerank.formats.click_log import milliseconds

    moment = milliseconds(text)
    if text is not None and moment is None:
        raise click.BadParameter(f"{text!r} is not a date, for example 2026-01-31.")
    return moment


@options.command(
    "clicks",
    options.argument("logs", nargs=-1, metavar="[FILE]..."),
    "Input",
    option("--ubi URL", "Cluster with the indices ubi_queries and ubi_events."),
    option("--profile NAME", "Profile with the credentials for --ubi."),
    option("--application NAME", "Use only the records of this application."),
    option("--from DATE", "Use only events from this date on (UTC).", dest="start", callback=_moment),
    option("--to DATE", "Use only events before this date (UTC).", dest="end", callback=_moment),
    "Events",
    option("--impressions NAME,...", "Actions that show a hit.", default="impression,view", callback=_names),
    option("--clicks NAME,...", "Actions that are clicks.", default="click,click_through", callback=_names),
    option("--first-rank 0|1", "Rank of the first hit. Default: found for each application."),
    option("--max-rank N", "Largest rank to use.", type=options.Whole(1, 1000), default=20),
    option(
        "--id-field FIELD",
        "Field of the object with the _id. Default: object_id or internal_id, as in the workspace.",
    ),
    options.GENERAL,
    option("--out DIR", "Folder for queries.jsonl, train.tsv, dev.tsv and report.json.", required=True),
    option("--srw FILE", "Also write the ratings of Search Relevance Workbench, to compare."),
)
def command(
    folder: str,
    progress: output.Bar,
    logs: tuple[str, ...],
    out: str,
    **settings: Any,
) -> Iterator[Output]:
    """Make judgments from the impressions and clicks of a search log.

    FILE has records of User Behavior Insights (UBI), or is a table with the columns session, query, document,
    rank and clicked. Only documents of the workspace are judged.
    """
    from rerank.judging.clicks import judge_clicks
    from rerank.judging.log import ClickOptions

    url = settings.pop("ubi")
    profile = settings.pop("profile")
    if not logs and url is None:
        raise click.UsageError("the click log is missing: give files, or --ubi URL")
    workspace = None
    if rerank.Workspace.exists(folder):
        workspace = rerank.Workspace.open(folder)
    elif output.workspace is not None:
        raise click.UsageError(f"{folder}: not a workspace; `rerank ingest` or `rerank attach` makes one")
    else:
        output.note(f"{folder} is not a workspace, so all documents of the log are judged")
    if settings["first_rank"] is not None:
        settings["first_rank"] = int(settings["first_rank"])
    click_options = ClickOptions(ubi=cluster.ubi_settings(url, profile, workspace), **settings)
    report = judge_clicks(logs, out, click_options, workspace, progress)
    yield Output(report)
    show(report)
    click.echo(f"\nwritten to {report.folder}")


def show(report: ClickReport) -> None:
    """Print the counts, the applications, the judgments and the warnings."""
    click.echo(repr(report))
    click.echo()
    rows = []
    for application in report.applications:
        first = "" if application.first_rank is None else str(application.first_rank)
        counts = (application.page_views, application.impressions, application.clicks)
        rates = " ".join(f"{rate:.2f}" for rate in application.click_rates[:_SHOWN_RANKS])
        rows.append([application.name or "(no name)", first, *(f"{count:,}" for count in counts), rates])
    header = ["application", "first rank", "page views", "impressions", "clicks", "click rate by rank"]
    click.echo(table(header, rows, left={0, 5}))
    click.echo()
    for name, part in (("train", report.train), ("dev", report.dev)):
        if part is not None:
            click.echo(
                f"{name}: {plural(part.queries, output.QUERIES)}, {part.judgments:,} judgments,"
                f" {part.relevant:,} of them relevant"
            )
    for line in report.warnings:
        click.echo(f"warning: {line}")
