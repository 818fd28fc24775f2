"""Semantics only: a text is nearer to its corrupted self than to the nearest other text of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from rerank.training.dense.losses.batch import Vectors
from rerank.training.dense.losses.distance import distance, hinge


def hardest(anchors: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest other anchor of each: (B,) positions, (B,) bool whether there is one.

    anchors: (B, E), read without gradient; near: (B, B) bool, True where j may not be chosen for i.

    >>> anchors = torch.tensor([[0.0], [0.1], [0.3]])
    >>> hardest(anchors, torch.eye(3, dtype=torch.bool))[0].tolist()
    [1, 0, 1]
    """
    with torch.no_grad():
        apart = torch.cdist(anchors.detach().float(), anchors.detach().float())
        apart = apart.masked_fill(near, float("inf"))
        least, chosen = apart.min(dim=1)
    return chosen, torch.isfinite(least)


def semantic(vectors: Vectors, margin: float = 0.5) -> Tensor:
    """L_psi = mean max(d(h, h_psi+) - d(h, h_psi-) + m_psi, 0) (Raman et al. 2021, equation 5).

    The mean is over the anchors for which the batch has a negative.
    """
    assert vectors.corrupted is not None
    chosen, valid = hardest(vectors.anchor, vectors.near)
    near = distance(vectors.anchor, vectors.corrupted)
    return hinge(near, distance(vectors.anchor, vectors.anchor[chosen]), margin, valid)
