"""Calls of the service's endpoints, and their expected answers."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import SearchRequest
from rerank.engines.opensearch.columns import Column
from rerank.records import Query
from rerank.workspace import Workspace
from tests.service import Server

STACK = "tfidf,text,meta"
WORDS = "how do bacteria become resistant"
HOOK = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [2.0, 1.0]}


@pytest.fixture(scope="module")
def candidates(trained, text):
    """A query, its candidates with features in Base64, and the expected ranking of the pipeline."""
    workspace = Workspace.open(trained)
    stack = workspace.stack(STACK)
    pipeline = workspace.pipeline(stack.signals)
    asked = pipeline.scorer(stack.signals, stack.first_stage).features
    found = workspace.engine.find(SearchRequest(text, first_stage="tfidf", depth=100, features=asked))
    assert len(found) > 20
    features = {}
    for name, version in asked.items():
        values = found.features[name]
        features[f"{name}@{version}"] = Column(values.dtype.str, values.shape[1], 0).encode(values)
    body = {
        "query": {"bool": {"must": {"match": {"content": {"query": text}}}}},
        "ids": found.ids,
        "scores": found.scores.tolist(),
        "features": features,
    }
    expected = pipeline.answer(Query("q", text), replace(stack, depth=100)).ranking
    return text, body, expected


def call(body: dict[str, Any]) -> bytes:
    """Return a call like the plugin's: length of the JSON, JSON, scores, places and features."""
    stored, n = b"", len(body["scores"])
    for column in body.get("features", {}).values():
        rows = [b"" if text is None else b64decode(text) for text in column]
        stored += np.array([len(row) for row in rows], ">i4").tobytes() + b"".join(rows)
    sent = {**body, "features": [*body.get("features", ())], "hits": n}
    scores = np.array(sent.pop("scores"), ">f8").tobytes()
    head = json.dumps(sent, ensure_ascii=False).encode()
    return len(head).to_bytes(4, "big") + head + scores + bytes(20 * n) + stored


def call_hook(server: Server, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Return the answer to a call of the hook."""
    answer = server.post("/v1/hook", call(body), **headers)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/octet-stream"), answer
    return read_answer(answer.body, body["ids"])


def read_answer(answer: bytes, sent: list[str]) -> dict[str, Any]:
    """Decode an answer of the hook, with ids and scores. sent: the ids of the call."""
    end = 4 + int.from_bytes(answer[:4], "big")
    found: dict[str, Any] = json.loads(answer[4:end])
    if "passed" in found:
        assert len(answer) == end
        return found
    n = len(sent) - found.get("removed", 0)
    order, scores = np.frombuffer(answer, ">i4", n, end), np.frombuffer(answer, ">f4", n, end + 4 * n)
    assert len(answer) == end + 8 * n
    return {"ids": [sent[i] for i in order.tolist()], "scores": scores.tolist(), **found}


def move_to_cluster(trained: Path, tmp_path: Path, port: int) -> Path:
    """Return a workspace whose documents are in a cluster at this port."""
    folder = Path(shutil.copytree(trained, tmp_path / "ws"))
    text = (folder / "rerank.toml").read_text().replace('engine = "local"', 'engine = "opensearch"')
    table = f'[opensearch]\nurl = "http://127.0.0.1:{port}"\nindex = "none"\n'
    (folder / "rerank.toml").write_text(f"{text}\n{table}")
    return folder
