"""Structure only: nearer documents in the graph are nearer in the space, by a margin of the level."""

from __future__ import annotations

import torch
from torch import Tensor

from rerank.training.dense.config import Margin
from rerank.training.dense.losses.batch import Vectors
from rerank.training.dense.losses.distance import distance, hinge, mean_of


def level_margins(level: Tensor, margin: float, schedule: Margin) -> Tensor:
    """Margins of levels: (B,) -> (B,).

    harmonic m / l (the paper's formula), geometric m / 2^(l - 1) (its words), constant m.

    >>> level_margins(torch.tensor([1, 2, 3]), 2.0, "harmonic").tolist()
    [2.0, 1.0, 0.6666666865348816]
    """
    at = level.clamp_min(1).to(torch.float32)
    if schedule == "constant":
        return torch.full_like(at, margin)
    return margin / (at if schedule == "harmonic" else 2 ** (at - 1))


def structural_rows(
    vectors: Vectors, margin: float = 2.0, schedule: Margin = "harmonic"
) -> tuple[Tensor, Tensor]:
    """max(d(h, h_phi+) - d(h, h_phi-) + m_phi / l, 0) (Raman et al. 2021, equation 5): (B,) losses, and (B,)
    bool: the anchors that have a structural pair.
    """
    assert vectors.positive is not None
    assert vectors.negative is not None
    near = distance(vectors.anchor, vectors.positive)
    far = distance(vectors.anchor, vectors.negative)
    margins = level_margins(vectors.level, margin, schedule).to(near.dtype)
    return hinge(near, far, margins), vectors.level > 0


def structural(vectors: Vectors, margin: float = 2.0, schedule: Margin = "harmonic") -> Tensor:
    """L_phi: the mean of :func:`structural_rows` over the anchors that have a structural pair."""
    return mean_of(*structural_rows(vectors, margin, schedule))
