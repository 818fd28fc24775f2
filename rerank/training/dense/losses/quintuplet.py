"""The paper's loss: structure and semantics together."""

from __future__ import annotations

from torch import Tensor

from rerank.training.dense.config import Margin, Pool
from rerank.training.dense.losses.batch import Vectors
from rerank.training.dense.losses.semantic import semantic
from rerank.training.dense.losses.structural import structural


def quintuplet(
    vectors: Vectors,
    *,
    gamma: float = 0.5,
    structural_margin: float = 2.0,
    semantic_margin: float = 0.5,
    schedule: Margin = "harmonic",
    pool: Pool = "anchors",
) -> Tensor:
    """L = (1 - gamma) L_phi + gamma L_psi (Raman et al. 2021, equation 5).

    gamma 0 is structure alone, 1 semantics alone; ``schedule="constant"`` is the fixed margin.
    """
    loss = vectors.anchor.new_zeros(())
    if gamma < 1:
        loss = loss + (1 - gamma) * structural(vectors, structural_margin, schedule)
    if gamma > 0:
        loss = loss + gamma * semantic(vectors, semantic_margin, pool)
    return loss
