"""Run the steps of the experiments. Each step runs once and adds its figures to the results of its paper.

The result of a step is a line of ``results/PAPER.jsonl``, with the date, the commit and the machine. Steps
with a result are skipped. An interrupted run resumes at the first step without one. ``page.py`` generates
``RESULTS.md`` from these files, and ``results.py`` describes them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from results import FOLDER, defaults_of, results

from benchmarks.common.origin import measured_here
from rerank.common.files import write_text
from rerank.common.progress import Progress

Result = dict[str, Any]
"""A result, as ``results.py`` describes it."""


@dataclass(frozen=True)
class Step:
    """A part of a table.

    run:       runs the step and returns its result, or nothing to store.
    leaves:    a path that the step writes in the work folder. If it is missing, the step runs again.
    needed_by: names of the steps that read ``leaves``. If all of them are complete, the step is skipped.
    """

    name: str
    table: str
    run: Callable[[], Result | None]
    leaves: Path | None = None
    needed_by: tuple[str, ...] = ()

    def done(self, complete: Container[str]) -> bool:
        """Return whether the step can be skipped. complete: names of the steps with a result."""
        if self.needed_by and all(name in complete for name in self.needed_by):
            return True
        return self.leaves.exists() if self.leaves else self.name in complete


class Say(Progress):
    """Prints each message of the library on a line."""

    def say(self, line: str) -> None:
        print(f"    {line}", flush=True)


def comma_separated(text: str) -> list[str]:
    return text.split(",")


def arguments(doc: str | None, collections: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser with the options of all scripts.

    collections: the default of ``--collections``; without it, the script has no such option.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder with the collections")
    work = "folder for workspaces and runs. Default: %(default)s"
    parser.add_argument("--work", type=Path, default=Path("papers-work"), help=work)
    if collections:
        folders = "folders of DATA, separated by commas. Default: %(default)s"
        parser.add_argument("--collections", type=comma_separated, default=list(collections), help=folders)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds. Default: %(default)s")
    parser.add_argument("--step", help="run only this step, for example to run steps in parallel")
    parser.add_argument("--list", action="store_true", help="list the steps and the time of each")
    return parser


def carry_out(paper: str, steps: Iterable[Step], options: argparse.Namespace) -> None:
    """Run the steps without a result, or list all steps."""
    steps = list(steps)
    command = f"python benchmarks/papers/run_{paper}.py {shlex.join(_shown(sys.argv[1:]))}"
    for number, step in enumerate(steps, 1):
        results.cache_clear()
        complete = {result["step"]: result for result in results(paper)}
        if options.list:
            state = "complete" if step.name in complete else "not run yet"
            if "cpu_hours" in complete.get(step.name, {}):  # older results have no time
                state = f"{complete[step.name]['cpu_hours']:.2f} h"
            print(f"{step.table:12} {step.name:50} {state}")
            continue
        if step.done(complete) or options.step not in (None, step.name):
            continue
        print(f"step {number} of {len(steps)}: {step.name}", flush=True)
        begin = time.process_time()
        figures = step.run()
        cpu_hours = round((time.process_time() - begin) / 3600, 4)
        if not figures:
            continue
        origin = {"command": command, "cpu_hours": cpu_hours, **measured_here(), "defaults": state_of(paper)}
        complete[step.name] = {"step": step.name, "table": step.table, **figures, **origin}
        lines = [json.dumps(complete[name], ensure_ascii=False) for name in sorted(complete)]
        write_text(FOLDER / f"{paper}.jsonl", "\n".join(lines) + "\n")


def state_of(paper: str) -> str:
    """Return the key of the present default options in ``results/defaults.json``, and store them there."""
    path = FOLDER / "defaults.json"
    states = json.loads(path.read_text("utf-8"))
    text = json.dumps(defaults_of(paper), sort_keys=True)
    name = f"{paper}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if name not in states:
        write_text(path, json.dumps({**states, name: json.loads(text)}, indent=1, sort_keys=True) + "\n")
    return name


def _shown(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the settings of this machine.

    The data folder becomes DATA. ``--work`` and ``--step`` are removed.
    """
    hidden = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    hidden.add_argument("--work")
    hidden.add_argument("--step")
    return ["DATA", *hidden.parse_known_args(words)[1][1:]]
