"""The hints of messages in the command line's words: options and commands."""

from __future__ import annotations

import shlex

import click

from rerank.errors import Hint, render


def rendered(message: str) -> str:
    """Write a message as the user of a command reads it."""
    return render(message, _written)


workspace: str | None = None
"""The folder that the running command was told to work in."""


def suggested(*words: str) -> str:
    """A command as the user can paste it: for the workspace of the running one, where that was named."""
    named = ["-w", workspace] if workspace is not None and "-w" not in words else []
    return f"`{' '.join(map(shlex.quote, ['rerank', *words, *named]))}`"


def _written(hint: Hint) -> str:
    if hint.kind == "setting":
        option = _option(hint.name)
        if not hint.arguments:
            return option
        value = shlex.quote(hint.arguments[0])
        return option.replace("VALUE", value) if option.startswith("--set ") else f"{option} {value}"
    words = [*hint.name.split(), *hint.arguments]
    for name, value in hint.settings.items():
        words += [_option(name)] if value is True else [_option(name), str(value)]
    return suggested(*words)


def _option(name: str) -> str:
    """As the running command takes it: ``--rate``, or ``--set rate=VALUE`` where that is no option of it."""
    if name == "workspace":
        return "-w"
    option = f"--{name.replace('_', '-')}"
    context = click.get_current_context(silent=True)
    there = {text for one in context.command.params for text in one.opts} if context else set()
    return f"--set {name}=VALUE" if "--set" in there and option not in there else option
