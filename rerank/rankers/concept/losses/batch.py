"""What the losses of ``concept`` read: the texts of a batch, and the labelled pairs among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.losses import Loss, Vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PairVectors(Vectors):
    """T texts (the ``anchor``), each once, and P labelled pairs of them.

    documents: (T,) which they are. component: (T,) of each; -1: it is related to none.
    tokens:    T sequences.
    first, second: (P,) places among the texts. related: (P,) 1.0 or 0.0. weight: (P,) of each pair.
    """

    documents: Tensor
    component: Tensor
    tokens: list[NDArray[np.int32]]
    first: Tensor
    second: Tensor
    related: Tensor
    weight: Tensor


@dataclass(frozen=True)
class PairBatch:
    """The same before the texts are encoded."""

    documents: NDArray[np.int64]
    component: NDArray[np.int64]
    tokens: list[NDArray[np.int32]]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    related: NDArray[np.bool_]
    weight: NDArray[np.float32]

    def texts(self, branches: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """All texts to encode."""
        return self.tokens

    def placed(self, encoded: Tensor, branches: tuple[str, ...]) -> PairVectors:
        """Put the vectors of :meth:`texts` in their places."""
        import torch

        device = encoded.device
        alone = torch.eye(len(encoded), dtype=torch.bool, device=device)
        return PairVectors(
            anchor=encoded,
            positive=None,
            negative=None,
            corrupted=None,
            level=torch.zeros(len(encoded), dtype=torch.long, device=device),
            near=alone,
            near_positive=alone,
            near_negative=alone,
            documents=torch.from_numpy(self.documents).to(device),
            component=torch.from_numpy(self.component).to(device),
            tokens=self.tokens,
            first=torch.from_numpy(self.first).to(device),
            second=torch.from_numpy(self.second).to(device),
            related=torch.from_numpy(self.related).to(device, encoded.dtype),
            weight=torch.from_numpy(self.weight).to(device, encoded.dtype),
        )


class PairLoss(Loss):
    """A loss of labelled pairs: subclasses define :meth:`of` and :meth:`counts`."""

    def of(self, pairs: PairVectors) -> Tensor:
        """The loss of a batch, a number."""
        raise NotImplementedError

    def counts(self, pairs: PairVectors) -> dict[str, int]:
        """What there was to learn from."""
        return {self.name: len(pairs.anchor)}

    def __call__(self, vectors: Vectors) -> Tensor:
        """Compute :meth:`of`."""
        assert isinstance(vectors, PairVectors)
        return self.of(vectors)

    def count(self, vectors: Vectors) -> dict[str, int]:
        """Count :meth:`counts`."""
        assert isinstance(vectors, PairVectors)
        return self.counts(vectors)
