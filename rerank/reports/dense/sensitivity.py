"""Short trainings over gamma and the margins (figures 8 and 9 of the paper), kept in the workspace."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rerank.errors import TrainingError, WorkspaceError, setting_hint
from rerank.files import parse_json
from rerank.progress import Progress
from rerank.rankers.dense.transformer import TextEncoder
from rerank.settings import values_of
from rerank.training.dense.config import DenseConfig, changed

if TYPE_CHECKING:
    from rerank.training.dense.texts import Texts

FILE = "dense_sensitivity.jsonl"
"""In the workspace's folder ``training``."""
STEPS = 60
VALUES = {
    "gamma": (0.0, 0.25, 0.5, 0.75, 1.0),
    "semantic_margin": (0.25, 0.5, 1.0, 1.5, 2.0),
    "structural_margin": (0.5, 1.0, 2.0, 4.0),
}
"""What is tried of each setting, the other two being the ranker's."""
WITH_MARGINS = ("quintuplet", "fixed-margin")
"""Objectives that have all three settings; where the ranker's is another, the first of them is trained."""


@dataclass(frozen=True)
class Run:
    """One training: its settings, and recall at 5 and 10 of held-out links, untrained and after it."""

    gamma: float
    semantic_margin: float
    structural_margin: float
    untrained5: float
    untrained10: float
    recall5: float
    recall10: float
    loss: float | None
    seconds: float


@dataclass(frozen=True)
class Sensitivity:
    """Runs that differ in one setting from the ranker's own.

    own: the ranker's value of each setting. curves: setting -> runs in order of its value. looked_for:
    documents whose held-out links were looked for, among ``pool`` documents.
    """

    objective: str
    steps: int
    looked_for: int
    pool: int
    own: dict[str, float]
    curves: dict[str, list[Run]]
    missing: int = 0


class Sweep:
    """The runs of one ranker's settings on one collection, from the same start."""

    def __init__(self, folder: Path, config: DenseConfig, texts: Texts, start: TextEncoder) -> None:
        named = values_of(config)["objective"]
        self.config = config if named in WITH_MARGINS else changed(config, objective=WITH_MARGINS[0])
        self.texts, self.path = texts, folder / "training" / FILE
        self._what = _digest(self.config, texts, start)

    def plan(self) -> list[DenseConfig]:
        """Settings to try: along each of VALUES, and the ranker's own; each once."""
        found: dict[DenseConfig, None] = {}
        for name in VALUES:
            for value in self._values(name):
                found[self._with(name, value)] = None
        return list(found)

    def _with(self, name: str, value: float) -> DenseConfig:
        return changed(self.config, **{name: value})

    def _values(self, name: str) -> list[float]:
        return sorted({*VALUES[name], values_of(self.config)[name]})

    def run(self, start: Iterable[TextEncoder], steps: int, progress: Progress) -> None:
        """Train what is not there yet; each run is written when it is done.

        start: a fresh copy of the encoder for every run. Ctrl-C keeps the runs that are done.
        """
        from rerank.training.dense.heldout import HeldOut
        from rerank.training.dense.trainer import DenseTrainer

        whole, done = self.plan(), self.known(steps)
        plan = [config for config in whole if _key(config) not in done]
        there = len(whole) - len(plan)
        if there:
            progress.say(f"sensitivity: {there} of {len(whole)} runs are there")
        begin = time.monotonic()
        for number, (config, encoder) in enumerate(zip(plan, start), 1):
            at = time.monotonic()
            short = changed(config, steps=steps, every=steps, patience=steps + 1, average=False)
            trainer = DenseTrainer(self.texts, encoder, short, _Quiet(progress))
            if not isinstance(trainer.evaluator, HeldOut):
                raise TrainingError(
                    "the ranker was trained without held-out links, so nothing can be measured; train it with"
                    f" {setting_hint('held_out')}"
                )
            fit = trainer.fit()
            if fit.interrupted:
                progress.say(
                    f"sensitivity: {there + number - 1} of {len(whole)} runs are kept; the same command goes"
                    " on"
                )
                raise KeyboardInterrupt
            first, last = fit.history[0], fit.history[-1]
            run = Run(
                *_key(config),
                first.measures["R@5"],
                first.measures["R@10"],
                last.measures["R@5"],
                last.measures["R@10"],
                last.loss,
                round(time.monotonic() - at, 1),
            )
            size = {"looked_for": len(trainer.evaluator.anchors), "pool": len(trainer.evaluator.pool)}
            self._append({"what": self._what, "steps": steps, **size, **asdict(run)})
            left = (time.monotonic() - begin) / number * (len(plan) - number) / 60
            progress.say(
                f"sensitivity {number} of {len(plan)}: gamma {run.gamma:g}, semantic margin"
                f" {run.semantic_margin:g}, structural margin {run.structural_margin:g}: R@5"
                f" {run.recall5:.4f}, R@10 {run.recall10:.4f} (untrained {run.untrained5:.4f},"
                f" {run.untrained10:.4f}); {left:.1f} minutes left"
            )

    def known(self, steps: int) -> dict[tuple[float, float, float], Run]:
        """Runs of so many steps that are there."""
        return {(g, m, n): run for (at, g, m, n), (_, run, _) in self._read().items() if at == steps}

    def found(self, steps: int | None = None) -> Sensitivity | None:
        """What is there: of so many steps, or of those that most runs had; None without any."""
        runs = self._read()
        if steps is None:
            counts = [at for at, _, _ in runs.values()]
            steps = max(counts, key=lambda at: (counts.count(at), at), default=None)
        mine = {(g, m, n): (run, size) for (at, g, m, n), (_, run, size) in runs.items() if at == steps}
        if not mine or steps is None:
            return None
        wanted = {_key(config) for config in self.plan()}
        curves = {}
        for name in VALUES:
            along = [self._with(name, value) for value in self._values(name)]
            curves[name] = [mine[_key(config)][0] for config in along if _key(config) in mine]
        looked_for, pool = next(iter(mine.values()))[1]
        values = values_of(self.config)
        own = {name: float(values[name]) for name in VALUES}
        return Sensitivity(
            objective=values["objective"],
            steps=steps,
            looked_for=looked_for,
            pool=pool,
            own=own,
            curves=curves,
            missing=len(wanted - mine.keys()),
        )

    def _read(self) -> dict[tuple[int, float, float, float], tuple[int, Run, tuple[int, int]]]:
        """Runs of these settings and documents: (steps, three settings) -> run; half a line is left out."""
        found: dict[tuple[int, float, float, float], tuple[int, Run, tuple[int, int]]] = {}
        try:
            lines = self.path.read_text("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise WorkspaceError(f"{self.path}: cannot be read ({error.strerror})") from error
        for line in lines:
            try:
                record = parse_json(line)
                if record.pop("what") != self._what:
                    continue
                steps = int(record.pop("steps"))
                size = (int(record.pop("looked_for")), int(record.pop("pool")))
                run = Run(**record)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            found[(steps, run.gamma, run.semantic_margin, run.structural_margin)] = (steps, run, size)
        return found

    def _append(self, record: dict[str, object]) -> None:
        """Add a line; the newline comes first, so that half a line before it harms nothing."""
        try:
            self.path.parent.mkdir(exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps(record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WorkspaceError(f"{self.path}: cannot be written ({error.strerror})") from error


def _key(config: DenseConfig) -> tuple[float, float, float]:
    values = values_of(config)
    return (float(values["gamma"]), float(values["semantic_margin"]), float(values["structural_margin"]))


def _digest(config: DenseConfig, texts: Texts, start: TextEncoder) -> str:
    """Hash of all that decides a run but the three settings and the steps."""
    rest = values_of(config)
    for name in (*VALUES, "steps", "every", "epochs", "patience", "average", "accumulate", "threads"):
        rest.pop(name)
    found = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    found.update(f"{texts.graph.digest()} {start.version()}".encode())
    found.update(texts.tokens.flat.tobytes())
    return found.hexdigest()[:16]


class _Quiet(Progress):
    """Shows the bar of a run, and leaves out what it says."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Pass on."""
        self.progress.start(title, total, unit)

    def advance(self, count: int = 1) -> None:
        """Pass on."""
        self.progress.advance(count)

    def show(self, **values: str) -> None:
        """Pass on."""
        self.progress.show(**values)

    def expect(self, seconds: float) -> None:
        """Pass on."""
        self.progress.expect(seconds)

    def finish(self) -> None:
        """Pass on."""
        self.progress.finish()
