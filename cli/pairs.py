"""``rerank pairs``: measures of document pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import rerank
from rerank.text import plural

from . import options
from .options import Output, option


@click.group("pairs")
def command() -> None:
    """Compare scores of pairs of documents with labels."""


@options.command(
    "evaluate",
    "Input",
    option("--ranker NAME...", "Ranker, tfidf or bm25. Repeatable.", dest="rankers", required=True),
    option("--pairs FILE", "Labeled pairs to measure with (test).", required=True),
    option("--dev-pairs FILE", "Labeled pairs to choose the threshold."),
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
