"""``rerank tune``: the weights of a stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rerank.text import join_names, plural

from . import options, output
from .hints import suggested

if TYPE_CHECKING:
    from rerank.workflows.tune import TuneReport
    from rerank.workspace import Workspace


@click.command("tune")
@options.common
@click.option(
    "--stack",
    "stack",
    required=True,
    metavar="SIGNALS",
    help="Signals, for example tfidf,text,meta.",
)
@options.queries
@click.option("--qrels", required=True, metavar="FILE", help="Judgments to tune on (dev), BEIR or TREC.")
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Number of candidates of each retriever.",
)
@click.option(
    "--protocol",
    metavar="KIND:N",
    help="Candidates to use: retrieved:N, pool-random:N, pool-first:N or judged. Default: retrieved:DEPTH.",
)
@click.option(
    "--cv",
    "folds",
    type=click.IntRange(min=2),
    help="Also cross-validate in this many folds.",
)
@click.option(
    "--measure",
    default="nDCG",
    show_default=True,
    metavar="NAME",
    help="Measure that chooses the weights: nDCG, RR or AP; nDCG@10 only reads ten ranks.",
)
@click.option(
    "--normalization",
    "normalizations",
    multiple=True,
    metavar="NAME",
    help="Try only min-max, z-score, rank or none; repeatable. Default: the first two and none in a folder,"
    " or rank on OpenSearch.",
)
@click.option("--out", metavar="FILE", help="File to write the stack to. Default: in the workspace.")
@options.first_stage_or_run
@options.conflicts
@options.retrieve
@options.filters
@options.ignore_categories
@options.infer
@options.seed
def command(
    folder: str, as_json: bool, stack: str, queries: str, qrels: str, conflicts: str, **settings: Any
) -> None:
    """Score every candidate once, search the weights, and write the stack to a file."""
    from rerank.formats import read_qrels, read_queries
    from rerank.workflows.tune import tune
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    report = tune(
        workspace,
        stack,
        queries=read_queries(queries),
        qrels=read_qrels(qrels, conflicts=conflicts),
        progress=output.Bar(quiet=as_json),
        **settings,
    )
    if as_json:
        output.print_json(report)
        return
    _show_weights(report)
    _show_signals(report)
    output.remarks(report.scoring)
    _show_place(workspace, report)


def _show_weights(report: TuneReport) -> None:
    """Print the weights of each case, what they reached, and what the first stage reaches alone."""
    from rerank.evaluation.leakage import format_leakage

    tuned = report.tuned
    if report.leaks:
        click.echo(
            f"{format_leakage(report.leaks, tuned.queries + tuned.none_relevant)}: its weight is too"
            " large; tune on others\n"
        )
    first = _first(report)
    cases = {report.case: tuned, **report.cases} if report.case else {"": tuned}
    for case, one in cases.items():
        click.echo(output.weights_of(one.combiner, *([case] if case else [])))
        click.echo(
            f"  {one.measure} {one.value:.4f} on {plural(one.queries, 'quer[y|ies]')}; {first} alone"
            f" {one.first_stage_value:.4f}; {plural(one.settings, 'setting[|s]')} tried"
        )
    if report.dropped:
        names = join_names(list(report.dropped))
        click.echo(f"left out, without weight in any case: {names}")
    if report.rerank_only is not None:
        one = report.rerank_only
        weights = output.weights_of(one.combiner)
        click.echo(f"without {report.stack.first_stage}: {weights}, {one.measure} {one.value:.4f}")
    if tuned.value < tuned.first_stage_value:
        click.echo(
            f"lower than {first} alone: {report.stack.first_stage} only finds the candidates here; add it to"
            " the signals"
        )
    if report.validated is not None:
        cv = report.validated
        click.echo(
            f"cross-validated in {plural(len(cv.folds), 'fold[|s]')}: {cv.value:.4f} on queries the weights"
            f" were not tuned on ({first} {cv.first_stage_value:.4f})"
        )
    if report.scoring.candidate_recall:
        click.echo(output.recall_line(report.scoring.candidate_recall))
    else:
        click.echo(f"tuned on {report.protocol}, which holds all relevant documents")


def _show_signals(report: TuneReport) -> None:
    """Print what each normalization and each signal reached, and how much the weights matter."""
    tuned = report.tuned
    click.echo("\nbest of each normalization")
    best = [[name, f"{one.value:.4f}", one.stack] for name, one in tuned.best.items()]
    click.echo(output.table(["", tuned.measure, "stack"], best))
    click.echo(f"\nsignal by signal{_union(report)}")
    rows = [
        [
            row["signal"],
            f"{row['single_signal']:.4f}",
            "" if row["ablation"] is None else f"{row['ablation']:.4f}",
        ]
        for row in report.rows()
    ]
    click.echo(output.table(["", "alone", "without it"], rows))
    click.echo("\nhow flat the optimum is")
    for flat in tuned.near_optimal:
        shares = ", ".join(f"{name} {low:.2f}-{high:.2f}" for name, (low, high) in flat.shares.items())
        of = plural(flat.of, "setting[|s]")
        click.echo(f"  {flat.settings} of {of} within {flat.within} of it: {shares}")


def _show_place(workspace: Workspace, report: TuneReport) -> None:
    """Print where the stack is, and how to use it."""
    click.echo(f"\nwritten to {report.path}")
    stack, active = report.stack, workspace.releases.active
    if active is not None and active.stack == stack:
        click.echo(f"in use as version {active.number}: searches that name no stack are ranked by it")
    elif active is not None and active.name == report.path.stem:
        click.echo(
            f"a candidate; version {active.number} stays in use."
            f" {suggested('promote', '--queries', 'QUERIES', '--qrels', 'QRELS')} compares the two;"
            f" {suggested('stack', 'use', active.name)} uses the candidate at once"
        )
    elif report.path == workspace.stack_path(stack.tuned_for):
        use = suggested("stack", "use", report.path.stem)
        click.echo(f"in use is {workspace.default_stack}; {use} changes that")


def _union(report: TuneReport) -> str:
    stack = report.stack
    return f" over the candidates of {' and '.join(stack.retrievers)}" if stack.retrieve else ""


def _first(report: TuneReport) -> str:
    return f"{report.stack.first_stage}{_union(report)}"
