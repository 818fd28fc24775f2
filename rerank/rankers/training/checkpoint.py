"""Checkpoints as safetensors and JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from rerank.errors import TrainingError
from rerank.files import parse_json, write_bytes, write_text
from rerank.rankers.training.unfinished import ABOUT, STATE

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Measurement:
    """An evaluation during a training.

    step: optimizer steps. loss: mean since the previous measurement.
    measures: name -> value; the first decides, higher is better.
    share: see ``between``.

    >>> print(Measurement(5, 0.25, {"NDCG": 0.5}))
    NDCG 0.5000
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
        """Flat record.

        >>> Measurement(5, 0.25, {"NDCG": 0.5}).row()
        {'step': 5, 'loss': 0.25, 'NDCG': 0.5, 'share': 1.0}
        """
        return {"step": self.step, "loss": self.loss, **self.measures, "share": self.share}

    def __str__(self) -> str:
        return ", ".join(f"{n} {value:.4f}" for n, value in self.measures.items()) or "nothing measured"


@dataclass
class State:
    """Position of a training; random numbers depend only on seed and step.

    stale: consecutive measurements without gain. best: step of the best weights.
    losses: since the last measurement. counts: see ``Task.counts``.
    """

    step: int = 0
    stale: int = 0
    best: int = 0
    losses: list[float] = field(default_factory=list)
    history: list[Measurement] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def leading(self) -> Measurement:
        """The best measurement so far."""
        return next(one for one in self.history if one.step == self.best)


class Checkpoint:
    """The newest checkpoint in a folder; crashes during writes keep the previous one.

    key: hash of the inputs, which must match.
    variant, settings: for ``rerank.rankers.training.unfinished``.
    """

    def __init__(self, folder: Path, key: str, variant: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.key, self.variant, self.settings = folder, key, variant, settings

    def save(
        self,
        state: State,
        total: int,
        weights: Weights,
        optimizers: Sequence[torch.optim.Optimizer],
        best: Weights,
    ) -> None:
        """Write the tensors, then the state file; delete older files.

        total: steps of the training. weights, best: contiguous CPU tensors.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / f"model-{state.step}.safetensors", save(weights))
        write_bytes(self.folder / f"optimizer-{state.step}.safetensors", save(_flat(optimizers)))
        if not (self.folder / f"best-{state.best}.safetensors").exists():
            write_bytes(self.folder / f"best-{state.best}.safetensors", save(best))
        about = {"variant": self.variant, "done": state.step, "of": total, "settings": dict(self.settings)}
        record = {**asdict(state), "key": self.key, ABOUT: about}
        write_text(self.folder / STATE, json.dumps(record, indent=1) + "\n")
        names = (f"model-{state.step}", f"optimizer-{state.step}", f"best-{state.best}")
        keep = {STATE, *(f"{name}.safetensors" for name in names)}
        for path in self.folder.iterdir():
            if path.name not in keep:
                path.unlink()

    def load(self, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[State, Weights, Weights] | None:
        """Restore the optimizers; return state, weights, best weights, or None without a checkpoint.

        Raises TrainingError for a damaged checkpoint or a different training.
        """
        path = self.folder / STATE
        if not path.exists():
            return None
        try:
            record = parse_json(path.read_text("utf-8"))
            if record.pop("key") != self.key:
                raise TrainingError(
                    f"{self.folder}: a training with other settings, or of another model or other documents,"
                    f" was interrupted here; repeat its command to continue it, or add --restart to drop it"
                )
            record.pop(ABOUT, None)
            history = [Measurement(**one) for one in record.pop("history")]
            state = State(**record, history=history)
            weights = load_file(self.folder / f"model-{state.step}.safetensors")
            best = load_file(self.folder / f"best-{state.best}.safetensors")
            _restore(optimizers, load_file(self.folder / f"optimizer-{state.step}.safetensors"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise TrainingError(
                f"{self.folder}: the checkpoint cannot be read ({' '.join(str(error).split())[:200]});"
                " add --restart to start again"
            ) from error
        return state, weights, best

    def discard(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _flat(optimizers: Sequence[torch.optim.Optimizer]) -> Weights:
    """Moments and counts as ``optimizer.parameter.name``."""
    found: Weights = {}
    for place, optimizer in enumerate(optimizers):
        for number, moments in optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensor = torch.as_tensor(value).detach().cpu().clone().contiguous()
                found[f"{place}.{number}.{name}"] = tensor
    return found or {"none": torch.zeros(1)}


def _restore(optimizers: Sequence[torch.optim.Optimizer], flat: Weights) -> None:
    states: list[dict[int, dict[str, Any]]] = [{} for _ in optimizers]
    for name, value in flat.items():
        if name != "none":
            place, number, moment = name.split(".", 2)
            # SparseAdam counts in Python's integers: a tensor would make its corrections less precise.
            count = not value.ndim and not value.is_floating_point()
            states[int(place)].setdefault(int(number), {})[moment] = value.item() if count else value
    for optimizer, state in zip(optimizers, states):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
