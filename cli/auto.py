"""``rerank auto``: make a tuned stack from a folder of files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

import rerank

from . import evaluate, output
from .cluster import cluster_of, connection_options, connection_settings, ubi_settings
from .options import (
    Command,
    json_option,
    lang_option,
    measure_option,
    option,
    seed_option,
    workspace_option,
)

if TYPE_CHECKING:
    from rerank.reports.evaluation import EvaluationReport
    from rerank.workflows.auto.run import AutoReport


@click.command("auto", cls=Command)
@click.argument("source", metavar="FOLDER")
@lang_option
@option(
    "--ubi",
    metavar="URL",
    group="Input",
    help="Cluster with a click log, the indices ubi_queries and ubi_events.",
)
@option(
    "--ubi-profile",
    metavar="NAME",
    group="Input",
    help="Profile with the credentials for --ubi. Default: of the documents, if they are in this cluster.",
)
@option(
    "--model",
    metavar="NAME",
    group="Training",
    help="Encoder of dense: folder or model. Default: the best one on this machine for the language.",
)
@measure_option("Training")
@option(
    "--minutes",
    metavar="X",
    type=float,
    default=10.0,
    group="Training",
    help="Time for all steps. Trainings end when it is over.",
)
@connection_options
@seed_option
@workspace_option
@json_option
def command(
    source: str,
    folder: str,
    lang: str | None,
    ubi: str | None,
    ubi_profile: str | None,
    model: str | None,
    measure: str,
    minutes: float,
    url: tuple[str, ...],
    index: str | None,
    profile: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Ingest, train, tune and evaluate the collection in FOLDER, with reasons for each choice.

    FOLDER contains corpus.jsonl, queries.jsonl, and qrels.tsv or qrels/train.tsv, dev.tsv and test.tsv. With
    a click log (ubi_*.ndjson, clicks.csv or --ubi), clicks train, and judged queries tune and test; without
    judged queries, no stack is activated. Without judgments and clicks, a pool of queries is written, to be
    judged by hand. If interrupted, the same command continues.
    """
    opensearch = connection_settings(url, index, profile)
    documents = opensearch
    if ubi is not None and documents is None and rerank.Workspace.exists(folder):
        documents = cluster_of(rerank.Workspace.open(folder))
    report = rerank.auto(
        source,
        folder,
        opensearch=opensearch,
        ubi=ubi_settings(ubi, ubi_profile, documents, profile_option="--ubi-profile"),
        lang=lang,
        model=model,
        measure=measure,
        minutes=minutes,
        seed=seed,
        progress=output.Bar(hidden=as_json),
    )
    output.print_report(report, partial(_show_report, source=source, folder=folder), as_json=as_json)


def _show_report(report: AutoReport, source: str, folder: str) -> None:
    """Print the tables or, without judged queries, the steps that make them; then the next commands."""
    if report.evaluated is None:
        _show_untested(report)
        commands = _commands_to_judge(report, source, folder)
    else:
        _show(report, report.evaluated)
        commands = _next_commands(report, folder)
    click.echo("\nNext:")
    for next_command in commands:
        click.echo(f"  {next_command}")


def _is_first_stage(report: AutoReport) -> bool:
    """Whether no stack is better than its first stage, which is active."""
    return report.stack.signals == (report.stack.first_stage,)


def _show_untested(report: AutoReport) -> None:
    """Print the stack that was trained and tuned on clicks, or that nothing is judged."""
    active = report.workspace.default_stack
    if report.clicks is None:
        click.echo(f"\nNo query is judged, so no ranker is trained. {active} is active.")
        click.echo(
            "Judge the queries of the pool on a page, 0 to 3 for each hit. Then run the second command again."
        )
        return
    click.echo(
        f"\n{report.stack}\nis trained and tuned on clicks. It is not active, and its gain is unknown."
    )
    click.echo(
        f"Clicks follow the order of the search that was shown, so they cannot test another order."
        f" {active} stays active until a stack is tested on queries judged by hand."
    )
    _show_cut_choices(report)


def _commands_to_judge(report: AutoReport, source: str, folder: str) -> Iterator[str]:
    workspace = f"-w {shlex.quote(folder)}"
    if report.pool is not None:
        yield f"rerank serve {workspace} --judge {shlex.quote(str(report.pool))}"
    yield f"rerank auto {shlex.quote(source)} {workspace}"


def _show_cut_choices(report: AutoReport) -> None:
    for choice in report.choices:
        if choice.cut:
            click.echo(f"A larger --minutes may help: {choice}")


def _show(report: AutoReport, evaluated: EvaluationReport) -> None:
    click.echo("\nTest queries; they were not used for training, choices or tuning.\n")
    evaluate.show(evaluated)
    evaluate.show_remarks(evaluated)
    first_stage = report.stack.first_stage
    if _is_first_stage(report):
        click.echo(f"\nNo stack is better than {first_stage}. {first_stage} is active.")
    elif report.better:
        click.echo(f"\nThe stack is significantly better than {first_stage}. The stack is active.")
    else:
        command = f"rerank stack use {first_stage} -w {report.workspace.folder}"
        click.echo(
            f"\nThe stack is NOT significantly better than {first_stage}. The stack is active;"
            f" `{command}` returns to {first_stage}."
        )
    if report.without_categories is not None:
        _show_gains(evaluated, report.without_categories)
    if report.halves is not None:
        click.echo(f"Few queries are judged, so one split can mislead. Random halves: {report.halves}.")
    _show_cut_choices(report)
    click.echo(f"Query by query: {report.page}")


def _show_gains(with_categories: EvaluationReport, without_categories: EvaluationReport) -> None:
    """Print the gain of the stack with and without the categories of the queries."""
    measure = with_categories.compared[0]
    click.echo(
        f"Gain of the stack in {measure}: {_gain(with_categories, measure):+.4f} with the categories of the"
        f" queries, {_gain(without_categories, measure):+.4f} without them."
    )


def _gain(report: EvaluationReport, measure: str) -> float:
    baseline = report.results[0]
    stack = report.results[-1]
    return stack.measures[measure] - baseline.measures[measure]


def _next_commands(report: AutoReport, folder: str) -> Iterator[str]:
    workspace = f"-w {shlex.quote(folder)}"
    yield f'rerank query "..." --explain {workspace}'
    if not _is_first_stage(report):
        stack = f"--stack {','.join(report.stack.tuned_for)} --baseline {report.stack.first_stage}"
        queries = shlex.quote(str(report.queries))
        qrels = shlex.quote(str(report.splits["test"]))
        yield f"rerank evaluate {stack} --queries {queries} --qrels {qrels} {workspace}"
    yield f"rerank serve {workspace}"
