"""The objectives of ``dense``: each loss is a file with its settings, and a line in OBJECTIVES."""

from __future__ import annotations

from rerank.rankers.dense.losses.base import Loss, Sum
from rerank.rankers.dense.losses.batch import Vectors
from rerank.rankers.dense.losses.cocitation import CoCitation
from rerank.rankers.dense.losses.contrastive import Contrastive
from rerank.rankers.dense.losses.quintuplet import FixedMargin, Quintuplet
from rerank.rankers.dense.losses.semantics import Semantics
from rerank.rankers.dense.losses.structure import Structure
from rerank.rankers.dense.losses.triplet import Triplet

__all__ = ["OBJECTIVES", "Loss", "Sum", "Vectors"]

OBJECTIVES: dict[str, type[Loss]] = {
    "quintuplet": Quintuplet,
    "contrastive": Contrastive,
    "structure": Structure,
    "semantics": Semantics,
    "fixed-margin": FixedMargin,
    "triplet": Triplet,
    "cocitation": CoCitation,
}
"""quintuplet: of Raman et al. contrastive: softmax over the batch. cocitation: of Ding et al. The rest are
ablations of the first: one half of it, one margin for all levels, and a plain triplet of linked and unlinked
documents."""
