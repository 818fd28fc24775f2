"""Documents, queries, judgments and workspaces with a known structure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Workspace, encode, tune
from rerank.engines.search_request import SearchRequest
from tests.support.rankers import cnn

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


TOPICS = 6
QUERIES = [Query(f"q{i}", f"w{2 * (i % TOPICS)} w{2 * (i % TOPICS) + 1} w{30 + i % 7}") for i in range(36)]
RELEVANT = {f"q{i}": [f"d{j}" for j in range(48) if j % TOPICS == i % TOPICS] for i in range(36)}


def qrels(first: int, last: int) -> Qrels:
    return Qrels((f"q{i}", d, 1) for i in range(first, last) for d in RELEVANT[f"q{i}"])


def topical(folder: Path) -> Workspace:
    made = Workspace.create(folder, lang="en")
    words = [[12 + 2 * (i % TOPICS), 13 + 2 * (i % TOPICS), 30 + i % 5] for i in range(48)]
    made.engine.write(
        Document(f"d{i}", text=" ".join(f"w{word}" for word in some)) for i, some in enumerate(words)
    )
    return made


class Words:
    """Words numbered by first appearance, from 1; 0 is the mask."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {"[MASK]": 0}

    def tokens(self, texts: list[str]) -> list[list[int]]:
        """Return the numbers of words."""
        return [[self.number.setdefault(word, len(self.number)) for word in text.split()] for text in texts]


def pagerank_matrix(adjacency, alpha=0.15):
    """(N, N) alpha (1 - (1 - alpha) A')^-1; the columns of A' sum to 1."""
    dense = adjacency.toarray().astype(np.float64)
    dense /= np.where(dense.sum(axis=0) > 0, dense.sum(axis=0), 1)
    return alpha * np.linalg.inv(np.eye(len(dense)) - (1 - alpha) * dense)


def quintuplet_vectors(level=1, dtype="float64", **changes):
    """Return the vectors of two quintuplets, with losses that can be computed by hand."""
    import torch

    found = {
        "anchor": [[0.0, 0.0], [0.0, 1.2]],
        "positive": [[3.0, 4.0], [0.0, 1.2]],
        "negative": [[0.0, 6.0], [0.0, 1.2]],
        "corrupted": [[1.0, 0.0], [0.0, 1.2]],
        **changes,
    }
    tensors = {
        name: torch.tensor(value, dtype=getattr(torch, dtype), requires_grad=True)
        for name, value in found.items()
    }
    eye = torch.eye(2, dtype=torch.bool)
    near = torch.tensor([[True, False], [True, True]])  # the second row has no semantic negative
    return SimpleNamespace(**tensors, level=torch.tensor([level, 0]), near=near, near_positive=eye)
