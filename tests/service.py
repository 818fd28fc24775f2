"""``rerank serve`` in a separate process, and a client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rerank.rankers.base import Ranker
from rerank.rankers.cnn.ranker import CnnRanker
from rerank.rankers.cnn.towers import Head


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
    turned = {
        name: array[..., ::-1] * (-1 if name.startswith("query") else 1)
        for name, array in ranker.head.arrays.items()
    }
    return replace(ranker, head=Head(turned), version=version)
