"""A batch that is encoded in parts: to pad less, to need less memory, or on several devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from rerank.training.dense.sampling import Quintuplets
    from rerank.training.dense.trainer import DenseTrainer


def by_length(lengths: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Cut texts into the longer and the shorter ones, where that saves a tenth of the tokens, padding
    included.

    >>> [part.tolist() for part in by_length(np.array([10, 64, 9, 60]))], len(by_length(np.array([9, 10])))
    ([[1, 3], [0, 2]], 1)
    """
    count, order = len(lengths), np.argsort(-lengths, kind="stable")
    cuts, ranked = np.arange(1, count), lengths[order]
    tokens = ranked[0] * cuts + ranked[1:] * (count - cuts)
    if count < 2 or tokens.min() > 0.9 * ranked[0] * count:
        return [np.arange(count)]
    return np.split(order, [int(tokens.argmin()) + 1])


def in_parts(trainer: DenseTrainer, batch: Quintuplets, tally: dict[str, float]) -> float:
    """Gradient of a whole batch's loss with the memory of a part of it, on one device or several.

    All texts are encoded without gradient; the loss gives each vector its gradient; then part by part the
    texts are encoded again (with the same dropout) and the gradients sent back (Gao et al. 2021, gradient
    cache). So in-batch negatives come from the whole batch, which summing the gradients of small batches
    would lose, and the number of devices changes nothing but the time.
    """
    group, device = trainer.group, trainer.encoder.device
    flat = [text for branch in trainer.branches(batch) for text in branch]
    shares = [list(share) for share in np.array_split(np.arange(len(flat)), group.size)]
    mine = shares[group.rank]
    size = max(1, -(-len(mine) // trainer.config.accumulate))
    parts = [mine[i : i + size] for i in range(0, len(mine), size)]
    states: list[tuple[Tensor, Tensor | None]] = []
    vectors: list[Tensor] = []
    with torch.no_grad():
        for part in parts:
            states.append(_random_state(device))
            vectors.append(trainer.encode([flat[i] for i in part]))
    whole = group.gathered(torch.cat(vectors), [len(share) for share in shares])
    leaf = whole.requires_grad_()
    found = trainer.vectors(batch, list(torch.split(leaf, len(batch.draws))))
    trainer.count(found, tally)
    loss = trainer.objective.loss(found)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        for part, state in zip(parts, states):
            _set_random_state(device, state)
            encoded = trainer.encode([flat[i] for i in part])
            encoded.backward(leaf.grad[part])  # type: ignore[no-untyped-call]
        group.add_gradients(trainer.encoder.model)
    return float(loss.detach())


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
