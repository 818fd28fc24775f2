"""Options: help groups, types, and shared options."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from . import output

Function = TypeVar("Function", bound=Callable[..., Any])
Add = Callable[[Any, str], Any]
"""Adds an option to a function, in a group."""

LEXICAL = ("tfidf", "bm25")
GENERAL = "General"
"""The group of options that name no group; the last one."""
_SHORT = f"{__name__}.short"


class Option(click.Option):
    """An option in a group of the help.

    rare: only ``--help-all`` lists it.
    """

    def __init__(self, *args: Any, group: str = GENERAL, rare: bool = False, **about: Any) -> None:
        default = about.get("default")
        if default is not None and default is not False and "Default:" not in about["help"]:
            shown = "on" if default is True else default
            about["help"] += f" Default: {', '.join(shown) if isinstance(shown, list) else shown}."
        super().__init__(*args, **about)
        self.group, self.rare = group, rare

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Names and help; None if ``--help`` omits it."""
        record = super().get_help_record(ctx)
        if record is None or (self.rare and ctx.meta.get(_SHORT)):
            return None
        return record[0], f"{self.help}{' Required.' * self.required}"


class Command(click.Command):
    """A command whose help groups options."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        if any(getattr(one, "rare", False) for one in self.params):
            self.params.append(_help_all())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read options. The documentation lists all, because it skips this call."""
        ctx.meta[_SHORT] = True
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)):
                groups.setdefault(getattr(one, "group", GENERAL), []).append(record)
        for name, rows in sorted(groups.items(), key=lambda group: group[0] == GENERAL):
            with formatter.section(name):
                formatter.write_dl(rows)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def _help_all() -> click.Option:
    def show(context: click.Context, option: click.Parameter, asked: bool) -> None:
        if asked:
            context.meta[_SHORT] = False
            click.echo(context.get_help())
            context.exit()

    text = "Show all options and exit."
    return Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


class Number(click.ParamType[Any]):
    """A number from ``least``, or above ``above``, to ``most``."""

    name = "number"

    def __init__(
        self,
        least: float | None = None,
        most: float | None = None,
        *,
        above: float | None = None,
        kind: type = int,
    ) -> None:
        self.kind = kind
        limits = {"at least {:,}": least, "above {:,}": above, "at most {:,}": most}
        self.values = " and ".join(text.format(limit) for text, limit in limits.items() if limit is not None)
        self.least, self.above, self.most = least, above, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; errors name the limits."""
        try:
            number = self.kind(value)
        except ValueError:
            self.fail(f"must be a {'whole ' * (self.kind is int)}number, not {value!r}", param, ctx)
        if not (
            math.isfinite(number)
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        ):
            self.fail(f"must be {self.values or 'finite'}, not {value}", param, ctx)
        return number

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """N for whole numbers, otherwise X."""
        return "N" if self.kind is int else "X"


POSITIVE = Number(above=0, kind=float)
SHARE = Number(0, 1, kind=float)


class Choice(click.Choice):  # type: ignore[type-arg,unused-ignore]
    """One of several words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word; errors name all."""
        if value not in self.choices:
            self.fail(f"must be {either([*self.choices])}, not {value!r}", param, ctx)
        return value


def either(names: list[str]) -> str:
    """``a, b or c``."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


class FirstStage(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A lexical signal, ``template:FILE``, ``stored:ID`` or ``run:FILE``."""

    name = "first stage"

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.forms = [*LEXICAL, *(f"{kind}:{'ID' if kind == 'stored' else 'FILE'}" for kind in kinds)]

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Validate the value."""
        kind, _, name = value.partition(":")
        if value not in LEXICAL and not (name and kind in self.kinds):
            self.fail(f"must be {either(self.forms)}, not {value!r}", param, ctx)
        return value


def option(spec: str, help: str, *, dest: str = "", **about: Any) -> Add:
    """Make an option for :func:`declare`: ``option("--depth N", "Number of candidates.")``.

    spec: names and metavar. No metavar: a flag; ``N``: a whole number from 1; ``a|b``: a choice; ``...``: may
        be repeated.
    """
    names, _, metavar = spec.partition(" ") if not spec.startswith("-w") else spec.rpartition(" ")
    if metavar.endswith("...") and not metavar.endswith(",..."):
        about["multiple"], metavar = True, metavar[:-3].strip()
    if not metavar and "/" not in names:
        about["is_flag"] = True
    elif metavar == "N":
        about.setdefault("type", Number(1))
    elif "|" in metavar and metavar.islower():
        about.setdefault("type", Choice(metavar.split("|")))
    decls = [*names.split(", "), *[dest] * bool(dest)]
    about |= {"cls": Option, "help": help, "metavar": metavar or None}
    return lambda function, group: click.option(*decls, group=group, **about)(function)


def declare(*parts: str | Add) -> Callable[[Function], Function]:
    """Add options to a command; a text starts a group."""

    def add(function: Function) -> Function:
        group, grouped = GENERAL, []
        for part in parts:
            if isinstance(part, str):
                group = part
            else:
                grouped.append((part, group))
        for part, group in reversed(grouped):
            function = part(function, group)
        return function

    return add


def _remember(context: click.Context, option: click.Parameter, folder: str) -> str:
    if context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE:
        output.workspace = folder
    return folder


def workspace(default: str, help: str, **more: Any) -> Add:
    """Make --workspace."""
    return option("-w, --workspace DIR", help, dest="folder", default=default, callback=_remember, **more)


as_json = option("--json", "Print one JSON object instead of text.", dest="as_json")


common = (
    workspace(
        ".rerank", "Workspace folder. Environment variable: RERANK_WORKSPACE.", envvar="RERANK_WORKSPACE"
    ),
    as_json,
)
seed = option("--seed N", "Random seed.", type=Number(0), default=0)
queries = option("--queries FILE", "Queries, JSON lines.", required=True)
qrels = option("--qrels FILE", "Judgments, BEIR or TREC.", required=True)
conflicts = option(
    "--conflicts refuse|max|first",
    "Use of a document with different grades for a query.",
    default="refuse",
    rare=True,
)
dry_run = option("--dry-run", "Show the result and change nothing.")


def _first_stage(default: str, *kinds: str, rare: bool = False) -> Add:
    kind = FirstStage("template", "stored", *kinds)
    help = f"First stage: {either(kind.forms)}. Default: {default}."
    return option("--first-stage NAME", help, type=kind, rare=rare)


first_stage = _first_stage("the first stage of the stack")
first_stage_of_training = _first_stage("the first stage of the workspace", rare=True)
first_stage_or_run = _first_stage("the first stage of the stack", "run")


def retrievers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Value of --retrieve; empty if missing."""
    from rerank.stack.parse import parse_retrieve

    return parse_retrieve(text) if text is not None else ()


retrieve = option(
    "--retrieve NAME[:N],...",
    "Retrievers and depths: bm25,s2net:200. Default: of the stack.",
    callback=retrievers,
)
filters = option(
    "--filter CONDITION...", "Condition for documents, for example year>=2020. Repeatable.", dest="filter"
)
ignore_categories = option("--ignore-categories", "Ignore the categories of the queries.", rare=True)
infer = option(
    "--infer-categories/--no-infer-categories",
    "Infer the categories of queries without categories from their first candidates.",
    dest="infer",
    default=True,
    rare=True,
)


judged = (queries, qrels, conflicts)


def read_judged(queries: str, qrels: str, conflicts: str = "refuse") -> dict[str, Any]:
    """Read the files of ``judged`` as keywords."""
    from rerank.formats import read_qrels, read_queries

    return {"queries": read_queries(queries), "qrels": read_qrels(qrels, conflicts=conflicts)}


def params(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Values of --param, each JSON or text."""
    from rerank.files import parse_json

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"must be NAME=VALUE, not {text!r}")
        try:
            found[name] = parse_json(value)
        except ValueError:
            found[name] = value
    return found


def reports(show: Callable[[Any], object]) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a command of ``(workspace, progress, **values)``, which returns a report.

    show: prints the report without --json.
    """

    def make(function: Callable[..., Any]) -> Callable[..., None]:
        @wraps(function)
        def run(folder: str, as_json: bool, **values: Any) -> None:
            from rerank.workspace import Workspace

            progress = output.Bar(quiet=as_json)
            output.result(function(Workspace.open(folder), progress, **values), as_json, show)

        return run

    return make
