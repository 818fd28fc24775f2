"""The command line: one module per command, no logic of its own.

Commands are imported when they are called, so that ``rerank --help`` and ``rerank query`` start fast.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from importlib import import_module
from typing import Any, NoReturn

import click

from rerank.errors import NotInstalledError, RerankError, UsageError

from . import INTERRUPTED, hints, ignore_interrupts, output
from .hints import located
from .output import protect, remark

COMMANDS = {
    "demo": "Run the whole path on a collection that comes with the package.",
    "auto": "From a folder of files to a tuned, measured stack.",
    "ingest": "Add, update or remove documents.",
    "attach": "Use an OpenSearch index as it is.",
    "train": "Train rankers on judged queries, or on links.",
    "mine": "Show what a training on links would learn from.",
    "pairs": "Say how related documents are, and how well that agrees with labels.",
    "tune": "Find the weights of a stack.",
    "stack": "List the stacks, and choose the stack that is in use.",
    "promote": "Put a tuned stack in use, if it is not worse than the one in use.",
    "rollback": "Put the stack in use that was in use before.",
    "query": "Rank documents for one query.",
    "serve": "Answer over HTTP.",
    "hook": "Rerank the searches of an OpenSearch index.",
    "evaluate": "Measure stacks against a baseline, with significance.",
    "report": "Write an HTML page on an evaluation.",
    "compare": "Compare runs of any systems, with significance.",
    "encode": "Compute missing features of the trained rankers.",
    "compact": "Reclaim the disk space of deleted documents.",
    "status": "Show what a workspace holds.",
}

_DEBUG = "RERANK_DEBUG"


_LOUDNESS = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}


_SAID = f"{__name__}.loudness"

_SYNONYMS = {
    **dict.fromkeys(("search", "find", "rank", "rerank"), "query"),
    **dict.fromkeys(("index", "add", "import", "delete"), "ingest"),
    **dict.fromkeys(("fit", "learn"), "train"),
    **dict.fromkeys(("info", "list", "show"), "status"),
}
"""Words that users try as commands -> the command."""


_DEPTH = "give the number of candidates with --protocol retrieved:N"
_TEMPLATE = "give a template with --first-stage template:FILE"
_NO_OPTIONS = {
    ("evaluate", "--depth"): f"evaluate has no --depth: {_DEPTH}",
    ("evaluate", "--template"): f"evaluate has no --template: {_TEMPLATE}",
    ("report", "--depth"): f"report repeats the last evaluation: run `rerank evaluate` first, and {_DEPTH}",
    (
        "report",
        "--template",
    ): f"report repeats the last evaluation: run `rerank evaluate` first, and {_TEMPLATE}",
}
"""Options that users try -> what to do instead."""


class _Commands(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``rerank help query`` as ``rerank query --help``."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Hear --quiet and --verbose behind the command, too: nobody remembers which options go first."""
        end = args.index("--") if "--" in args else len(args)
        said = [one for one in args[:end] if one in _LOUDNESS]
        ctx.meta[_SAID] = [_LOUDNESS[one] for one in said]
        rest = [one for one in args[:end] if one not in said] + args[end:]
        try:
            return super().resolve_command(ctx, rest)
        except click.UsageError as error:
            if not rest or rest[0] in COMMANDS:
                raise
            meant = _similar_command(rest[0])
            question = f"; did you mean {meant}?" if meant else ""
            raise click.UsageError(f"there is no command {rest[0]!r}{question}", error.ctx) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f".{cmd_name}", __package__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Without importing any of them.
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _similar_command(word: str) -> str | None:
    """Return the command that a word probably stands for."""
    from difflib import get_close_matches

    names = {**_SYNONYMS, **{name: name for name in COMMANDS}}
    matches = get_close_matches(word.lower(), names, 1)
    return names[matches[0]] if matches else None


def _usage_message(error: click.ClickException) -> str:
    """Describe a usage error in one line."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(". ")
    if context is None:
        return message
    if isinstance(error, click.MissingParameter):
        message = _missing(context)
    elif isinstance(error, click.NoSuchOption):
        message = _NO_OPTIONS.get((context.info_name or "", error.option_name), message)
    return f"{message}{'' if message.endswith('?') else ';'} see `{context.command_path} --help`"


def _missing(context: click.Context) -> str:
    """Name all arguments and options that are missing; click names the first one only."""
    names = [
        one.make_metavar(context) if isinstance(one, click.Argument) else one.opts[0]
        for one in context.command.params
        if one.required and one.name not in context.params
    ]
    return f"missing {' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}"


def _version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked:
        from rerank import __version__

        click.echo(f"rerank, version {__version__}")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only results and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Also print each step and how long it took.")
@click.pass_context
def cli(context: click.Context, /, quiet: bool, verbose: bool) -> None:
    """Rerank what BM25 or tf-idf retrieves, with signals learned from your own data.

    Start with `rerank demo`. Every command takes --help, and --json for output that programs read.
    """
    said = {*context.meta.get(_SAID, ()), *["quiet"] * quiet, *["verbose"] * verbose}
    if len(said) > 1:
        raise click.UsageError("--quiet and --verbose are opposites; leave one out", context)
    output.loudness = next(iter(said), "normal")


def run() -> None:
    """Run the command line; an error becomes one line on stderr and SystemExit.

    Exit codes: 1 for a failure, 2 for usage, 130 after ctrl-C. RERANK_DEBUG=1 also shows the traceback.
    """
    show_once()
    protect()
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2: plain `rerank`
            error.show()
            sys.exit(error.exit_code)
        _fail(_usage_message(error), error.exit_code)
    except SystemExit:
        raise
    except BrokenPipeError:
        # The reader of our output has ended (`rerank query ... | head`).
        sys.stderr.close()
        sys.exit(141)
    except BaseException as error:  # a panic of an extension module is no Exception
        _fail(*_described(error))
    finally:
        hints.workspace = None


def _described(error: BaseException) -> tuple[str, int]:
    """Return the message of an error and its exit code."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        ignore_interrupts()
        message = str(error) or str(error.__cause__ or "")  # click raises an Abort without a message
        return located(message) or "interrupted", INTERRUPTED
    if isinstance(error, RerankError):
        return located(str(error)), 2 if isinstance(error, UsageError) else 1
    if isinstance(error, ModuleNotFoundError) and (missing := NotInstalledError.of(error)) is not None:
        return str(missing), 1
    if isinstance(error, OSError):
        from rerank.files import trouble

        where = f"{error.filename}: " if error.filename else ""
        known = trouble(error, "rerank")
        return located(str(known)) if known else f"{where}{error.strerror or error}", 1
    if isinstance(error, MemoryError):
        return "out of memory; use fewer documents at a time or a machine with more", 1
    return _unforeseen(error), 1


def show_once() -> None:
    """Show what OpenSearch and we warn of in one line, once: the client says it with every request."""
    if warnings.showwarning.__name__ == "show_here":
        return
    others, seen = warnings.showwarning, set()

    def show_here(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if not category.__module__.startswith(("opensearchpy", "rerank.")):
            others(message, category, *where, **options)
        elif str(message) not in seen:
            seen.add(str(message))
            remark(f"warning: {' '.join(str(message).split())}")

    warnings.showwarning = show_here


def _unforeseen(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = traceback.format_exception_only(type(error), error)[-1].strip()
    where = f"the traceback is in {written}" if (written := _write_down(error)) else f"{_DEBUG}=1 shows where"
    return f"unforeseen {what} ({place.filename}:{place.lineno}), a mistake in rerank; {where}"


def _write_down(error: BaseException) -> str | None:
    """Write the traceback to a file that only its owner can read; its name, or None where that fails."""
    import tempfile

    try:
        number, path = tempfile.mkstemp(".txt", "rerank-error-")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(type(error), error, error.__traceback__, file=file)
    except Exception:  # the disk may be full, too: then the line alone has to do
        return None
    return path


def _fail(message: str, code: int) -> NoReturn:
    if os.environ.get(_DEBUG):
        traceback.print_exc()
    remark(f"rerank: {' '.join(message.split())}")
    sys.exit(code)
