"""The service in a separate process, its clients, and calls of its endpoints."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.documents.records import Query
from rerank.engines.opensearch.columns import Column
from rerank.engines.search_request import SearchRequest
from rerank.rankers.base import Ranker
from rerank.rankers.cnn.ranker import CnnRanker
from rerank.rankers.cnn.towers import Head
from rerank.workspace.workspace import Workspace


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def fails(self, status: int, *parts: str) -> None:
        """Assert that the answer is an error in one line that contains these parts."""
        assert self.status == status, self
        assert list(self.json) == ["error"]
        assert "\n" not in self.json["error"]
        for part in parts:
            assert part in self.json["error"], self


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    log_file: Path
    ends: int = 0
    token: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask(urllib.request.Request(self.url + path, headers=headers))

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": kind_of(path), **headers}
        return self._ask(urllib.request.Request(self.url + path, data, headers))

    def _ask(self, request: urllib.request.Request) -> Answer:
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=150) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def metric(self, name: str) -> float:
        found = re.findall(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").body.decode(), re.M)
        return float(found[0]) if found else 0.0

    def log(self) -> list[dict[str, Any]]:
        whole, _, _ = self.log_file.read_text("utf-8").rpartition("\n")  # the last line may still be written
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, event: str, count: int = 1) -> None:
        wait_until(lambda: sum(line["event"] == event for line in self.log()) >= count)


def kind_of(path: str) -> str:
    """Return the content type of the bodies that an endpoint reads."""
    return "application/octet-stream" if path == "/v1/hook" else "application/json"


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for at most five minutes."""
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextmanager
def serving(
    script: list[str], folder: Path, tmp_path: Path, *options: object, **env: str
) -> Iterator[Server]:
    log_file = tmp_path / f"serve-{time.monotonic_ns()}.log"
    patient = () if "--deadline" in options else ("--deadline", 120)  # test machines are busy
    options = ("--port", 0, "--json", *patient, *options)
    command = [*script, "serve", "-w", str(folder), *map(str, options)]
    with open(log_file, "w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **env}
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log_file.read_text()
        server = Server(json.loads(line)["url"], process, log_file)
        assert server.get("/healthz").json == {"ok": True}
        yield server
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(120) == server.ends, log_file.read_text()
        assert "Traceback" not in log_file.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def negate_scores(ranker: Ranker, version: str) -> Ranker:
    """Return the ranker with all scores negated and its numbers in another order.

    Queries of one ranker do not fit documents of the other, so a mixture has the scores of neither.
    """
    assert isinstance(ranker, CnnRanker)
    (network,) = ranker.networks
    turned = {
        name: array[..., ::-1] * (-1 if name.startswith("query") else 1)
        for name, array in network.head.arrays.items()
    }
    return replace(ranker, networks=[replace(network, head=Head(turned))], version=version)


STACK = "tfidf,text,meta"
WORDS = "how do bacteria become resistant"
HOOK = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [2.0, 1.0]}


@pytest.fixture(scope="module")
def server(script, trained, tmp_path_factory) -> Iterator[Server]:
    """A service for the tests of one file, with the trained rankers."""
    options = ("--stack", STACK, "--max-encoded", 1000)
    with serving(script, trained, tmp_path_factory.mktemp("serve"), *options) as started:
        yield started


@pytest.fixture(scope="module")
def candidates(trained, text):
    """A query, its candidates with features in Base64, and the expected ranking of the pipeline."""
    workspace = Workspace.open(trained)
    stack = workspace.stack(STACK)
    pipeline = workspace.pipeline(stack.signals)
    asked = pipeline.scorer(stack.signals, stack.first_stage).features
    actual = workspace.engine.find(SearchRequest(text, first_stage="tfidf", depth=100, features=asked))
    assert len(actual) > 20
    features = {}
    for name, version in asked.items():
        values = actual.features[name]
        features[f"{name}@{version}"] = Column(values.dtype.str, values.shape[1], 0).encode(values)
    body = {
        "query": {"bool": {"must": {"match": {"content": {"query": text}}}}},
        "ids": actual.ids,
        "scores": actual.scores.tolist(),
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


def move_to_cluster(trained: Path, tmp_path: Path, port: int, *, timeout: int = 60) -> Path:
    """Return a workspace whose documents are in a cluster at this port. timeout: seconds of a request."""
    folder = Path(shutil.copytree(trained, tmp_path / "ws"))
    text = (folder / "rerank.toml").read_text().replace('engine = "local"', 'engine = "opensearch"')
    table = f'[opensearch]\nurl = "http://127.0.0.1:{port}"\nindex = "none"\ntimeout = {timeout}\n'
    (folder / "rerank.toml").write_text(f"{text}\n{table}")
    return folder


@contextmanager
def run_clients(ask: Callable[[int, threading.Event], object], clients: int) -> Iterator[None]:
    """Run clients until the block ends, also after an exception. Then raise exceptions of clients.

    ask: gets the number of the client and an event, and continues until the event is set.
    """
    over = threading.Event()
    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, number, over) for number in range(clients)]
        try:
            yield
        finally:
            over.set()
    for one in asking:
        one.result()
