"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from . import hints

Function = TypeVar("Function", bound=Callable[..., Any])


def _named(context: click.Context, option: click.Parameter, folder: str) -> str:
    """Remember the workspace that was named, for the commands that are suggested."""
    if context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE:
        hints.workspace = folder
    return folder


workspace = click.option(
    "-w",
    "--workspace",
    "folder",
    default=".rerank",
    show_default=True,
    envvar="RERANK_WORKSPACE",
    callback=_named,
    metavar="DIR",
    help="The workspace; also RERANK_WORKSPACE.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything random."
)
queries = click.option("--queries", required=True, metavar="FILE", help="Queries, JSON lines (plain or .gz).")

conflicts = click.option(
    "--conflicts",
    type=click.Choice(["refuse", "max", "first"]),
    default="refuse",
    show_default=True,
    help="Documents judged twice with different grades: refuse the file, or take one of the grades.",
)


class FirstStage(click.ParamType):  # type: ignore[type-arg]
    """A lexical signal, or a search of the user's own."""

    name = "first stage"

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """Refuse what is neither; the action reads the file."""
        kind, colon, name = value.partition(":")
        if value not in LEXICAL and not (colon and name and kind in self.kinds):
            self.fail(f"{value!r} is none of {self.get_metavar(None, None)}")
        return value

    def get_metavar(self, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """What it may be."""
        return "|".join(
            (*LEXICAL, *(f"{kind}:{'ID' if kind == 'stored' else 'FILE'}" for kind in self.kinds))
        )


LEXICAL = ("tfidf", "bm25")
_FIND = "What finds the candidates; template and stored: a search of your own, on OpenSearch."
first_stage = click.option(
    "--first-stage",
    type=FirstStage("template", "stored"),
    help=f"{_FIND} Default: the stack's own; without one, the workspace's.",
)
first_stage_of_training = click.option(
    "--first-stage", type=FirstStage("template", "stored"), help=f"{_FIND} Default: the workspace's."
)
first_stage_or_run = click.option(
    "--first-stage",
    type=FirstStage("template", "stored", "run"),
    help=f"{_FIND} run: what a search has found, as a TREC run. Default: the stack's own.",
)


def retrievers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Read the value of --retrieve; nothing where it is not given."""
    from rerank.stack.parse import parse_retrieve

    return parse_retrieve(text) if text is not None else ()


def params(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Read the values of --param: JSON where they are, text where not."""
    from rerank.files import parse_json

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is no NAME=VALUE")
        try:
            found[name] = parse_json(value)
        except ValueError:
            found[name] = value
    return found


retrieve = click.option(
    "--retrieve",
    callback=retrievers,
    metavar="NAME[,NAME[:N]...]",
    help="Who retrieves the candidates, the depth each: tfidf, bm25, and rankers such as s2net;"
    " s2net:200 for a depth of its own."
    " Default: the stack's retrievers.",
)
filters = click.option(
    "--filter",
    "filter",
    multiple=True,
    metavar="CONDITION",
    help="Find only documents of which this is true: year>=2020, tags=a; repeatable, and all must be.",
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
