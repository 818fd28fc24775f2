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
class ConceptGraph:
    """N documents, ordered by id.

    related, unrelated: labeled pairs.
    component: (N,) by first document.
    withheld, disagreeing: number of excluded pairs: dev pairs, pairs with both labels.
    """

    ids: tuple[str, ...]
    related: Pairs
    unrelated: Pairs
    component: NDArray[np.int64]
    withheld: int = 0
    disagreeing: int = 0

    @classmethod
    def of(cls, pairs: Iterable[LabeledPair], kept: Iterable[LabeledPair] = ()) -> ConceptGraph:
        """Return the graph without dev pairs ``kept``."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        labels: dict[tuple[str, str], set[bool]] = {}
        for pair in pairs:
            if pair.a != pair.b:
                labels.setdefault(pair.key, set()).add(pair.related)
        withheld = labels.keys() & {pair.key for pair in kept}
        disagreeing = {key for key in labels.keys() - withheld if len(labels[key]) > 1}
        for key in withheld | disagreeing:
            del labels[key]
        ids = tuple(sorted({one for key in labels for one in key}))
        place = {one: i for i, one in enumerate(ids)}

        def positions(label: bool) -> Pairs:
            found = sorted((place[a], place[b]) for (a, b), known in labels.items() if known == {label})
            return np.array(found, dtype=np.int64).reshape(-1, 2)

        related = positions(True)
        edges = csr_matrix((np.ones(len(related), np.int8), (*related.T,)), shape=(len(ids), len(ids)))
        component = connected_components(edges, directed=False)[1].astype(np.int64)
        return cls(ids, related, positions(False), component, len(withheld), len(disagreeing))

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
