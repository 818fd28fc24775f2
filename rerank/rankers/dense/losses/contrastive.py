"""In-batch softmax over the structural positives: every other document of the batch is a negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rerank.rankers.dense.losses.base import Loss
from rerank.rankers.dense.losses.batch import Vectors
from rerank.rankers.dense.losses.semantics import MASK_RELATED
from rerank.settings import setting

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Contrastive(Loss):
    """-log(exp(c_i+ / t) / sum_j exp(c_ij / t)), the mean over the anchors that have a structural pair.

    c: cosines of anchor i with the positives of the batch (van den Oord et al. 2018, InfoNCE). Positives of
    others that are the anchor's own, or related to it, are left out of the sum.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"anchor", "positive"})
    name: ClassVar[str] = "structural"
    hinged: ClassVar[bool] = False

    temperature: float = setting(0.05, "of the softmax", above=0)
    mask_related: bool = setting(True, MASK_RELATED)

    @property
    def masks_related(self) -> bool:
        """As ``mask_related`` has it."""
        return self.mask_related

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors that have a structural pair and something to tell its
        positive from.
        """
        import torch
        from torch.nn import functional

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

    def __call__(self, vectors: Vectors) -> Tensor:
        """Mean over the anchors that have a structural pair."""
        losses, _ = self.rows(vectors)
        paired = vectors.level > 0
        return losses[paired].sum() / paired.sum().clamp_min(1)
