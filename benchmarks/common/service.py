"""Run commands and the service, each on one core."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # the commands inherit it


def cli(*arguments: object) -> str:
    """Run a rerank command and return its output."""
    command = [sys.executable, "-m", "rerank.cli", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"rerank {arguments[0]}: {ended.stderr}")
    return ended.stdout


def demo_workspace(workspace: Path | None, folder: Path) -> Path:
    """Return a workspace with trained rankers. Without one, run the demo in the folder."""
    if workspace is None:
        workspace = folder / "demo"
        cli("demo", "-w", workspace)
    if not (workspace / "rankers").is_dir():
        sys.exit(
            f"{workspace}: no trained rankers. Omit --workspace, or name the workspace of `rerank demo`."
        )
    return workspace


@contextmanager
def service_process(
    workspace: Path, log: Path, *options: object, python: str | Path = sys.executable, cwd: Path | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the service while the block runs. Yield its URL and its process.

    python, cwd: of another checkout.
    """
    command = [str(python), "-m", "rerank.cli", "serve", "-w", str(workspace), "--port", "0", "--json"]
    command += map(str, options)
    with log.open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["url"], server
    finally:
        server.terminate()
        server.wait()


def connection_to(url: str) -> http.client.HTTPConnection:
    """Return a connection that sends data without delay (TCP_NODELAY). A request opens it if it is closed."""
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    """Send JSON. Return status and body of the response."""
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def worker_processes(log: Path, workers: int) -> dict[str, int]:
    """Wait until all workers of a service have started. Return their names and process ids, from its log."""
    while log.read_text().count('"event": "started"') < workers:
        time.sleep(0.1)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    pids = sorted(record["pid"] for record in records if record["event"] == "started")
    return {f"worker {number}": pid for number, pid in enumerate(pids, 1)}


def equal_weights(signals: Sequence[str]) -> str:
    """Return a stack of signals with equal weights."""
    return " + ".join(f"{signal}*{1 / len(signals):.2f}" for signal in signals)
