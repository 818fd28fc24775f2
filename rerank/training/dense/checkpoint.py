"""Checkpoints of a training: everything that decides how it goes on, as safetensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from rerank.errors import TrainingError, setting_hint
from rerank.files import parse_json, write_bytes, write_text
from rerank.training.unfinished import ABOUT, STATE


@dataclass(frozen=True)
class Measured:
    """After so many steps: mean loss since the one before, and what was measured, by name; nothing is held
    out: nothing. share: of the way from the untrained weights to those of this step; see
    ``averaging.between``.

    >>> print(Measured(5, 0.25, {"NDCG": 0.5}))
    NDCG 0.5000
    """

    step: int
    loss: float | None
    measures: dict[str, float] = field(default_factory=dict)
    share: float = 1.0

    def row(self) -> dict[str, Any]:
        """A flat record of it.

        >>> Measured(5, 0.25, {"NDCG": 0.5}).row()
        {'step': 5, 'loss': 0.25, 'NDCG': 0.5, 'share': 1.0}
        """
        return {"step": self.step, "loss": self.loss, **self.measures, "share": self.share}

    def __str__(self) -> str:
        return ", ".join(f"{n} {value:.4f}" for n, value in self.measures.items()) or "nothing measured"


@dataclass
class State:
    """Where a training stands. Random draws are keyed by the step, so no generator has a state.

    tally: median ``distance`` of two texts before training, and counts of the ``anchors`` so far: ``masked``
        without a structural pair, those with a ``structural`` and a ``semantic`` loss, and of these the
        ``active_`` ones, whose hinge was above 0.
    """

    step: int = 0
    stale: int = 0
    best: int = 0
    losses: list[float] = field(default_factory=list)
    history: list[Measured] = field(default_factory=list)
    tally: dict[str, float] = field(default_factory=dict)


class Checkpoint:
    """A folder with the newest checkpoint. A crash while writing leaves the one before.

    key: what the training is of; a checkpoint of another one is refused.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key

    def save(
        self,
        state: State,
        weights: dict[str, Tensor],
        optimizer: torch.optim.Optimizer,
        best: dict[str, Tensor],
        about: Mapping[str, Any] = {},
    ) -> None:
        """Write all; the state comes last and names the other files, then the older ones go.

        weights, best: contiguous, on the CPU. about: see ``rerank.training.unfinished``.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / f"model-{state.step}.safetensors", save(weights))
        write_bytes(self.folder / f"optimizer-{state.step}.safetensors", save(_flat(optimizer)))
        if not (self.folder / f"best-{state.best}.safetensors").exists():
            write_bytes(self.folder / f"best-{state.best}.safetensors", save(best))
        record = {**vars(state), "history": [vars(one) for one in state.history], "key": self.key, **about}
        write_text(self.folder / STATE, json.dumps(record, indent=1) + "\n")
        names = (f"model-{state.step}", f"optimizer-{state.step}", f"best-{state.best}")
        keep = {STATE, *(f"{name}.safetensors" for name in names)}
        for path in self.folder.iterdir():
            if path.name not in keep:
                path.unlink()

    def load(
        self, restore: Callable[[dict[str, Tensor]], None], optimizer: torch.optim.Optimizer
    ) -> tuple[State, dict[str, Tensor]] | None:
        """Give ``restore`` the weights, and the optimizer its moments: (state, best weights); None when there
        is no checkpoint.

        Raises TrainingError for a checkpoint of another training, or a damaged one.
        """
        path, restart = self.folder / STATE, setting_hint("restart")
        if not path.exists():
            return None
        try:
            record = parse_json(path.read_text("utf-8"))
            if record.pop("key") != self.key:
                raise TrainingError(
                    f"{self.folder}: a training with other settings, or of another model or other documents,"
                    f" was interrupted here; repeat its command to go on with it, or add {restart} to drop it"
                )
            record.pop(ABOUT, None)
            history = [Measured(**one) for one in record.pop("history")]
            state = State(**record, history=history)
            restore(load_file(self.folder / f"model-{state.step}.safetensors"))
            best = load_file(self.folder / f"best-{state.best}.safetensors")
            _restore(optimizer, load_file(self.folder / f"optimizer-{state.step}.safetensors"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise TrainingError(
                f"{self.folder}: the checkpoint cannot be read ({' '.join(str(error).split())[:200]});"
                f" add {restart} to begin anew"
            ) from error
        return state, best

    def discard(self) -> None:
        """Remove it."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                path.unlink()
            self.folder.rmdir()


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments and counts as ``number.name``."""
    found: dict[str, Tensor] = {}
    for number, moments in optimizer.state_dict()["state"].items():
        for name, value in moments.items():
            found[f"{number}.{name}"] = torch.as_tensor(value).detach().cpu().clone().contiguous()
    return found or {"none": torch.zeros(1)}


def _restore(optimizer: torch.optim.Optimizer, flat: dict[str, Tensor]) -> None:
    whole: dict[str, Any] = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in flat.items():
        if name != "none":
            number, _, moment = name.partition(".")
            state.setdefault(int(number), {})[moment] = value
    optimizer.load_state_dict({**whole, "state": state})
