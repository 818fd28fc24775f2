"""``rerank pairs``: score pairs of documents."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import click

import rerank
from rerank.documents.text import count_of

from . import output
from .options import Command, json_option, option, seed_option, workspace_option

if TYPE_CHECKING:
    from rerank.pairs.evaluate import PairScores, PairsReport


@click.group("pairs")
def command() -> None:
    """Score pairs of documents and compare the scores with labels."""


dev_pairs_option = option(
    "--dev-pairs", metavar="FILE", group="Input", help="Labeled pairs to choose the threshold."
)


@command.command("predict", cls=Command)
@option("--ranker", metavar="NAME", required=True, group="Input", help="A trained ranker, tfidf or bm25.")
@option(
    "--pairs",
    metavar="FILE",
    required=True,
    group="Input",
    help="Pairs of documents, with or without labels.",
)
@dev_pairs_option
@option(
    "--threshold",
    metavar="X",
    type=float,
    group="Input",
    help="Lowest score of related pairs. Default: of the ranker.",
)
@workspace_option
@json_option
def predict(
    folder: str, ranker: str, pairs: str, dev_pairs: str | None, threshold: float | None, as_json: bool
) -> None:
    """Print the ids, label, score and prediction of each pair, TSV."""
    from rerank.formats import read_unlabeled_pairs

    workspace = rerank.Workspace.open(folder)
    unlabeled = read_unlabeled_pairs(pairs, workspace.engine.contains)
    progress = output.Bar(hidden=as_json)
    scores = rerank.predict_pairs(
        workspace, ranker, unlabeled, dev_pairs=dev_pairs or (), threshold=threshold, progress=progress
    )
    output.print_report(scores, _show_predictions, as_json=as_json)


def _show_predictions(scores: PairScores) -> None:
    """Print the scores as TSV, and how the related pairs were decided."""
    _print_tsv(scores)
    if scores.threshold is not None:
        output.note(f"related: scores of at least {scores.threshold:.4g}")
    else:
        output.note("no prediction without a threshold: give --threshold, or --dev-pairs")


def _print_tsv(scores: PairScores) -> None:
    """Print the columns that have a value in at least one row."""
    rows = scores.rows()
    columns: list[str] = []
    for name in rows[0]:
        if any(row[name] is not None for row in rows):
            columns.append(name)
    writer = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_tsv_cell(row[name]) for name in columns])


def _tsv_cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


@command.command("evaluate", cls=Command)
@option(
    "--ranker",
    "rankers",
    metavar="NAME",
    multiple=True,
    required=True,
    group="Input",
    help="Ranker, tfidf or bm25. Repeatable.",
)
@option("--pairs", metavar="FILE", required=True, group="Input", help="Labeled pairs to measure with (test).")
@dev_pairs_option
@option(
    "--baseline",
    metavar="NAME",
    group="Input",
    help="Ranker to compare with. Default: tfidf, or bm25 if tfidf is measured.",
)
@seed_option
@workspace_option
@json_option
def evaluate(
    folder: str,
    rankers: tuple[str, ...],
    pairs: str,
    dev_pairs: str | None,
    baseline: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Measure accuracy, F1 and AUC of rankers on labeled pairs, with significance."""
    report = rerank.evaluate_pairs(
        folder,
        rankers,
        pairs=pairs,
        dev_pairs=dev_pairs or (),
        baseline=baseline,
        seed=seed,
        progress=output.Bar(hidden=as_json),
    )
    output.print_report(report, _show_evaluation, as_json=as_json)


def _show_evaluation(report: PairsReport) -> None:
    thresholds = f", thresholds of {count_of(report.dev_pairs, 'dev pair')}" if report.dev_pairs else ""
    click.echo(f"{count_of(report.pairs, 'pair')}, {report.related} related{thresholds}")
    click.echo(repr(report))
