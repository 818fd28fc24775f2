"""Options and commands in messages, as the user can type them."""

from __future__ import annotations

import re
import shlex

import click

workspace: str | None = None
"""The folder that the running command was told to work in."""

_COMMAND = re.compile(r"`rerank [^`]+`")
_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z][a-z-]*)( [\d.]*\d| [\w-]+(?=[;,.)]|$))?")


def suggested(*words: str) -> str:
    """A command as the user can paste it, with the workspace of the running command."""
    return located(f"`{' '.join(map(shlex.quote, ['rerank', *words]))}`")


def located(message: str) -> str:
    """Complete the options and commands of a message for the running command.

    Commands get its workspace. Settings that are not options of it are given by ``--set NAME=VALUE``.

    >>> located("run `rerank encode`")
    'run `rerank encode`'
    """
    context = click.get_current_context(silent=True)
    options = {text for one in context.command.params for text in one.opts} if context else set()
    if "--set" in options:
        message = _OPTION.sub(lambda found: _set(found, options), message)
    if workspace is not None:
        added = f" -w {shlex.quote(workspace)}`"
        message = _COMMAND.sub(lambda found: _with(found[0], added), message)
    return message


def _with(command: str, added: str) -> str:
    return command if " -w " in command else command[:-1] + added


def _set(found: re.Match[str], options: set[str]) -> str:
    name, value = found[1], found[2]
    if name is None or f"--{name}" in options:
        return found[0]
    return f"--set {name.replace('-', '_')}={value.strip() if value else 'VALUE'}"
