"""``rerank judge clicks``: make judgments from a click log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

import rerank
from rerank.common.results import table
from rerank.documents.text import count_of

from .. import output
from ..cluster import cluster_of, ubi_settings
from ..options import OUTPUT, Command, WholeNumber, json_option, option, workspace_option

if TYPE_CHECKING:
    from rerank.judging.clicks import ApplicationReport, ClickReport

_SHOWN_RANKS = 10


def split_actions(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Return the names of actions, such as ``click``, in the text of an option. For ``callback``.

    Raises click.BadParameter if the text has no name.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise click.BadParameter("name one action or more.")
    return names


def _parse_date(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the time of --from or --to, in milliseconds since 1970."""
    from rerank.formats.click_log import milliseconds_of_date

    if text is None:
        return None
    time = milliseconds_of_date(text)
    if time is None:
        raise click.BadParameter(f"{text!r} is not a date, for example 2026-01-31.")
    return time


@click.command("clicks", cls=Command)
@click.argument("logs", nargs=-1, metavar="[FILE]...")
@option("--ubi", metavar="URL", group="Input", help="Cluster with the indices ubi_queries and ubi_events.")
@option("--profile", metavar="NAME", group="Input", help="Profile with the credentials for --ubi.")
@option("--application", metavar="NAME", group="Input", help="Use only the records of this application.")
@option(
    "--from",
    "start",
    metavar="DATE",
    callback=_parse_date,
    group="Input",
    help="Use only events from this date on (UTC).",
)
@option(
    "--to",
    "end",
    metavar="DATE",
    callback=_parse_date,
    group="Input",
    help="Use only events before this date (UTC).",
)
@option(
    "--impressions",
    metavar="NAME,...",
    default="impression,view",
    callback=split_actions,
    group="Events",
    help="Actions that show a hit.",
)
@option(
    "--clicks",
    metavar="NAME,...",
    default="click,click_through",
    callback=split_actions,
    group="Events",
    help="Actions that are clicks.",
)
@option(
    "--first-rank",
    metavar="0|1",
    type=int,
    group="Events",
    help="Rank of the first hit. Default: found for each application.",
)
@option(
    "--max-rank",
    metavar="N",
    type=WholeNumber(1, 1000),
    default=20,
    group="Events",
    help="Largest rank to use.",
)
@option(
    "--id-field",
    metavar="FIELD",
    group="Events",
    help="Field of the object with the _id. Default: object_id or internal_id, as in the workspace.",
)
@option(
    "--out",
    metavar="DIR",
    type=OUTPUT,
    required=True,
    help="Folder for queries.jsonl, train.tsv, dev.tsv and report.json.",
)
@option(
    "--srw",
    metavar="FILE",
    type=OUTPUT,
    help="Also write the ratings of Search Relevance Workbench, to compare.",
)
@workspace_option
@json_option
def command(
    folder: str,
    logs: tuple[str, ...],
    ubi: str | None,
    profile: str | None,
    application: str | None,
    start: int | None,
    end: int | None,
    impressions: tuple[str, ...],
    clicks: tuple[str, ...],
    first_rank: int | None,
    max_rank: int,
    id_field: str | None,
    out: str,
    srw: str | None,
    as_json: bool,
) -> None:
    """Make judgments from the impressions and clicks of a search log.

    FILE has records of User Behavior Insights (UBI), or is a table with the columns session, query, document,
    rank and clicked. Only documents of the workspace are judged.
    """
    from rerank.judging.clicks import judge_clicks
    from rerank.judging.log import ClickOptions

    if not logs and ubi is None:
        raise click.UsageError("the click log is missing: give files, or --ubi URL")
    workspace = _open_if_exists(folder)
    click_options = ClickOptions(
        ubi=ubi_settings(ubi, profile, cluster_of(workspace)),
        first_rank=first_rank,
        impressions=impressions,
        clicks=clicks,
        application=application,
        start=start,
        end=end,
        id_field=id_field,
        max_rank=max_rank,
        srw=srw,
    )
    report = judge_clicks(logs, out, click_options, workspace, output.Bar(hidden=as_json))
    output.print_report(report, _show_files, as_json=as_json)


def _show_files(report: ClickReport) -> None:
    show(report)
    click.echo(f"\nwritten to {report.folder}")


def _open_if_exists(folder: str) -> rerank.Workspace | None:
    """Open the workspace. A missing one raises UsageError if the user named it; else it is None."""
    if rerank.Workspace.exists(folder):
        return rerank.Workspace.open(folder)
    if output.current_session().workspace is not None:
        raise click.UsageError(f"{folder}: not a workspace; `rerank ingest` or `rerank attach` makes one")
    output.note(f"{folder} is not a workspace, so all documents of the log are judged")
    return None


def show(report: ClickReport) -> None:
    """Print the counts, the applications, the judgments and the warnings."""
    click.echo(repr(report))
    click.echo()
    header = ["application", "first rank", "page views", "impressions", "clicks", "click rate by rank"]
    rows = [_application_row(application) for application in report.applications]
    click.echo(table(header, rows, left_aligned={0, 5}))
    click.echo()
    for line in _judgment_lines(report):
        click.echo(line)
    for warning in report.warnings:
        click.echo(f"warning: {warning}")


def _application_row(application: ApplicationReport) -> list[str]:
    return [
        application.name or "(no name)",
        "" if application.first_rank is None else str(application.first_rank),
        f"{application.page_views:,}",
        f"{application.impressions:,}",
        f"{application.clicks:,}",
        " ".join(f"{rate:.2f}" for rate in application.click_rates[:_SHOWN_RANKS]),
    ]


def _judgment_lines(report: ClickReport) -> Iterator[str]:
    for name, judged in (("train", report.train), ("dev", report.dev)):
        if judged is not None:
            yield (
                f"{name}: {count_of(judged.queries, 'query')}, {count_of(judged.judgments, 'judgment')},"
                f" {judged.relevant:,} of them relevant"
            )
