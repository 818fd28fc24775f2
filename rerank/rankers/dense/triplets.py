"""Triplets of texts that are cited together (Ding et al.)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.cocitation import CoCitations, Ids, Level

REJECTIONS = 100
"""Rounds of draws of negatives, before all references that are left are listed."""
TRIPLETS_PER_TARGET = 5
"""Triplets of a target (K)."""


@dataclass
class TripletSampler:
    """Draws triplets of a target, a positive and a negative from a co-citation network.

    usable: (V,) bool, which references have a text.
    level:  the part of a document in which a positive is cited together with its target.
    direct: the references that cite a reference or are cited by it; they are never its negatives.
    """

    network: CoCitations
    usable: NDArray[np.bool_]
    level: Level = "sentence"
    direct: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._nodes = np.flatnonzero(self.usable).astype(np.int32)

    @property
    def widest(self) -> Level:
        """The level at which a text that is cited together with the target is never its negative."""
        return "document" if self.level == "document" else "section"

    def targets(self) -> Ids:
        """Return the references with a text that are cited together with another one."""
        ends = self.network.levels[self.level].of_refs.indptr
        targets: Ids = self._nodes[np.diff(ends)[self._nodes] > 0]
        return targets

    def draw(self, target: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Draw TRIPLETS_PER_TARGET pairs of a positive and a negative; none if one of them is missing."""
        positives = self.network.neighbors(target, self.level)
        positives = positives[self.usable[positives]]
        if not len(positives):
            return []
        if len(positives) > TRIPLETS_PER_TARGET:
            positives = rng.choice(positives, TRIPLETS_PER_TARGET, replace=False)
        else:
            positives = rng.permutation(positives)
            repeated = rng.choice(positives, TRIPLETS_PER_TARGET - len(positives))
            positives = np.concatenate((positives, repeated))
        near = self.network.neighbors(target, self.widest)
        negatives = self._far(
            [target, *self.direct.get(target, ()), *near.tolist()], TRIPLETS_PER_TARGET, rng
        )
        return list(zip(positives.tolist(), negatives))

    def _far(self, near: list[int], count: int, rng: np.random.Generator) -> list[int]:
        """Draw references outside ``near``, distinct if there are enough; none if impossible."""
        excluded = set(near)
        drawn: list[int] = []
        for _ in range(REJECTIONS):
            sample = self._nodes[rng.integers(len(self._nodes), size=max(2 * count, 8))]
            for node in sample.tolist():
                if node not in excluded:
                    excluded.add(node)
                    drawn.append(node)
                if len(drawn) == count:
                    return drawn
        allowed = np.setdiff1d(self._nodes, near)
        return np.resize(rng.permutation(allowed), count).tolist() if len(allowed) else []
