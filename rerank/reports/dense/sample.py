"""What the report looks at: documents, and pairs of them drawn by links, levels and hops.

Held-out links are kept apart: they are in no group but their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.graph.levels import level_size, levels
from rerank.graph.links import LinkGraph
from rerank.reports.dense.hops import UNREACHABLE, hops
from rerank.reports.dense.nearest import ASKED
from rerank.reports.dense.subgraphs import choose
from rerank.training.dense.draws import Hierarchical
from rerank.training.dense.neighbours import Neighbours

TRIES = 50
"""Draws of an unrelated document before an anchor goes without."""
DRAWS = 8
"""Structural pairs drawn of each anchor, as the training draws them."""
MAPPED = 1200
"""Documents of the map, at most."""


@dataclass(frozen=True)
class Pairs:
    """P pairs of documents: positions of anchor and other, and which group the pair is of."""

    anchors: NDArray[np.int64]
    others: NDArray[np.int64]
    groups: NDArray[np.int64]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> Pairs:
        """From (anchor, other, group)."""
        a, b, g = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return cls(a, b, g)


@dataclass(frozen=True)
class Sample:
    """Pairs, and the documents that they need.

    linked, held: a document and one that it is linked with (group 1), and an unrelated one (group 0): by a
    link that was learned from, by a held-out one.
    levels: of each anchor one document of each level; 0: not related. hops: the same by hops, from 1.
    margins: (M, 4) anchor, positive, negative and level as the structural loss gets them.
    mapped: (K,) documents of the map. documents: (n,) all of these, sorted.
    subgraphs: (S, 2) documents of a few subgraphs, and which each is of. asked: whose nearest are shown.
    """

    linked: Pairs
    held: Pairs
    levels: Pairs
    hops: Pairs
    margins: NDArray[np.int64]
    mapped: NDArray[np.int64]
    documents: NDArray[np.int64]
    anchors: NDArray[np.int64]
    subgraphs: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    asked: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def rows(self, documents: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where documents are in :attr:`documents`."""
        return np.searchsorted(self.documents, documents)


def place_levels(related: int, most: int | None = None) -> NDArray[np.int64]:
    """Level of each of ``related`` documents, nearest first: the deepest at which it is still a positive.

    >>> place_levels(10).tolist()
    [5, 4, 3, 2, 2, 1, 1, 1, 1, 1]
    """
    found = np.zeros(related, dtype=np.int64)
    for level in range(1, min(levels(related), most or related) + 1):
        found[: level_size(related, level)] = level
    return found


@dataclass
class Drawer:
    """Draws pairs from what was learned from (``graph``, ``neighbours``) and what was held out."""

    graph: LinkGraph
    held: NDArray[np.int32]
    neighbours: Neighbours
    rng: np.random.Generator
    draws: Hierarchical = field(default_factory=Hierarchical)

    def __post_init__(self) -> None:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        size = len(self.neighbours.usable)
        both = np.concatenate((self.held, self.held[:, ::-1])).astype(np.int64).reshape(-1, 2)
        ones = np.ones(len(both), dtype=np.int8)
        self.links = self.graph.matrix("sym")
        self.held_links = csr_matrix((ones, (both[:, 0], both[:, 1])), shape=(size, size))
        _, self.components = connected_components(self.links, directed=False)

    def draw(self, count: int) -> Sample:
        """Draw ``count`` anchors and what goes with them; fewer where there are not so many."""
        usable = self.neighbours.usable
        ends = np.flatnonzero(usable & (np.diff(self.links.indptr) > 0))
        anchors = np.sort(self.rng.permutation(ends)[:count])
        held_ends = np.flatnonzero(usable & (np.diff(self.held_links.indptr) > 0))
        held_anchors = np.sort(self.rng.permutation(held_ends)[:count])
        linked = Pairs.of([row for a in anchors.tolist() for row in self._linked(a, self.links)])
        held = Pairs.of([row for a in held_anchors.tolist() for row in self._linked(a, self.held_links)])
        by_level = Pairs.of([row for a in anchors.tolist() for row in self._levels(a)])
        by_hops = Pairs.of([row for a in anchors.tolist() for row in self._hops(a)])
        margins = np.array([row for a in anchors.tolist() for row in self._margins(a)], dtype=np.int64)
        margins = margins.reshape(-1, 4)
        mapped = self._mapped(linked, held)
        subgraphs = choose(self.links, usable, self.rng)
        asked = self.rng.permutation(held.anchors[held.groups == 1])[:ASKED]
        every = [p for pairs in (linked, held, by_level, by_hops) for p in (pairs.anchors, pairs.others)]
        documents = np.unique(
            np.concatenate((*every, margins[:, :3].ravel(), mapped, anchors, subgraphs[:, 0]))
        )
        return Sample(
            linked=linked,
            held=held,
            levels=by_level,
            hops=by_hops,
            margins=margins,
            mapped=mapped,
            documents=documents,
            anchors=anchors,
            subgraphs=subgraphs,
            asked=asked,
        )

    def _apart(self, anchor: int) -> NDArray[np.int32]:
        """Held-out partners of a document."""
        row: NDArray[np.int32] = self.held_links[anchor].indices
        return row

    def _one(self, documents: NDArray[np.integer]) -> list[int]:
        kept = documents[self.neighbours.usable[documents]]
        return [int(kept[self.rng.integers(len(kept))])] if len(kept) else []

    def _linked(self, anchor: int, links: object) -> Iterator[tuple[int, int, int]]:
        """Draw one linked and one unrelated document, or nothing."""
        found = self._one(links[anchor].indices)  # type: ignore[index]
        other = self._unrelated(anchor)
        if found and other:
            yield anchor, found[0], 1
            yield anchor, other[0], 0

    def _unrelated(self, anchor: int) -> list[int]:
        near = {
            anchor,
            *self.neighbours.near(anchor).tolist(),
            *self.links[anchor].indices.tolist(),
            *self._apart(anchor).tolist(),
        }
        for drawn in self.rng.integers(len(self.neighbours.usable), size=TRIES).tolist():
            if drawn not in near and self.neighbours.usable[drawn]:
                return [drawn]
        return []

    def _levels(self, anchor: int) -> Iterator[tuple[int, int, int]]:
        count = self.neighbours.related(anchor)
        near = self.neighbours.near(anchor)[:count].astype(np.int64)
        at = place_levels(count, self.draws.max_level)
        free = ~np.isin(near, self._apart(anchor))
        for level in range(1, int(at.max(initial=0)) + 1):
            yield from ((anchor, other, level) for other in self._one(near[(at == level) & free]))
        yield from ((anchor, other, 0) for other in self._unrelated(anchor))

    def _hops(self, anchor: int) -> Iterator[tuple[int, int, int]]:
        away = hops(self.links, anchor, self.components)
        away[self._apart(anchor)] = 0
        for hop in range(1, UNREACHABLE + 1):
            yield from ((anchor, other, hop) for other in self._one(np.flatnonzero(away == hop)))

    def _margins(self, anchor: int) -> Iterator[tuple[int, int, int, int]]:
        apart = set(self._apart(anchor).tolist())
        for _ in range(DRAWS):
            draw = self.draws.draw(self.neighbours, anchor, self.rng)
            if draw.level and not {draw.positive, draw.negative} & apart:
                yield anchor, draw.positive, draw.negative, draw.level

    def _mapped(self, linked: Pairs, held: Pairs) -> NDArray[np.int64]:
        """Both ends of links, so that there are neighbours to find."""
        ends = [np.stack((p.anchors[p.groups == 1], p.others[p.groups == 1]), axis=1) for p in (linked, held)]
        pairs = self.rng.permutation(np.concatenate(ends))
        _, first = np.unique(pairs.ravel(), return_index=True)
        return np.sort(pairs.ravel()[np.sort(first)[:MAPPED]])
