"""Trainings of an auto run."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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

LATEST = 0.75
"""Share of the time after which trainings stop, on a machine that is slower than the plan."""
MODEL, READS = "minilm", "en"
"""Default encoder, and its language."""
_LATE = "the machine was slower than the plan"


@dataclass(frozen=True)
class Options:
    """Options of auto; see :func:`rerank.auto`."""

    measure: str
    minutes: float
    conflicts: str
    seed: int
    model: str | None
    progress: Progress
    begun: float = field(default_factory=time.monotonic)


class _File(msgspec.Struct):
    key: str
    planned: dict[str, int] = {}
    trained: dict[str, tuple[str, int]] = {}


class Record:
    """Trainings of rankers on the same files.

    known: from an auto run. other: from other files. trained: ranker -> (version, steps).
    """

    def __init__(self, workspace: Path, files: Folder, options: Options) -> None:
        """Read the record. Other inputs start a new one."""
        inputs = f"{options.seed} {options.conflicts} {options.model or MODEL}"
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
        self.trained = self._file.trained

    def save(self) -> None:
        """Write the record."""
        self.known = True
        write_bytes(self._path, msgspec.json.format(msgspec.json.encode(self._file), indent=1) + b"\n")

    def steps(self, workspace: Workspace, name: str, planned: int) -> int | None:
        """Return the steps of an unchanged ranker of this plan, or None if it must be trained."""
        version, steps = self.trained.get(name, ("", 0))
        with suppress(RerankError):
            if planned == self._file.planned.get(name) and workspace.ranker(name).version == version:
                return steps
        return None

    def plan(self, name: str, planned: int) -> bool:
        """Record a plan. Returns whether an interrupted training of it can continue."""
        same = self._file.planned.get(name, planned) == planned
        self._file.planned[name] = planned
        self.save()
        return same

    def add(self, workspace: Workspace, name: str, steps: int) -> None:
        """Record a complete training."""
        self.trained[name] = workspace.ranker(name).version, steps
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
            model=model is not None or util.find_spec(PACKAGED[MODEL]) is not None,
            reads=READS if model in (None, MODEL) else None,
        )
        if facts.languages[0] is None:
            facts = replace(facts, languages=(workspace.lang, facts.languages[1]))
        self.budget = Budget(facts, options.minutes)

    def run_all(self, first: str) -> list[RankerChoice]:
        """Apply the rules. first: first stage."""
        chosen = {rule.ranker: self._run(rule, first) for rule in ranker_choice.RULES}
        for rule in ranker_choice.RULES:
            if chosen[rule.ranker].too_long and rule.share < 1:  # the others have left time
                chosen[rule.ranker] = self._run(replace(rule, share=1.0), first)
        return [*chosen.values()]

    def _run(self, rule: Rule, first: str) -> RankerChoice:
        choice, name, options = self.budget.choose(rule), rule.ranker, self.options
        if not choice.trained:
            return choice if choice.too_long and rule.share < 1 else self._report(choice)
        steps = self.record.steps(self.workspace, name, choice.steps)
        if steps is not None:
            self.say("rankers", f"{choice} (done before)")
            self.budget.spend(rule, steps, reused=True)
            return choice
        clock = _Clock(options.progress, options.begun + LATEST * 60 * options.minutes)
        choice = self._report(self._in_time(rule, choice, clock))
        if not choice.trained:
            return choice
        if not self.record.plan(name, choice.steps):
            shutil.rmtree(self.workspace.folder / "training" / name, ignore_errors=True)
        try:
            result = self._fit(rule, choice, first, clock)
        except TrainingError as error:
            return self._report(replace(choice, trained=False, reason=str(error)))
        except KeyboardInterrupt:
            if not clock.ended:
                raise
            return self._report(replace(choice, trained=False, reason=_LATE))
        if result.interrupted and not clock.ended:
            raise KeyboardInterrupt(
                f"interrupted: {name} is kept at its best step; call again to finish its training"
            )
        return self._done(rule, choice, result)

    def _in_time(self, rule: Rule, choice: RankerChoice, clock: _Clock) -> RankerChoice:
        """Plan fewer passages, or skip the ranker, if the machine is slower than the plan."""
        elapsed, (before, step, _) = time.monotonic() - self.options.begun, rule.cost(self.budget.facts)
        slow = max(1 / ranker_choice.CORES, elapsed / (self.budget.spent or math.inf))  # s per planned s
        of_passages = rule.steps == ranker_choice.PARTS
        if clock.seconds() < slow * (before + step * of_passages):
            return replace(choice, trained=False, reason=_LATE)
        fitting = int((clock.seconds() / slow - before) / step) if of_passages else choice.steps
        if fitting >= choice.steps:
            return choice
        reason = f"{choice.reason}; {_LATE}: {fitting} of {choice.steps} {rule.steps}"
        minutes = choice.minutes or math.ceil(slow * self.options.minutes)
        return replace(choice, steps=fitting, reason=reason, minutes=minutes)

    def _done(self, rule: Rule, choice: RankerChoice, result: TrainingResult) -> RankerChoice:
        """Record a training, complete or ended by the clock."""
        steps = choice.steps if rule.steps == ranker_choice.PARTS else result.epochs
        if not result.interrupted:
            self.record.add(self.workspace, rule.ranker, steps)
        self.budget.spend(rule, steps)
        how = f"; {_LATE} after {result.unit} {result.epochs}" if result.interrupted else ""
        if result.dev is not None:
            measured = f"{result.measure} {result.dev:.4f}, {result.baseline:.4f} {result.without}"
            self.say("rankers", f"{rule.ranker}: {measured}{how}")
        values = [value for *_, value in result.curve if value is not None]
        short = choice.minutes is not None or result.interrupted
        if rule.steps == "epochs" and len(values) > 1 and short:
            gain = max(values) - max(values[:-1])
            choice = replace(choice, reason=f"{choice.reason}{how}; the last measured gain is {gain:.4f}")
        return choice

    def _fit(self, rule: Rule, choice: RankerChoice, first: str, clock: _Clock) -> TrainingResult:
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
        done = train(self.workspace, [variant], as_name=rule.ranker, config=config, progress=clock, **learns)
        (result,) = done.rankers
        return result

    def _report(self, choice: RankerChoice) -> RankerChoice:
        self.say("rankers", str(choice))
        return choice


class _Clock(Progress):
    """Ends a training that is much slower than its plan. The best epoch is kept."""

    def __init__(self, progress: Progress, deadline: float) -> None:
        self.progress, self.deadline = progress, deadline
        self.ended = self._training = False
        self.say, self.show = progress.say, progress.show  # type: ignore[method-assign]

    def seconds(self) -> float:
        return self.deadline - time.monotonic()

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        self._training = unit in ("batch", "step", "iteration")
        self.progress.start(title, total, unit)

    def advance(self, count: int = 1) -> None:
        self.progress.advance(count)
        if self._training and self.seconds() < 0:
            self.ended, self._training = True, False
            raise KeyboardInterrupt

    def finish(self) -> None:
        self._training = False
        self.progress.finish()
