"""Semantics only: a text is nearer to its corrupted self than to the nearest other text of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rerank.rankers.dense.corruption import Corruption
from rerank.rankers.dense.losses.base import Loss
from rerank.rankers.dense.losses.batch import Pool, Vectors
from rerank.rankers.dense.losses.distance import distance, hinge
from rerank.settings import group, setting

if TYPE_CHECKING:
    from torch import Tensor

Isolated = Literal["semantic", "skip"]
MASK_RELATED = "documents of a batch that are related to an anchor are no negatives of it"


def hardest(anchors: Tensor, others: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest other text of each anchor: (B,) positions in ``others``, (B,) bool whether there is one.

    anchors: (B, E) and others: (P, E), read without gradient; near: (B, P) bool, True where j may not be
    chosen for i.

    >>> import torch
    >>> anchors = torch.tensor([[0.0], [0.1], [0.3]])
    >>> hardest(anchors, anchors, torch.eye(3, dtype=torch.bool))[0].tolist()
    [1, 0, 1]
    """
    import torch

    with torch.no_grad():
        apart = torch.cdist(anchors.detach().float(), others.detach().float())
        apart = apart.masked_fill(near, float("inf"))
        least, chosen = apart.min(dim=1)
    return chosen, torch.isfinite(least)


@dataclass(frozen=True)
class Semantics(Loss):
    """max(d(h, h_psi+) - d(h, h_psi-) + m_psi, 0) (Raman et al. 2021, equation 5): L_psi, of the anchors for
    which the batch has a negative.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"anchor", "corrupted"})
    name: ClassVar[str] = "semantic"

    semantic_margin: float = setting(0.5, "of the semantic half", low=0)
    pool: Pool = setting("anchors", "where the nearest other text is looked for: the batch's anchors, or all")
    mask_related: bool = setting(True, MASK_RELATED)
    isolated: Isolated = setting(
        "semantic", "documents without related ones: for the semantic half alone, or left out"
    )
    corrupt: Corruption = group(Corruption)

    @property
    def keeps_isolated(self) -> bool:
        """As ``isolated`` has it."""
        return self.isolated == "semantic"

    @property
    def masks_related(self) -> bool:
        """As ``mask_related`` has it."""
        return self.mask_related

    @property
    def corruption(self) -> Corruption:
        """As its settings have it."""
        return self.corrupt

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors for which the batch has a negative."""
        assert vectors.corrupted is not None
        others, near = vectors.others(self.pool)
        chosen, valid = hardest(vectors.anchor, others, near)
        far = distance(vectors.anchor, others[chosen])
        return hinge(distance(vectors.anchor, vectors.corrupted), far, self.semantic_margin), valid
