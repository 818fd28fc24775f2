"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rerank.training.dense.config import DenseConfig

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
retrieve = click.option(
    "--retrieve",
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


_DENSE = (
    click.option(
        "--model",
        default="minilm",
        show_default=True,
        metavar="NAME",
        help="dense: a folder, or a model on this machine.",
    ),
    click.option("--layers", type=click.IntRange(min=1), help="dense: keep the first N layers only."),
    click.option(
        "--random-weights", is_flag=True, help="dense: the model's shape, none of what it has learned."
    ),
    click.option(
        "--pooling",
        type=click.Choice(["mean", "cls"]),
        default="mean",
        show_default=True,
        help="dense: of token vectors.",
    ),
    click.option(
        "--fragment-tokens",
        type=click.IntRange(min=8),
        default=128,
        show_default=True,
        help="dense: tokens of a fragment.",
    ),
    click.option(
        "--fragments",
        type=click.IntRange(1, 100),
        default=8,
        show_default=True,
        help="dense: of a document, at most.",
    ),
    click.option(
        "--objective",
        type=click.Choice(["quintuplet", "contrastive", "structure", "semantics", "fixed-margin", "triplet"]),
        default="contrastive",
        show_default=True,
        help="dense: the loss.",
    ),
    click.option(
        "--related",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
        help="dense: related documents of each, at most.",
    ),
    click.option(
        "--direction",
        type=click.Choice(["sym", "out", "in"]),
        default="sym",
        show_default=True,
        help="dense: links both ways, as given, or turned round.",
    ),
    click.option(
        "--axis",
        type=click.Choice(["row", "column"]),
        default="row",
        show_default=True,
        help="dense: intimacy; column favours documents with many links.",
    ),
    click.option(
        "--held-out",
        type=click.FloatRange(0, 0.9),
        default=0.1,
        show_default=True,
        help="dense: share of the links that stops the training.",
    ),
)


def dense(function: Function) -> Function:
    """Add what the ranker dense is made of."""
    for option in reversed(_DENSE):
        function = option(function)
    return function


def dense_config(given: Mapping[str, Any], seed: int) -> DenseConfig:
    """Settings of ``dense`` from the options of :func:`dense`; None stands for the default."""
    from rerank.training.dense.config import DenseConfig

    return DenseConfig(**{k: v for k, v in given.items() if v is not None}, seed=seed)
