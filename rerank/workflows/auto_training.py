"""Trainings of an auto run."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path
from typing import Any

import msgspec

from rerank.errors import RerankError, TrainingError
from rerank.files import write_bytes
from rerank.progress import Progress
from rerank.rankers.encoder.transformer import PACKAGED
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


@dataclass(frozen=True)
class Options:
    """Options of auto; see :func:`rerank.auto`."""

    measure: str
    minutes: float
    seed: int
    model: str | None
    progress: Progress


class _Training(msgspec.Struct):
    planned: int
    version: str = ""
    steps: int = 0


class _File(msgspec.Struct):
    key: str
    rankers: dict[str, _Training] = {}


class Record:
    """Trainings of rankers on the same files. known: from an auto run. other: from other files."""

    def __init__(self, workspace: Path, files: Folder, options: Options) -> None:
        """Read the record. Other inputs start a new one."""
        inputs = f"{options.seed} {options.model or MODEL}"
        digest = hashlib.sha256(inputs.encode())
        for path in files.files():
            known = path.stat()
            digest.update(f"{path.resolve()}\0{known.st_size}\0{known.st_mtime_ns}\n".encode())
        self._path, self._file = workspace / "auto.json", _File(digest.hexdigest())
        self.known = self.other = False
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            stored = msgspec.json.decode(self._path.read_bytes(), type=_File)
            self.known, self.other = True, stored.key != self._file.key
            self._file = self._file if self.other else stored

    @property
    def trained(self) -> bool:
        """Whether a training is complete."""
        return any(one.version for one in self._file.rankers.values())

    def save(self) -> None:
        """Write the record."""
        self.known = True
        write_bytes(self._path, msgspec.json.format(msgspec.json.encode(self._file), indent=1) + b"\n")

    def steps(self, workspace: Workspace, name: str, planned: int) -> int | None:
        """Return the steps of an unchanged ranker of this plan, or None if it must be trained."""
        one = self._file.rankers.get(name)
        with suppress(RerankError):
            if one and one.planned == planned and workspace.ranker(name).version == one.version:
                return one.steps
        return None

    def plan(self, name: str, planned: int) -> bool:
        """Record a plan. Returns whether an interrupted training of it can continue."""
        before = self._file.rankers.get(name)
        self._file.rankers[name] = _Training(planned)
        self.save()
        return before is None or before.planned == planned

    def add(self, workspace: Workspace, name: str, steps: int) -> None:
        """Record a complete training."""
        one = self._file.rankers[name]
        one.version, one.steps = workspace.ranker(name).version, steps
        self.save()


class Trainings:
    """Trains one ranker after the other within a budget. say: (step, line)."""

    def __init__(
        self,
        workspace: Workspace,
        queries: Sequence[Query],
        splits: Splits,
        options: Options,
        record: Record,
        say: Callable[..., None],
    ) -> None:
        self.workspace, self.queries, self.splits = workspace, queries, splits
        self.options, self.record, self.say = options, record, say
        engine, model = workspace.engine, options.model
        facts = CollectionFacts.of(
            options.progress.over(engine.documents(), "look at documents", len(engine), "doc"),
            queries,
            splits,
            lang=workspace.lang,
            model=model is not None or util.find_spec(PACKAGED[MODEL]) is not None,
            reads=READS if model in (None, MODEL) else None,
        )
        self.budget = Budget(facts, options.minutes)

    def run_all(self, first: str) -> list[RankerChoice]:
        """Apply the rules. first: first stage."""
        chosen = {rule.ranker: self._run(rule, first) for rule in ranker_choice.RULES}
        for rule in ranker_choice.RULES:
            if chosen[rule.ranker].too_long and rule.share < 1:  # the others have left time
                chosen[rule.ranker] = self._run(replace(rule, share=1.0), first)
        return [*chosen.values()]

    def _run(self, rule: Rule, first: str) -> RankerChoice:
        choice, name = self.budget.choose(rule), rule.ranker
        if not choice.trained:
            return choice if choice.too_long and rule.share < 1 else self._report(choice)
        steps = self.record.steps(self.workspace, name, choice.steps)
        if steps is not None:
            self.say("rankers", f"{choice} (done before)")
            self.budget.spend(rule, steps)
            return choice
        self._report(choice)
        if not self.record.plan(name, choice.steps):
            shutil.rmtree(self.workspace.folder / "training" / name, ignore_errors=True)
        try:
            result = self._fit(rule, choice, first)
        except TrainingError as error:
            return self._report(replace(choice, trained=False, reason=str(error)))
        if result.interrupted:
            raise KeyboardInterrupt(
                f"interrupted: {name} is kept at its best step; call again to finish its training"
            )
        steps = choice.steps if rule.steps == ranker_choice.PARTS else result.epochs
        self.record.add(self.workspace, name, steps)
        self.budget.spend(rule, steps)
        if result.dev is not None:
            measured = f"{result.measure} {result.dev:.4f}, {result.baseline:.4f} {result.without}"
            self.say("rankers", f"{name}: {measured}")
        return choice

    def _fit(self, rule: Rule, choice: RankerChoice, first: str) -> TrainingResult:
        variant, options = rule.variant or rule.ranker, self.options
        config: dict[str, Any] = {"seed": options.seed} if rule.steps == "epochs" else {}
        config |= rule.config
        if variant in ("dense", "adapter"):
            config["model"] = options.model or MODEL
        if rule.steps == ranker_choice.PARTS:
            parts = choice.steps  # of 64 tokens; four are a passage of most models
            config |= {"passage_tokens": 64 * parts if parts < 4 else None, "passages": max(1, parts // 4)}
        elif choice.minutes is not None:
            config[rule.steps] = choice.steps
        learns: dict[str, Any] = {}
        if rule.judged:
            learns = {"qrels": self.splits.train, "dev_qrels": self.splits.dev, "first_stage": first}
            learns["queries"] = self.queries
        done = train(
            self.workspace,
            [variant],
            as_name=rule.ranker,
            config=config,
            progress=options.progress,
            **learns,
        )
        (result,) = done.rankers
        return result

    def _report(self, choice: RankerChoice) -> RankerChoice:
        self.say("rankers", str(choice))
        return choice
