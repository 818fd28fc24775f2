"""Trainings of an auto run."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any

import msgspec

from rerank.errors import RerankError, TrainingError
from rerank.files import write_bytes
from rerank.progress import Progress
from rerank.rankers.encoder.folder import PACKAGED
from rerank.rankers.training.job import TrainingResult
from rerank.records import Query
from rerank.workflows import ranker_choice
from rerank.workflows.collection_folder import Folder
from rerank.workflows.ranker_choice import Budget, CollectionFacts, RankerChoice, Rule
from rerank.workflows.splits import Splits
from rerank.workflows.train import train
from rerank.workspace import Workspace

MODEL, READS = "minilm", "en"
"""Default encoder, and its language."""


@dataclass
class Run:
    """An auto run: options (see :func:`rerank.auto`), and the results of its first steps.

    messages: remarks of the steps.
    """

    files: Folder
    measure: str
    minutes: float
    seed: int
    model: str | None
    progress: Progress
    messages: list[str] = field(default_factory=list)
    workspace: Workspace = field(init=False)
    queries: list[Query] = field(init=False)
    splits: Splits = field(init=False)

    def say(self, step: str, *lines: str) -> None:
        """Print and keep remarks of a step."""
        for line in lines:
            self.messages.append(f"{step}: {line}")
            self.progress.say(f"{step}: {line}")


class _Training(msgspec.Struct):
    """planned: steps of the plan. version: of the ranker, if complete. steps: of its training."""

    planned: int
    version: str = ""
    steps: int = 0


class _File(msgspec.Struct):
    key: str
    rankers: dict[str, _Training] = {}


class Record:
    """Trainings of rankers on the same files. known: from an auto run. other: from other files."""

    def __init__(self, workspace: Path, run: Run) -> None:
        """Read the record. Other inputs start a new one."""
        inputs = f"{run.seed} {run.model or MODEL}"
        digest = hashlib.sha256(inputs.encode())
        for path in run.files.files():
            known = path.stat()
            digest.update(f"{path.resolve()}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
        self._path, self._file = workspace / "auto.json", _File(digest.hexdigest())
        self.known = self.other = False
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            stored = msgspec.json.decode(self._path.read_bytes(), type=_File)
            self.known, self.other = True, stored.key != self._file.key
            self._file = self._file if self.other else stored
        self.rankers = self._file.rankers

    @property
    def trained(self) -> bool:
        """Whether a training is complete."""
        return any(one.version for one in self.rankers.values())

    def save(self) -> None:
        """Write the record."""
        self.known = True
        write_bytes(self._path, msgspec.json.format(msgspec.json.encode(self._file), indent=1) + b"\n")


class Trainings:
    """Trains one ranker after the other within a budget. first: first stage."""

    def __init__(self, run: Run, record: Record, first: str) -> None:
        self.run, self.record, self.first = run, record, first
        engine, model = run.workspace.engine, run.model
        facts = CollectionFacts.of(
            run.progress.over(engine.documents(), "look at documents", len(engine), "doc"),
            run.queries,
            run.splits,
            lang=run.workspace.lang,
            model=model is not None or util.find_spec(PACKAGED[MODEL]) is not None,
            reads=READS if model in (None, MODEL) else None,
        )
        self.budget = Budget(facts, run.minutes)

    def run_all(self) -> list[RankerChoice]:
        """Apply the rules."""
        chosen = {rule.ranker: self._run(rule) for rule in ranker_choice.RULES}
        for rule in ranker_choice.RULES:
            if chosen[rule.ranker].too_long and rule.share < 1:  # the others have left time
                chosen[rule.ranker] = self._run(replace(rule, share=1.0))
        return [*chosen.values()]

    def _run(self, rule: Rule) -> RankerChoice:
        choice, name, run = self.budget.choose(rule), rule.ranker, self.run
        if not choice.trained:
            return choice if choice.too_long and rule.share < 1 else self._report(choice)
        before = self.record.rankers.get(name)
        same = before is not None and before.planned == choice.steps
        if before is not None and same and self._is_installed(name, before.version):
            run.say("rankers", f"{choice} (done before)")
            self.budget.spend(rule, before.steps)
            return choice
        self._report(choice)
        if before is not None and not same:  # its interrupted training has another plan
            shutil.rmtree(run.workspace.folder / "training" / name, ignore_errors=True)
        training = self.record.rankers[name] = _Training(choice.steps)
        self.record.save()
        try:
            result = self._fit(rule, choice)
        except TrainingError as error:
            return self._report(replace(choice, trained=False, reason=str(error)))
        if result.interrupted:
            raise KeyboardInterrupt(
                f"interrupted: {name} is kept at its best step; call again to finish its training"
            )
        training.version = run.workspace.ranker(name).version
        training.steps = choice.steps if rule.steps == ranker_choice.PARTS else result.epochs
        self.record.save()
        self.budget.spend(rule, training.steps)
        if result.dev is not None:
            measured = f"{result.measure} {result.dev:.4f}, {result.baseline:.4f} {result.without}"
            run.say("rankers", f"{name}: {measured}")
        return choice

    def _is_installed(self, name: str, version: str) -> bool:
        try:
            return self.run.workspace.ranker(name).version == version
        except RerankError:
            return False

    def _fit(self, rule: Rule, choice: RankerChoice) -> TrainingResult:
        variant, run = rule.variant or rule.ranker, self.run
        config: dict[str, Any] = {"seed": run.seed} if rule.steps == "epochs" else {}
        config |= rule.config
        if variant in ("dense", "adapter"):
            config["model"] = run.model or MODEL
        if rule.steps == ranker_choice.PARTS:
            parts = choice.steps  # of 64 tokens; four are a passage of most models
            config |= {"passage_tokens": 64 * parts if parts < 4 else None, "passages": max(1, parts // 4)}
        elif choice.minutes is not None:
            config[rule.steps] = choice.steps
        learns: dict[str, Any] = {}
        if rule.judged:
            learns = {"queries": run.queries, "qrels": run.splits.train, "dev_qrels": run.splits.dev}
            learns["first_stage"] = self.first
        learns |= {"config": config, "progress": run.progress}
        (result,) = train(run.workspace, [variant], as_name=rule.ranker, **learns).rankers
        return result

    def _report(self, choice: RankerChoice) -> RankerChoice:
        self.run.say("rankers", str(choice))
        return choice
