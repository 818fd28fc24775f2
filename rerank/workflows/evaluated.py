"""Inputs of the last evaluation of a workspace."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rerank.errors import RerankError, WorkspaceError
from rerank.files import parse_json, write_text
from rerank.records import Qrels, Query
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

NAME = "evaluated.json"
COPIES = "evaluated"
"""Folder with copies of queries and judgments."""
_FILES = ("queries", "qrels", "first_stage")


class _Settings(msgspec.Struct, frozen=True):
    queries: str | None = None
    qrels: str | None = None
    first_stage: str | None = None
    conflicts: str | None = None
    baseline: str | None = None
    stacks: list[str] | str | None = None
    protocols: list[str] | str | None = None
    measures: list[str] | str | None = None
    retrieve: list[str] | str | None = None
    filter: list[str] | str | None = None
    rerank_only: bool | None = None
    also_grade_one: bool | None = None
    category_overlap: bool | None = None
    ignore_categories: bool | None = None
    infer: bool | None = None
    seed: int | None = None


REMEMBERED = frozenset(_Settings.__struct_fields__)


def remember(
    workspace: Workspace, settings: Mapping[str, Any], *, queries: Sequence[Query], qrels: Qrels
) -> None:
    """Store an evaluation's inputs, if possible."""
    folder = workspace.folder / COPIES
    files = {"queries": folder / "queries.jsonl", "qrels": folder / "qrels.tsv"}
    asked = (_line(query) for query in queries if query.id in qrels)
    judged = (f"{q}\t{d}\t{grade}\n" for q in qrels for d, grade in qrels[q].items())
    with suppress(OSError, RerankError):
        folder.mkdir(exist_ok=True)
        write_text(files["queries"], "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in asked))
        write_text(files["qrels"], "query-id\tcorpus-id\tscore\n" + "".join(judged))
        stacks = [
            _stack_name(stack, folder / f"stack-{n}.json") for n, stack in enumerate(settings["stacks"], 1)
        ]
        baseline = _stack_name(settings["baseline"], folder / "baseline.json")
        settings = {**settings, "stacks": stacks, "baseline": baseline}
        remember_files(workspace, settings, **{name: str(path) for name, path in files.items()})


def remember_files(workspace: Workspace, settings: Mapping[str, Any], *, queries: str, qrels: str) -> None:
    """Store an evaluation's settings and files, if possible."""
    kept = {name: _absolute(value) for name, value in settings.items()}
    files = {"queries": str(Path(queries).absolute()), "qrels": str(Path(qrels).absolute())}
    with suppress(OSError, RerankError):
        write_text(workspace.folder / NAME, json.dumps({**kept, **files}, indent=2) + "\n")


def remembered(workspace: Workspace) -> dict[str, Any]:
    """Return the settings of the last evaluation. Raises WorkspaceError if they are wrong."""
    path = workspace.folder / NAME
    try:
        data = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    try:
        settings = msgspec.structs.asdict(msgspec.convert(data, _Settings))
    except msgspec.ValidationError as error:
        raise WorkspaceError(f"{path}: {error}; evaluate again") from error
    given = {name: value for name, value in settings.items() if value is not None and value != []}
    for name in _FILES:
        file = given.get(name, "")
        file = file.partition(":")[2] if name == "first_stage" else file
        if "\0" in file or (
            os.path.exists(file) and not os.path.isfile(file)
        ):  # reading a pipe may never end
            raise WorkspaceError(f"{path}: {name}: {file!r} is not a file; evaluate again")
    return given


def _stack_name(stack: Stack | str | None, file: Path) -> str | None:
    """Return a name; save a Stack object."""
    if not isinstance(stack, Stack):
        return stack
    stack.save(file)
    return str(file)


def _absolute(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_absolute(one) for one in value]
    if not isinstance(value, str):
        return value
    kind, colon, file = value.partition(":")
    if colon and kind in ("template", "run"):
        return f"{kind}:{Path(file).absolute()}"
    return str(Path(value).absolute()) if value.endswith(".json") else value


def _line(query: Query) -> dict[str, Any]:
    known = {
        "_id": query.id,
        "text": query.text,
        "categories": list(query.categories),
        "lang": query.lang,
        "lexical_text": query.lexical_text,
    }
    return {**query.params, **{name: value for name, value in known.items() if value or name == "text"}}
