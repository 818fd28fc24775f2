"""What every loss reads: the vectors of a batch of quintuplets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.dense.quintuplets import Quintuplets

Pool = Literal["anchors", "all"]
BRANCHES = ("anchor", "positive", "negative", "corrupted")
"""The texts that go with an anchor, itself included, in the order in which they are encoded."""


@dataclass(frozen=True)
class Vectors:
    """B anchors and what belongs to them.

    anchor:             (B, E) h.
    positive, negative: (B, E) structural ones, h_phi+ and h_phi-; None where the objective does not use them.
    corrupted:          (B, E) the semantic positive h_psi+: the anchor's text with tokens replaced; or None.
    level:              (B,) long, from 1; 0: the anchor has no structural pair.
    near:               (B, B) bool: document j is i itself, its positive or one related to it, and so no
                        negative of i.
    near_positive, near_negative: (B, B) the same for j's structural positive and negative.
    batch:              what was drawn: documents and token numbers, for losses that need more than vectors.
    """

    anchor: Tensor
    positive: Tensor | None
    negative: Tensor | None
    corrupted: Tensor | None
    level: Tensor
    near: Tensor
    near_positive: Tensor
    near_negative: Tensor
    batch: Quintuplets | None = None

    def others(self, pool: Pool = "anchors") -> tuple[Tensor, Tensor]:
        """Texts that may be semantic negatives: (P, E) vectors, and (B, P) bool, True where one may not.

        ``anchors``: the batch's. ``all``: the structural positives and negatives and the corrupted texts too.
        """
        import torch

        parts = [(self.anchor, self.near)]
        if pool == "all":
            paired = (self.level > 0)[None, :]  # the others have their own text in these places
            rest = (
                (self.positive, self.near_positive | ~paired),
                (self.negative, self.near_negative | ~paired),
                (self.corrupted, self.near),
            )
            parts += [(vectors, near) for vectors, near in rest if vectors is not None]
        vectors, near = zip(*parts)
        return torch.cat(vectors), torch.cat(near, dim=1)
