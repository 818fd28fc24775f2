"""``rerank tune``: the weights of a stack."""

from __future__ import annotations

from typing import Any

import click

from rerank.wording import amount, several

from . import options, output
from .hints import suggested


@click.command("tune")
@options.common
@click.option(
    "--stack", "stack", required=True, metavar="SIGNALS", help="Signals, for example tfidf,text,meta."
)
@options.queries
@click.option("--qrels", required=True, metavar="FILE", help="Judgements to tune on (dev), BEIR or TREC.")
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Candidates of each retriever.",
)
@click.option(
    "--protocol",
    metavar="KIND:N",
    help="What is tuned on: retrieved:N, pool-random:N, pool-first:N or judged. Default: retrieved:DEPTH.",
)
@click.option(
    "--cv", "folds", type=click.IntRange(min=2), help="Cross-validate in this many folds: no dev set needed."
)
@click.option(
    "--measure",
    default="nDCG",
    show_default=True,
    metavar="NAME",
    help="What the weights are chosen by: nDCG, RR or AP; nDCG@10 looks at ten ranks alone.",
)
@click.option(
    "--normalisation",
    "normalisations",
    multiple=True,
    metavar="NAME",
    help="Try only min-max, z-score, rank or none; repeatable. Default: the first two and, in a folder, none,"
    " or on OpenSearch rank.",
)
@click.option("--out", metavar="FILE", help="Where the stack goes. Default: the workspace.")
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
    from rerank.actions.leaks import said
    from rerank.actions.tune import tune
    from rerank.formats import read_qrels, read_queries
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
    tuned = report.tuned
    if report.leaks:
        click.echo(
            f"{said(report.leaks, tuned.queries + tuned.none_relevant)}: its weight comes out too large; tune"
            " on others\n"
        )
    click.echo(f"{tuned.stack}   ({tuned.stack.normalisation})")
    union = f" over the candidates of {' and '.join(tuned.stack.retrievers)}" if tuned.stack.retrieve else ""
    first = f"{tuned.stack.first_stage}{union}"
    click.echo(
        f"{tuned.measure} {tuned.value:.4f} on {amount(tuned.queries, 'quer[y|ies]')}; {first} alone"
        f" {tuned.first_stage_value:.4f}; {amount(tuned.settings, 'setting[|s]')} tried"
    )
    for case, one in report.cases.items():
        on = amount(one.queries, "quer[y|ies]")
        click.echo(
            f"{several(output.CASES[case])}: {one.stack}   ({one.stack.normalisation}), {one.measure}"
            f" {one.value:.4f} on {on}; {first} alone {one.first_stage_value:.4f}"
        )
    if report.rerank_only is not None:
        one = report.rerank_only
        click.echo(
            f"without {tuned.stack.first_stage}: {one.stack}   ({one.stack.normalisation}), {one.measure}"
            f" {one.value:.4f}"
        )
    if tuned.value < tuned.first_stage_value:
        click.echo(
            f"below {first} alone: {tuned.stack.first_stage} only finds the candidates here; name it among"
            " the signals"
        )
    if report.validated is not None:
        cv = report.validated
        click.echo(
            f"cross-validated in {amount(len(cv.folds), 'fold[|s]')}: {cv.value:.4f} on queries the weights"
            f" were not tuned on ({first} {cv.first_stage_value:.4f})"
        )
    if report.scoring.candidate_recall:
        click.echo(output.recall_line(report.scoring.candidate_recall))
    else:
        click.echo(f"tuned on {report.protocol}, which holds all relevant documents")
    click.echo("\nbest of each normalisation")
    best = [[name, f"{one.value:.4f}", one.stack] for name, one in tuned.best.items()]
    click.echo(output.table(["", tuned.measure, "stack"], best))
    click.echo(f"\nsignal by signal{union}")
    rows = [
        [row["signal"], f"{row['alone']:.4f}", "" if row["left_out"] is None else f"{row['left_out']:.4f}"]
        for row in report.rows()
    ]
    click.echo(output.table(["", "alone", "without it"], rows))
    click.echo("\nhow flat the optimum is")
    for flat in tuned.flatness:
        shares = ", ".join(f"{name} {low:.2f}-{high:.2f}" for name, (low, high) in flat.shares.items())
        of = amount(flat.of, "setting[|s]")
        click.echo(f"  {flat.settings} of {of} within {flat.within} of it: {shares}")
    output.remarks(report.scoring)
    click.echo(f"\nwritten to {report.path}")
    default = workspace.default_stack
    if workspace.serving.stack == tuned.stack:
        click.echo("in use: what names no stack is ranked by it")
    elif default == report.path.stem:
        click.echo(
            "a candidate: the one in use goes on."
            f" {suggested('promote', '--queries', 'QUERIES', '--qrels', 'QRELS')} compares the two;"
            f" {suggested('stack', 'use', default)} takes this one at once"
        )
    elif report.path == workspace.stack_path(tuned.stack.signals):
        click.echo(f"in use is {default}; {suggested('stack', 'use', report.path.stem)} changes that")
