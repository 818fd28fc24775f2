"""The hints of messages in the command line's words: options and commands."""

from __future__ import annotations

import shlex

import click

from rerank.errors import Hint, render


def rendered(message: str) -> str:
    """Write a message as the user of a command reads it."""
    return render(message, _written)


def _written(hint: Hint) -> str:
    if hint.kind == "setting":
        option = _option(hint.name)
        if not hint.arguments:
            return option
        value = shlex.quote(hint.arguments[0])
        return option.replace("VALUE", value) if option.startswith("--set ") else f"{option} {value}"
    words = ["rerank", hint.name, *map(shlex.quote, hint.arguments)]
    for name, value in hint.settings.items():
        words += [_option(name)] if value is True else [_option(name), shlex.quote(str(value))]
    return f"`{' '.join(words)}`"


def _option(name: str) -> str:
    """As the running command takes it: ``--rate``, or ``--set rate=VALUE`` where that is no option of it."""
    if name == "workspace":
        return "-w"
    option = f"--{name.replace('_', '-')}"
    context = click.get_current_context(silent=True)
    there = {text for one in context.command.params for text in one.opts} if context else set()
    return f"--set {name}=VALUE" if "--set" in there and option not in there else option
