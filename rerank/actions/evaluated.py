"""How a workspace was measured last, for a page on it: the settings, the queries and the judgements."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rerank.errors import RerankError, WorkspaceError
from rerank.files import parse_json, write_text
from rerank.records import Qrels, Query
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

NAME = "evaluated.json"
COPIES = "evaluated"
"""A folder: the queries and judgements that came from no file."""
_FILES = ("queries", "qrels", "first_stage")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*_FILES, "conflicts", "baseline"), (str,)),
    **dict.fromkeys(("stacks", "protocols", "measures", "retrieve", "filter"), (list, str)),
    **dict.fromkeys(("also_rerank_only", "also_grade_one", "overlap"), (bool,)),
    **dict.fromkeys(("ignore_categories", "infer"), (bool,)),
    "seed": (int,),
}
"""What is read again. Files to be written are named by the user alone, whatever stands in the workspace."""


def remember(
    workspace: Workspace, settings: Mapping[str, Any], *, queries: Sequence[Query], qrels: Qrels
) -> None:
    """Keep how this was measured, and copies of what it was measured on, where something can be written."""
    folder = workspace.folder / COPIES
    files = {"queries": folder / "queries.jsonl", "qrels": folder / "qrels.tsv"}
    asked = (_record(query) for query in queries if query.id in qrels)
    judged = (f"{q}\t{d}\t{grade}\n" for q in qrels for d, grade in qrels[q].items())
    with suppress(OSError, RerankError):
        folder.mkdir(exist_ok=True)
        write_text(files["queries"], "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in asked))
        write_text(files["qrels"], "query-id\tcorpus-id\tscore\n" + "".join(judged))
        stacks = [_named(stack, folder / f"stack-{n}.json") for n, stack in enumerate(settings["stacks"], 1)]
        baseline = _named(settings["baseline"], folder / "baseline.json")
        settings = {**settings, "stacks": stacks, "baseline": baseline}
        remember_files(workspace, settings, **{name: str(path) for name, path in files.items()})


def remember_files(workspace: Workspace, settings: Mapping[str, Any], *, queries: str, qrels: str) -> None:
    """Keep how this was measured, on files, where something can be written."""
    kept = {name: _whole(value) for name, value in settings.items()}
    files = {"queries": str(Path(queries).absolute()), "qrels": str(Path(qrels).absolute())}
    with suppress(OSError, RerankError):
        write_text(workspace.folder / NAME, json.dumps({**kept, **files}, indent=2) + "\n")


def remembered(workspace: Workspace) -> dict[str, Any]:
    """How the last evaluation here was made; nothing where there is none.

    Raises WorkspaceError for settings that there cannot be: others may have written them.
    """
    path = workspace.folder / NAME
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    known = {}
    for name, value in found.items() if isinstance(found, dict) else ():
        if name not in _KINDS or value is None or value == []:
            continue
        texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        if type(value) not in _KINDS[name] or not all(isinstance(t, str) and "\0" not in t for t in texts):
            raise WorkspaceError(f"{path}: {name} = {value!r} cannot be; evaluate again")
        file = value.partition(":")[2] if name == "first_stage" else value
        if name in _FILES and os.path.exists(file) and not os.path.isfile(file):  # a pipe may never end
            raise WorkspaceError(f"{path}: {name}: {file!r} is no file; evaluate again")
        known[name] = value
    return known


def _named(stack: Stack | str | None, file: Path) -> str | None:
    """The name of a stack; a stack that is an object is kept in a file."""
    if not isinstance(stack, Stack):
        return stack
    stack.save(file)
    return str(file)


def _whole(value: Any) -> Any:
    """Name a file so that it is found from anywhere."""
    if isinstance(value, (list, tuple)):
        return [_whole(one) for one in value]
    if not isinstance(value, str):
        return value
    kind, colon, file = value.partition(":")
    if colon and kind in ("template", "run"):
        return f"{kind}:{Path(file).absolute()}"
    return str(Path(value).absolute()) if value.endswith(".json") else value


def _record(query: Query) -> dict[str, Any]:
    """A query as :func:`rerank.read_queries` reads it."""
    known = {
        "_id": query.id,
        "text": query.text,
        "categories": list(query.categories),
        "lang": query.lang,
        "lexical_text": query.lexical_text,
    }
    return {**query.params, **{name: value for name, value in known.items() if value or name == "text"}}
