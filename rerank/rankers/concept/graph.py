"""Labeled pairs as a graph (Ma et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rerank.records import LabeledPair

Pairs = NDArray[np.int64]
"""(n, 2) positions of documents, the smaller one first, in ascending order, each pair once."""


@dataclass(frozen=True)
class PairCounts:
    """Counts of labeled pairs.

    repeated: again with the same label, in either order.
    reflexive: of one document.
    disagreeing: with both labels; excluded.
    contradictions: unrelated within a component.
    withheld: excluded dev pairs.
    implied: related dev pairs in a component.
    """

    repeated: int = 0
    reflexive: int = 0
    disagreeing: int = 0
    contradictions: int = 0
    withheld: int = 0
    implied: int = 0


@dataclass(frozen=True)
class ConceptGraph:
    """N documents, ordered by id.

    related, unrelated: labeled pairs.
    component: (N,) by first document.

    >>> pairs = [LabeledPair(*pair, True) for pair in ("AB", "BC", "CD", "EF")]
    >>> pairs += [LabeledPair(*pair, False) for pair in ("AE", "FG")]
    >>> graph = ConceptGraph.of(pairs)
    >>> graph.component.tolist(), graph.sizes.tolist(), graph.shared.tolist()
    ([0, 0, 0, 0, 1, 1, 2], [4, 2, 1], [0, 0, 0, 0, 1, 1, -1])
    """

    ids: tuple[str, ...]
    related: Pairs
    unrelated: Pairs
    component: NDArray[np.int64]
    counts: PairCounts

    @classmethod
    def of(cls, pairs: Iterable[LabeledPair], kept: Iterable[LabeledPair] = ()) -> ConceptGraph:
        """Return the graph without dev pairs ``kept``."""
        labels: dict[tuple[str, str], set[bool]] = {}
        repeated = reflexive = 0
        for pair in pairs:
            if pair.a == pair.b:
                reflexive += 1
                continue
            known = labels.setdefault(pair.key, set())
            repeated += pair.related in known
            known.add(pair.related)
        dev = {pair.key: pair.related for pair in kept}
        withheld = labels.keys() & dev.keys()
        disagreeing = {key for key in labels.keys() - withheld if len(labels[key]) > 1}
        for key in withheld | disagreeing:
            del labels[key]
        ids = tuple(sorted({one for key in labels for one in key}))
        place = {one: i for i, one in enumerate(ids)}

        def positions(label: bool) -> Pairs:
            found = sorted((place[a], place[b]) for (a, b), known in labels.items() if known == {label})
            return np.array(found, dtype=np.int64).reshape(-1, 2)

        related, unrelated = positions(True), positions(False)
        component = _components(len(ids), related)
        of = {one: int(component[i]) for one, i in place.items()}
        counts = PairCounts(
            repeated,
            reflexive,
            len(disagreeing),
            int((component[unrelated[:, 0]] == component[unrelated[:, 1]]).sum()),
            len(withheld),
            sum(label and a != b and a in of and of[a] == of.get(b) for (a, b), label in dev.items()),
        )
        return cls(ids, related, unrelated, component, counts)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Documents per component."""
        return np.bincount(self.component)

    @property
    def groups(self) -> int:
        """Number of components with several documents."""
        return int((self.sizes > 1).sum())

    @cached_property
    def shared(self) -> NDArray[np.int64]:
        """Components with several documents, (N,) from 0; -1: others."""
        several = self.sizes > 1
        return np.where(several, np.cumsum(several) - 1, -1)[self.component]


def _components(size: int, related: Pairs) -> NDArray[np.int64]:
    """Return components, (size,), by first member."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    edges = csr_matrix((np.ones(len(related), np.int8), (*related.T,)), shape=(size, size))
    component: NDArray[np.int64] = connected_components(edges, directed=False)[1].astype(np.int64)
    return component
