"""Positives drawn from all neighbours alike, negatives from all other documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rerank.rankers.dense.draws.base import Draw, Draws
from rerank.rankers.dense.neighbours.base import Neighbours


@dataclass(frozen=True)
class Row(Draws):
    """All neighbours on one level."""

    implies: ClassVar[dict[str, str]] = {"neighbours": "linked"}

    def draw(self, neighbours: Neighbours, anchor: int, rng: np.random.Generator) -> Draw:
        """Draw one of each."""
        count = neighbours.related(anchor)
        if not count:
            return Draw(anchor)
        positive = int(neighbours.near(anchor)[int(rng.integers(count))])
        other = neighbours.unrelated(anchor, rng)
        return Draw(anchor, 1, positive, other) if other >= 0 else Draw(anchor)
