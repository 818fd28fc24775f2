"""Trainings of an auto run."""

from __future__ import annotations

import hashlib
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rerank.errors import RerankError, TrainingError
from rerank.files import write_bytes
from rerank.progress import Progress
from rerank.rankers.encoder.folder import installed_encoder, installed_encoders, only_language
from rerank.rankers.training.job import TrainingResult
from rerank.records import Query
from rerank.workflows.auto import plan as ranker_plan
from rerank.workflows.auto.files import Folder
from rerank.workflows.auto.judgments import Judgments
from rerank.workflows.auto.plan import CollectionFacts, RankerChoice, Rule
from rerank.workflows.auto.splits import Splits
from rerank.workflows.encode import encode
from rerank.workflows.train import train
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

MEASURED = 48
"""Documents that measure the speed of the encoder."""
LONGEST_PASS = 0.6
"""Share of the time that is left in which an encoder can read a part of each document."""
PASSAGE_PARTS = 4
"""Parts of 64 tokens in a passage of most models."""


@dataclass
class Run:
    """An auto run: options (see :func:`rerank.auto`), and the results of its first steps.

    end: moment of ``time.monotonic`` at which the time is over. ubi: cluster with a click log, if any.
    messages: remarks of the steps.
    """

    files: Folder
    measure: str
    minutes: float
    seed: int
    model: str | None
    progress: Progress
    end: float
    ubi: Settings | None = None
    messages: list[str] = field(default_factory=list)
    workspace: Workspace = field(init=False)
    judgments: Judgments = field(init=False)

    @property
    def queries(self) -> list[Query]:
        """All queries."""
        return self.judgments.queries

    @property
    def splits(self) -> Splits:
        """Judgments of train, dev and test queries."""
        return self.judgments.splits

    def say(self, step: str, *lines: str) -> None:
        """Print and keep remarks of a step."""
        for line in lines:
            self.messages.append(f"{step}: {line}")
            self.progress.say(f"{step}: {line}")


class _Training(msgspec.Struct):
    """minutes: of the run. parts: of a document that are encoded. version: of the ranker, if installed."""

    minutes: float
    parts: int = 0
    version: str = ""
    complete: bool = False


class _File(msgspec.Struct):
    key: str
    rankers: dict[str, _Training] = {}


class Record:
    """Trainings of rankers on the same files. known: from an auto run. other: from other files."""

    def __init__(self, workspace: Path, run: Run) -> None:
        """Read the record. Other inputs start a new one."""
        inputs = f"{run.seed} {run.model or ' '.join(installed_encoders())}"
        if run.ubi is not None:
            inputs += f" {run.ubi.where}"
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


class Deadline(Progress):
    """Passes progress on, and interrupts the work like Ctrl-C at a moment of ``time.monotonic``."""

    def __init__(self, progress: Progress, moment: float) -> None:
        self.progress, self.moment = progress, moment
        self.passed = False

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Open a step."""
        self.progress.start(title, total, unit)

    def advance(self, count: int = 1) -> None:
        """Count more units as done. Raises KeyboardInterrupt after the moment."""
        self.progress.advance(count)
        if time.monotonic() > self.moment:
            self.passed = True
            raise KeyboardInterrupt

    def show(self, **values: str) -> None:
        """Show the latest values."""
        self.progress.show(**values)

    def finish(self) -> None:
        """Close the step."""
        self.progress.finish()

    def say(self, line: str) -> None:
        """Print a line."""
        self.progress.say(line)


class Trainings:
    """Trains one ranker after the other. first_stage: retrieves candidates. end: of ``time.monotonic``."""

    def __init__(self, run: Run, record: Record, first_stage: str, end: float) -> None:
        self.run, self.record, self.first_stage, self.end = run, record, first_stage, end
        engine, model = run.workspace.engine, run.model
        self.facts = CollectionFacts.of(
            run.progress.over(engine.documents(), "look at documents", len(engine), "doc"),
            run.queries,
            run.splits,
            lang=run.workspace.lang,
        )
        self.model = model or installed_encoder(*self.facts.languages) or ""
        self.facts = replace(self.facts, model=bool(self.model), reads=only_language(self.model))

    def run_all(self) -> list[RankerChoice]:
        """Apply the rules."""
        reasons = ranker_plan.unmet(self.facts)
        shares = 0.0
        for rule in ranker_plan.RULES:
            if reasons.keys().isdisjoint(rule.needs):
                shares += rule.share
        choices = []
        for rule in ranker_plan.RULES:
            unmet = [reasons[need] for need in rule.needs if need in reasons]
            if unmet:
                choice = RankerChoice(rule.ranker, False, unmet[0])
            else:
                choice = self._train(rule, rule.share / shares)
                shares -= rule.share
            self.run.say("rankers", str(choice))
            choices.append(choice)
        return choices

    @cached_property
    def part_seconds(self) -> float:
        """Seconds to encode 64 tokens of a document, measured on some documents.

        An encoding of all documents replaces the value with a better one.
        """
        from rerank.rankers.dense.config import DenseConfig
        from rerank.rankers.dense.ranker import DenseRanker

        config = DenseConfig(model=self.model, untrained=True, passage_tokens=64, passages=1)
        ranker = DenseRanker(name="", source=config.load(), passages=1)
        sample = [*islice(self.run.workspace.engine.documents(), MEASURED)]
        ranker.encode_documents(sample[:1])  # the first call is slower
        begin = time.monotonic()
        ranker.encode_documents(sample)
        return (time.monotonic() - begin) / max(len(sample), 1)

    def _train(self, rule: Rule, share: float) -> RankerChoice:
        """Train a ranker within a share of the time, or use the one of an earlier run."""
        name = rule.ranker
        choice = RankerChoice(name, True, rule.worth)
        earlier = self.record.rankers.get(name)
        longer = earlier is not None and not earlier.complete and self.run.minutes > earlier.minutes
        if earlier is not None and not longer and self._is_installed(name, earlier.version):
            return replace(choice, reason=f"{rule.worth} (done before)", cut=not earlier.complete)
        allowed = share * (self.end - time.monotonic())
        training = _Training(self.run.minutes, complete=True)
        if rule.passes:  # the time to encode all documents
            pass_seconds = rule.passes * self.part_seconds * self.facts.documents
            parts = ranker_plan.all_parts(self.facts)
            if not rule.only_encodes:
                allowed -= pass_seconds * rule.config.get("passages", parts)
            else:
                # A stack has an encoder, also if reading the documents takes the time of other rankers.
                left = LONGEST_PASS * (self.run.end - time.monotonic())
                least = int(rule.passes == 1 and pass_seconds < left)
                training.parts = min(parts, max(int(allowed / pass_seconds), least))
                if earlier is not None and not longer:
                    training.parts = earlier.parts
                training.complete = training.parts == parts
                if 0 < training.parts < parts:
                    read = f"; time to read {training.parts} of {parts} parts of a document"
                    choice = replace(choice, reason=rule.worth + read, cut=True)
        if not training.parts if rule.only_encodes else allowed <= 0:
            return RankerChoice(name, False, "no time is left for it", cut=True)
        self.record.rankers[name] = training
        self.record.save()
        try:
            result = self._fit(rule, training, time.monotonic() + allowed)
        except TrainingError as error:
            return replace(choice, trained=False, reason=str(error))
        if result is None:
            return RankerChoice(name, False, "its time was over before its first measurement", cut=True)
        training.version = self.run.workspace.ranker(name).version
        training.complete &= not result.interrupted
        self.record.save()
        if result.interrupted:
            over = f"; its time was over, {result.unit} {result.epoch} of {result.epochs} is kept"
            choice = replace(choice, reason=choice.reason + over, cut=True)
        if result.dev is not None:
            values = f"{result.measure} {result.dev:.4f}, {result.baseline_value:.4f} {result.baseline_name}"
            self.run.say("rankers", f"{name}: {values}")
        return choice

    def _is_installed(self, name: str, version: str) -> bool:
        try:
            return self.run.workspace.ranker(name).version == version
        except RerankError:
            return False

    def _fit(self, rule: Rule, training: _Training, moment: float) -> TrainingResult | None:
        """Train until the moment, and encode the documents. None: nothing was trained before it."""
        variant, run = rule.variant or rule.ranker, self.run
        options: dict[str, Any] = {**rule.config}
        if not rule.only_encodes:
            options["seed"] = run.seed
        if epochs := rule.steps(self.facts):
            options["epochs"] = epochs
        if variant in ("dense", "adapter"):
            options["model"] = self.model
        if parts := training.parts:
            short = parts < PASSAGE_PARTS
            options |= {"passage_tokens": 64 * parts if short else None}
            options["passages"] = max(1, parts // PASSAGE_PARTS)
        judged: dict[str, Any] = {}
        if rule.judged:
            judged = {"queries": run.queries, "qrels": run.splits.train, "dev_qrels": run.judgments.stopping}
            judged["first_stage"] = self.first_stage
        deadline = Deadline(run.progress, math.inf if rule.only_encodes else moment)
        try:
            report = train(
                run.workspace,
                [variant],
                as_name=rule.ranker,
                config=options,
                encode_features=False,
                progress=deadline,
                **judged,
            )
        except KeyboardInterrupt:
            if not deadline.passed:
                raise
            return None
        (result,) = report.rankers
        if result.interrupted and not deadline.passed:
            raise KeyboardInterrupt(
                f"interrupted: {rule.ranker} is kept at its best step; call again to finish its training"
            )
        begin = time.monotonic()
        encode(run.workspace, [rule.ranker], progress=run.progress)
        if rule.only_encodes and rule.passes == 1:
            seconds = time.monotonic() - begin
            self.part_seconds = seconds / (training.parts * self.facts.documents)
        return result
