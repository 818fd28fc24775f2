"""``rerank rank``: rank documents for each query of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

import rerank

from . import options, output
from .options import Output, option


@options.command(
    "rank",
    "Input",
    options.queries,
    "Ranking",
    option("--stack STACK", "Signals, weights or a stack file. Default: the active stack."),
    options.filters,
    options.infer,
    "Output",
    option("-k N", "Number of documents for each query.", dest="count", default=100),
    option("--save-run FILE", "Write a TREC run to this file instead of JSON lines to the terminal."),
)
def command(
    workspace: rerank.Workspace,
    progress: output.Bar,
    queries: str,
    count: int,
    save_run: str | None,
    **settings: Any,
) -> Iterator[Output]:
    """Rank documents for each query of a file, without judgments. Prints one JSON object per query."""
    from rerank.files import check_output
    from rerank.formats import check_run_ids, write_run

    read = rerank.read_queries(queries)
    if save_run is not None:  # before the long work
        check_run_ids(query.id for query in read)
        check_output(save_run, " Q0 ")
    report = rerank.rank(workspace, read, count, progress=progress, **settings)
    if save_run is not None:
        write_run(save_run, report.rankings)
        output.note(f"run written to {save_run}")
    yield Output(report)
    if save_run is not None:
        return
    for query, hits in report.rankings.items():
        line = {"_id": query, "hits": [{"id": document, "score": score} for document, score in hits]}
        click.echo(json.dumps(line))
