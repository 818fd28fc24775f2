"""Measure the CPU time of each step of `rerank auto` on a folder.

    python benchmarks/automatic.py FOLDER [--minutes N] [--seed N]

Prints CPU seconds and elapsed seconds after each step, and the table of the test queries.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from rerank import auto
from rerank.progress import Progress


class Steps(Progress):
    """Print each progress line with CPU time and elapsed time."""

    def __init__(self) -> None:
        self.begun, self.worked = time.monotonic(), time.process_time()

    def say(self, line: str) -> None:
        """Print a line with both times."""
        clock, worked = time.monotonic() - self.begun, time.process_time() - self.worked
        print(f"{worked:7.1f} s {clock:7.1f} s  {line}", flush=True)


def main() -> None:
    """Run `rerank auto` in a temporary workspace."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder")
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    steps = Steps()
    with tempfile.TemporaryDirectory() as scratch:
        report = auto(
            asked.folder, f"{scratch}/workspace", minutes=asked.minutes, seed=asked.seed, progress=steps
        )
    steps.say("all")
    print(report)


if __name__ == "__main__":
    main()
