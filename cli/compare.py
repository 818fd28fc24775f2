"""``rerank compare``: runs of any systems."""

from __future__ import annotations

from typing import Any

import click

from rerank.text import plural

from . import evaluate, options, output
from .options import declare


@click.command("compare", cls=options.Command)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@declare(
    "Input",
    options.qrels,
    options.conflicts,
    "Measures",
    evaluate.measures,
    "Output",
    evaluate.per_query,
    options.GENERAL,
    options.seed,
    options.as_json,
)
def command(
    runs: tuple[str, ...], qrels: str, conflicts: str, per_query: str | None, as_json: bool, **settings: Any
) -> None:
    """Compare TREC runs with the first one (paired randomization test, Holm's correction).

    The runs can come from any system, or from `rerank evaluate --save-run`.
    """
    from pathlib import Path

    from rerank.files import check_output, write_text
    from rerank.formats import read_qrels, read_run
    from rerank.report_page.tables import PER_QUERY
    from rerank.workflows.compare import compare

    if per_query is not None:
        check_output(per_query, PER_QUERY)
    names = [Path(run).name for run in runs]
    if len(set(names)) < len(names):
        names = list(runs)
    if len(set(names)) < len(names):
        raise click.UsageError("a run is named twice; name each run once")
    rankings = {
        name: {query: [id for id, _ in hits] for query, hits in read_run(run).items()}
        for name, run in zip(names, runs)
    }
    report = compare(rankings, read_qrels(qrels, conflicts=conflicts), **settings)
    if per_query is not None:
        write_text(per_query, report.per_query_table(), follow=True)
    if as_json:
        output.print_json(report)
        return
    evaluate.show(report)
    for name, count in report.empty.items():
        if count:
            of = plural(report.queries, output.QUERIES)
            output.note(f"{name} has no documents for {count} of {of}, counted as 0")
    if per_query is not None:
        output.note(f"written to {per_query}")
