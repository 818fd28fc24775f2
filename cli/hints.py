"""The hints of messages in the command line's words: options and commands."""

from __future__ import annotations

from rerank.errors import Hint, render


def rendered(message: str) -> str:
    """Write a message as the user of a command reads it."""
    return render(message, _written)


def _written(hint: Hint) -> str:
    if hint.kind == "setting":
        return _option(hint.name)
    words = ["rerank", hint.name, *hint.arguments]
    for name, value in hint.settings.items():
        words += [_option(name)] if value is True else [_option(name), str(value)]
    return f"`{' '.join(words)}`"


def _option(name: str) -> str:
    return "-w" if name == "workspace" else f"--{name.replace('_', '-')}"
