"""Losses of the CNN rankers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pairwise_hinge(better: Tensor, worse: Tensor) -> Tensor:
    """Mean of max(0, 1 - (S(q, d+) - S(q, d-))) (Kuwa et al. 2020, section 3.1).

    better, worse: (P,) scores before tanh, which saturates.
    """
    return functional.relu(1.0 - (better - worse)).mean()


def in_batch_softmax(
    cosines: Tensor, positive: Tensor, relevant: Tensor, weight: Tensor, temperature: float
) -> Tensor:
    """Weighted mean of -log(exp(s_+ / t) / sum_d exp(s_d / t)), without other relevant d.

    cosines: (B, U); positive: (B,) relevant column; relevant: (B, U) bool;
    weight: (B,); temperature: t.
    """
    masked = relevant.clone()
    masked[torch.arange(len(positive)), positive] = False
    logits = (cosines / temperature).masked_fill(masked, float("-inf"))
    loss = functional.cross_entropy(logits, positive, reduction="none")
    return (loss * weight).sum() / weight.sum()
