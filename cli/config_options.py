"""Options for the settings of trainings and of the service, and ``--config``.

A setting is a field of a configuration class of the library, with its type, default and help
(``rerank/common/config.py``). A command gets one option for each setting of its configuration classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from rerank.common.config import Option as Setting
from rerank.common.config import Options, merge_options, options_of

from .options import GroupedOption

Configurations = Mapping[str, type[Options]]
"""Name, such as a family of rankers -> its configuration class."""


_METAVARS: Mapping[object, str] = {int: "N", float: "X"}
"""Type of a value -> its form in the help; other values are texts."""


def setting_options(configurations: Configurations) -> list[GroupedOption]:
    """Return an option for each setting, all in one group. Equal names share one option."""
    settings_by_name: dict[str, dict[str, Setting]] = {}
    for family, configuration in configurations.items():
        for setting in options_of(configuration):
            settings_by_name.setdefault(setting.name, {})[family] = setting
    group = f"Settings of {', '.join(configurations)}"
    return [_setting_option(settings, configurations, group) for settings in settings_by_name.values()]


def _setting_option(
    settings: Mapping[str, Setting], configurations: Configurations, group: str
) -> GroupedOption:
    """Return the option for the settings of one name, one for each family that has it."""
    setting = next(iter(settings.values()))
    flag = setting.name.replace("_", "-")
    help_text = _describe(settings, configurations)
    if setting.kind is bool and not setting.is_list:
        return GroupedOption(
            [f"--{flag}/--no-{flag}", setting.name], default=None, group=group, help=help_text
        )
    return GroupedOption(
        [f"--{flag}", setting.name],
        metavar=_metavar(setting),
        multiple=setting.is_list,
        group=group,
        help=help_text,
    )


def given_settings(
    values: Mapping[str, object], configurations: Configurations, file: str | None = None
) -> dict[str, Any]:
    """Return the settings that the user chose on the command line or in a TOML file.

    values: name -> value of all options of :func:`setting_options`; None or () if an option is missing.
    file:   of --config; the options override it.
    """
    from rerank.workspace import config_file

    from_file = config_file.load(file) if file else {}
    from_options = {name: value for name, value in values.items() if value not in (None, ())}
    settings = chain.from_iterable(map(options_of, configurations.values()))
    return merge_options(from_file, from_options, settings)


def _describe(settings: Mapping[str, Setting], configurations: Configurations) -> str:
    """Return the help: the rankers that have the setting, its meaning, and its defaults."""
    setting = next(iter(settings.values()))
    rankers = ""
    if setting.only and len(settings) == 1:
        rankers = f"{', '.join(setting.only)}: "
    defaults = _describe_defaults(settings, configurations)
    return f"{rankers}{setting.help.rstrip('.')}. Default: {defaults}."


def _describe_defaults(settings: Mapping[str, Setting], configurations: Configurations) -> str:
    """Return the default of each family, or the only one if all families have the same."""
    defaults: dict[str, str] = {}
    for family, setting in settings.items():
        defaults[family] = _describe_default(setting, configurations[family])
    if len(set(defaults.values())) == 1:
        return next(iter(defaults.values()))
    return "; ".join(f"{family} {default}" for family, default in defaults.items())


def _metavar(setting: Setting) -> str:
    """Return the form of the value, such as ``N`` or ``cosine|mlp``."""
    if setting.metavar:
        return setting.metavar
    if setting.is_list:
        return "A,B,..."
    if setting.choices:
        return "|".join(setting.choices)
    return _METAVARS.get(setting.kind, "TEXT")


def _describe_default(setting: Setting, configuration: type[Options]) -> str:
    """Return the default, also of presets: ``12 (paper: 20)``."""
    default_text = _value_text(setting.default)
    preset_texts: list[str] = []
    for preset, values in configuration.presets.items():
        value = values.get(setting.name, setting.default)
        if value != setting.default:
            preset_texts.append(f"{preset}: {_value_text(value)}")
    return f"{default_text} ({', '.join(preset_texts)})" if preset_texts else default_text


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
