"""Steps of the papers' experiments: each is done once, and its figures are a small file of JSON.

A step's file is ``results/PAPER/STEP.json``. What has a file is not done again, so an interrupted run goes on
with the first step that lacks one. ``page.py`` makes docs/explanation/papers.md of these files.
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
    """A part of a table. run: does it and returns its figures, in JSON's values.

    leaves: what it leaves in the work folder, without which it is done again; unless all steps that need it,
    needed_by, are done.
    """

    name: str
    table: str
    run: Callable[[], dict[str, Any]]
    leaves: Path | None = None
    needed_by: tuple[str, ...] = ()

    def done(self, folder: Path) -> bool:
        """Whether there is nothing to do."""
        if self.needed_by and all((folder / f"{name}.json").exists() for name in self.needed_by):
            return True
        return (folder / f"{self.name}.json").exists() and (self.leaves is None or self.leaves.exists())


class Say(Progress):
    """Remarks of the library, as lines."""

    def say(self, line: str) -> None:
        """Print a remark."""
        print(f"    {line}", flush=True)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """What all of the scripts read."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the collections")
    parser.add_argument("--work", type=Path, default=Path("papers-work"), help="where workspaces are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step", help="do this one alone, as when several are done at once")
    parser.add_argument("--list", action="store_true", help="show the steps, and what each took")
    return parser


def carry_out(paper: str, steps: Iterable[Step], options: argparse.Namespace) -> None:
    """Do the steps that have no file yet, or list them all."""
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
    """A command's words without this machine's folders: the data are DATA, and the work is nobody's.

    Nor is it paper that steps were done one by one.
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
    """All figures of a paper that there are, by file name."""
    return [
        {"step": path.stem, **json.loads(path.read_text("utf-8"))}
        for path in sorted((RESULTS / paper).glob("*.json"))
    ]
