"""``rerank.toml``, the settings of a workspace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from rerank.common.errors import InputError, UsageError
from rerank.documents.text import language
from rerank.engines.base import FIRST_STAGES

FORMAT = 1
_LONGEST = 32_768  # bytes; long names take minutes and gigabytes


class ExperimentSettings(Struct, forbid_unknown_fields=True):
    """``[experiment]``: two stacks whose results the service interleaves.

    name:  of the experiment, in the log.
    a, b:  stacks, as a request names them, or ``first stage``.
    share: of the clients whose results are interleaved.
    """

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    a: Annotated[str, Meta(min_length=1, max_length=1000)]
    b: Annotated[str, Meta(min_length=1, max_length=1000)]
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0


class Config(Struct, forbid_unknown_fields=True):
    """The settings, without engines' tables."""

    format: int
    engine: str = "local"
    lang: str = ""
    first_stage: str = FIRST_STAGES[0]
    words: list[Annotated[str, Meta(min_length=1)]] = []
    experiment: ExperimentSettings | None = None


def render_settings(
    lang: str | None, engine: str, settings: Mapping[str, Any], first_stages: Sequence[str]
) -> str:
    """Return the text of ``rerank.toml`` for a new workspace.

    lang:         language of the documents; None if it is unknown or mixed.
    engine:       name of the engine.
    settings:     the table of the engine; mappings in it become separate tables.
    first_stages: the first stages of the engine; the first one is the default.
    """
    lines = [
        "# Made by rerank. The language is fixed once documents are indexed.",
        f"format = {FORMAT}",
        f'engine = "{engine}"',
        f'lang = "{lang or ""}"          # empty: unknown or mixed',
        f'first_stage = "{first_stages[0]}"  # used by stacks without a lexical signal: bm25 or tfidf',
    ]
    tables: dict[str, dict[str, Any]] = {engine: {}}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            tables[f"{engine}.{name}"] = dict(value)
        else:
            tables[engine][name] = value
    for title, table in tables.items():
        if table:
            lines += ["", f"[{title}]"]
            lines += [f"{name} = {_quoted(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def experiment_settings(config: Mapping[str, Any]) -> ExperimentSettings | None:
    """Return the experiment of the service, or None. config: valid settings."""
    return convert(config["experiment"], ExperimentSettings) if "experiment" in config else None


def validate_settings(config: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for an unknown setting, or one with a wrong type or value.

    config: the content of the file. file: its path, for messages.
    """
    tables = {"opensearch", "local", str(config.get("engine", "local"))} - {*Config.__struct_fields__}
    for name in tables & {*config}:
        if not isinstance(config[name], dict):
            raise UsageError(f"{file}: {name} = {config[name]!r} is not a table of settings; write [{name}]")

    values = {name: value for name, value in config.items() if name not in tables}
    try:
        settings = convert(values, Config)
        language(settings.lang or None)
    except (ValidationError, UsageError) as error:
        names = ", ".join((*Config.__struct_fields__, *sorted(tables)))
        raise UsageError(f"{file}: {error}; the settings are {names}") from error
    _check_first_stage(settings.first_stage, file)


def _check_first_stage(first_stage: str, file: Path) -> None:
    """Raise UsageError for a first stage that is neither a lexical signal nor a search of the user."""
    if first_stage in FIRST_STAGES or first_stage.startswith("template:"):
        return
    raise UsageError(
        f"{file}: {first_stage!r} is not a first stage: use {', '.join(FIRST_STAGES)}, template:FILE"
    )


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def load(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a settings file of at most 32 KiB. Raises InputError, whose cause is the error of the system."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(_LONGEST + 1)
        if len(data) > _LONGEST:
            raise ValueError(f"more than {_LONGEST:,} bytes")
        return read(data.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check the path") from error
    except ValueError as error:
        raise InputError(f"{file}: cannot be read as TOML ({error}); correct it") from error


def read(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError, also for nested values that exhaust the stack, and the character 0."""
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        config: dict[str, Any] = tomllib.loads(text)
        if "\\u0000" in json.dumps(config, default=str):
            raise ValueError("it has the character 0")
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return config
