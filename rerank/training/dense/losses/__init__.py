"""The objectives of ``dense``, by name. Each loss is a file; they share :class:`Vectors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from rerank.training.dense.losses.batch import Vectors
from rerank.training.dense.losses.contrastive import contrastive
from rerank.training.dense.losses.quintuplet import quintuplet
from rerank.training.dense.losses.semantic import semantic
from rerank.training.dense.losses.structural import structural
from rerank.training.dense.structure import Sampling

__all__ = ["OBJECTIVES", "Objective", "Vectors"]


@dataclass(frozen=True)
class Objective:
    """A loss and what it reads: which texts of a quintuplet have to be encoded, and how pairs are drawn.

    branches: texts that are encoded for each anchor, itself included.
    """

    loss: Callable[[Vectors], Tensor]
    positive: bool = True
    negative: bool = True
    corrupted: bool = False
    sampling: Sampling = "hierarchical"

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
    temperature: float = 0.05,
) -> Objective:
    """Build an objective by its name, one of OBJECTIVES."""
    both = partial(
        quintuplet, gamma=gamma, structural_margin=structural_margin, semantic_margin=semantic_margin
    )
    known = {
        "quintuplet": Objective(both, corrupted=True),
        "contrastive": Objective(partial(contrastive, temperature=temperature), negative=False),
        "structure": Objective(partial(structural, margin=structural_margin)),
        "semantics": Objective(
            partial(semantic, margin=semantic_margin), positive=False, negative=False, corrupted=True
        ),
        "fixed-margin": Objective(partial(both, schedule="constant"), corrupted=True),
        "triplet": Objective(
            partial(structural, margin=structural_margin, schedule="constant"), sampling="row"
        ),
    }
    return known[name]


OBJECTIVES = ("quintuplet", "contrastive", "structure", "semantics", "fixed-margin", "triplet")
"""quintuplet: the paper's. contrastive: softmax over the batch. The rest are ablations of the paper's loss:
one half of it, one margin for all levels, and a plain triplet of linked and unlinked documents."""
