"""Co-citation triplets (Ding et al.)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.graphs.cocitation import CoCitations, Ids, Level

REJECTIONS = 100
"""Rounds of draws of negatives, before all references that are left are listed."""
EACH = 5
"""Triplets of a target (K)."""

Strategy = Literal["sentence", "paragraph", "section", "document", "direct"]
"""Place that cites two texts together; direct: a document and its references, as in SPECTER."""


class Triplet(NamedTuple):
    """Positions of references. level: 1 (sentence) to 4 (document)."""

    positive: int
    negative: int
    level: int
    hard: bool


@dataclass
class TripletSampler:
    """Draws triplets from a network.

    strategy: level of positives; ``direct``: direct citations.
    hard:     triplets, of EACH, with a negative in the same section.
    usable:   (V,) bool: with text.
    direct:   citing and cited references, never negatives.
    excluded: references never drawn together.
    only:     (V,) bool: possible targets; None: all.

    >>> from rerank.rankers.graphs.cocitation import Mention
    >>> papers = [("x", [Mention(ref, 0, 0, at) for ref, at in (("a", 0), ("b", 0), ("c", 1), ("d", 1))]),
    ...           ("y", [Mention("e", 0, 0, 0), Mention("f", 0, 0, 0)])]
    >>> network = CoCitations.of(papers)
    >>> triplets = TripletSampler(network, np.ones(6, bool)).draw(network.at("a"), np.random.default_rng(0))
    >>> {network.keys[one.positive] for one in triplets}
    {'b'}
    >>> sorted({network.keys[one.negative] for one in triplets})
    ['e', 'f']
    """

    network: CoCitations
    usable: NDArray[np.bool_]
    strategy: Strategy = "sentence"
    hard: int = 0
    direct: Mapping[int, Sequence[int]] = field(default_factory=dict)
    excluded: Mapping[int, Sequence[int]] = field(default_factory=dict)
    only: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        self._nodes = np.flatnonzero(self.usable).astype(np.int32)

    @property
    def level(self) -> Level:
        """Level of the positives."""
        return "sentence" if self.strategy == "direct" else self.strategy

    @property
    def widest(self) -> Level:
        """Level within which texts are never easy negatives."""
        return "document" if self.strategy == "document" else "section"

    def targets(self) -> Ids:
        """Return usable references that share groups."""
        ends = self.network.levels[self.level].ref_indptr
        found: Ids = self._nodes[np.diff(ends)[self._nodes] > 0]
        return found if self.only is None else found[self.only[found]]

    def draw(self, target: int, rng: np.random.Generator) -> list[Triplet]:
        """Draw EACH triplets; none without positive or negative."""
        excluded = self.excluded.get(target, ())
        positives = self._allowed(self.network.neighbors(target, self.level), excluded)
        if not len(positives):
            return []
        if len(positives) > EACH:
            positives = rng.choice(positives, EACH, replace=False)
        else:
            positives = rng.permutation(positives)
            more = rng.choice(positives, EACH - len(positives))
            positives = np.concatenate((positives, more))
        near = self.network.neighbors(target, self.widest)
        hard = np.zeros(0, np.int32)
        if self.hard:
            others = np.setdiff1d(near, self.network.neighbors(target, self.level), assume_unique=True)
            hard = rng.permutation(self._allowed(others, excluded))[: self.hard]
        easy = self._easy([target, *self.direct.get(target, ()), *excluded], near, EACH - len(hard), rng)
        if easy is None:
            return []
        negatives, levels = [*hard.tolist(), *easy], self.network.finest(target, positives).tolist()
        flags = [place < len(hard) for place in range(EACH)]
        return [Triplet(*one) for one in zip(positives.tolist(), negatives, levels, flags)]

    def _allowed(self, refs: Ids, excluded: Sequence[int]) -> Ids:
        refs = refs[self.usable[refs]]
        return np.setdiff1d(refs, excluded) if len(excluded) else refs

    def _easy(self, others: list[int], near: Ids, count: int, rng: np.random.Generator) -> list[int] | None:
        """Draw distinct references outside ``near`` and ``others``; None if impossible."""
        known, found = {*others, *near.tolist()}, list[int]()
        for _ in range(REJECTIONS):
            if len(found) == count:
                break
            for one in self._nodes[rng.integers(len(self._nodes), size=max(2 * count, 8))].tolist():
                if one not in known and len(found) < count:
                    known.add(one)
                    found.append(one)
        if len(found) == count:
            return found
        left = np.setdiff1d(self._nodes, [*others, *near.tolist()])
        return np.resize(rng.permutation(left), count).tolist() if len(left) else None
