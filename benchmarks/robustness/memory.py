"""Measure the memory of `rerank serve` with one worker and with several.

    python benchmarks/robustness/memory.py WORKSPACE [--workers 4]

The service answers a hundred searches per worker. Then the script reads the memory of all processes from
Linux. PSS counts a page that n processes share as 1/n in each process. Its sum is the real memory of the
service.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.processes import memory
from benchmarks.common.service import equal_weights, service_process, worker_processes
from rerank.workspace.workspace import Workspace

QUERIES = ("how do bacteria become resistant", "cells that divide", "sleep and memory", "a gene of the mouse")


def family(process: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(member for child in children for member in family(int(child)))]


def measure(workspace: Path, stack: str, workers: int) -> None:
    """Print the memory of a service with this number of workers, after a hundred searches of each."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serve.log"
        options = ("--workers", workers, "--stack", stack)
        with service_process(workspace, log, *options) as (url, server):
            worker_processes(log, workers)
            for number in range(100 * workers):  # the system gives connections to idle workers
                body = json.dumps({"query": QUERIES[number % len(QUERIES)]}).encode()
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"{url}/v1/search", body, headers)
                with urllib.request.urlopen(request) as response:
                    response.read()
            size = sum(memory(process, "Pss") for process in family(server.pid))
    print(f"{workers} worker{'s' * (workers > 1)}: {size:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workspace")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    workspace = Workspace.open(options.workspace)
    stack = equal_weights([workspace.first_stage, *workspace.trained()])
    print(stack)
    for workers in (1, options.workers):
        measure(workspace.folder, stack, workers)


if __name__ == "__main__":
    main()
