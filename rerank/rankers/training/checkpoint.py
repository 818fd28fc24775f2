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

from rerank.errors import TrainingError
from rerank.files import write_bytes

Weights = dict[str, Tensor]
Optimizers = Sequence[torch.optim.Optimizer]
STATE = "state.json"
"""State of a training; it is written last."""


@dataclass(frozen=True)
class Measurement:
    """An evaluation during a training.

    step: optimizer steps. loss: mean since the previous measurement.
    measures: name -> value; the first decides, higher is better.
    share: see ``between``.
    """

    step: int
    loss: float | None
    measures: dict[str, float] = field(default_factory=dict)
    share: float = 1.0

    @property
    def value(self) -> float | None:
        """The measure that decides."""
        return next(iter(self.measures.values()), None)

    def better(self, other: Measurement) -> bool:
        """Whether it is better; without measures, always."""
        return self.value is None or other.value is None or self.value > other.value

    def row(self) -> dict[str, Any]:
        """Flat record."""
        return {"step": self.step, "loss": self.loss, **self.measures, "share": self.share}

    def __str__(self) -> str:
        return ", ".join(f"{n} {value:.4f}" for n, value in self.measures.items()) or "nothing measured"


@dataclass
class TrainingRun:
    """Position and result of a training; random numbers depend only on seed and step.

    steps: of the optimizer. losses: since the last measurement.
    stale: consecutive measurements without gain.
    best: step of the best state; 0: initial. share: see ``between``.
    """

    steps: int = 0
    losses: list[float] = field(default_factory=list)
    history: list[Measurement] = field(default_factory=list)
    stale: int = 0
    best: int = 0
    share: float = 1.0
    interrupted: bool = False

    @property
    def kept(self) -> Measurement:
        """Measurement of the best state."""
        return next(one for one in self.history if (one.step, one.share) == (self.best, self.share))


class Checkpoint:
    """The newest checkpoint in a folder; crashes during writes keep the previous one.

    key: hash of the inputs, which must match.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def save(self, run: TrainingRun, weights: Weights, optimizers: Optimizers, best: Weights) -> None:
        """Write the contiguous CPU tensors, then the state file; delete older files."""
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
        """Restore the optimizers; return run, weights, best weights, or None without a checkpoint.

        Raises TrainingError for a damaged checkpoint or a different training.
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
            weights, best, moments = (
                load_file(self._path(name))
                for name in (f"model-{run.steps}", f"best-{run.best}", f"optimizer-{run.steps}")
            )
            _restore(optimizers, moments)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, MsgspecError) as error:
            raise TrainingError(
                f"{self.folder}: the checkpoint cannot be read ({' '.join(str(error).split())[:200]});"
                " add --restart to start again"
            ) from error
        return run, weights, best

    def discard(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


def _flat(optimizers: Optimizers) -> Weights:
    """Moments and counts as ``optimizer.parameter.name``."""
    return {
        f"{place}.{number}.{name}": torch.as_tensor(value).detach().cpu().clone().contiguous()
        for place, optimizer in enumerate(optimizers)
        for number, moments in optimizer.state_dict()["state"].items()
        for name, value in moments.items()
    }


def _restore(optimizers: Optimizers, flat: Weights) -> None:
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for name, value in flat.items():
        place, number, moment = name.split(".", 2)
        # SparseAdam counts in Python's integers: a tensor would make its corrections less precise.
        count = not value.ndim and not value.is_floating_point()
        states[int(place)].setdefault(int(number), {})[moment] = value.item() if count else value
    for optimizer, state in zip(optimizers, states):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
