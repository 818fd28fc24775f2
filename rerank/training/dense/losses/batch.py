"""What every loss reads: the vectors of a batch of quintuplets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Vectors:
    """B anchors and what belongs to them.

    anchor:             (B, E) h.
    positive, negative: (B, E) structural ones, h_phi+ and h_phi-; None where the objective does not use them.
    corrupted:          (B, E) the semantic positive h_psi+: the anchor's text with tokens replaced; or None.
    level:              (B,) long, from 1; 0: the anchor has no structural pair.
    near:               (B, B) bool: document j is i itself, its positive or one related to it, and so no
                        negative of i.
    near_positive:      (B, B) the same for j's structural positive.
    """

    anchor: Tensor
    positive: Tensor | None
    negative: Tensor | None
    corrupted: Tensor | None
    level: Tensor
    near: Tensor
    near_positive: Tensor
