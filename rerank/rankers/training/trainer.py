"""Training loop of torch families: early stopping, averages of weights, progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank.errors import TrainingError
from rerank.progress import Progress
from rerank.rankers.training.checkpoint import Checkpoint, Measurement, TrainingRun, Weights

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Parts of the way from the weights before the training to the last ones that ``average`` tries."""


class Task:
    """The part of a training that a family supplies.

    name: of the ranker.
    model: all parameters; checkpoints save its ``state_dict``.
    steps_per_epoch: batches.
    """

    name: str
    model: torch.nn.Module
    steps_per_epoch: int

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """New optimizers; ``lr`` is the highest learning rate."""
        raise NotImplementedError

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Batches of an epoch, from batch ``skip``; always the same."""
        raise NotImplementedError

    def loss(self, batch: Any) -> Tensor:
        """Loss of a batch, a scalar with gradient."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Measures by name: the first decides, higher is better. Empty: the last state is kept."""
        return {}

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if nothing is learned."""

    def on_start(self, resumed: bool) -> None:
        """Called before the first step, after a checkpoint is restored."""

    def on_epoch_start(self) -> None:
        """Called before an epoch's first step, not when resuming within it."""

    def on_step_end(self) -> None:
        """Called after every step."""

    def mixes(self, name: str) -> bool:
        """Whether ``average`` mixes a tensor."""
        return True


@dataclass(frozen=True)
class TrainerOptions:
    """Options of the loop.

    steps: maximum. every: steps between measurements. None: an epoch.
    patience: measurements without gain before it stops.
    first: also measure the initial state.
    warmup: share of steps with rising rate, before it falls to 0. None: constant.
    clip: largest gradient norm. None: no limit.
    average: also measure mixtures of initial and last weights.
    seed: of dropout.
    """

    steps: int
    every: int | None = None
    patience: int = 6
    first: bool = True
    warmup: float | None = 0.1
    clip: float | None = 1.0
    average: bool = False
    seed: int = 0


class Trainer:
    """Trains until the measure stops rising or all steps are done; resuming gives equal results."""

    def __init__(
        self,
        task: Task,
        options: TrainerOptions,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.task, self.options, self.checkpoint = task, options, checkpoint
        self.progress = progress or Progress()
        self.every = options.every or task.steps_per_epoch
        self.optimizers = task.optimizers()
        self._rates = [[group["lr"] for group in one.param_groups] for one in self.optimizers]
        self.run = TrainingRun()

    def fit(self) -> TrainingRun:
        """Train, and leave the task in its best state.

        KeyboardInterrupt keeps the best state and marks the run as interrupted; before the first measurement,
        it is raised.
        Raises TrainingError for a loss that is not finite, or a checkpoint of a different training.
        """
        self._start = self._best = self._weights()
        resumed = self.checkpoint.load(self.optimizers) if self.checkpoint else None
        if resumed:
            self.run, weights, self._best = resumed
            self.task.model.load_state_dict(weights)
            self.progress.say(f"{self.task.name} continues at {self._position()}")
        try:
            self.task.on_start(bool(resumed))
            if self.options.first and not self.run.history:
                self._measure(None)
            self._steps()
            if self.options.average and self.run.steps and self.run.kept.measures:
                self._average()
        except KeyboardInterrupt:
            if not self.run.history:
                raise KeyboardInterrupt(
                    f"interrupted before the first measurement of {self.task.name}; nothing of it was kept"
                ) from None
            self.run.interrupted = True
        finally:
            self.progress.finish()
        self.task.model.load_state_dict(self._best)
        return self.run

    def step(self, batch: Any, step: int) -> float:
        """Do step number ``step``; return the loss."""
        options = self.options
        torch.manual_seed(options.seed * 1_000_003 + step)
        scale = 1.0 if options.warmup is None else schedule(step, options.steps, options.warmup)
        self.task.model.train()
        for optimizer, rates in zip(self.optimizers, self._rates):
            optimizer.zero_grad(set_to_none=True)
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * scale
        loss = self.task.loss(batch)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        if options.clip is not None:
            groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
            torch.nn.utils.clip_grad_norm_([one for group in groups for one in group["params"]], options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())

    def _steps(self) -> None:
        run, total = self.run, self.options.steps
        self.progress.start(f"train {self.task.name}", total, "step")
        self.progress.advance(run.steps)
        for batch in self._batches():
            if run.steps % self.task.steps_per_epoch == 0:
                self.task.on_epoch_start()
            loss = self.step(batch, run.steps)
            if not np.isfinite(loss):
                raise TrainingError(f"the loss is not finite at step {run.steps}; lower --rate")
            run.steps += 1
            self.task.on_step_end()
            run.losses.append(loss)
            self.progress.advance()
            self.progress.show(loss=f"{loss:.3f}")
            if run.steps % self.every == 0 or run.steps == total:
                self._measure(float(np.mean(run.losses)))
                if self.checkpoint:
                    self.checkpoint.save(run, self._weights(), self.optimizers, self._best)

    def _batches(self) -> Iterator[Any]:
        run, each = self.run, self.task.steps_per_epoch
        while run.steps < self.options.steps:
            for batch in self.task.batches(run.steps // each, run.steps % each):
                if run.stale >= self.options.patience or run.steps == self.options.steps:
                    return
                yield batch

    def _measure(self, loss: float | None) -> None:
        run = self.run
        self.progress.show(measuring="")
        measured = Measurement(run.steps, loss, self.task.evaluate())
        if loss is not None:
            self.task.check(measured)
        run.losses.clear()
        # The first steps can cost a pretrained model some quality. As long as it recovers, it continues.
        since = run.history[1:] if self.options.first else run.history
        run.stale = 0 if all(measured.better(other) for other in since) else run.stale + 1
        if not run.history or measured.better(run.kept):
            run.best, self._best = run.steps, self._weights()
        run.history.append(measured)
        self._report(measured)

    def _average(self) -> None:
        """Measure mixtures of initial and last weights."""
        run, last, kept = self.run, self._weights(), self.run.kept
        start = {name: self._start[name] if self.task.mixes(name) else one for name, one in last.items()}
        for share in SHARES:
            mixed = between(start, last, share)
            self.task.model.load_state_dict(mixed)
            measured = Measurement(run.steps, None, self.task.evaluate(), share)
            run.history.append(measured)
            self.progress.say(f"{share:.2f} of the way to {self._position()}: {measured}")
            if measured.better(kept):
                kept, self._best, run.best, run.share = measured, mixed, run.steps, share

    def _weights(self) -> Weights:
        whole = self.task.model.state_dict().items()
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in whole}

    def _position(self) -> str:
        step, total, each = self.run.steps, self.options.steps, self.task.steps_per_epoch
        if self.every == each and total % each == 0:
            return f"epoch {step // each} of {total // each}"
        return f"step {step} of {total}"

    def _report(self, measured: Measurement) -> None:
        if measured.loss is None:
            self.progress.say(
                f"{self.task.name} before the training: {measured}"
                if measured.measures
                else "nothing is held out: the last step is kept"
            )
            return
        best = self.run.kept
        also = "" if best is measured or not measured.measures else f"; the best so far {best.value:.4f}"
        self.progress.say(f"{self.task.name}, {self._position()}: loss {measured.loss:.4f}, {measured}{also}")


def schedule(step: int, total: int, warmup: float) -> float:
    """Rate factor: rises for ``warmup`` of the steps, then falls to 0, linearly.

    >>> [round(schedule(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rise = max(1.0, warmup * total)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))


def between(start: Weights, end: Weights, share: float) -> Weights:
    """start + share (end - start) (Wortsman et al. 2022, WiSE-FT)."""
    return {
        name: one + share * (end[name] - one) if one.is_floating_point() else end[name]
        for name, one in start.items()
    }
