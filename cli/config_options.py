"""Settings of trainings as options, ``--set`` and ``--config``: all from the families' configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rerank.config import Option, Options, options_of, over
from rerank.errors import InputError, RerankError, UsageError

from .hints import located

Families = Mapping[str, type[Options]]


class Command(click.Command):
    """A command whose options are settings of families, and more settings are given by ``--set``.

    families: name -> the options of its trainings.
    """

    def __init__(self, *args: Any, families: Families, **more: Any) -> None:
        self.families = families
        super().__init__(*args, **more)
        self.params += list(options(families).values())

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; messages name options only where this command has them."""
        try:
            return super().invoke(ctx)
        except RerankError as error:
            raise type(error)(located(str(error))) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and of one family the settings that are none."""
        super().format_options(ctx, formatter)
        for config in self.families.values() if len(self.families) == 1 else ():
            rows = [
                (f"{one.name} {_values(one)}", _help({"": one}, {"": config}))
                for one in options_of(config)
                if not one.common
            ]
            with formatter.section("Settings by --set NAME=VALUE, or in a --config FILE"):
                formatter.write_dl(rows)


def options(families: Families) -> dict[str, click.Option]:
    """Make the options for the common settings of families, and for all others."""
    common: dict[str, dict[str, Option]] = {}
    for family, config in families.items():
        for one in options_of(config):
            if one.common:
                common.setdefault(one.name, {})[family] = one
    made = {name: _option(name, of, families) for name, of in common.items()}
    presets = dict.fromkeys(name for one in families.values() for name in one.presets)
    if len(presets) > 1:
        made["preset"] = click.Option(
            ["--preset"], metavar="|".join(presets), help="settings to start from [default]"
        )
    made["settings"] = click.Option(
        ["--set", "settings"], metavar="NAME=VALUE", multiple=True, help="any other setting; repeatable"
    )
    made["file"] = click.Option(
        ["--config", "file"], metavar="FILE", help="settings in TOML, alike or in a table a family"
    )
    return made


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the settings of a call: of the file, of ``--set``, of the options; the last one counts."""
    found: dict[str, Any] = {}
    for text in values.get("settings", ()):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text!r} is not NAME=VALUE")
        found[name.strip().replace("-", "_")] = value.strip()
    context = click.get_current_context()
    assert isinstance(context.command, Command)
    own = options(context.command.families).keys() - {"preset", "settings", "file"}
    found |= {name: values[name] for name in own if values[name] not in (None, ())}
    file = _read(values["file"]) if values.get("file") else {}
    known = [one for config in context.command.families.values() for one in options_of(config)]
    for name, table in file.items():
        if isinstance(table, dict):
            left = over(table, found, known)
            file[name] = {name: value for name, value in left.items() if name not in found}
    return over(file, found, known)


def _read(file: str) -> dict[str, Any]:
    from rerank import config_file

    try:
        return config_file.load(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise InputError(f"{file}: no TOML ({error}); write name = value, a line each") from error


def _option(name: str, of: Mapping[str, Option], families: Families) -> click.Option:
    one, flag = next(iter(of.values())), name.replace("_", "-")
    text = _help(of, families)
    if one.kind is bool and not one.many:
        return click.Option([f"--{flag}/--no-{flag}"], default=None, help=text)
    return click.Option([f"--{flag}"], metavar=_values(one), help=text, multiple=one.many)


def _help(of: Mapping[str, Option], families: Families) -> str:
    """Return the help of an option: its meaning, its rankers, and its default, per family if they differ."""
    one = next(iter(of.values()))
    defaults = {family: _defaults(each, families[family]) for family, each in of.items()}
    shown = defaults.popitem()[1]
    if any(value != shown for value in defaults.values()):
        shown = "; ".join(f"{family} {_defaults(each, families[family])}" for family, each in of.items())
    who = f"{', '.join(one.only)}: " if one.only and len(of) == 1 else ""
    return f"{who}{one.help} [{shown}]"


def _values(one: Option) -> str:
    if one.metavar:
        return one.metavar
    if one.many:
        return "A,B,..."
    return "|".join(one.choices) or {int: "N", float: "X", bool: "true|false"}.get(one.kind, "TEXT")


def _defaults(one: Option, config: type[Options]) -> str:
    """The default, and those of presets where they differ: ``12, paper 20``."""
    shown = [_text(one.default)]
    for preset, values in config.presets.items():
        if values.get(one.name, one.default) != one.default:
            shown.append(f"{preset} {_text(values[one.name])}")
    return ", ".join(shown)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
