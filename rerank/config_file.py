"""``rerank.toml``, the settings of a workspace: written once, edited by hand, checked when it is read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rerank.engines.base import FIRST_STAGES
from rerank.errors import UsageError
from rerank.text import language

FORMAT = 1
DEEPEST = 20
"""Tables and lists within each other."""

LONGEST = 32_768
"""Bytes of a file of settings: a name of 100,000 parts would take a minute, and gigabytes."""


def written(lang: str | None, engine: str, settings: Mapping[str, Any], first_stages: Sequence[str]) -> str:
    """Write the settings of a new workspace as text."""
    first_stage = "tfidf" if "tfidf" in first_stages else first_stages[0]
    lines = [
        "# Made by rerank. The language is fixed once documents are indexed.",
        f"format = {FORMAT}",
        f'engine = "{engine}"',
        f'lang = "{lang or ""}"          # empty: unknown or mixed',
        f'first_stage = "{first_stage}"  # retrieves where a stack names no lexical signal: tfidf or bm25',
    ]
    parts = {name: part for name, part in settings.items() if isinstance(part, Mapping)}
    tables = {engine: {name: value for name, value in settings.items() if name not in parts}}
    for name, table in (tables | {f"{engine}.{name}": part for name, part in parts.items()}).items():
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {_quoted(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def changed(text: str, table: str, values: Mapping[str, Any]) -> str:
    """Return the text of a file of settings with other values in one table; comments stay.

    Raises ValueError if a value cannot be replaced, because it is written over several lines.
    """
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.strip() == f"[{table}]"), None)
    if begin is None:
        raise ValueError(f"there is no table [{table}]")
    end = next((i for i in range(begin + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    for name, value in values.items():
        line = f"{name} = {_quoted(value)}"
        place = next((i for i in range(begin, end) if lines[i].partition("=")[0].strip() == name), None)
        if place is None:
            lines.insert(begin + 1, line)
            end += 1
        else:
            lines[place] = line
    made = "\n".join(lines) + "\n"
    before = read(text)
    if read(made) != {**before, table: {**before[table], **values}}:
        raise ValueError(f"the table [{table}] is written over several lines")
    return made


def check(config: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for a setting that there is not, or a value that it cannot have."""
    engine = config.get("engine", "local")
    tables = ("opensearch", "local", engine)
    known = {"format": int, "engine": str, "lang": str, "first_stage": str, "words": list}
    _check_texts(config, file)
    for name, value in config.items():
        if name in tables and name not in known:
            if not isinstance(value, dict):
                raise UsageError(f"{file}: {name} = {value!r} is no table of settings")
            continue
        if name not in known:
            raise UsageError(f"{file}: {name!r} is no setting; there are {', '.join((*known, str(engine)))}")
        if not isinstance(value, known[name]):
            raise UsageError(f"{file}: {name} = {value!r} is not of type {known[name].__name__}")
    if not all(isinstance(field, str) and field for field in config.get("words", ())):
        raise UsageError(f"{file}: words = {config['words']!r} is no list of fields of the index")
    try:
        language(config.get("lang") or None)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    first = config.get("first_stage", "tfidf")
    if first not in FIRST_STAGES and not first.startswith(("template:", "stored:")):
        raise UsageError(
            f"{file}: {first!r} is no first stage; choose one of {', '.join(FIRST_STAGES)}, template:FILE and"
            " stored:ID"
        )


def _check_texts(value: object, file: Path) -> None:
    """Raise UsageError for a text that no name, path or address can be."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _check_texts(one, file)
    elif isinstance(value, str) and "\0" in value:
        raise UsageError(f"{file}: {value!r} has the character 0, which no name has; take it out")


def _quoted(value: object) -> str:
    """A value in TOML, which is JSON but for characters that JSON writes as two."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def load(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of settings; OSError where it cannot be read, ValueError where it is none."""
    with open(file, "rb") as opened:
        data = opened.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ValueError(f"more than {LONGEST:,} bytes")
    return read(data.decode("utf-8-sig"))


def read(text: str) -> dict[str, Any]:
    """Read TOML; ValueError where the text is none."""
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        config: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    level: list[Any] = [config]
    for _ in range(DEEPEST):
        level = [one for part in level if isinstance(part, (dict, list)) for one in _parts(part)]
    if level:  # names with points nest without brackets
        raise ValueError("nested too deep")
    return config


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
