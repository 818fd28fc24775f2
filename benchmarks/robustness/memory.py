"""Measure the memory of `rerank serve` with one worker and with several: shared and private.

    python benchmarks/robustness/memory.py WORKSPACE [--workers 4]

The service answers a hundred searches per worker. Then the script reads the memory pages of all processes
from Linux. PSS counts a page that n processes share as 1/n in each process. Its sum is the real memory of
the service.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.common.service import equal_weights, service_process, worker_processes
from rerank.workspace.workspace import Workspace

QUERIES = ("how do bacteria become resistant", "cells that divide", "sleep and memory", "a gene of the mouse")


def family(process: int) -> list[int]:
    """Ids of a process and all its descendants."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(p for child in children for p in family(int(child)))]


def pages(process: int) -> dict[str, float]:
    """MiB of a process: rss, pss, private, and the pss of the files of rankers and engine."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = {name: int(kb) / 1024 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.M)}
    files = {"rankers": 0.0, "engine": 0.0}
    name = ""
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-", line):
            name = line[73:]
        elif line.startswith("Pss:"):
            for part in files:
                files[part] += int(line.split()[1]) / 1024 if f"/{part}/" in name else 0
    return {"rss": found["Rss"], "pss": found["Pss"], "private": found["Private_Dirty"], **files}


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
            total: dict[str, float] = {}
            for process in family(server.pid):
                for name, size in pages(process).items():
                    total[name] = total.get(name, 0.0) + size
    sizes = ", ".join(f"{name} {size:.0f} MiB" for name, size in total.items())
    print(f"{workers} worker{'s' * (workers > 1)}: {sizes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workspace")
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    workspace = Workspace.open(given.workspace)
    names = [workspace.first_stage, *workspace.trained()]
    stack = equal_weights(names)
    files = sum(path.stat().st_size for path in workspace.folder.glob("rankers/*/model.safetensors"))
    print(f"{stack}; arrays of the rankers: {files / 2**20:.0f} MiB")
    for workers in (1, given.workers):
        measure(workspace.folder, stack, workers)


if __name__ == "__main__":
    main()
