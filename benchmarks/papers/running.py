"""Run the steps of the experiments. Each step runs once and writes its figures to a small JSON file.

The file of a step is ``results/PAPER/STEP.json``. Steps with a file are skipped. An interrupted run resumes
at the first step without a file. ``page.py`` generates docs/explanation/papers.md from these files.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rerank.files import write_text
from rerank.progress import Progress

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Step:
    """A part of a table.

    run:       runs the step and returns its figures as JSON values.
    leaves:    a path that the step writes in the work folder. If it is missing, the step runs again.
    needed_by: names of the steps that read ``leaves``. If all of them are complete, the step is skipped.
    """

    name: str
    table: str
    run: Callable[[], dict[str, Any]]
    leaves: Path | None = None
    needed_by: tuple[str, ...] = ()

    def done(self, folder: Path) -> bool:
        """Return whether the step can be skipped."""
        if self.needed_by and all((folder / f"{name}.json").exists() for name in self.needed_by):
            return True
        return (folder / f"{self.name}.json").exists() and (self.leaves is None or self.leaves.exists())


class Say(Progress):
    """Prints each message of the library on a line."""

    def say(self, line: str) -> None:
        """Print a message."""
        print(f"    {line}", flush=True)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all scripts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with the collections")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("papers-work"),
        help="folder for workspaces and runs. Default: %(default)s",
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds. Default: %(default)s")
    parser.add_argument("--step", help="run only this step, for example to run steps in parallel")
    parser.add_argument("--list", action="store_true", help="list the steps and the time of each")
    return parser


def carry_out(paper: str, steps: Iterable[Step], options: argparse.Namespace) -> None:
    """Run the steps without a file, or list all steps."""
    steps = list(steps)
    command = f"python benchmarks/papers/{paper}.py {shlex.join(_shown(sys.argv[1:]))}"
    for number, step in enumerate(steps, 1):
        path = RESULTS / paper / f"{step.name}.json"
        if options.list:
            took = f"{json.loads(path.read_text())['cpu_hours']:.2f} h" if path.exists() else "not run yet"
            print(f"{step.table:12} {step.name:50} {took}")
            continue
        if step.done(path.parent) or options.step not in (None, step.name):
            continue
        print(f"step {number} of {len(steps)}: {step.name}", flush=True)
        begin = time.process_time()
        found = step.run()
        hours = (time.process_time() - begin) / 3600
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"table": step.table, "command": command, "cpu_hours": round(hours, 4), **found}
        write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _shown(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the settings of this machine.

    The data folder becomes DATA. ``--work`` and ``--step`` are removed.
    """
    kept: list[str] = []
    skip = False
    for place, word in enumerate(words):
        if skip or word.split("=")[0] in ("--work", "--step"):
            skip = word in ("--work", "--step")
            continue
        kept.append("DATA" if place == 0 else word)
    return kept


def results(paper: str) -> list[dict[str, Any]]:
    """Return all existing results of a paper, sorted by file name."""
    return [
        {"step": path.stem, **json.loads(path.read_text("utf-8"))}
        for path in sorted((RESULTS / paper).glob("*.json"))
    ]
