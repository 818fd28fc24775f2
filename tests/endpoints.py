"""Calls of the service's endpoints, and what they are to answer."""

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
from rerank.formats import read_queries
from rerank.records import Query
from rerank.service.schemas import NUMBERS_FOLLOW
from rerank.workspace import Workspace

STACK = "tfidf,text,meta"
WORDS = "how do bacteria become resistant"
HOOK = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [2.0, 1.0]}


@pytest.fixture(scope="module")
def candidates(trained, small):
    """A query, what its first stage retrieves with features in Base64, and what the pipeline makes of it."""
    workspace = Workspace.open(trained)
    stack = workspace.stack(STACK)
    pipeline = workspace.pipeline(stack.signals)
    query = read_queries(small.queries)[0]
    asked = pipeline.features(stack.signals)
    found = workspace.engine.find(SearchRequest(query.text, first_stage="tfidf", depth=100, features=asked))
    assert len(found) > 20
    features = {}
    for name, version in asked.items():
        values = found.features[name]
        features[f"{name}@{version}"] = Column(values.dtype.str, values.shape[1], 0).encode(values)
    body = {
        "query": {"bool": {"must": {"match": {"content": {"query": query.text}}}}},
        "ids": found.ids,
        "scores": found.scores.tolist(),
        "features": features,
    }
    expected = pipeline.answer(Query("q", query.text), replace(stack, depth=100)).ranking
    return query.text, body, expected


def call(body: dict[str, Any], numbers: bool = False) -> bytes:
    """A hook's call as the plugin sends it: the JSON's length, JSON, and the features as raw bytes.

    numbers: the scores, too.
    """
    rows, features = b"", {}
    for key, column in body["features"].items():
        found = [None if text is None else b64decode(text) for text in column]
        features[key] = {
            "bytes": max((len(row) for row in found if row is not None), default=0),
            "missing": [i for i, row in enumerate(found) if row is None],
        }
        rows += b"".join(row for row in found if row is not None)
    said, mark = {**body, "features": features}, b"\0"
    if numbers:
        scores = said.pop("scores")
        said["hits"], mark = len(scores), NUMBERS_FOLLOW
        rows = np.array(scores, ">f8").tobytes() + rows
    head = json.dumps(said).encode()
    return mark + len(head).to_bytes(3, "big") + head + rows


def elsewhere(trained: Path, tmp_path: Path, port: int) -> Path:
    """A workspace whose documents are in a cluster at this port."""
    folder = Path(shutil.copytree(trained, tmp_path / "ws"))
    text = (folder / "rerank.toml").read_text().replace('engine = "local"', 'engine = "opensearch"')
    table = f'[opensearch]\nurl = "http://127.0.0.1:{port}"\nindex = "none"\n'
    (folder / "rerank.toml").write_text(f"{text}\n{table}")
    return folder
