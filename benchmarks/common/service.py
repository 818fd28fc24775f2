"""Run commands and the service, each on one core."""

from __future__ import annotations

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
    done = subprocess.run(
        [sys.executable, "-m", "rerank.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"rerank {arguments[0]}: {done.stderr}")
    return done.stdout


def demo_workspace(workspace: Path | None, folder: Path) -> Path:
    """Return a workspace with trained rankers. Without one, run the demo in the folder."""
    if workspace is None:
        workspace = folder / "demo"
        cli("demo", "-w", workspace)
    if not (workspace / "rankers").is_dir():
        sys.exit(
            f"{workspace}: no trained rankers. Omit --workspace, or pass the workspace of `rerank demo`."
        )
    return workspace


@contextmanager
def serving(workspace: Path, log: Path, *options: object) -> Iterator[str]:
    """Run the service while the block runs, and yield its URL."""
    with service_process(workspace, log, *options) as (url, _):
        yield url


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


def worker_processes(log: Path, workers: int) -> list[int]:
    """Wait until all workers of a service have started. Return their process ids, from its log."""
    while log.read_text().count('"event": "started"') < workers:
        time.sleep(0.1)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return sorted(record["pid"] for record in records if record["event"] == "started")


def equal_weights(signals: Sequence[str]) -> str:
    """Return a stack of signals with equal weights."""
    return " + ".join(f"{signal}*{1 / len(signals):.2f}" for signal in signals)
