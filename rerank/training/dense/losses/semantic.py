"""Semantics only: a text is nearer to its corrupted self than to the nearest other text of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from rerank.training.dense.config import Pool
from rerank.training.dense.losses.batch import Vectors
from rerank.training.dense.losses.distance import distance, hinge, mean_of


def hardest(anchors: Tensor, others: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest other text of each anchor: (B,) positions in ``others``, (B,) bool whether there is one.

    anchors: (B, E) and others: (P, E), read without gradient; near: (B, P) bool, True where j may not be
    chosen for i.

    >>> anchors = torch.tensor([[0.0], [0.1], [0.3]])
    >>> hardest(anchors, anchors, torch.eye(3, dtype=torch.bool))[0].tolist()
    [1, 0, 1]
    """
    with torch.no_grad():
        apart = torch.cdist(anchors.detach().float(), others.detach().float())
        apart = apart.masked_fill(near, float("inf"))
        least, chosen = apart.min(dim=1)
    return chosen, torch.isfinite(least)


def semantic_rows(vectors: Vectors, margin: float = 0.5, pool: Pool = "anchors") -> tuple[Tensor, Tensor]:
    """max(d(h, h_psi+) - d(h, h_psi-) + m_psi, 0) (Raman et al. 2021, equation 5): (B,) losses, and (B,)
    bool: the anchors for which the batch has a negative.
    """
    assert vectors.corrupted is not None
    others, near = vectors.others(pool)
    chosen, valid = hardest(vectors.anchor, others, near)
    far = distance(vectors.anchor, others[chosen])
    return hinge(distance(vectors.anchor, vectors.corrupted), far, margin), valid


def semantic(vectors: Vectors, margin: float = 0.5, pool: Pool = "anchors") -> Tensor:
    """L_psi: the mean of :func:`semantic_rows` over the anchors for which the batch has a negative."""
    return mean_of(*semantic_rows(vectors, margin, pool))
