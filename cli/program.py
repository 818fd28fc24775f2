"""The command ``rerank``: subcommands, errors, exit codes."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from importlib import import_module
from typing import Any, NoReturn

import click

from rerank.errors import NotInstalledError, RerankError, UsageError

from . import INTERRUPTED, ignore_interrupts, output
from .output import escape_terminal, remark, with_workspace_option

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
_DEBUG = "RERANK_DEBUG"
_QUIET = ("-q", "--quiet")


class _Commands(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``rerank help query`` as ``rerank query --help``."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Accept --quiet after the command."""
        end = args.index("--") if "--" in args else len(args)
        ctx.params["quiet"] |= any(word in _QUIET for word in args[:end])
        rest = [word for word in args[:end] if word not in _QUIET] + args[end:]
        if rest and rest[0] not in COMMANDS and not rest[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(rest[0].lower(), COMMANDS, 1)
            question = f"; did you mean {close[0]}?" if close else ""
            raise click.UsageError(f"unknown command {rest[0]!r}{question}", ctx)
        return super().resolve_command(ctx, rest)

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
def cli(quiet: bool) -> None:
    """Rerank BM25 or tf-idf results with small models trained on your own judgments.

    Start with `rerank demo`. Every command has --help, and --json for programs.
    """
    output.quiet = quiet


def run() -> None:
    """Run the command line; an error becomes one line on stderr.

    Raises SystemExit: 1 failure, 2 wrong usage, 130 Ctrl-C. RERANK_DEBUG=1 prints the traceback.
    """
    show_once()
    escape_terminal()
    try:
        cli(standalone_mode=False)
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
        _fail(*_described(error))
    finally:
        output.workspace = None


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message().rstrip(". ")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message}{' See' if message.endswith('?') else '; see'} `{context.command_path} --help`"


def _described(error: BaseException) -> tuple[str, int]:
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        ignore_interrupts()
        message = str(error) or str(error.__cause__ or "")  # click raises an Abort without a message
        return with_workspace_option(message) or "interrupted", INTERRUPTED
    if isinstance(error, RerankError):
        return with_workspace_option(str(error)), 2 if isinstance(error, UsageError) else 1
    if isinstance(error, ModuleNotFoundError) and (missing := NotInstalledError.of(error)) is not None:
        return str(missing), 1
    if isinstance(error, OSError):
        from rerank.files import trouble

        where = f"{error.filename}: " if error.filename else ""
        known = trouble(error, "rerank")
        return with_workspace_option(str(known)) if known else f"{where}{error.strerror or error}", 1
    if isinstance(error, MemoryError):
        return "out of memory; use fewer documents at a time or a machine with more memory", 1
    place = traceback.extract_tb(error.__traceback__)[-1]
    name = traceback.format_exception_only(type(error), error)[-1].strip()
    where = f"{place.filename}:{place.lineno}"
    return f"unexpected {name} ({where}), a bug in rerank; {_DEBUG}=1 shows the traceback", 1


def _fail(message: str, code: int) -> NoReturn:
    if os.environ.get(_DEBUG):
        traceback.print_exc()
    remark(f"rerank: {' '.join(message.split())}")
    sys.exit(code)


def show_once() -> None:
    """Show each warning once, in one line."""
    if warnings.showwarning.__name__ == "show_here":
        return
    others, shown = warnings.showwarning, set()

    def show_here(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if not category.__module__.startswith(("opensearchpy", "rerank.")):
            others(message, category, *where, **options)
        elif str(message) not in shown:
            shown.add(str(message))
            remark(f"warning: {' '.join(str(message).split())}")

    warnings.showwarning = show_here
