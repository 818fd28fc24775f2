"""Training loop of torch families: early stopping, averages of weights, progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rerank.common.errors import TrainingError
from rerank.common.progress import SILENT, Progress
from rerank.rankers.training.checkpoint import Checkpoint, Measurement, TrainingRun, Weights

ALPHA = 0.5
"""Part of the way from the weights before the training to the last ones that ``average`` tries."""


class Task:
    """The part of a training that a family of rankers supplies.

    name:            the name of the ranker, for messages.
    model:           has all parameters; checkpoints save its ``state_dict``.
    steps_per_epoch: the number of batches in an epoch.
    """

    name: str
    model: torch.nn.Module
    steps_per_epoch: int

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Return new optimizers. The ``lr`` of their groups is the highest learning rate."""
        raise NotImplementedError

    def batches(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch, from batch number ``skip``. All calls yield the same batches."""
        raise NotImplementedError

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch, a scalar with gradient."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Return the measures by name. The first one decides, and higher is better.

        Without measures, the last state of the training is kept.
        """
        return {}

    def check(self, measured: Measurement) -> None:
        """Raise TrainingError if a measurement shows that nothing is learned."""

    def on_start(self, resumed: bool) -> None:
        """Prepare the training. It is called once, after a checkpoint is restored."""

    def on_epoch_start(self) -> None:
        """Prepare an epoch. A training that continues within an epoch does not call it for this epoch."""

    def on_step_end(self) -> None:
        """Update state that depends on the weights. The trainer calls it after every optimizer step."""

    def is_interpolated(self, name: str) -> bool:
        """Return whether ``average`` interpolates this tensor; otherwise its last value is used."""
        return True

    def is_frozen(self, name: str) -> bool:
        """Return whether this tensor never changes, so that neither copies nor checkpoints need it."""
        return False


@dataclass(frozen=True)
class TrainerOptions:
    """Duration and measurements of a training, and settings of its optimizer.

    steps:         the maximum number of optimizer steps.
    every:         the number of steps between measurements; None measures once per epoch.
    patience:      the number of measurements without gain that end the training.
    measure_first: whether the initial state is also measured, and can be the best one.
    warmup:        the share of the steps in which the learning rate rises, before it falls to 0; None keeps
        the rate constant.
    clip:          the largest norm of the gradient; None sets no limit.
    average:       whether the mean of the initial and the last weights is measured at the end.
    seed:          the seed of dropout.
    """

    steps: int
    every: int | None = None
    patience: int = 6
    measure_first: bool = True
    warmup: float | None = 0.1
    clip: float | None = 1.0
    average: bool = False
    seed: int = 0


class Trainer:
    """Trains a task until its measure stops rising or all steps are done.

    A training that continues from a checkpoint ends with the same weights as one without an interruption.
    """

    def __init__(
        self,
        task: Task,
        options: TrainerOptions,
        checkpoint: Checkpoint | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.task = task
        self.options = options
        self.checkpoint = checkpoint
        self.progress = progress
        self.every = options.every or task.steps_per_epoch
        self.optimizers = task.optimizers()
        self._rates = [group["lr"] for group in self._groups()]
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
            self._restore(weights)
            self.progress.say(f"{self.task.name} continues at {self._position()}")
        try:
            self.task.on_start(bool(resumed))
            if self.options.measure_first and not self.run.history:
                self._measure(None)
            self._steps()
            if self.options.average and self.run.steps and self.run.best_measurement.measures:
                self._average()
        except KeyboardInterrupt:
            if not self.run.history:
                raise KeyboardInterrupt(
                    f"interrupted before the first measurement of {self.task.name}; nothing of it was kept"
                ) from None
            self.run.interrupted = True
        finally:
            self.progress.finish()
        self._restore(self._best)
        return self.run

    def step(self, batch: Any, step: int) -> float:
        """Do the optimizer step with the number ``step`` on a batch, and return the loss."""
        _set_seed(self.options.seed * 1_000_003 + step)
        self.task.model.train()
        self._set_rates(step)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = self.task.loss(batch)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        if self.options.clip is not None:
            self._clip_gradients(self.options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())

    def _set_rates(self, step: int) -> None:
        """Set the learning rate of each group of parameters for a step."""
        options = self.options
        scale = 1.0 if options.warmup is None else schedule(step, options.steps, options.warmup)
        for group, rate in zip(self._groups(), self._rates):
            group["lr"] = rate * scale

    def _clip_gradients(self, longest: float) -> None:
        """Scale the gradients of all parameters so that their norm is at most ``longest``."""
        parameters = [parameter for group in self._groups() for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, longest)

    def _groups(self) -> list[dict[str, Any]]:
        """Return the groups of parameters. A restored optimizer has new ones."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _steps(self) -> None:
        run = self.run
        total = self.options.steps
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
        run = self.run
        while run.steps < self.options.steps:
            epoch, skip = divmod(run.steps, self.task.steps_per_epoch)
            for batch in self.task.batches(epoch, skip):
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
        trained = run.history[1:] if self.options.measure_first else run.history
        is_gain = all(measured.better(earlier) for earlier in trained)
        run.stale = 0 if is_gain else run.stale + 1
        if not run.history or measured.better(run.best_measurement):
            run.best = run.steps
            self._best = self._weights()
        run.history.append(measured)
        self._report(measured)

    def _average(self) -> None:
        """Measure the mean of the initial and the last weights, and keep it if it is better."""
        run = self.run
        last = self._weights()
        start = {name: self._start[name] for name in last if self.task.is_interpolated(name)}
        weights = interpolate({**last, **start}, last, ALPHA)
        self._restore(weights)
        measured = Measurement(run.steps, None, self.task.evaluate(), ALPHA)
        self.progress.say(f"mean of the untrained weights and {self._position()}: {measured}")
        if measured.better(run.best_measurement):
            self._best = weights
            run.best = run.steps
            run.alpha = ALPHA
        run.history.append(measured)

    def _weights(self) -> Weights:
        """Return a copy of the tensors that the training changes."""
        weights = {}
        for name, tensor in self.task.model.state_dict().items():
            if not self.task.is_frozen(name):
                weights[name] = tensor.detach().cpu().clone().contiguous()
        return weights

    def _restore(self, weights: Weights) -> None:
        """Give the model the weights that :meth:`_weights` returned."""
        missing, _ = self.task.model.load_state_dict(weights, strict=False)
        assert all(map(self.task.is_frozen, missing)), f"the weights lack {missing}"

    def _position(self) -> str:
        step = self.run.steps
        total = self.options.steps
        steps_per_epoch = self.task.steps_per_epoch
        if self.every == steps_per_epoch and total % steps_per_epoch == 0:
            return f"epoch {step // steps_per_epoch} of {total // steps_per_epoch}"
        return f"step {step} of {total}"

    def _report(self, measured: Measurement) -> None:
        if measured.loss is None:
            self.progress.say(
                f"{self.task.name} before the training: {measured}"
                if measured.measures
                else "nothing is held out: the last step is kept"
            )
            return
        best = self.run.best_measurement
        is_best = best is measured or not measured.measures
        comparison = "" if is_best else f"; the best so far {best.value:.4f}"
        values = f"loss {measured.loss:.4f}, {measured}{comparison}"
        self.progress.say(f"{self.task.name}, {self._position()}: {values}")


def _set_seed(seed: int) -> None:
    """Seed the processor and GPUs. ``torch.manual_seed`` also formats the call stack, for each device."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def schedule(step: int, total: int, warmup: float) -> float:
    """Return the factor of the learning rate at a step of ``total`` steps.

    It rises linearly for the share ``warmup`` of the steps, and then falls linearly to 0.

    >>> [round(schedule(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 10)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rise = max(1.0, warmup * total)
    return min((step + 1) / rise, max(0.0, (total - step) / max(1.0, total - rise)))


def interpolate(start: Weights, end: Weights, alpha: float) -> Weights:
    """Return start + alpha (end - start) for each tensor of the same name (Wortsman et al. 2022, WiSE-FT).

    A tensor of integers has the value of ``end``.
    """
    weights = {}
    for name, tensor in start.items():
        is_float = tensor.is_floating_point()
        weights[name] = tensor + alpha * (end[name] - tensor) if is_float else end[name]
    return weights
