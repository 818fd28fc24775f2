"""``rerank pairs``: scores of document pairs."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Any

import click

import rerank
from rerank.text import plural

from . import options, output
from .options import Output, option

if TYPE_CHECKING:
    from rerank import LabeledPair, Workspace
    from rerank.workflows.pairs import PairScores, PairsReport

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
def predict(workspace: Workspace, ranker: str, pairs: str, dev_pairs: str | None, **settings: Any) -> Output:
    """Print the ids, label, score and prediction of each pair, TSV."""
    from rerank.formats import read_unlabeled_pairs

    unlabeled = read_unlabeled_pairs(pairs, workspace.engine.contains)
    found = rerank.predict_pairs(
        workspace, ranker, unlabeled, dev_pairs=_labeled(workspace, dev_pairs), **settings
    )
    return Output(found, lambda: _show_predictions(found))


def _show_predictions(found: PairScores) -> None:
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
    workspace: Workspace, rankers: tuple[str, ...], pairs: str, dev_pairs: str | None, **settings: Any
) -> Output:
    """Measure accuracy, F1 and AUC of rankers on labeled pairs, with significance."""
    dev, labeled = _labeled(workspace, dev_pairs), _labeled(workspace, pairs)
    report = rerank.evaluate_pairs(workspace, rankers, labeled, dev_pairs=dev, **settings)
    return Output(report, lambda: _show(report))


def _labeled(workspace: Workspace, file: str | None) -> list[LabeledPair]:
    return rerank.read_labeled_pairs(file, workspace.engine.contains) if file else []


def _written(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _show(found: PairsReport) -> None:
    chosen = f", thresholds of {plural(found.dev_pairs, 'dev pair[|s]')}" if found.dev_pairs else ""
    click.echo(f"{plural(found.pairs, 'pair[|s]')}, {found.related} related{chosen}")
    click.echo(repr(found))
