"""The command ``rerank``: subcommands, errors, exit codes."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from importlib import import_module
from typing import NoReturn, TextIO

import click

from rerank.common.errors import NotInstalledError, RerankError, UsageError, did_you_mean
from rerank.common.values import items_not_in

from . import INTERRUPTED, ignore_interrupts
from .output import Session, escape_terminal, remark

COMMANDS = {
    "demo": "Run all steps on the bundled collection.",
    "auto": "Build and measure a tuned stack from a folder of files.",
    "ingest": "Add, update or remove documents.",
    "attach": "Use an existing OpenSearch index.",
    "train": "Train rankers on judged queries, pairs or links.",
    "pairs": "Score pairs of documents and compare the scores with labels.",
    "judge": "Make judgments from clicks and by hand.",
    "tune": "Find the weights of a stack.",
    "stack": "Activate, promote and roll back stacks.",
    "query": "Rank documents for one query.",
    "rank": "Rank documents for each query of a file.",
    "serve": "Run the HTTP service.",
    "hook": "Rerank the searches of an OpenSearch index.",
    "evaluate": "Measure stacks against a baseline, with significance.",
    "encode": "Compute missing features of the trained rankers.",
    "status": "Show the contents of a workspace.",
    "show": "Show documents as they are stored.",
    "remove": "Remove a ranker or a version of it.",
}
_DEBUG_VARIABLE = "RERANK_DEBUG"
_QUIET_NAMES = ("-q", "--quiet")


class _Commands(click.Group):
    """The group of all commands. The module of a command is imported when the command is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``rerank help query`` as ``rerank query --help``."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. --quiet is also accepted after it, and similar names are suggested."""
        end_of_options = args.index("--") if "--" in args else len(args)
        options = args[:end_of_options]
        if not set(_QUIET_NAMES).isdisjoint(options):
            ctx.params["quiet"] = True
        remaining = items_not_in(options, _QUIET_NAMES) + args[end_of_options:]
        if remaining:
            _check_command(remaining[0], ctx)
        return super().resolve_command(ctx, remaining)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{cmd_name}", __package__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):  # imports no command
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rerank-stack", prog_name="rerank", help="Show the version.")
@click.option("-q", "--quiet", is_flag=True, help="Print only results and errors.")
@click.pass_context
def cli(context: click.Context, /, quiet: bool) -> None:
    """Rerank BM25 or tf-idf results with small models trained on your own judgments.

    Start with `rerank demo`. Every command has --help, and --json for programs.
    """
    context.ensure_object(Session).quiet = quiet


def _check_command(name: str, context: click.Context) -> None:
    """Raise UsageError for an unknown command."""
    if name in COMMANDS or name.startswith("-"):
        return
    question = did_you_mean(name.lower(), COMMANDS)
    raise click.UsageError(f"unknown command {name!r}{question}", context)


def run() -> None:
    """Run the command line; an error becomes one line on stderr.

    Raises SystemExit: 1 failure, 2 wrong usage, 130 Ctrl-C. RERANK_DEBUG=1 prints the traceback.
    """
    show_once()
    escape_terminal()
    session = Session()
    try:
        cli(standalone_mode=False, obj=session)
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2: only `rerank`
            error.show()
            sys.exit(error.exit_code)
        _fail(_usage_message(error), error.exit_code)
    except SystemExit:
        raise
    except BrokenPipeError:  # the reader has ended (`rerank query ... | head`)
        sys.stderr.close()
        sys.exit(141)
    except BaseException as error:  # a panic of an extension module is not an Exception
        message, exit_code = _describe(error)
        _fail(session.with_workspace_option(message), exit_code)


def _usage_message(error: click.ClickException) -> str:
    """Return the message of an error in the command line, with the help to read."""
    message = error.format_message().rstrip(". ")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    see = " See" if message.endswith("?") else "; see"
    return f"{message}{see} `{context.command_path} --help`"


def _describe(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code of an error."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        ignore_interrupts()
        message = str(error) or str(error.__cause__ or "")  # click raises an Abort without a message
        return message or "interrupted", INTERRUPTED
    if isinstance(error, UsageError):
        return str(error), 2
    if isinstance(error, RerankError):
        return str(error), 1
    return _describe_other_error(error), 1


def _describe_other_error(error: BaseException) -> str:
    """Return the message of an error that is not raised by rerank."""
    if isinstance(error, ModuleNotFoundError):
        not_installed = NotInstalledError.of(error)
        if not_installed is not None:
            return str(not_installed)
    if isinstance(error, OSError):
        return _describe_system_error(error)
    if isinstance(error, MemoryError):
        return "out of memory; use fewer documents at a time or a machine with more memory"
    return _describe_bug(error)


def _describe_bug(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    name = traceback.format_exception_only(type(error), error)[-1].strip()
    location = f"{frame.filename}:{frame.lineno}"
    return f"unexpected {name} ({location}), a bug in rerank; {_DEBUG_VARIABLE}=1 shows the traceback"


def _describe_system_error(error: OSError) -> str:
    from rerank.common.files import as_system_error, system_reason

    explained = as_system_error(error, "rerank")
    if explained is not None:
        return str(explained)
    location = f"{error.filename}: " if error.filename else ""
    return f"{location}{system_reason(error)}"


def _fail(message: str, exit_code: int) -> NoReturn:
    if os.environ.get(_DEBUG_VARIABLE):
        traceback.print_exc()
    remark(f"rerank: {' '.join(message.split())}")
    sys.exit(exit_code)


def show_once() -> None:
    """Show each warning of rerank and of its client for OpenSearch once, in one line."""
    if warnings.showwarning.__name__ == "show_in_one_line":
        return
    default_showwarning = warnings.showwarning
    shown: set[str] = set()

    def show_in_one_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not category.__module__.startswith(("opensearchpy", "rerank.")):
            default_showwarning(message, category, filename, lineno, file, line)
        elif str(message) not in shown:
            shown.add(str(message))
            remark(f"warning: {' '.join(str(message).split())}")

    warnings.showwarning = show_in_one_line
