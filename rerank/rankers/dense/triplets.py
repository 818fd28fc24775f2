"""Triplets of texts that are cited together (Ding et al.)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.cocitation import CoCitations, Ids, Level

REJECTIONS = 100
"""Rounds of draws of negatives, before all references that are left are listed."""
EACH = 5
"""Triplets of a target (K)."""


@dataclass
class TripletSampler:
    """Draws triplets from a network.

    level:  place in which positives are cited with their target.
    usable: (V,) bool: with text.
    direct: citing and cited references, never negatives.
    """

    network: CoCitations
    usable: NDArray[np.bool_]
    level: Level = "sentence"
    direct: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = np.flatnonzero(self.usable).astype(np.int32)

    @property
    def widest(self) -> Level:
        """Level within which texts are never negatives."""
        return "document" if self.level == "document" else "section"

    def targets(self) -> Ids:
        """Return usable references that share groups."""
        ends = self.network.levels[self.level].of_refs.indptr
        found: Ids = self._nodes[np.diff(ends)[self._nodes] > 0]
        return found

    def draw(self, target: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Draw EACH positives and negatives; none without positive or negative."""
        positives = self.network.neighbors(target, self.level)
        positives = positives[self.usable[positives]]
        if not len(positives):
            return []
        if len(positives) > EACH:
            positives = rng.choice(positives, EACH, replace=False)
        else:
            positives = rng.permutation(positives)
            more = rng.choice(positives, EACH - len(positives))
            positives = np.concatenate((positives, more))
        near = self.network.neighbors(target, self.widest)
        negatives = self._far([target, *self.direct.get(target, ()), *near.tolist()], EACH, rng)
        return list(zip(positives.tolist(), negatives))

    def _far(self, near: list[int], count: int, rng: np.random.Generator) -> list[int]:
        """Draw references outside ``near``, distinct if there are enough; none if impossible."""
        known, found = set(near), list[int]()
        for _ in range(REJECTIONS):
            if len(found) == count:
                break
            for one in self._nodes[rng.integers(len(self._nodes), size=max(2 * count, 8))].tolist():
                if one not in known and len(found) < count:
                    known.add(one)
                    found.append(one)
        if len(found) == count:
            return found
        left = np.setdiff1d(self._nodes, near)
        return np.resize(rng.permutation(left), count).tolist() if len(left) else []
