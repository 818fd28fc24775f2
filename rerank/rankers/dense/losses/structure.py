"""Structure only: nearer documents in the graph are nearer in the space, by a margin of the level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rerank.rankers.dense.losses.base import Loss
from rerank.rankers.dense.losses.batch import Vectors
from rerank.rankers.dense.losses.distance import distance, hinge
from rerank.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

Margin = Literal["harmonic", "geometric", "constant"]


def level_margins(level: Tensor, margin: float, schedule: Margin) -> Tensor:
    """Margins of levels: (B,) -> (B,).

    harmonic m / l (the paper's formula), geometric m / 2^(l - 1) (its words), constant m.

    >>> import torch
    >>> level_margins(torch.tensor([1, 2, 3]), 2.0, "harmonic").tolist()
    [2.0, 1.0, 0.6666666865348816]
    """
    at = level.clamp_min(1).float()
    if schedule == "constant":
        return at.new_full(at.shape, margin)
    return margin / (at if schedule == "harmonic" else 2 ** (at - 1))


@dataclass(frozen=True)
class ConstantMargin(Loss):
    """max(d(h, h_phi+) - d(h, h_phi-) + m_phi / l, 0) (Raman et al. 2021, equation 5), with one margin for
    all levels: of the anchors that have a structural pair.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"anchor", "positive", "negative"})
    name: ClassVar[str] = "structural"

    structural_margin: float = setting(2.0, "of the structural half at level 1", low=0)

    @property
    def schedule(self) -> Margin:
        """How the margin shrinks with the level."""
        return "constant"

    def rows(self, vectors: Vectors) -> tuple[Tensor, Tensor]:
        """(B,) losses, and (B,) bool: the anchors that have a structural pair."""
        assert vectors.positive is not None
        assert vectors.negative is not None
        near = distance(vectors.anchor, vectors.positive)
        far = distance(vectors.anchor, vectors.negative)
        margins = level_margins(vectors.level, self.structural_margin, self.schedule).to(near.dtype)
        return hinge(near, far, margins), vectors.level > 0

    def widest_margin(self) -> float:
        """That of level 1."""
        return self.structural_margin


@dataclass(frozen=True)
class Structure(ConstantMargin):
    """The same with a margin that shrinks with the level: L_phi."""

    margin: Margin = setting("harmonic", "at level l, of m: m / l, m / 2^(l-1), or m")

    @property
    def schedule(self) -> Margin:
        """As ``margin`` has it."""
        return self.margin
