"""``rerank tune``: weights of a stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.results import table
from rerank.text import join_names, plural

from . import options, output
from .options import Output, option
from .output import suggested

if TYPE_CHECKING:
    from rerank.stack.relevance import RelevanceModel
    from rerank.workflows.tune import TuneReport


@options.command(
    "tune",
    "Stack",
    option("--stack SIGNALS", "Signals, for example bm25,text,meta.", required=True),
    options.measure,
    option(
        "--normalization NAME...",
        "min-max, z-score, rank, none or fitted. Repeatable. Default: all that fit.",
        dest="normalizations",
    ),
    option(
        "--least SHARE",
        "Smallest share of the weight for the first stage, from 0 to below 1. Use 0.3 if the judgments come"
        " from clicks.",
        type=float,
        default=0.0,
    ),
    "Input",
    *options.judged,
    options.ignore_categories,
    "Candidates",
    option("--depth N", "Number of candidates of each retriever.", default=1000),
    option("--protocol KIND:N", "retrieved:N or judged. Default: retrieved:DEPTH."),
    options.first_stage_or_run,
    options.retrieve,
    options.filters,
    options.then,
    options.top,
    options.infer,
    options.GENERAL,
    option("--out FILE", "File of the stack. Default: in the workspace."),
    options.seed,
)
def command(workspace: rerank.Workspace, stack: str, **settings: Any) -> Iterator[Output]:
    """Find the best weights of the signals on judged queries (dev), and write the stack to a file."""
    report = rerank.tune(workspace, stack, **settings)
    yield Output(report)
    show(report)
    output.remarks(report.scoring)
    output.warn_of_unjudged(report.judged_at_10, report.irrelevant_judged)
    _show_place(workspace, report)


def show(report: TuneReport) -> None:
    """Print the weights, and the values of the signals."""
    from rerank.evaluation.leakage import format_leakage
    from rerank.tuning.tune import FEW_QUERIES, SAMPLES

    tuned = report.tuned
    if report.leaks:
        click.echo(
            f"{format_leakage(report.leaks, tuned.queries + tuned.none_relevant)}; its weight is too"
            " large; tune on other queries\n"
        )
    first = f"{report.stack.first_stage}{_union(report)}"
    for case, one in report.cases.items():
        click.echo(output.weights_of(one.combiner, *([case] if case else [])))
        click.echo(
            f"  {one.measure} {one.value:.4f} on {plural(one.queries, output.QUERIES)}; {first}"
            f" {one.first_stage_value:.4f}; {plural(one.settings, 'setting[|s]')} tried"
        )
        click.echo(f"  gain {output.gain(one.gain, one.measure, one.queries)}")
        if one.averaged:
            click.echo(
                f"  the weights are a mean of the best settings of {SAMPLES} samples of these queries: with"
                f" fewer than {FEW_QUERIES}, the single best setting ({one.best_value:.4f}) fits the noise"
            )
    if report.dropped:
        names = join_names(list(report.dropped))
        click.echo(f"left out because of zero weight: {names}")
    if tuned.value < tuned.first_stage_value:
        click.echo(
            f"lower than {first}: the score of {report.stack.first_stage} is not among the signals; add it"
        )
    if (second := report.second_phase) is not None:
        click.echo(
            f"second phase: {output.weights_of(second.combiner)}\n  {second.measure} {second.value:.4f};"
            f" without it {second.first_stage_value:.4f}"
        )
    _show_relevance(report.stack.relevance)
    if report.scoring.candidate_recall:
        click.echo(output.recall_line(report.scoring.candidate_recall))
    else:
        click.echo(f"tuned on {report.protocol}, which contains all relevant documents")
    click.echo("\nbest of each normalization")
    best = [[name, f"{one.value:.4f}", one.stack] for name, one in tuned.best.items()]
    click.echo(table(["", tuned.measure, "stack"], best))
    click.echo(f"\nsignal by signal{_union(report)}")
    click.echo(repr(report))


def _show_relevance(model: RelevanceModel | None) -> None:
    calibration = None if model is None else model.calibration
    if calibration is None:
        click.echo(
            "no probabilities of relevance: they need at least 30 relevant documents among the candidates"
        )
        return
    auc = "" if calibration.auc is None else f"; AUC of lists with an answer {calibration.auc:.3f}"
    click.echo(
        f"probabilities of relevance: calibration error {calibration.error:.3f}{auc}"
        f" (cross-fitted, {calibration.relevant} relevant documents)"
    )


def _show_place(workspace: rerank.Workspace, report: TuneReport) -> None:
    click.echo(f"\nwritten to {report.path}")
    stack, active = report.stack, workspace.releases
    if active.stack == stack:
        click.echo(f"active: version {active.number}")
    elif active.name == report.path.stem:
        promote = suggested("stack", "promote", "--queries", "QUERIES", "--qrels", "QRELS")
        use = suggested("stack", "use", active.name)
        click.echo(
            f"a candidate; version {active.number} stays active. {promote} compares them; {use} activates it"
        )
    elif report.path == workspace.stack_path(stack.tuned_for):
        use = suggested("stack", "use", report.path.stem)
        click.echo(f"active is {workspace.default_stack}; {use} changes this")


def _union(report: TuneReport) -> str:
    stack = report.stack
    return f" over the candidates of {' and '.join(stack.retrievers)}" if stack.retrieve else ""
