"""The objectives of ``dense``, by name. Each loss is a file; they share :class:`Vectors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from rerank.training.dense.config import OBJECTIVES, Margin, Pool
from rerank.training.dense.losses.batch import Vectors
from rerank.training.dense.losses.contrastive import contrastive, contrastive_rows
from rerank.training.dense.losses.quintuplet import quintuplet
from rerank.training.dense.losses.semantic import semantic, semantic_rows
from rerank.training.dense.losses.structural import structural, structural_rows

__all__ = ["OBJECTIVES", "Objective", "Vectors"]

Rows = Callable[[Vectors], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Objective:
    """A loss and what it reads: which texts of a quintuplet have to be encoded.

    structural, semantic: (B,) losses of its halves by anchor, and (B,) bool of the anchors that have one:
        what is counted beside the training; None: it has no such half.
    hinged:   these losses are hinges: 0 where the margin is kept.
    branches: texts that are encoded for each anchor, itself included.
    """

    loss: Callable[[Vectors], Tensor]
    structural: Rows | None
    semantic: Rows | None = None
    negative: bool = True
    hinged: bool = True

    @property
    def positive(self) -> bool:
        """Whether structural positives are encoded."""
        return self.structural is not None

    @property
    def corrupted(self) -> bool:
        """Whether corrupted texts are encoded."""
        return self.semantic is not None

    @property
    def branches(self) -> int:
        """Sequences that an anchor costs."""
        return 1 + self.positive + self.negative + self.corrupted


def objective(
    name: str,
    *,
    gamma: float = 0.5,
    structural_margin: float = 2.0,
    semantic_margin: float = 0.5,
    margin: Margin = "harmonic",
    temperature: float = 0.05,
    pool: Pool = "anchors",
) -> Objective:
    """Build an objective by its name, one of OBJECTIVES."""
    schedule: Margin = "constant" if name in ("fixed-margin", "triplet") else margin
    near = partial(structural_rows, margin=structural_margin, schedule=schedule)
    far = partial(semantic_rows, margin=semantic_margin, pool=pool)
    if name == "contrastive":
        softmax = partial(contrastive, temperature=temperature)
        rows = partial(contrastive_rows, temperature=temperature)
        return Objective(softmax, rows, negative=False, hinged=False)
    if name == "semantics":
        return Objective(partial(semantic, margin=semantic_margin, pool=pool), None, far, negative=False)
    if name in ("structure", "triplet"):
        return Objective(partial(structural, margin=structural_margin, schedule=schedule), near)
    both = partial(
        quintuplet,
        gamma=gamma,
        structural_margin=structural_margin,
        semantic_margin=semantic_margin,
        schedule=schedule,
        pool=pool,
    )
    return Objective(both, near if gamma < 1 else None, far if gamma > 0 else None, negative=gamma < 1)
