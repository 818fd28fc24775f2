"""``rerank judge interleaving``: decide an experiment by clicks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rerank.documents.text import count_of

from .. import output
from ..cluster import ubi_settings
from ..options import Command, json_option, option
from .clicks import split_actions

if TYPE_CHECKING:
    from rerank.judging.interleaving import InterleavingReport


@click.command("interleaving", cls=Command)
@click.argument("logs", nargs=-1, metavar="LOG...", required=True)
@option(
    "--ubi",
    "sources",
    metavar="FILE|URL",
    multiple=True,
    group="Input",
    help="Records of ubi_events, or their cluster. Repeatable.",
)
@option("--profile", metavar="NAME", group="Input", help="Profile with the credentials of the cluster.")
@option(
    "--experiment",
    metavar="NAME",
    group="Input",
    help="Name of the experiment. Default: the only one of LOG.",
)
@option(
    "--clicks",
    "actions",
    metavar="NAME,...",
    default="click,click_through",
    callback=split_actions,
    group="Input",
    help="Actions that are clicks.",
)
@json_option
def command(
    logs: tuple[str, ...],
    sources: tuple[str, ...],
    profile: str | None,
    experiment: str | None,
    actions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count the searches in which the stacks A and B won the clicks of users.

    LOG is a file of `rerank serve --ubi-log`. The p-value is valid at any number of looks: repeat the command
    daily, and stop when p is below 0.05.
    """
    from rerank.judging.interleaving import judge_interleaving

    url, files = _split_sources(sources)
    ubi = ubi_settings(url, profile, None)
    report = judge_interleaving(logs, files, ubi=ubi, experiment=experiment, clicks=actions)
    output.print_report(report, _show, as_json=as_json)


def _split_sources(sources: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the URL and the files of --ubi. Raises UsageError for none of them, or several URLs."""
    if not sources:
        raise click.UsageError("the clicks are missing: give --ubi FILE or --ubi URL")
    urls: list[str] = []
    files: list[str] = []
    for source in sources:
        is_url = source.startswith(("http://", "https://"))
        (urls if is_url else files).append(source)
    if len(urls) > 1:
        raise click.UsageError(f"--ubi names {len(urls)} clusters; name one")
    return next(iter(urls), None), files


def _show(report: InterleavingReport) -> None:
    click.echo(f"experiment {report.experiment}")
    click.echo(repr(report))
    click.echo(f"\n{_describe_result(report)}")


def _describe_result(report: InterleavingReport) -> str:
    if report.share is None:
        return "no page view has a winner yet"
    low, high = report.interval
    decided = count_of(report.wins + report.losses, "decided page view")
    lines = [
        f"B wins {report.share:.1%} of {decided} (95 % interval {low:.1%} to {high:.1%}),"
        f" p {output.p_value(report.p)}"
    ]
    if report.winner is not None:
        lines.append(f"{report.winner} is better; the p-value is valid at any number of looks")
    elif report.needed:
        lines.append(f"not decided: about {count_of(report.needed, 'more page view')} if the shares stay so")
    else:
        lines.append("not decided: continue, and look again later")
    return "\n".join(lines)
