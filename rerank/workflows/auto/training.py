"""Trainings of an auto run."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import RerankError, TrainingError
from rerank.common.progress import Progress
from rerank.common.values import items_in
from rerank.documents.records import Qrels
from rerank.rankers.dense.neighborhood import encoded_means
from rerank.rankers.dense.ranker import DenseRanker
from rerank.rankers.encoder.folder import installed_encoder, model_folder, only_language, runs_in_onnx
from rerank.rankers.encoder.modules import Modules
from rerank.rankers.encoder.shared import PASSAGE_VECTORS
from rerank.rankers.training.job import TrainingResult
from rerank.workflows.auto import plan as ranker_plan
from rerank.workflows.auto.context import AutoContext
from rerank.workflows.auto.nearest import relevant_neighbor_share
from rerank.workflows.auto.plan import CollectionFacts, RankerChoice, Rule
from rerank.workflows.auto.state import AutoState, RankerTraining
from rerank.workflows.auto.tuning import MOST_RESERVE
from rerank.workflows.encode import encode
from rerank.workflows.train import train

MEASURED = 48
"""Documents that measure the speed of the encoder."""
LONGEST_PASS = 0.6
"""Share of the time that is left in which an encoder can read a part of each document."""
LEAST_STEPS = 20
"""Fewer steps do not improve an encoder."""
STEP_FACTOR = 4.5
"""Time of a training step, divided by the time to encode its texts. Measured on the demo: 4.2."""
LATEST = 2.0
"""Time until a training of so many steps is stopped, divided by the time that they were expected to take."""
MEASUREMENTS = 2
"""Measurements of the training of an encoder whose steps the time limits: at its start and at its end."""


class Deadline(Progress):
    """Passes progress on, and interrupts the work like Ctrl-C at a moment of ``time.monotonic``."""

    def __init__(self, progress: Progress, moment: float) -> None:
        self.progress = progress
        self.moment = moment
        self.passed = False

    def start(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.progress.start(title, total, unit)

    def advance(self, count: int = 1) -> None:
        """Count more units as done. Raises KeyboardInterrupt after the moment."""
        self.progress.advance(count)
        if time.monotonic() > self.moment:
            self.passed = True
            raise KeyboardInterrupt

    def show(self, **values: str) -> None:
        self.progress.show(**values)

    def finish(self) -> None:
        self.progress.finish()

    def say(self, line: str) -> None:
        self.progress.say(line)

    def without_deadline(self) -> Progress:
        return self.progress


class Trainings:
    """Trains one ranker after the other.

    context:     the options, the workspace and the judgments.
    state:       the trainings of earlier runs, which are continued.
    first_stage: the signal that retrieves candidates for the training.
    end:         the moment of ``time.monotonic`` at which trainings must end.
    """

    def __init__(self, context: AutoContext, state: AutoState, first_stage: str, end: float) -> None:
        self.context = context
        self.state = state
        self.first_stage = first_stage
        self.end = end
        self._shared_parts = 0  # of each document, read by the pretrained encoder in this run
        engine = context.workspace.engine
        self.facts = CollectionFacts.of(
            context.progress.over(engine.documents(), "look at documents", len(engine), "doc"),
            context.queries,
            context.splits,
            lang=context.workspace.lang,
        )
        self.model = context.model or installed_encoder(*self.facts.languages) or ""
        self.facts = replace(
            self.facts,
            model=bool(self.model),
            reads=only_language(self.model),
            can_learn=not (self.model and runs_in_onnx(model_folder(self.model))),
        )

    def run_all(self) -> list[RankerChoice]:
        """Train the rankers whose needs the collection meets, in the order of the rules.

        Returns a choice with its reason for each rule, also for rankers that are not trained.
        """
        reasons = ranker_plan.unmet(self.facts)
        if "model" not in reasons:
            now = time.monotonic()
            earlier_end = self.end - ranker_plan.query_seconds(self.facts, reasons, self.part_seconds)
            self.end = max(earlier_end, now + (1 - MOST_RESERVE) * (self.context.end - now))
        shares = 0.0
        for rule in ranker_plan.RULES:
            if reasons.keys().isdisjoint(rule.needs):
                shares += rule.share
        choices = []
        for rule in ranker_plan.RULES:
            unmet = items_in(rule.needs, reasons)
            if unmet:
                choice = RankerChoice(rule.ranker, False, reasons[unmet[0]])
            else:
                choice = self._train(rule, rule.share / shares)
                shares -= rule.share
            self.context.say("rankers", str(choice))
            choices.append(choice)
        return choices

    @cached_property
    def part_seconds(self) -> float:
        """Seconds to encode 64 tokens of a document, measured on some documents.

        An encoding of all documents replaces the value with a better one.
        """
        if time.monotonic() >= self.context.end:
            return 1.0  # no encoder is trained

        from rerank.rankers.dense.config import DenseConfig

        config = DenseConfig(model=self.model, untrained=True, passage_tokens=64, passages=1)
        ranker = DenseRanker(name="", source=config.load(), passages=1)
        sample = [*islice(self.context.workspace.engine.documents(), MEASURED)]
        ranker.encode_documents(sample[:1])  # the first call is slower
        begin = time.monotonic()
        ranker.encode_documents(sample)
        return (time.monotonic() - begin) / max(len(sample), 1)

    @property
    def _neighbors(self) -> int:
        """The neighbors toward which the untrained encoder moves documents. Other encoders do the same."""
        if ranker_plan.UNTRAINED not in self.context.workspace.trained():
            return 0
        return self._untrained.neighbors

    @property
    def _untrained(self) -> DenseRanker:
        """The ranker with the untrained encoder."""
        ranker = self.context.workspace.ranker(ranker_plan.UNTRAINED)
        assert isinstance(ranker, DenseRanker)
        return ranker

    @cached_property
    def passage_parts(self) -> int:
        """The parts of the longest passage that the encoder reads."""
        longest = Modules.read(model_folder(self.model)).longest or ranker_plan.PART_TOKENS
        return max(1, longest // ranker_plan.PART_TOKENS)

    def _train(self, rule: Rule, share: float) -> RankerChoice:
        """Train a ranker within a share of the time, or use the one of an earlier run."""
        name = rule.ranker
        choice = RankerChoice(name, True, rule.worth)
        earlier = self.state.rankers.get(name)
        longer = earlier is not None and not earlier.complete and self.context.minutes > earlier.minutes
        if earlier is not None and not longer and self._is_installed(name, earlier.version):
            return replace(choice, reason=f"{rule.worth} (done before)", cut=not earlier.complete)
        allowed = share * (self.end - time.monotonic())
        if rule.passes and not rule.pretrained:  # all documents are encoded after the training
            allowed -= self._pass_seconds(rule) * rule.parts(self.facts)
        training = self._affordable(rule, allowed)
        if earlier is not None and not longer:  # its checkpoint fits only the same settings
            training.parts = earlier.parts
            training.steps = earlier.steps
        if rule.pretrained:
            parts = rule.all_parts(self.facts)
            training.complete = training.parts == parts
            has_time = training.parts > 0
            if 0 < training.parts < parts:
                read_parts = f"; time to read {training.parts} of {parts} parts of a document"
                choice = replace(choice, reason=rule.worth + read_parts, cut=True)
        else:
            training.complete = training.steps == rule.steps
            has_time = allowed > 0 and training.steps >= min(rule.steps, LEAST_STEPS)
        if not has_time:
            return RankerChoice(name, False, "no time is left for it", cut=True)
        self.state.rankers[name] = training
        self.state.save()
        is_untrained = name == ranker_plan.UNTRAINED  # first without neighbors, to see if they help
        neighbors = 0 if is_untrained else self._neighbors
        try:
            result = self._fit(rule, training, allowed, neighbors)
        except TrainingError as error:
            return replace(choice, trained=False, reason=str(error))
        if result is None:
            return RankerChoice(name, False, "its time was over before its first measurement", cut=True)
        if is_untrained:
            reason = self._move_to_neighbors(rule, training, allowed)
            choice = replace(choice, reason=choice.reason + reason)
        training.version = self.context.workspace.ranker(name).version
        training.complete &= not result.interrupted
        self.state.save()
        if result.interrupted:
            over = f"; its time was over, {result.unit} {result.epoch} of {result.epochs} is kept"
            choice = replace(choice, reason=choice.reason + over, cut=True)
        if result.dev is not None:
            values = f"{result.measure} {result.dev:.4f}, {result.baseline_value:.4f} {result.baseline_name}"
            self.context.say("rankers", f"{name}: {values}")
        return choice

    def _move_to_neighbors(self, rule: Rule, training: RankerTraining, allowed: float) -> str:
        """Fit the untrained encoder again, with neighbors, if relevant documents are near to each other.

        Returns a reason for the report; empty if the ranker does not change.
        """
        share = self._relevant_neighbor_share()
        if share < ranker_plan.LEAST_NEIGHBOR_SHARE:
            return ""
        self._fit(rule, training, allowed, ranker_plan.NEIGHBORS)
        return (
            f"; {share:.0%} of the neighbors of relevant documents are relevant, so its vectors move toward"
            f" {ranker_plan.NEIGHBORS} neighbors"
        )

    def _relevant_neighbor_share(self) -> float:
        """Return the share of relevant documents among the neighbors of relevant ones; 0 if not measured.

        It compares vectors of the untrained encoder, which has read the documents before; if they are not in
        memory any more, this would take too long. Clicks judge only documents that were ranked high, so they
        do not tell it.
        """
        splits = self.context.splits
        judged = Qrels({**splits.dev, **splits.train})
        is_large = self.facts.documents > ranker_plan.LARGE
        is_slow = is_large or PASSAGE_VECTORS.has_forgotten
        if is_slow or self.context.judgments.from_clicks or not judged:
            return 0.0
        ranker = self._untrained
        ids: list[str] = []
        means: list[NDArray[np.float32]] = []
        for batch, batch_means in encoded_means(ranker, self.context.workspace.engine.documents()):
            ids += [document.id for document in batch]
            means.append(batch_means)
        return relevant_neighbor_share(ids, np.concatenate(means), judged, ranker_plan.NEIGHBORS)

    def _pass_seconds(self, rule: Rule) -> float:
        """Return the time to encode one part of every document, as often as the rule does it.

        A trained encoder reads the documents once more to know their neighbors.
        """
        passes = rule.passes + (not rule.pretrained and self._neighbors > 0)
        return passes * self.part_seconds * self.facts.documents

    def _affordable(self, rule: Rule, allowed: float) -> RankerTraining:
        """Return the training that the allowed seconds are enough for."""
        training = RankerTraining(self.context.minutes)
        if rule.pretrained:
            training.parts = self._affordable_parts(rule, allowed)
        elif rule.steps:
            training.steps = self._affordable_steps(rule, allowed)
        return training

    def _affordable_parts(self, rule: Rule, allowed: float) -> int:
        """Return how many parts of every document an encoder can read in the allowed seconds.

        A stack has an encoder, also if reading one part takes the time of other rankers. What another ranker
        has read with the same encoder takes no time.
        """
        if self._shared_parts and not rule.reads_names and not PASSAGE_VECTORS.has_forgotten:
            return self._shared_parts
        pass_seconds = self._pass_seconds(rule)
        longest = LONGEST_PASS * (self.context.end - time.monotonic())
        least_parts = int(rule.ranker == ranker_plan.UNTRAINED and pass_seconds < longest)
        return min(rule.all_parts(self.facts), max(int(allowed / pass_seconds), least_parts))

    def _affordable_steps(self, rule: Rule, allowed: float) -> int:
        """Return how many steps an encoder can learn in the allowed seconds, at most those of the rule.

        A step encodes queries of one part, and a positive and a negative document for each.
        """
        from rerank.rankers.dense.judged import DEPTH, POOL  # needs torch

        parts = rule.parts(self.facts)
        dev_parts = min(POOL, self.facts.documents) * parts + min(self.facts.dev_queries, 2 * POOL // DEPTH)
        measuring = MEASUREMENTS * dev_parts * self.part_seconds
        step_parts = int(rule.config["batch"]) * (1 + 2 * parts)
        step_seconds = STEP_FACTOR * step_parts * self.part_seconds
        return min(rule.steps, max(0, int((allowed - measuring) / step_seconds)))

    def _is_installed(self, name: str, version: str) -> bool:
        try:
            return self.context.workspace.ranker(name).version == version
        except RerankError:
            return False

    def _options(self, rule: Rule, training: RankerTraining, neighbors: int) -> dict[str, Any]:
        """Return the options of a training. neighbors: see :meth:`_fit`."""
        variant = rule.variant or rule.ranker
        options: dict[str, Any] = {**rule.config}
        if self.context.judgments.from_clicks:
            options |= rule.click_config
        if not rule.pretrained:
            options["seed"] = self.context.seed
        if epochs := rule.epoch_count(self.facts):
            options["epochs"] = epochs
        if variant in ("dense", "adapter"):
            options["model"] = self.model
            options["neighbors"] = neighbors
        if training.steps:
            options["steps"] = training.steps
            options["every"] = training.steps
        if parts := training.parts:
            is_cut = parts < min(rule.all_parts(self.facts), self.passage_parts)
            options["passage_tokens"] = ranker_plan.PART_TOKENS * parts if is_cut else None
            options["passages"] = max(1, parts // self.passage_parts)
        return options

    def _fit(
        self, rule: Rule, training: RankerTraining, allowed: float, neighbors: int
    ) -> TrainingResult | None:
        """Train for the allowed seconds, and encode the documents. None: nothing was trained in them.

        neighbors: documents toward which the vectors of a document move.
        """
        context = self.context
        judged: dict[str, Any] = {}
        if rule.judged:
            judged = {
                "queries": context.queries,
                "qrels": context.splits.train,
                "dev_qrels": context.judgments.stopping,
            }
            judged["first_stage"] = self.first_stage
        factor = LATEST if training.steps else 1.0
        moment = math.inf if rule.pretrained else time.monotonic() + factor * allowed
        deadline = Deadline(context.progress, moment)
        try:
            report = train(
                context.workspace,
                [rule.variant or rule.ranker],
                as_name=rule.ranker,
                config=self._options(rule, training, neighbors),
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
        encode(context.workspace, [rule.ranker], progress=context.progress)
        if rule.ranker == ranker_plan.UNTRAINED and not neighbors:
            seconds = time.monotonic() - begin
            self.part_seconds = seconds / (training.parts * self.facts.documents)
        if rule.pretrained and not rule.reads_names:
            self._shared_parts = training.parts
        return result
