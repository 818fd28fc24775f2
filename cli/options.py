"""Options that several commands share, and the sections of a command's help.

Commands are plain Click. :func:`option` is ``click.option`` with one more argument: ``group``, the section of
the help in which the option stands::

    @click.command("encode", cls=Command)
    @option("--force", is_flag=True, help="Encode all documents again.")
    @workspace_option
    @json_option
    def command(folder: str, force: bool, as_json: bool) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .output import Session

Function = TypeVar("Function", bound=Callable[..., Any])
"""A function that becomes a command. A decorator adds an option to it and returns it."""

LEXICAL = ("tfidf", "bm25")
GENERAL = "General"
"""The section of options without a group. It is the last one."""


class WholeNumber(click.IntRange):
    """A whole number in a range."""

    name = "whole number"


COUNT = WholeNumber(1)
"""The type of options that take 1, 2, 3, ..."""
NATURAL = WholeNumber(0)
"""The type of options that take 0, 1, 2, ..."""


class OutputPath(click.types.StringParamType):
    """The name of a file or a folder that a command writes. ``-`` does not stand for standard output."""

    name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises click.BadParameter for ``-``, which is standard output in other tools."""
        if value == "-":
            self.fail("the result is not written to standard output; give the name of a file", param, ctx)
        return value


OUTPUT = OutputPath()
"""The type of options and arguments that name a result."""


class GroupedOption(click.Option):
    """An option in a section of the help. Its help ends with the default, if it has one."""

    def __init__(self, *args: Any, group: str = GENERAL, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.group = group
        help_text = self.help or ""
        default = attributes.get("default")
        has_default = default is not None and default is not False
        if has_default and "Default:" not in help_text:
            self.help = f"{help_text} Default: {_format_default(default)}."


def _format_default(default: object) -> str:
    if default is True:
        return "on"
    if isinstance(default, (list, tuple)):
        return ", ".join(default)
    return str(default)


def option(*names: str, group: str = GENERAL, **attributes: Any) -> Callable[[Function], Function]:
    """Declare an option as ``click.option`` does, in a section of the help. group: the section's title."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


class Command(click.Command):
    """A command whose help has one section per group of options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. The error for an unknown option names a similar one, or else ``--``.

        After ``--``, a text that begins like an option is an argument, such as a query.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(self.describe_unknown(error, ctx.command_path), ctx) from None

    def describe_unknown(self, error: click.NoSuchOption, command: str) -> str:
        """Return the message for an unknown option. command: its words, such as ``rerank query``."""
        problem = f"no such option {error.option_name}"
        if error.possibilities:
            return f"{problem}; did you mean {error.possibilities[0]}?"
        arguments = [parameter for parameter in self.params if isinstance(parameter, click.Argument)]
        if not arguments:
            return problem
        name = arguments[0].human_readable_name.upper()
        return f"{problem}; if it is not an option, write it after --: {command} -- {name}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections in the order of their first options, the general one last."""
        sections = self._help_sections(ctx)
        if GENERAL in sections:
            sections[GENERAL] = sections.pop(GENERAL)  # moves it to the end
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def _help_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return title of a section -> the names and the help of its options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                group = parameter.group if isinstance(parameter, GroupedOption) else GENERAL
                sections.setdefault(group, []).append(record)
        return sections


def _remember_workspace(context: click.Context, parameter: click.Parameter, folder: str) -> str:
    """Store a workspace that the user names, so that commands in messages can repeat it."""
    if context.get_parameter_source("folder") is click.core.ParameterSource.COMMANDLINE:
        context.ensure_object(Session).workspace = folder
    return folder


def split_at_commas(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the parts of a list with commas; empty without the option. For ``callback``."""
    if text is None:
        return ()
    return tuple(name.strip() for name in text.split(","))


def make_workspace_option(
    default: str, help: str, *, envvar: str | None = None
) -> Callable[[Function], Function]:
    """Declare --workspace, which a function receives as ``folder``.

    Commands in messages repeat the option if the user gives it; see :class:`Session`.
    """
    return option(
        "-w",
        "--workspace",
        "folder",
        metavar="DIR",
        default=default,
        envvar=envvar,
        callback=_remember_workspace,
        help=help,
    )


workspace_option = make_workspace_option(
    ".rerank", "Workspace folder. Environment variable: RERANK_WORKSPACE.", envvar="RERANK_WORKSPACE"
)
json_option = option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
seed_option = option("--seed", metavar="N", type=NATURAL, default=0, help="Random seed.")
dry_run_option = option("--dry-run", is_flag=True, help="Show the result and change nothing.")

queries_option = option(
    "--queries", metavar="FILE", required=True, group="Input", help="Queries, JSON lines."
)
qrels_option = option(
    "--qrels", metavar="FILE", required=True, group="Input", help="Judgments, BEIR or TREC."
)
categories_option = option(
    "--categories", metavar="FILE", group="Input", help="Category graph, TSV of child and parent."
)
lang_option = option(
    "--lang",
    metavar="TEXT",
    group="Input",
    help="Language of the documents, for example en. Default: their `lang` field.",
)
ignore_categories_option = option(
    "--ignore-categories", is_flag=True, group="Input", help="Ignore the categories of the queries."
)


def measure_option(group: str) -> Callable[[Function], Function]:
    """Declare --measure, the measure that a command maximizes. group: section of the help."""
    return option(
        "--measure",
        metavar="NAME",
        default="nDCG@10",
        group=group,
        help="Measure to maximize: nDCG, RR or AP, with or without a cutoff.",
    )


def first_stage_option(
    *, group: str, default: str = "the first stage of the stack", runs: bool = False
) -> Callable[[Function], Function]:
    """Declare --first-stage. runs: the command also takes a TREC run in its place."""
    accepted = [*LEXICAL, "template:FILE"]
    if runs:
        accepted.append("run:FILE")
    return option(
        "--first-stage",
        metavar="NAME",
        group=group,
        help=f"First stage: {', '.join(accepted)}. Default: {default}.",
    )


retrieve_option = option(
    "--retrieve",
    metavar="NAME[:N],...",
    callback=split_at_commas,
    group="Candidates",
    help="Retrievers and depths: bm25,s2net:200. Default: of the stack.",
)


def filter_option(group: str) -> Callable[[Function], Function]:
    """Declare --filter, which a function receives as a tuple of conditions. group: section of the help."""
    return option(
        "--filter",
        metavar="CONDITION",
        multiple=True,
        group=group,
        help="Condition for documents, for example year>=2020. Repeatable.",
    )


def infer_option(group: str) -> Callable[[Function], Function]:
    """Declare --infer-categories and its opposite, which a function receives as ``infer``."""
    return option(
        "--infer-categories/--no-infer-categories",
        "infer",
        default=True,
        group=group,
        help="Infer the categories of queries without categories from their first candidates.",
    )


then_option = option(
    "--then",
    "cross_encoder",
    metavar="cross-encoder:FOLDER",
    group="Candidates",
    help="Model that orders the best documents again. Default: of the stack.",
)
top_option = option(
    "--top",
    metavar="N",
    type=COUNT,
    group="Candidates",
    help="Number of documents that the model orders. Default: 20.",
)
