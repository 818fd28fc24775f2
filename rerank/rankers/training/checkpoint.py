"""State of a training, and its checkpoints as safetensors and JSON."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from msgspec import MsgspecError, convert, json
from safetensors.torch import load_file, save
from torch import Tensor

from rerank.common.errors import TrainingError
from rerank.common.files import write_bytes

Weights = dict[str, Tensor]
Optimizers = Sequence[torch.optim.Optimizer]
STATE = "state.json"
"""State of a training; it is written last."""


@dataclass(frozen=True)
class Measurement:
    """An evaluation during a training.

    step:     the number of optimizer steps before it.
    loss:     the mean loss since the previous measurement; None before the first step.
    measures: the value of each measure. The first one decides, and higher is better.
    alpha:    1 for the trained weights; less for weights that :func:`interpolate` returned.
    """

    step: int
    loss: float | None
    measures: dict[str, float] = field(default_factory=dict)
    alpha: float = 1.0

    @property
    def value(self) -> float | None:
        """The value of the first measure, which decides, or None if the task has no measures."""
        return next(iter(self.measures.values()), None)

    def better(self, previous: Measurement) -> bool:
        """Return whether it is better than another one. Without measures, a later one is always better."""
        return self.value is None or previous.value is None or self.value > previous.value

    def row(self) -> dict[str, Any]:
        """Return it as a flat JSON object. ``share`` is ``alpha``."""
        return {"step": self.step, "loss": self.loss, **self.measures, "share": self.alpha}

    def __str__(self) -> str:
        values = [f"{name} {value:.4f}" for name, value in self.measures.items()]
        return ", ".join(values) or "nothing measured"


@dataclass
class TrainingRun:
    """The progress of a training, and its measurements.

    Random numbers depend only on the seed and the step, so this and the weights are enough to continue.

    steps:       the number of optimizer steps.
    losses:      the losses since the last measurement.
    history:     all measurements.
    stale:       the number of consecutive measurements without gain.
    best:        the step of the best state; 0 is the initial state.
    alpha:       see :class:`Measurement`, of the best state.
    interrupted: whether the user stopped it.
    """

    steps: int = 0
    losses: list[float] = field(default_factory=list)
    history: list[Measurement] = field(default_factory=list)
    stale: int = 0
    best: int = 0
    alpha: float = 1.0
    interrupted: bool = False

    @property
    def best_measurement(self) -> Measurement:
        """The measurement of the best state of the training so far."""
        for measurement in self.history:
            if (measurement.step, measurement.alpha) == (self.best, self.alpha):
                return measurement
        raise ValueError(f"step {self.best} was not measured")


class Checkpoint:
    """The newest checkpoint of a training, in a folder. A crash while it is written keeps the previous one.

    key: a hash of the training's inputs. Only a training with the same key continues.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key

    def save(self, run: TrainingRun, weights: Weights, optimizers: Optimizers, best: Weights) -> None:
        """Write the weights, the best weights and the optimizers, then the state; delete older files.

        The tensors must be contiguous and on the CPU.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {f"best-{run.best}": best, f"model-{run.steps}": weights}
        files[f"optimizer-{run.steps}"] = _flat(optimizers)
        for name, tensors in files.items():
            if not self._path(name).exists():
                write_bytes(self._path(name), save(tensors))
        write_bytes(self.folder / STATE, json.encode({"key": self.key, "run": run}))
        for path in self.folder.glob("*.safetensors"):
            if path.stem not in files:
                path.unlink()

    def load(self, optimizers: Optimizers) -> tuple[TrainingRun, Weights, Weights] | None:
        """Restore the optimizers, and return the run, its weights and its best weights.

        Without a checkpoint, returns None. Raises TrainingError if it is damaged or of another training.
        """
        if not (self.folder / STATE).exists():
            return None
        try:
            record = json.decode((self.folder / STATE).read_bytes())
            if record["key"] != self.key:
                raise TrainingError(
                    f"{self.folder}: a training with other settings, or of another model or other documents,"
                    f" was interrupted here; repeat its command to continue it, or add --restart to drop it"
                )
            run = convert(record["run"], TrainingRun)
            weights = load_file(self._path(f"model-{run.steps}"))
            best = load_file(self._path(f"best-{run.best}"))
            _restore(optimizers, load_file(self._path(f"optimizer-{run.steps}")))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, MsgspecError) as error:
            raise TrainingError(
                f"{self.folder}: the checkpoint cannot be read ({' '.join(str(error).split())[:200]});"
                " add --restart to start again"
            ) from error
        return run, weights, best

    def discard(self) -> None:
        """Delete the checkpoint and its folder, after the ranker is stored."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


def _flat(optimizers: Optimizers) -> Weights:
    """Return the moments and counts of all optimizers, by ``optimizer.parameter.name``."""
    flat: Weights = {}
    for index, optimizer in enumerate(optimizers):
        for number, moments in optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensor = torch.as_tensor(value).detach().cpu().clone()
                flat[f"{index}.{number}.{name}"] = tensor.contiguous()
    return flat


def _restore(optimizers: Optimizers, flat: Weights) -> None:
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for name, value in flat.items():
        index, number, moment = name.split(".", 2)
        # SparseAdam counts in Python's integers: a tensor would make its corrections less precise.
        count = not value.ndim and not value.is_floating_point()
        states[int(index)].setdefault(int(number), {})[moment] = value.item() if count else value
    for optimizer, state in zip(optimizers, states):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
