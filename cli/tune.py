"""``rerank tune``: the weights of a stack."""

from __future__ import annotations

from collections.abc import Mapping

import click

from . import options, output


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
    "--cv", "folds", type=click.IntRange(min=2), help="Cross-validate in this many folds: no dev set needed."
)
@click.option(
    "--normalisation",
    "normalisations",
    multiple=True,
    type=click.Choice(["min-max", "z-score", "none"]),
    help="Try only this one; repeatable. Default: all three.",
)
@click.option("--out", metavar="FILE", help="Where the stack goes. Default: the workspace.")
@options.first_stage
@options.retrieve
@options.ignore_categories
@options.infer
@options.seed
def command(
    folder: str,
    as_json: bool,
    stack: str,
    queries: str,
    qrels: str,
    depth: int,
    folds: int | None,
    normalisations: tuple[str, ...],
    out: str | None,
    first_stage: str | None,
    retrieve: str | None,
    ignore_categories: bool,
    infer: bool,
    seed: int,
) -> None:
    """Score every candidate once, search the weights, and write the stack to a file."""
    from rerank.actions.tune import tune
    from rerank.formats import read_qrels, read_queries
    from rerank.stack.parse import parse_retrieve
    from rerank.workspace import Workspace

    report = tune(
        Workspace.open(folder),
        stack,
        read_queries(queries),
        read_qrels(qrels),
        first_stage=first_stage,
        retrieve=parse_retrieve(retrieve) if retrieve is not None else (),
        depth=depth,
        folds=folds,
        normalisations=normalisations or ("min-max", "z-score", "none"),
        out=out,
        ignore_categories=ignore_categories,
        infer=infer,
        seed=seed,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(report.to_json())
        return
    tuned = report.tuned
    click.echo(f"{tuned.stack}   ({tuned.stack.normalisation})")
    click.echo(
        f"NDCG {tuned.value:.4f} on {tuned.queries} queries; {tuned.stack.first_stage} alone"
        f" {tuned.first_stage_value:.4f}; {tuned.settings} settings tried"
    )
    if report.validated is not None:
        cv = report.validated
        click.echo(
            f"cross-validated in {len(cv.folds)} folds: {cv.value:.4f} on queries the weights were not"
            f" tuned on ({cv.first_stage_value:.4f} first stage)"
        )
    click.echo(recall_line(report.scoring.candidate_recall))
    click.echo("\nbest of each normalisation")
    click.echo(
        output.table(["", "NDCG", "stack"], [[n, f"{b.value:.4f}", b.stack] for n, b in tuned.best.items()])
    )
    click.echo("\nsignal by signal")
    rows = [
        [name, f"{tuned.alone[name]:.4f}", f"{tuned.left_out[name]:.4f}" if name in tuned.left_out else ""]
        for name in tuned.stack.signals
    ]
    click.echo(output.table(["", "alone", "without it"], rows))
    click.echo("\nhow flat the optimum is")
    for flat in tuned.flatness:
        shares = ", ".join(f"{name} {low:.2f}-{high:.2f}" for name, (low, high) in flat.shares.items())
        click.echo(f"  {flat.settings} of {flat.of} settings are within {flat.within} of it: {shares}")
    remarks(report.scoring)
    click.echo(f"\nwritten to {report.path}")


def recall_line(recall: Mapping[str, float]) -> str:
    """What share of the relevant documents each retriever finds: the ceiling of any ranking."""
    return "candidate recall: " + ", ".join(f"{name} {share:.4f}" for name, share in recall.items())


def remarks(scoring) -> None:  # type: ignore[no-untyped-def]
    """Say on stderr what was left out or done on the way."""
    for count, what in (
        (scoring.unknown_queries, "judged queries are not in the query file: they are left out"),
        (scoring.unknown_documents, "relevant documents are not in the workspace: they cannot be found"),
        (scoring.without_hits, "queries retrieve nothing: they count as 0"),
        (
            scoring.inferred_categories,
            "queries brought no categories and got them from their first candidates",
        ),
    ):
        if count:
            output.note(f"{count} {what}")
    for name, count in scoring.not_found.items():
        if count:
            output.note(f"{count} documents have no features of {name} and cannot be found by it")
    for name, count in scoring.recomputed.items():
        output.note(f"{count} features of {name} were missing and computed on the way: run `rerank encode`")
