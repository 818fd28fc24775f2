"""``rerank rank``: rank documents for each query of a file."""

from __future__ import annotations

import json

import click

import rerank

from . import output
from .options import (
    COUNT,
    OUTPUT,
    Command,
    filter_option,
    infer_option,
    json_option,
    option,
    queries_option,
    workspace_option,
)


@click.command("rank", cls=Command)
@queries_option
@option(
    "--stack",
    metavar="STACK",
    group="Ranking",
    help="Signals, weights or a stack file. Default: the active stack.",
)
@filter_option("Ranking")
@infer_option("Ranking")
@option(
    "-k",
    "count",
    metavar="N",
    type=COUNT,
    default=100,
    group="Output",
    help="Number of documents for each query.",
)
@option(
    "--save-run",
    metavar="FILE",
    type=OUTPUT,
    group="Output",
    help="Write a TREC run to this file instead of JSON lines to the terminal.",
)
@workspace_option
@json_option
def command(
    folder: str,
    queries: str,
    stack: str | None,
    filter: tuple[str, ...],
    infer: bool,
    count: int,
    save_run: str | None,
    as_json: bool,
) -> None:
    """Rank documents for each query of a file, without judgments. Prints one JSON object per query."""
    from rerank.common.files import check_new_file
    from rerank.formats import check_run_ids, write_run

    workspace = rerank.Workspace.open(folder)
    all_queries = rerank.read_queries(queries)
    if save_run is not None:  # these raise before the long work
        check_run_ids(query.id for query in all_queries)
        check_new_file(save_run, " Q0 ")
    progress = output.Bar(hidden=as_json)
    report = rerank.rank(
        workspace, all_queries, count, stack=stack, filter=filter, infer=infer, progress=progress
    )
    if save_run is not None:
        write_run(save_run, report.rankings)
        output.note(f"run written to {save_run}")
    if as_json:
        output.print_json(report)
    elif save_run is None:
        for query_id, hits in report.rankings.items():
            rows = [{"id": document_id, "score": score} for document_id, score in hits]
            click.echo(json.dumps({"_id": query_id, "hits": rows}))
