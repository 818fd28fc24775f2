"""``rerank tune``: find the weights of a stack."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

import rerank
from rerank.common.results import table
from rerank.documents.text import count_of, join_names

from . import output
from .options import (
    COUNT,
    OUTPUT,
    Command,
    filter_option,
    first_stage_option,
    ignore_categories_option,
    infer_option,
    json_option,
    measure_option,
    option,
    qrels_option,
    queries_option,
    retrieve_option,
    seed_option,
    then_option,
    top_option,
    workspace_option,
)
from .output import suggested

if TYPE_CHECKING:
    from rerank.stack.relevance import RelevanceModel
    from rerank.tuning.tune import TuningResult
    from rerank.workflows.tune import TuneReport


@click.command("tune", cls=Command)
@option(
    "--stack",
    metavar="SIGNALS",
    required=True,
    group="Stack",
    help="Signals, for example bm25,text,meta.",
)
@measure_option("Stack")
@option(
    "--normalization",
    "normalizations",
    metavar="NAME",
    multiple=True,
    group="Stack",
    help="min-max, z-score, rank, none (raw scores) or fitted. Repeatable. Default: all that fit, raw scores"
    " only for 200 queries or more.",
)
@option(
    "--least",
    "least_share",
    metavar="SHARE",
    type=float,
    default=0.0,
    group="Stack",
    help="Smallest share of the weight for the first stage, from 0 to below 1. Use 0.3 if the judgments come"
    " from clicks.",
)
@queries_option
@qrels_option
@ignore_categories_option
@option(
    "--depth",
    metavar="N",
    type=COUNT,
    default=1000,
    group="Candidates",
    help="Number of candidates of each retriever.",
)
@option(
    "--protocol",
    metavar="KIND:N",
    group="Candidates",
    help="retrieved:N, judged, pool-random:N or pool-tfidf:N. Default: retrieved:DEPTH.",
)
@first_stage_option(group="Candidates", runs=True)
@retrieve_option
@filter_option("Candidates")
@then_option
@top_option
@infer_option("Candidates")
@option("--out", metavar="FILE", type=OUTPUT, help="File of the stack. Default: in the workspace.")
@seed_option
@workspace_option
@json_option
def command(
    folder: str,
    stack: str,
    measure: str,
    normalizations: tuple[str, ...],
    least_share: float,
    queries: str,
    qrels: str,
    ignore_categories: bool,
    depth: int,
    protocol: str | None,
    first_stage: str | None,
    retrieve: tuple[str, ...],
    filter: tuple[str, ...],
    cross_encoder: str | None,
    top: int | None,
    infer: bool,
    out: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Find the best weights of the signals on judged queries (dev), and write the stack to a file."""
    workspace = rerank.Workspace.open(folder)
    report = rerank.tune(
        workspace,
        stack,
        queries=queries,
        qrels=qrels,
        measure=measure,
        first_stage=first_stage,
        retrieve=retrieve,
        filter=filter,
        depth=depth,
        protocol=protocol,
        normalizations=normalizations,
        least_share=least_share,
        out=out,
        ignore_categories=ignore_categories,
        infer=infer,
        second_phase=cross_encoder,
        top=top,
        seed=seed,
        progress=output.Bar(hidden=as_json),
    )
    output.print_report(report, partial(_show_all, workspace), as_json=as_json)


def _show_all(workspace: rerank.Workspace, report: TuneReport) -> None:
    show(report)
    output.print_scoring_notes(report.scoring)
    output.warn_of_unjudged(report.judged_at_10, report.irrelevant_judged)
    _show_file(workspace, report)


def show(report: TuneReport) -> None:
    """Print the weights of each case, and the value of each signal, so that a user can compare them."""
    from rerank.evaluation.leakage import format_leakage

    tuned = report.tuned
    if report.leaks:
        click.echo(
            f"{format_leakage(report.leaks, tuned.queries + tuned.none_relevant)}; its weight is too"
            " large; tune on other queries\n"
        )
    first_stage = f"{report.stack.first_stage}{_union(report)}"
    for case, result in report.cases.items():
        _show_case(case, result, first_stage)
    if report.dropped:
        names = join_names(list(report.dropped))
        click.echo(f"left out because of zero weight: {names}")
    if tuned.value < tuned.first_stage_value:
        click.echo(
            f"lower than {first_stage}: the score of {report.stack.first_stage} is not among the signals;"
            " add it"
        )
    second_phase = report.second_phase
    if second_phase is not None:
        click.echo(
            f"second phase: {output.weights_of(second_phase.combiner)}\n"
            f"  {second_phase.measure} {second_phase.value:.4f};"
            f" without it {second_phase.first_stage_value:.4f}"
        )
    _show_relevance(report.stack.relevance)
    if report.scoring.candidate_recall:
        click.echo(output.recall_line(report.scoring.candidate_recall))
    else:
        click.echo(f"tuned on {report.protocol}, which contains all relevant documents")
    click.echo("\nbest of each normalization")
    rows = [[name, f"{best.value:.4f}", best.stack] for name, best in tuned.best.items()]
    click.echo(table(["", tuned.measure, "stack"], rows))
    click.echo(f"\nsignal by signal{_union(report)}")
    click.echo(repr(report))


def _show_case(case: str | None, result: TuningResult, first_stage: str) -> None:
    """Print the weights for one case of queries, and their gain over the first stage."""
    from rerank.tuning.tune import FEW_QUERIES, SAMPLES

    cases = (case,) if case else ()
    click.echo(output.weights_of(result.combiner, *cases))
    click.echo(
        f"  {result.measure} {result.value:.4f} on {count_of(result.queries, 'query')}; {first_stage}"
        f" {result.first_stage_value:.4f}; {count_of(result.settings, 'setting')} tried"
    )
    click.echo(f"  gain {output.gain(result.gain, result.measure, result.queries)}")
    if result.averaged:
        click.echo(
            f"  the weights are a mean of the best settings of {SAMPLES} samples of these queries: with"
            f" fewer than {FEW_QUERIES}, the single best setting ({result.best_value:.4f}) fits the noise"
        )


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


def _show_file(workspace: rerank.Workspace, report: TuneReport) -> None:
    """Print where the stack was written, and whether it is active."""
    click.echo(f"\nwritten to {report.path}")
    stack = report.stack
    active = workspace.releases
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
    """Name the retrievers if there is more than the first stage."""
    stack = report.stack
    return f" over the candidates of {' and '.join(stack.retrievers)}" if stack.retrieve else ""
