"""``rerank pairs``: scores of document pairs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import Any

import click

import rerank
from rerank.text import plural

from . import options, output
from .options import Output, option

_dev_pairs = option("--dev-pairs FILE", "Labeled pairs to choose the threshold.")


@click.group("pairs")
def command() -> None:
    """Score pairs of documents and compare the scores with labels."""


@options.command(
    "predict",
    "Input",
    option("--ranker NAME", "A trained ranker, tfidf or bm25.", required=True),
    option("--pairs FILE", "Pairs of documents, with or without labels.", required=True),
    _dev_pairs,
    option("--threshold X", "Lowest score of related pairs. Default: of the ranker.", type=float),
    group=command,
)
def predict(
    workspace: rerank.Workspace, ranker: str, pairs: str, dev_pairs: str | None, **settings: Any
) -> Iterator[Output]:
    """Print the ids, label, score and prediction of each pair, TSV."""
    from rerank.formats import read_unlabeled_pairs

    unlabeled = read_unlabeled_pairs(pairs, workspace.engine.contains)
    found = rerank.predict_pairs(workspace, ranker, unlabeled, dev_pairs=dev_pairs or (), **settings)
    yield Output(found)
    rows = found.rows()
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n")
    table.writerow(kept)
    for row in rows:
        table.writerow(["" if row[n] is None else _written(row[n]) for n in kept])
    if found.threshold is not None:
        output.note(f"related: scores of at least {found.threshold:.4g}")
    else:
        output.note("no prediction without a threshold: give --threshold, or --dev-pairs")


@options.command(
    "evaluate",
    "Input",
    option("--ranker NAME...", "Ranker, tfidf or bm25. Repeatable.", dest="rankers", required=True),
    option("--pairs FILE", "Labeled pairs to measure with (test).", required=True),
    _dev_pairs,
    option("--baseline NAME", "Ranker to compare with. Default: tfidf, or bm25 if tfidf is measured."),
    options.GENERAL,
    options.seed,
    group=command,
)
def evaluate(
    workspace: rerank.Workspace, rankers: tuple[str, ...], dev_pairs: str | None, **settings: Any
) -> Iterator[Output]:
    """Measure accuracy, F1 and AUC of rankers on labeled pairs, with significance."""
    report = rerank.evaluate_pairs(workspace, rankers, dev_pairs=dev_pairs or (), **settings)
    yield Output(report)
    chosen = f", thresholds of {plural(report.dev_pairs, 'dev pair[|s]')}" if report.dev_pairs else ""
    click.echo(f"{plural(report.pairs, 'pair[|s]')}, {report.related} related{chosen}")
    click.echo(repr(report))


def _written(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)
