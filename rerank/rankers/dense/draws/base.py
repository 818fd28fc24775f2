"""What a draw is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.neighbours.base import Neighbours


@dataclass(frozen=True)
class Draw:
    """A structural positive and negative of an anchor: positions of documents, and the level (from 1).

    Level 0, with both -1: the anchor has none.
    """

    anchor: int
    level: int = 0
    positive: int = -1
    negative: int = -1


class Draws:
    """A way to draw pairs; subclasses are dataclasses of its settings."""

    def turns(self, neighbours: Neighbours) -> NDArray[np.int64]:
        """(N,) how often a document that has neighbours is drawn for in an epoch."""
        return np.ones(len(neighbours.usable), np.int64)

    def draw(self, neighbours: Neighbours, anchor: int, rng: np.random.Generator) -> Draw:
        """Draw level, positive and negative of an anchor, all from ``rng``."""
        raise NotImplementedError

    def take(self, neighbours: Neighbours, anchor: int, rng: np.random.Generator, turn: int) -> Draw:
        """Draw for one of an anchor's turns; ``rng`` is the same for all of them."""
        return self.draw(neighbours, anchor, rng)
