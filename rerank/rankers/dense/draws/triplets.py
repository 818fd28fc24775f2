"""Triplets of co-citation: as the neighbours' own rules draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.draws.base import Draw, Draws
from rerank.rankers.dense.neighbours.base import Neighbours
from rerank.rankers.dense.neighbours.cited import CitedTogether
from rerank.rankers.graphs.cocitation import LEVELS


@dataclass(frozen=True)
class Triplets(Draws):
    """K triplets of a target in an epoch; the level is 4 for a positive of the same sentence, down to 1."""

    implies: ClassVar[dict[str, Any]] = {"neighbours": "cited"}

    def turns(self, neighbours: Neighbours) -> NDArray[np.int64]:
        """(N,) so many as its rules give each."""
        assert isinstance(neighbours, CitedTogether)
        return neighbours.draws()

    def draw(self, neighbours: Neighbours, anchor: int, rng: np.random.Generator) -> Draw:
        """Draw the first of an anchor's triplets."""
        return self.take(neighbours, anchor, rng, 0)

    def take(self, neighbours: Neighbours, anchor: int, rng: np.random.Generator, turn: int) -> Draw:
        """Draw all of an anchor's triplets, and take one."""
        assert isinstance(neighbours, CitedTogether)
        ref = int(neighbours.refs[anchor])
        found = neighbours.triplets.of(ref, rng) if ref >= 0 else []
        if turn >= len(found):
            return Draw(anchor)
        positive, negative, level = found[turn]
        texts = neighbours.texts
        return Draw(anchor, len(LEVELS) + 1 - level, int(texts[positive]), int(texts[negative]))
