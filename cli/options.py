"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

workspace = click.option(
    "-w",
    "--workspace",
    "folder",
    default=".rerank",
    show_default=True,
    envvar="RERANK_WORKSPACE",
    metavar="DIR",
    help="The workspace; also RERANK_WORKSPACE.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything random."
)
queries = click.option("--queries", required=True, metavar="FILE", help="Queries, JSON lines (plain or .gz).")
first_stage = click.option(
    "--first-stage",
    type=click.Choice(["tfidf", "bm25"]),
    default=None,
    help="What retrieves the candidates. Default: the stack's own; without one, the workspace's.",
)


def retrievers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Read the value of --retrieve; nothing where it is not given."""
    from rerank.stack.parse import parse_retrieve

    return parse_retrieve(text) if text is not None else ()


retrieve = click.option(
    "--retrieve",
    callback=retrievers,
    metavar="NAME[,NAME[:N]...]",
    help="Who retrieves the candidates, the depth each: tfidf, bm25, and rankers such as s2net;"
    " s2net:200 for a depth of its own."
    " Default: the stack's retrievers.",
)
ignore_categories = click.option(
    "--ignore-categories", is_flag=True, help="Act as if the queries brought no categories."
)
infer = click.option(
    "--infer-categories/--no-infer-categories",
    "infer",
    default=True,
    show_default=True,
    help="Guess the categories of queries that bring none from their first ten candidates.",
)


def common(function: Function) -> Function:
    """Add --workspace and --json."""
    return workspace(as_json(function))
