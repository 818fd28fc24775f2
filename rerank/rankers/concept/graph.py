"""Labeled pairs as a graph (Ma et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rerank.documents.records import LabeledPair

Pairs = NDArray[np.int64]
"""(n, 2) positions of documents."""


@dataclass(frozen=True)
class ConceptGraph:
    """N documents whose labeled pairs are learned, and the dev pairs.

    ids:         the N documents, sorted, and then the other documents of the dev pairs.
    related:     (P, 2) pairs with the label related, each once, with the smaller position first.
    unrelated:   (U, 2) pairs with the label unrelated, in the same form.
    component:   (N,) the component of each document, counted from 0; -1 without related documents.
    dev:         (D, 2) dev pairs.
    dev_labels:  (D,) whether the dev pairs are related.
    withheld:    the number of labeled pairs that are left out because they are dev pairs.
    disagreeing: the number of labeled pairs that are left out because they have both labels.
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
    def from_pairs(cls, pairs: Iterable[LabeledPair], dev: Iterable[LabeledPair] = ()) -> ConceptGraph:
        """Build the graph of labeled pairs.

        Pairs of a document with itself are left out, and pairs that are also dev pairs or have both labels.
        """
        dev_pairs = sorted(dev)
        labels = _labels_by_pair(pairs)
        withheld = labels.keys() & {pair.key for pair in dev_pairs}
        related_pairs: list[tuple[str, str]] = []
        unrelated_pairs: list[tuple[str, str]] = []
        disagreeing = 0
        for key in sorted(labels.keys() - withheld):
            if len(labels[key]) > 1:
                disagreeing += 1
            elif True in labels[key]:
                related_pairs.append(key)
            else:
                unrelated_pairs.append(key)
        ids = sorted({*chain.from_iterable(related_pairs), *chain.from_iterable(unrelated_pairs)})
        dev_ends = [(pair.a, pair.b) for pair in dev_pairs]
        dev_only = sorted({*chain.from_iterable(dev_ends)}.difference(ids))
        index = {id: position for position, id in enumerate((*ids, *dev_only))}
        related = _positions(related_pairs, index)
        return cls(
            ids=tuple(index),
            related=related,
            unrelated=_positions(unrelated_pairs, index),
            component=_components(related, len(ids)),
            dev=_positions(dev_ends, index),
            dev_labels=np.array([pair.related for pair in dev_pairs], dtype=np.bool_),
            withheld=len(withheld),
            disagreeing=disagreeing,
        )

    @property
    def components(self) -> int:
        """The number of components of related documents; documents without related ones are in none."""
        return int(self.component.max(initial=-1)) + 1


def _labels_by_pair(pairs: Iterable[LabeledPair]) -> dict[tuple[str, str], set[bool]]:
    """Return each pair of two different ids in ascending order -> its labels."""
    labels: dict[tuple[str, str], set[bool]] = {}
    for pair in pairs:
        if pair.a != pair.b:
            labels.setdefault(pair.key, set()).add(pair.related)
    return labels


def _positions(pairs: Iterable[tuple[str, str]], index: Mapping[str, int]) -> Pairs:
    positions = [(index[a], index[b]) for a, b in pairs]
    return np.array(positions, dtype=np.int64).reshape(-1, 2)


def _components(related: Pairs, size: int) -> NDArray[np.int64]:
    """Return the component of each of ``size`` documents, (N,); -1 for those without related documents."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    edges = csr_matrix((np.ones(len(related), np.int8), (*related.T,)), shape=(size, size))
    group = connected_components(edges, directed=False)[1]
    has_several = np.bincount(group) > 1
    component: NDArray[np.int64] = np.where(has_several, np.cumsum(has_several) - 1, -1)[group]
    return component
