"""Halving by levels: the nearer half of an anchor's neighbours against the farther one, and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank.errors import UsageError
from rerank.rankers.dense.draws.base import Draw, Draws
from rerank.rankers.dense.levels import level_size, levels
from rerank.rankers.dense.neighbours.base import Neighbours
from rerank.settings import setting

REDRAWS = 10
"""Draws of another pair where the two are as near as each other."""
TIE = 2e-5
"""Relative difference of scores below which two documents are as near as each other."""


@dataclass(frozen=True)
class Hierarchical(Draws):
    """A level, then a pair of it; a document with fewer levels than a fixed one has no pair."""

    max_level: int | None = setting(None, "draw no higher level than this; none: any", low=1)
    level: int | None = setting(None, "draw this level alone; none: any", low=1, instead_of="max_level")

    def __post_init__(self) -> None:
        if self.level is not None and self.max_level is not None:
            raise UsageError("a fixed level and a highest level exclude each other; give one of them")

    def draw(self, neighbours: Neighbours, anchor: int, rng: np.random.Generator) -> Draw:
        """Draw level, positive and negative (Raman et al. 2021, equations 2 and 3).

        Where the two are as near as each other, others are drawn, at most REDRAWS times.
        """
        count = neighbours.related(anchor)
        top = levels(count)
        if self.max_level is not None:
            top = min(top, self.max_level)
        least = 1
        if self.level is not None:
            least, top = self.level, self.level if self.level <= top else 0
        if not top:
            return Draw(anchor)
        near, scores = neighbours.near(anchor), neighbours.scores_of(anchor)
        for _ in range(REDRAWS):
            level = int(rng.integers(least, top + 1))
            size = level_size(count, level)
            positive = int(rng.integers(size))
            if level == 1:
                other = neighbours.unrelated(anchor, rng)
                if other >= 0:
                    return Draw(anchor, 1, int(near[positive]), other)
                least = 2
                if top < 2:
                    return Draw(anchor)
                continue
            negative = int(rng.integers(size, level_size(count, level - 1)))
            if scores[positive] - scores[negative] > TIE * scores[positive]:
                return Draw(anchor, level, int(near[positive]), int(near[negative]))
        return Draw(anchor)
