"""Momentum contrast: a text is nearer to itself, as a slow copy of the encoder sees it, than to a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.concept.losses.batch import PairLoss, PairVectors
from rerank.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.encoder.batching import BatchEncoder


@dataclass(frozen=True)
class Momentum(PairLoss):
    """-log(exp(z_i k_i / t) / sum_j exp(z_i k_j / t)) (Ma et al. 2023, equation 5), the mean over the texts.

    z: vectors of length 1; k_i: that of the same text by the momentum encoder, without dropout or gradient;
    the other k_j: keys of earlier batches, in a queue, but those of the text itself. The queue is empty at
    the start, and a batch joins it after its step. Momentum encoder (equation 4): k <- m k + (1 - m) q, after
    every step; q: the weights that learn.
    """

    name: ClassVar[str] = "contrasted"
    hinged: ClassVar[bool] = False

    queue: int = setting(256, "keys that are kept", low=1)
    momentum: float = setting(0.99, "m: how slowly the second encoder follows", low=0, below=1)
    temperature: float = setting(0.1, "t of the softmax over the queue", above=0)
    mask_component: bool = setting(False, "keys of a text's own component are no negatives of it")

    def begin(self, batches: BatchEncoder) -> PairLoss:
        """Copy the encoder's weights."""
        return Following(self, batches)


class Following(PairLoss):
    """The same with the momentum encoder and the queue."""

    name = "contrasted"
    hinged = False

    def __init__(self, settings: Momentum, batches: BatchEncoder) -> None:
        import torch

        encoder = batches.encoder
        self.settings, self.batches = settings, batches
        self.followed = encoder.learning()
        self.slow = [parameter.detach().clone() for parameter in self.followed]
        # documents: whose keys they are; -1: none yet. Newest last.
        self.keys = torch.zeros((settings.queue, encoder.width), device=encoder.device)
        self.documents = torch.full((settings.queue,), -1, device=encoder.device)
        self.components = torch.full((settings.queue,), -1, device=encoder.device)
        self._next: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def memory(self) -> int:
        """Bytes of the momentum encoder and the queue."""
        kept = (*self.slow, self.keys, self.documents, self.components)
        return sum(one.numel() * one.element_size() for one in kept)

    def encoded(self, tokens: list[NDArray[np.int32]]) -> Tensor:
        """(n, E) keys of texts, of length 1.

        Without dropout, which takes half the time of a forward pass on a CPU: a text and its key differ by
        that of the text.
        """
        import torch

        model = self.batches.encoder.model
        learning = model.training
        model.eval()
        self._swap()
        try:
            with torch.no_grad():
                return torch.nn.functional.normalize(self.batches.encode(tokens), dim=-1)
        finally:
            self._swap()
            model.train(learning)

    def _swap(self) -> None:
        """Put the slow weights in the encoder's place, or back."""
        for place, parameter in enumerate(self.followed):
            parameter.data, self.slow[place] = self.slow[place], parameter.data

    def of(self, pairs: PairVectors) -> Tensor:
        """Mean over the texts; 0 for those that find no negative."""
        from torch.nn import functional

        keys = self.encoded(pairs.tokens)
        self._next = (keys, pairs.documents, pairs.component)
        return self.each(functional.normalize(pairs.anchor, dim=-1), keys, pairs).mean()

    def each(self, vectors: Tensor, keys: Tensor, pairs: PairVectors) -> Tensor:
        """(T, E) vectors and (T, E) keys of the same texts -> (T,) losses."""
        import torch

        hidden = (self.documents < 0)[None, :] | (self.documents[None, :] == pairs.documents[:, None])
        if self.settings.mask_component:
            mine = pairs.component[:, None]
            hidden = hidden | ((self.components[None, :] == mine) & (mine >= 0))
        negatives = vectors @ self.keys.to(vectors.dtype).T
        own = (vectors * keys).sum(dim=1, keepdim=True)
        logits = torch.cat((own, negatives.masked_fill(hidden, float("-inf"))), dim=1)
        logits = logits / self.settings.temperature
        return logits.logsumexp(dim=1) - logits[:, 0]

    def after_step(self, step: int) -> None:
        """Follow the encoder, and let the batch join the queue."""
        import torch

        m = self.settings.momentum
        with torch.no_grad():
            for slow, fast in zip(self.slow, self.followed):
                slow.mul_(m).add_(fast.detach(), alpha=1 - m)
        if self._next is not None:
            keys, documents, components = (one[-self.settings.queue :] for one in self._next)
            stay = self.settings.queue - len(keys)
            for queue, new in zip(
                (self.keys, self.documents, self.components), (keys, documents, components)
            ):
                rest = queue[len(queue) - stay :].clone()
                queue[:stay], queue[stay:] = rest, new
            self._next = None

    def state_dict(self) -> dict[str, Tensor]:
        """The momentum encoder and the queue."""
        slow = {f"slow.{place}": one for place, one in enumerate(self.slow)}
        return {**slow, "keys": self.keys, "documents": self.documents, "components": self.components}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put them back."""
        for place, one in enumerate(self.slow):
            one.copy_(state[f"slow.{place}"])
        for name in ("keys", "documents", "components"):
            getattr(self, name).copy_(state[name])
