"""In-batch softmax over the structural positives: every other document of the batch is a negative."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rerank.training.dense.losses.batch import Vectors


def contrastive_rows(vectors: Vectors, *, temperature: float = 0.05) -> tuple[Tensor, Tensor]:
    """-log(exp(c_i+ / t) / sum_j exp(c_ij / t)): (B,) losses, and (B,) bool: the anchors that have a
    structural pair and something to tell its positive from.

    c: cosines of anchor i with the positives of the batch (van den Oord et al. 2018, InfoNCE). Positives of
    others that are the anchor's own, or related to it, are left out of the sum.
    """
    assert vectors.positive is not None
    anchor = functional.normalize(vectors.anchor, dim=-1)
    positive = functional.normalize(vectors.positive, dim=-1)
    own = torch.eye(len(anchor), dtype=torch.bool, device=anchor.device)
    paired = vectors.level > 0
    masked = (vectors.near_positive | ~paired[None, :]) & ~own
    logits = (anchor @ positive.T / temperature).masked_fill(masked, float("-inf"))
    targets = torch.arange(len(anchor), device=anchor.device)
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses, paired & ((~masked).sum(dim=1) > 1)


def contrastive(vectors: Vectors, *, temperature: float = 0.05) -> Tensor:
    """Mean of :func:`contrastive_rows` over the anchors that have a structural pair."""
    losses, _ = contrastive_rows(vectors, temperature=temperature)
    paired = vectors.level > 0
    return losses[paired].sum() / paired.sum().clamp_min(1)
