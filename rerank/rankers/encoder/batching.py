"""Batch encoding with gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rerank.rankers.encoder.config import Precision
from rerank.rankers.encoder.frozen_layers import FrozenLayerCache
from rerank.rankers.encoder.transformer import TextEncoder, precision

BATCH = 64
"""Texts that are encoded at once without gradient."""
Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""(n,) positions of documents -> (n, E) vectors of length 1, without dropout."""


class Batch(Protocol):
    """Token numbers of a step."""

    def texts(self, reads: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """Return texts for :class:`Loss` fields ``reads``."""

    def with_vectors(self, encoded: Tensor, reads: tuple[str, ...]) -> Any:
        """Return loss input from vectors."""


class Loss(torch.nn.Module):
    """Loss of a batch; checkpoints store parameters and buffers.

    reads: names of encoded texts.
    rate_factor: learning rate relative to encoder.
    """

    reads: tuple[str, ...] = ("anchor",)
    rate_factor: float = 1.0

    def forward(self, vectors: Any) -> Tensor:
        """Return the loss, a scalar."""
        raise NotImplementedError

    def count(self, vectors: Any) -> dict[str, int]:
        """Return counts for reports."""
        return {}

    def on_epoch_start(self, epoch: int, encode: Encode) -> None:
        """Prepare an epoch; not called on resume within it."""

    def on_step_end(self, step: int) -> None:
        """Update after step number ``step``."""


def by_length(lengths: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Split texts by length if that saves a tenth of padded tokens.

    >>> [part.tolist() for part in by_length(np.array([10, 64, 9, 60]))], len(by_length(np.array([9, 10])))
    ([[1, 3], [0, 2]], 1)
    """
    count, order = len(lengths), np.argsort(-lengths, kind="stable")
    cuts, ranked = np.arange(1, count), lengths[order]
    tokens = ranked[0] * cuts + ranked[1:] * (count - cuts)
    if count < 2 or tokens.min() > 0.9 * ranked[0] * count:
        return [np.arange(count)]
    return np.split(order, [int(tokens.argmin()) + 1])


@dataclass(frozen=True)
class BatchEncoder:
    """Encodes texts by the whole model, or upper layers from ``frozen`` outputs."""

    encoder: TextEncoder
    frozen: FrozenLayerCache | None
    autocast: Precision

    def encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        """Return vectors with gradient, (n, E)."""
        frame = sum(len(part) for part in self.encoder.tokens.frame)
        lengths = np.array([len(text) for text in texts]) + frame
        # A GPU takes one large batch in less time than two smaller ones.
        parts = by_length(lengths) if self.encoder.device.type == "cpu" else [np.arange(len(texts))]
        vectors = torch.cat([self._encode([texts[i] for i in part]) for part in parts])
        return vectors[np.argsort(np.concatenate(parts))] if len(parts) > 1 else vectors

    def _encode(self, texts: list[NDArray[np.int32]]) -> Tensor:
        if self.frozen is not None:
            return self.frozen.vectors(texts)
        with precision(self.encoder.device, self.autocast):
            return self.encoder.forward(*self.encoder.batch(texts))

    def unit_vectors(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Return unit vectors, (n, E), without dropout."""
        found = np.zeros((len(texts), self.encoder.width), np.float32)
        order = np.argsort([-len(text) for text in texts], kind="stable")
        self.encoder.model.eval()
        with torch.inference_mode():
            for begin in range(0, len(order), BATCH):
                some = order[begin : begin + BATCH]
                vectors = self._encode([texts[i] for i in some])
                found[some] = torch.nn.functional.normalize(vectors, dim=1).float().cpu().numpy()
        return found

    def backward(
        self, texts: list[NDArray[np.int32]], loss: Callable[[Tensor], Tensor], accumulate: int = 1
    ) -> float:
        """Add gradients in ``accumulate`` parts; return the loss.

        Negatives come from all parts (Gao et al. 2021, gradient cache).

        loss: of (n, E) vectors.
        """
        if accumulate == 1:
            return _backward(loss(self.encode(texts)))
        device = self.encoder.device
        size = max(1, -(-len(texts) // accumulate))
        parts = [slice(begin, begin + size) for begin in range(0, len(texts), size)]
        on_gpu = device.type == "cuda"
        states: list[tuple[Tensor, Tensor | None]] = []
        vectors: list[Tensor] = []
        with torch.no_grad():
            for part in parts:
                states.append((torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None))
                vectors.append(self.encode(texts[part]))
        leaf = torch.cat(vectors).requires_grad_()
        value = _backward(loss(leaf))
        if leaf.grad is not None:
            for part, (state, cuda_state) in zip(parts, states):
                torch.set_rng_state(state)
                if cuda_state is not None:
                    torch.cuda.set_rng_state(cuda_state, device)
                self.encode(texts[part]).backward(leaf.grad[part])  # type: ignore[no-untyped-call]
        return value


def _backward(loss: Tensor) -> float:
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())
