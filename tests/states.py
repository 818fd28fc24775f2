"""Contents of a workspace, to compare before and after a command; documents; and a workspace of fruit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Workspace, encode, tune
from rerank.engines.base import SearchRequest
from tests.rankers import cnn

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


def fruit_documents(count):
    words = ["apple", "pear", "fig", "plum", "quince", "medlar", "cherry"]
    rng = np.random.default_rng(count)
    return [
        Document(f"d{i}", title=f"fruit {i}", text=" ".join(rng.choice(words, 8)), extra={"year": 1990 + i})
        for i in range(count)
    ]


def tune_fruit(workspace):
    queries = [Query("q1", "apple pear"), Query("q2", "fig plum")]
    qrels = Qrels([("q1", "d3", 1), ("q2", "d5", 1), ("q1", "d8", 1)])
    return tune(workspace, "tfidf,text", queries=queries, qrels=qrels)


def make_fruit(folder, count=60):
    """Create a workspace with a ranker ``text`` and the tuned stack ``tfidf,text``."""
    workspace = Workspace.create(folder, lang="en")
    workspace.engine.write(fruit_documents(count))
    workspace.install(cnn())
    encode(workspace)
    tune_fruit(workspace)
    return workspace


@pytest.fixture(scope="session")
def fruit(tmp_path_factory):
    """This workspace. Tests must not change it: see ``folder``."""
    folder = tmp_path_factory.mktemp("fruit") / "ws"
    make_fruit(folder).engine.close()
    return folder


@pytest.fixture
def folder(fruit, tmp_path):
    """A copy of the workspace of fruit."""
    return Path(shutil.copytree(fruit, tmp_path / "ws"))
