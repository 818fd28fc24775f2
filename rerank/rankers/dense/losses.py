"""The losses of ``dense``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from rerank.rankers.encoder.batching import Loss

if TYPE_CHECKING:
    from rerank.rankers.dense.config import DenseConfig

FLOOR = 1e-12
"""Least squared distance: the root has no gradient at 0."""


@dataclass(frozen=True)
class Vectors:
    """B anchors and the texts that belong to them.

    anchor:             (B, E) h.
    positive, negative: (B, E) structural ones, h_phi+ and h_phi-; None if the loss does not read them.
    corrupted:          (B, E) the semantic positive h_psi+: the anchor's text with tokens replaced; or None.
    level:              (B,) long, from 1; 0: the anchor has no structural pair.
    near:               (B, B) bool: document j is i itself, its positive or related to it, and so no
                        negative of i. near_positive: the same for j's structural positive.
    """

    anchor: Tensor
    positive: Tensor | None
    negative: Tensor | None
    corrupted: Tensor | None
    level: Tensor
    near: Tensor
    near_positive: Tensor


class RowLoss(Loss):
    """A mean over the anchors of a batch; subclasses define :meth:`rows`. hinged: a row can be 0.

    name: of its anchors in the counts.
    """

    name: ClassVar[str] = "structural"
    hinged: ClassVar[bool] = True

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors that have one."""
        raise NotImplementedError

    def forward(self, vectors: Vectors) -> Tensor:
        """Mean of :meth:`rows` over the anchors that have one; 0 if none has."""
        losses, valid = self.rows(vectors)
        return losses[valid].sum() / valid.sum().clamp_min(1)

    def count(self, vectors: Vectors) -> dict[str, int]:
        """Anchors that have a loss, and those of them whose hinge is above 0."""
        losses, valid = self.rows(vectors)
        found = {self.name: int(valid.sum())}
        if self.hinged:
            found[f"active_{self.name}"] = int((losses[valid] > 0).sum())
        return found


class Contrastive(RowLoss):
    """-log(exp(c_i+ / t) / sum_j exp(c_ij / t)): in-batch softmax over the structural positives.

    c: cosines of anchor i with the positives of the batch (van den Oord et al. 2018, InfoNCE). Positives of
    others that are the anchor's own, or related to it, are left out of the sum.
    """

    reads = ("anchor", "positive")
    hinged: ClassVar[bool] = False

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        self.temperature = temperature

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors with a structural pair and any negative."""
        assert vectors.positive is not None
        anchor = functional.normalize(vectors.anchor, dim=-1)
        positive = functional.normalize(vectors.positive, dim=-1)
        own = torch.eye(len(anchor), dtype=torch.bool, device=anchor.device)
        paired = vectors.level > 0
        masked = (vectors.near_positive | ~paired[None, :]) & ~own
        logits = (anchor @ positive.T / self.temperature).masked_fill(masked, float("-inf"))
        targets = torch.arange(len(anchor), device=anchor.device)
        losses = functional.cross_entropy(logits, targets, reduction="none")
        return losses, paired & ((~masked).sum(dim=1) > 1)

    def forward(self, vectors: Vectors) -> Tensor:
        """Mean over the anchors that have a structural pair."""
        losses, _ = self.rows(vectors)
        paired = vectors.level > 0
        return losses[paired].sum() / paired.sum().clamp_min(1)


class Triplet(RowLoss):
    """max(|h - h+| - |h - h-| + m, 0) of the anchors that have a structural pair (Ding et al.).

    Ding et al. do not give m; SPECTER, which they follow, has 1.
    """

    reads = ("anchor", "positive", "negative")

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def margins(self, level: Tensor) -> Tensor:
        """(B,) levels -> (B,) margins."""
        return torch.full_like(level, self.margin, dtype=torch.float32)

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors that have a structural pair."""
        assert vectors.positive is not None
        assert vectors.negative is not None
        near = distance(vectors.anchor, vectors.positive)
        far = distance(vectors.anchor, vectors.negative)
        margins = self.margins(vectors.level).to(near.dtype)
        return (near - far + margins).relu(), vectors.level > 0


class Structure(Triplet):
    """The structural half of the quintuplet loss, L_phi: the margin of level l is m / l."""

    def margins(self, level: Tensor) -> Tensor:
        """(B,) levels -> (B,) margins."""
        return self.margin / level.clamp_min(1).float()


class Semantics(RowLoss):
    """The semantic half, L_psi: max(|h - h_psi+| - |h - h_psi-| + m, 0) (Raman et al. 2021, equation 5).

    h_psi-: the nearest other anchor of the batch that is not related.
    """

    reads = ("anchor", "corrupted")
    name: ClassVar[str] = "semantic"

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors for which the batch has a negative."""
        assert vectors.corrupted is not None
        chosen, valid = hardest(vectors.anchor, vectors.near)
        near = distance(vectors.anchor, vectors.corrupted)
        far = distance(vectors.anchor, vectors.anchor[chosen])
        return (near - far + self.margin).relu(), valid


class Quintuplet(Loss):
    """L = (1 - gamma) L_phi + gamma L_psi (Raman et al. 2021, equation 5).

    gamma 0 is structure only, 1 semantics only.
    """

    structure: ClassVar[type[Triplet]] = Structure

    def __init__(self, gamma: float = 0.5, structural: float = 2.0, semantic: float = 0.5) -> None:
        super().__init__()
        halves: tuple[tuple[float, RowLoss], ...]
        halves = ((1 - gamma, self.structure(structural)), (gamma, Semantics(semantic)))
        self.halves = [(weight, half) for weight, half in halves if weight]
        self.reads = tuple(dict.fromkeys(name for _, half in self.halves for name in half.reads))

    def forward(self, vectors: Vectors) -> Tensor:
        """Weighted sum of the halves."""
        total = vectors.anchor.new_zeros(())
        for weight, half in self.halves:
            total = total + weight * half(vectors)
        return total

    def count(self, vectors: Vectors) -> dict[str, int]:
        """Counts of both halves."""
        return {name: value for _, half in self.halves for name, value in half.count(vectors).items()}


def loss_of(config: DenseConfig) -> Loss:
    """Make the loss of a training."""
    if config.objective == "contrastive":
        return Contrastive(config.temperature)
    if config.objective == "cocitation":
        return Triplet(config.margin)
    return Quintuplet(config.gamma, config.margin, config.semantic_margin)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance sqrt(max(|a - b|^2, FLOOR)): (..., E), (..., E) -> (...).

    >>> distance(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])).item()
    5.0
    """
    return (a - b).square().sum(dim=-1).clamp_min(FLOOR).sqrt()


def hardest(anchors: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest other anchor of each: (B,) positions, and (B,) bool whether there is one.

    anchors: (B, E), read without gradient; near: (B, B) bool, True if j may not be chosen for i.

    >>> hardest(torch.tensor([[0.0], [0.1], [0.3]]), torch.eye(3, dtype=torch.bool))[0].tolist()
    [1, 0, 1]
    """
    with torch.no_grad():
        apart = torch.cdist(anchors.detach().float(), anchors.detach().float())
        apart = apart.masked_fill(near, float("inf"))
        least, chosen = apart.min(dim=1)
    return chosen, torch.isfinite(least)
