"""Contrastive, triplet and quintuplet losses."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional

from rerank.rankers.dense.config import Objective
from rerank.rankers.encoder.batching import Loss

FLOOR = 1e-12
"""Least squared distance: the root has no gradient at 0."""


def mean_of(losses: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of the valid ones of B losses, a scalar, or 0 if none is valid.

    losses: (B,). valid: (B,) bool.
    """
    return losses[valid].sum() / valid.sum().clamp_min(1)


class Contrastive(Loss):
    """InfoNCE: -log(exp(c_i+ / t) / sum_j exp(c_ij / t)) (van den Oord et al. 2018).

    c are the cosines of an anchor with the positives of all anchors, except other positives near to it.

    temperature: t.
    hard:        whether the negatives of all anchors are also in the sum.
    """

    def __init__(self, temperature: float = 0.05, hard: bool = False) -> None:
        super().__init__()
        self.temperature = temperature
        self.hard = hard
        self.reads = ("anchor", "positive", "negative") if hard else ("anchor", "positive")

    def forward(self, vectors: SimpleNamespace) -> Tensor:
        """Return the mean over the anchors with a structural pair and another document to compare with."""
        anchor = functional.normalize(vectors.anchor, dim=-1)
        positive = functional.normalize(vectors.positive, dim=-1)
        diagonal = torch.eye(len(anchor), dtype=torch.bool, device=anchor.device)
        paired = vectors.level > 0
        masked = (vectors.near_positive | ~paired[None, :]) & ~diagonal
        if self.hard:
            positive = torch.cat((positive, functional.normalize(vectors.negative, dim=-1)))
            masked = torch.cat((masked, vectors.near_negative | ~paired[None, :]), dim=1)
        logits = (anchor @ positive.T / self.temperature).masked_fill(masked, float("-inf"))
        targets = torch.arange(len(anchor), device=anchor.device)
        losses = functional.cross_entropy(logits, targets, reduction="none")
        return mean_of(losses, paired & ((~masked).sum(dim=1) > 1))


class TripletLoss(Loss):
    """max(|h - h+| - |h - h-| + m, 0) (Ding et al., SPECTER).

    by_level: divide m by the level (Raman et al. 2021, L_phi).
    """

    reads = ("anchor", "positive", "negative")

    def __init__(self, margin: float = 1.0, by_level: bool = False) -> None:
        super().__init__()
        self.margin = margin
        self.by_level = by_level

    def forward(self, vectors: SimpleNamespace) -> Tensor:
        """Return the mean over the anchors that have a structural pair, or 0 without them."""
        near = distance(vectors.anchor, vectors.positive)
        far = distance(vectors.anchor, vectors.negative)
        levels = vectors.level.clamp_min(1) if self.by_level else 1
        return mean_of((near - far + self.margin / levels).relu(), vectors.level > 0)


class SemanticLoss(Loss):
    """L_psi: max(|h - h_psi+| - |h - h_psi-| + m, 0) (Raman et al. 2021, equation 5).

    h_psi-: nearest unrelated anchor.
    """

    reads = ("anchor", "corrupted")

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, vectors: SimpleNamespace) -> Tensor:
        """Return the mean over the anchors that have an unrelated anchor in the batch, or 0."""
        nearest, valid = nearest_negative(vectors.anchor, vectors.near)
        near = distance(vectors.anchor, vectors.corrupted)
        far = distance(vectors.anchor, vectors.anchor[nearest])
        return mean_of((near - far + self.margin).relu(), valid)


class Quintuplet(Loss):
    """L = (L_phi + L_psi) / 2 (Raman et al. 2021, equation 5).

    L_phi is the :class:`TripletLoss` by level with the margin 2, L_psi the :class:`SemanticLoss`.
    """

    reads = ("anchor", "positive", "negative", "corrupted")

    def __init__(self) -> None:
        super().__init__()
        self.structure = TripletLoss(2.0, by_level=True)
        self.semantics = SemanticLoss(0.5)

    def forward(self, vectors: SimpleNamespace) -> Tensor:
        """Return the mean of the loss by structure and the loss by semantics."""
        mean: Tensor = (self.structure(vectors) + self.semantics(vectors)) / 2
        return mean


def make_loss(objective: Objective) -> Loss:
    """Return a new loss for a value of the option ``--objective`` of ``dense``."""
    losses: dict[Objective, type[Loss]] = {
        "contrastive": Contrastive,
        "quintuplet": Quintuplet,
        "cocitation": TripletLoss,
    }
    return losses[objective]()


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return Euclidean distances, (...), of (..., E) vectors, at least sqrt(FLOOR)."""
    return (a - b).square().sum(dim=-1).clamp_min(FLOOR).sqrt()


def nearest_negative(anchors: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest other anchors, (B,), and whether they exist, (B,) bool.

    anchors: (B, E), without gradient.
    near:    (B, B) bool: excluded pairs.
    """
    with torch.no_grad():
        apart = torch.cdist(anchors.detach().float(), anchors.detach().float())
        distances, nearest = apart.masked_fill(near, float("inf")).min(dim=1)
    return nearest, torch.isfinite(distances)
