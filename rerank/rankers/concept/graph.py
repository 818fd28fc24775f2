"""Labeled pairs as a graph (Ma et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.records import LabeledPair

Pairs = NDArray[np.int64]
"""(n, 2) positions of documents."""


@dataclass(frozen=True)
class ConceptGraph:
    """N documents to learn from, and dev pairs.

    ids: the N documents, by id, then the other documents of dev pairs.
    related, unrelated: labeled pairs, each once, the smaller position first, in ascending order.
    component: (N,) from 0, by first document; -1: without related documents.
    dev, dev_labels: dev pairs, and whether they are related.
    withheld, disagreeing: number of excluded pairs: dev pairs, pairs with both labels.
    """

    ids: tuple[str, ...]
    related: Pairs
    unrelated: Pairs
    component: NDArray[np.int64]
    dev: Pairs
    dev_labels: NDArray[np.bool_]
    withheld: int
    disagreeing: int

    @classmethod
    def of(cls, pairs: Iterable[LabeledPair], dev: Iterable[LabeledPair] = ()) -> ConceptGraph:
        """Return the graph of ``pairs`` without the dev pairs."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        dev, labels = sorted(dev), dict[tuple[str, str], set[bool]]()
        for pair in pairs:
            if pair.a != pair.b:
                labels.setdefault(pair.key, set()).add(pair.related)
        withheld = labels.keys() & {pair.key for pair in dev}
        disagreeing = {key for key in labels.keys() - withheld if len(labels[key]) > 1}
        for key in withheld | disagreeing:
            del labels[key]
        ids = sorted({one for key in labels for one in key})
        others = sorted({one for pair in dev for one in pair[:2]}.difference(ids))
        place = {one: i for i, one in enumerate((*ids, *others))}

        def positions(found: Iterable[tuple[str, str]]) -> Pairs:
            return np.array([(place[a], place[b]) for a, b in found], dtype=np.int64).reshape(-1, 2)

        related, unrelated = (
            positions(sorted(key for key in labels if labels[key] == {label})) for label in (True, False)
        )
        edges = csr_matrix((np.ones(len(related), np.int8), (*related.T,)), shape=(len(ids), len(ids)))
        group = connected_components(edges, directed=False)[1]
        several = np.bincount(group) > 1
        return cls(
            tuple(place),
            related,
            unrelated,
            np.where(several, np.cumsum(several) - 1, -1)[group],
            positions(pair[:2] for pair in dev),
            np.array([pair.related for pair in dev], dtype=np.bool_),
            len(withheld),
            len(disagreeing),
        )

    @property
    def components(self) -> int:
        """Number of components."""
        return int(self.component.max(initial=-1)) + 1
