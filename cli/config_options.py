"""Settings of trainings as options, and ``--config``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import click

from rerank.config import Option as Setting
from rerank.config import Options, options_of, over

from .options import Command, Option

Families = Mapping[str, type[Options]]


class SettingsCommand(Command):
    """A command with the settings of families as options.

    families: name -> its options.
    """

    def __init__(self, *args: Any, families: Families, **more: Any) -> None:
        self.families = families
        super().__init__(*args, **more)

    def chosen(self, args: list[str]) -> tuple[str, ...]:
        """Families whose settings are options."""
        return tuple(self.families)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Choose families, then read the options."""
        ctx.meta[__name__] = self.chosen(args)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Options of the command and of the families."""
        return [
            *self._settings(ctx.meta.get(__name__, tuple(self.families))).values(),
            *super().get_params(ctx),
        ]

    @cache  # noqa: B019
    def _settings(self, names: tuple[str, ...]) -> dict[str, Option]:
        known: dict[str, dict[str, Setting]] = {}
        for family in names:
            for one in options_of(self.families[family]):
                known.setdefault(one.name, {})[family] = one
        group = f"Settings of {', '.join(names)}"
        return {name: self._option(name, of, group) for name, of in known.items()}

    def _option(self, name: str, of: Mapping[str, Setting], group: str) -> Option:
        one, flag = next(iter(of.values())), name.replace("_", "-")
        about: dict[str, Any] = {"group": group, "help": self._help(of)}
        if one.kind is bool and not one.many:
            return Option([f"--{flag}/--no-{flag}", name], default=None, **about)
        return Option([f"--{flag}", name], metavar=_values(one), multiple=one.many, **about)

    def _help(self, of: Mapping[str, Setting]) -> str:
        one = next(iter(of.values()))
        defaults = {family: _defaults(each, self.families[family]) for family, each in of.items()}
        same = len(set(defaults.values())) == 1
        shown = defaults[next(iter(of))] if same else "; ".join(map(" ".join, defaults.items()))
        only = f"{', '.join(one.only)}: " if one.only and len(of) == 1 else ""
        return f"{only}{one.help.rstrip('.')}. Default: {shown}."


def settings(values: dict[str, Any], file: str | None) -> dict[str, Any]:
    """Remove the settings of the running command from its options and return them; they override the file."""
    from rerank import config_file

    context = click.get_current_context()
    assert isinstance(context.command, SettingsCommand)
    known = [one for name in context.meta[__name__] for one in options_of(context.command.families[name])]
    given = {name: values.pop(name) for name in {one.name for one in known}}
    found = {name: value for name, value in given.items() if value not in (None, ())}
    return over(config_file.load(file) if file else {}, found, known)


def _values(one: Setting) -> str:
    if one.metavar:
        return one.metavar
    if one.many:
        return "A,B,..."
    return "|".join(one.choices) or {int: "N", float: "X"}.get(one.kind, "TEXT")


def _defaults(one: Setting, config: type[Options]) -> str:
    """Defaults, also of presets: ``12 (paper: 20)``."""
    others = [
        f"{preset}: {_text(values[one.name])}"
        for preset, values in config.presets.items()
        if values.get(one.name, one.default) != one.default
    ]
    return _text(one.default) + (f" ({', '.join(others)})" if others else "")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
