"""Contents and answers of a workspace, to compare before and after a command; and documents."""

from __future__ import annotations

import json
from pathlib import Path

from rerank import Workspace
from rerank.engines.base import SearchRequest

STACK = "tfidf,text,meta"


def state(run, folder):
    """Return everything that a user can see of a workspace, or None if it does not exist."""
    if not Workspace.exists(folder):
        assert not Path(folder).exists() or not list(Path(folder).iterdir())
        return None
    status = run("status", "-w", folder, "--json").json
    engine = Workspace.open(folder).engine
    found = [
        engine.find(SearchRequest("cell gene protein", first_stage=s, depth=500)) for s in ("bm25", "tfidf")
    ]
    files = sorted(str(path.relative_to(folder)) for path in Path(folder).glob("*"))
    return status, list(engine.documents()), [(f.ids, f.scores.tolist()) for f in found], files


def document_lines(n, start=0):
    return [
        json.dumps({"_id": f"n{i}", "text": f"cell number {i}"}).encode() + b"\n" for i in range(start, n)
    ]
