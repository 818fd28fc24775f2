"""Commands and their options: help groups, types, and shared options."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

import rerank

from . import output

LEXICAL = ("tfidf", "bm25")
GENERAL = "General"
"""The group of options that name no group; the last one."""


class Option(click.Option):
    """An option in a group of the help."""

    def __init__(self, *args: Any, group: str = GENERAL, **about: Any) -> None:
        default = about.get("default")
        if default is not None and default is not False and "Default:" not in about["help"]:
            shown = "on" if default is True else default
            about["help"] += f" Default: {', '.join(shown) if isinstance(shown, (list, tuple)) else shown}."
        super().__init__(*args, **about)
        self.group = group


class Command(click.Command):
    """A command whose help groups options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name ``--`` if an argument that begins with a dash may be meant."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            arguments = [parameter for parameter in self.params if isinstance(parameter, click.Argument)]
            if not arguments:
                raise
            name = arguments[0].human_readable_name.upper()
            problem = error.format_message().rstrip(".?")
            raise click.UsageError(
                f"{problem}; if it is not an option, write it after --: {ctx.command_path} -- {name}", ctx
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and (record := one.get_help_record(ctx)):
                groups.setdefault(getattr(one, "group", GENERAL), []).append(record)
        for name, rows in sorted(groups.items(), key=lambda group: group[0] == GENERAL):
            with formatter.section(name):
                formatter.write_dl(rows)


class Whole(click.IntRange):
    """A whole number."""

    name = "whole number"


def argument(name: str, **about: Any) -> click.Argument:
    """Make an argument for :func:`command`."""
    return click.Argument([name], **about)


def option(spec: str, help: str, *, dest: str = "", **about: Any) -> Option:
    """Make an option for :func:`command`: ``option("--depth N", "Number of candidates.")``.

    spec: names and metavar. No metavar: a flag; ``N``: a whole number from 1; ``a|b``: a choice; ``...``: may
        be repeated.
    """
    names, _, metavar = spec.partition(" ") if not spec.startswith("-w") else spec.rpartition(" ")
    if metavar.endswith("...") and not metavar.endswith(",..."):
        about["multiple"], metavar = True, metavar[:-3].strip()
    if not metavar and "/" not in names:
        about["is_flag"] = True
    elif metavar == "N":
        about.setdefault("type", Whole(1))
    elif "|" in metavar and metavar.islower():
        about.setdefault("type", click.Choice(metavar.split("|")))
    return Option([*names.split(", "), *[dest] * bool(dest)], help=help, metavar=metavar or None, **about)


def grouped(parts: Iterable[str | click.Parameter]) -> list[click.Parameter]:
    """Options with their groups; a text starts a group."""
    group, found = GENERAL, []
    for part in parts:
        if isinstance(part, str):
            group = part
            continue
        if isinstance(part, Option):
            part = copy.copy(part)
            part.group = group
        found.append(part)
    return found


def _remember(context: click.Context, option: click.Parameter, folder: str) -> str:
    if context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE:
        output.workspace = folder
    return folder


def workspace(default: str, help: str, **more: Any) -> Option:
    """Make --workspace."""
    return option("-w, --workspace DIR", help, dest="folder", default=default, callback=_remember, **more)


folder = workspace(
    ".rerank", "Workspace folder. Environment variable: RERANK_WORKSPACE.", envvar="RERANK_WORKSPACE"
)
as_json = option("--json", "Print one JSON object instead of text.", dest="as_json")
seed = option("--seed N", "Random seed.", type=Whole(0), default=0)
measure = option(
    "--measure NAME", "Measure to maximize: nDCG, RR or AP, with or without a cutoff.", default="nDCG@10"
)
queries = option("--queries FILE", "Queries, JSON lines.", required=True)
qrels = option("--qrels FILE", "Judgments, BEIR or TREC.", required=True)
judged = (queries, qrels)
categories = option("--categories FILE", "Category graph, TSV of child and parent.")
lang = option("--lang TEXT", "Language of the documents, for example en. Default: their `lang` field.")
dry_run = option("--dry-run", "Show the result and change nothing.")


def first_stage(default: str, *forms: str) -> Option:
    """Make --first-stage."""
    texts = [*LEXICAL, "template:FILE", *forms]
    return option("--first-stage NAME", f"First stage: {', '.join(texts)}. Default: {default}.")


first_stage_or_run = first_stage("the first stage of the stack", "run:FILE")


def retrievers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Value of --retrieve; empty if missing."""
    return () if text is None else tuple(one.strip() for one in text.split(","))


retrieve = option(
    "--retrieve NAME[:N],...",
    "Retrievers and depths: bm25,s2net:200. Default: of the stack.",
    callback=retrievers,
)
filters = option(
    "--filter CONDITION...", "Condition for documents, for example year>=2020. Repeatable.", dest="filter"
)
then = option(
    "--then cross-encoder:FOLDER", "Model that orders the best documents again. Default: of the stack."
)
top = option("--top N", "Number of documents that the model orders. Default: 20.")
ignore_categories = option("--ignore-categories", "Ignore the categories of the queries.")
infer = option(
    "--infer-categories/--no-infer-categories",
    "Infer the categories of queries without categories from their first candidates.",
    dest="infer",
    default=True,
)


@dataclass
class Output:
    """The result of a command. report: printed by --json. code: exit code."""

    report: Any
    code: int = 0


def command(
    name: str, *parts: str | click.Parameter, group: Any = click, **about: Any
) -> Callable[[Callable[..., Iterator[Output]]], click.Command]:
    """Make a command with --workspace and --json.

    The function takes the options by name, and ``progress``. It also takes ``workspace``, or ``folder`` if
    the workspace can be missing. It yields its output, and then prints it as text. With --json, the function
    ends at the yield.

    parts: arguments and options; a text starts a group.
    """

    def make(function: Callable[..., Iterator[Output]]) -> click.Command:
        takes = function.__annotations__
        named = any(isinstance(part, Option) and part.name == "folder" for part in parts)
        shared = [folder] * (not named and ("workspace" in takes or "folder" in takes))
        params = grouped([*parts, GENERAL, *shared, as_json])

        @wraps(function)
        def run(as_json: bool, **values: Any) -> None:
            if "workspace" in takes:
                values["workspace"] = rerank.Workspace.open(values.pop("folder"))
            steps = function(progress=output.Bar(hidden=as_json), **values)
            done = next(steps)
            if as_json:
                from rerank.results import plain

                output.print_json(plain(done.report))
            else:
                next(steps, None)
            if done.code:
                sys.exit(done.code)

        made: click.Command = group.command(name, **{"cls": Command, "params": params, **about})(run)
        return made

    return make


def params(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Values of --param, each JSON or text."""
    from rerank.files import parse_json

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
        try:
            found[name] = parse_json(value)
        except ValueError:
            found[name] = value
    return found
