"""``rerank pairs``: how related documents are, and how well that agrees with labels."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import click

from rerank.text import plural

from . import options, output

if TYPE_CHECKING:
    from rerank.records import LabeledPair
    from rerank.workflows.pairs import PairRow, PairsReport
    from rerank.workspace import Workspace

_dev_pairs = click.option(
    "--dev-pairs", metavar="FILE", help="Labeled pairs that the threshold is chosen on."
)


@click.group("pairs")
def command() -> None:
    """Say how related documents are, and how well that agrees with labels."""


@command.command("predict")
@options.common
@click.option("--ranker", required=True, metavar="NAME", help="A trained ranker, tfidf or bm25.")
@click.option("--pairs", required=True, metavar="FILE", help="Pairs of documents, with labels or without.")
@_dev_pairs
@click.option("--threshold", type=float, help="From which score on a pair is related.")
@click.option("--out", metavar="FILE", help="Where the table goes, as TSV. Default: stdout.")
def predict(
    folder: str,
    as_json: bool,
    ranker: str,
    pairs: str,
    dev_pairs: str | None,
    threshold: float | None,
    out: str | None,
) -> None:
    """Say how related pairs of documents are: a, b, their label if they have one, score, prediction."""
    from rerank.files import check_output, write_text
    from rerank.formats import read_unlabeled_pairs
    from rerank.workflows.pairs import predict_pairs
    from rerank.workspace import Workspace

    if out is not None:
        check_output(out, "a\tb\t")
    workspace = Workspace.open(folder)
    found = predict_pairs(
        workspace,
        ranker,
        read_unlabeled_pairs(pairs, workspace.engine.contains),
        dev_pairs=_labeled(workspace, dev_pairs) if dev_pairs else (),
        threshold=threshold,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(found)
        return
    rows = found.rows()
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n")
    table.writerow(kept)
    for row in rows:
        table.writerow(["" if row[n] is None else _written(row[n]) for n in kept])
    if out is None:
        click.echo(text.getvalue(), nl=False)
    else:
        write_text(out, text.getvalue(), follow=True)
    if found.threshold is not None:
        output.note(f"related from a score of {found.threshold:.4g} on")
    else:
        output.note("nothing is predicted: give --threshold, or --dev-pairs to choose one")


@command.command("evaluate")
@options.common
@click.option(
    "--ranker",
    "rankers",
    required=True,
    multiple=True,
    metavar="NAME[,NAME...]",
    help="A trained ranker, tfidf or bm25; several with commas between: seeds of one. Repeatable.",
)
@click.option("--pairs", required=True, metavar="FILE", help="Labeled pairs to measure with (test).")
@_dev_pairs
@click.option(
    "--baseline",
    metavar="NAME[,NAME...]",
    help="What the rankers are compared with. Default: tfidf, or bm25 where there is no other.",
)
@options.seed
def evaluate(
    folder: str,
    as_json: bool,
    rankers: tuple[str, ...],
    pairs: str,
    dev_pairs: str | None,
    baseline: str | None,
    seed: int,
) -> None:
    """Measure how well rankers tell related pairs of documents from unrelated ones, with significance."""
    from rerank.workflows.pairs import evaluate_pairs
    from rerank.workspace import Workspace

    workspace = Workspace.open(folder)
    found = evaluate_pairs(
        workspace,
        rankers,
        _labeled(workspace, pairs),
        dev_pairs=_labeled(workspace, dev_pairs) if dev_pairs else (),
        baseline=baseline,
        seed=seed,
        progress=output.Bar(quiet=as_json),
    )
    if as_json:
        output.print_json(found)
    else:
        _show(found)


def _labeled(workspace: Workspace, file: str) -> list[LabeledPair]:
    from rerank.formats import read_labeled_pairs

    return read_labeled_pairs(file, workspace.engine.contains, remark=output.note)


def _written(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _show(found: PairsReport) -> None:
    """Print the tables."""
    chosen = f", thresholds of {plural(found.dev_pairs, 'dev pair[|s]')}" if found.dev_pairs else ""
    click.echo(f"{plural(found.pairs, 'pair[|s]')}, {found.related} related{chosen}")
    names = list(found.results[0].measures)
    header = ["", *names, "ECE", *(text for name in names for text in (f"Δ {name}", f"p {name}"))]
    rows = [_cells(one) for one in found.results]
    click.echo(output.table(header, [[*row, *[""] * (len(header) - len(row))] for row in rows]))
    for one in found.results:
        if len(one.thresholds) > 1 and one.comparisons:
            over = ", ".join(f"{of.measure} {_p_over_seeds(of.p_seeds)}" for of in one.comparisons)
            click.echo(f"{one.ranker}: p over seeds, {over}")
    for one in found.results:
        if one.bins and one.comparisons:
            click.echo(f"\n{one.ranker}: probabilities, {one.calibrated}")
            bins = [
                [f"{of.low:g} to {of.high:g}", str(of.pairs), f"{of.mean:.3f}", f"{of.share:.3f}"]
                for of in one.bins
            ]
            click.echo(output.table(["", "pairs", "mean", "related"], bins))


def _cells(one: PairRow) -> list[str]:
    """Lay out the measures of a ranker and its differences to the baseline."""
    several = len(one.thresholds) > 1
    cells = [one.ranker]
    for name, value in one.measures.items():
        cells.append(f"{value:.4f}" + (f" ± {one.deviations[name]:.4f}" if several else ""))
    cells.append("" if one.calibration_error is None else f"{one.calibration_error:.4f}")
    for of in one.comparisons:
        cells += [f"{of.delta:+.4f}", output.p_value(of.p_holm)]
    return cells


def _p_over_seeds(p: float | None) -> str:
    return "no test possible" if p is None else output.p_value(p)
