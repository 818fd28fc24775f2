"""Settings of trainings as options, and ``--config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rerank.config import Option as Setting
from rerank.config import Options, merge_options, options_of

from .options import Option

Families = Mapping[str, type[Options]]
"""Family -> its settings."""


def options_for(families: Families) -> list[Option]:
    """Options for the settings of families, in one group."""
    known: dict[str, dict[str, Setting]] = {}
    for family, config in families.items():
        for one in options_of(config):
            known.setdefault(one.name, {})[family] = one
    group = f"Settings of {', '.join(families)}"
    return [_option(name, of, group=group, help=_help(of, families)) for name, of in known.items()]


def settings(values: dict[str, Any], families: Families, file: str | None = None) -> dict[str, Any]:
    """Remove the settings from the options of a command and return them; they override the file."""
    from rerank import config_file

    known = [one for config in families.values() for one in options_of(config)]
    given = {name: values.pop(name) for name in {one.name for one in known}}
    found = {name: value for name, value in given.items() if value not in (None, ())}
    return merge_options(config_file.load(file) if file else {}, found, known)


def _option(name: str, of: Mapping[str, Setting], **about: Any) -> Option:
    one, flag = next(iter(of.values())), name.replace("_", "-")
    if one.kind is bool and not one.many:
        return Option([f"--{flag}/--no-{flag}", name], default=None, **about)
    return Option([f"--{flag}", name], metavar=_values(one), multiple=one.many, **about)


def _help(of: Mapping[str, Setting], families: Families) -> str:
    one = next(iter(of.values()))
    defaults = {family: _defaults(each, families[family]) for family, each in of.items()}
    same = len(set(defaults.values())) == 1
    shown = defaults[next(iter(of))] if same else "; ".join(map(" ".join, defaults.items()))
    only = f"{', '.join(one.only)}: " if one.only and len(of) == 1 else ""
    return f"{only}{one.help.rstrip('.')}. Default: {shown}."


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
