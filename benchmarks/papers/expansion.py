"""Sample additional labeled pairs from the graph of labeled pairs (Ma et al. 2023, section 3.2).

Related pairs are at most ``hops`` labeled pairs apart. Unrelated pairs are in different components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rerank.documents.records import LabeledPair
from rerank.rankers.concept.graph import ConceptGraph

MISSES = 50
"""Sampling stops after this number of rounds without a new pair."""


def expand(
    graph: ConceptGraph, excluded: Sequence[LabeledPair], hops: int, ratio: float, seed: int
) -> ConceptGraph:
    """Return the graph with additional pairs, never with pairs of ``excluded``.

    Related pairs grow up to ratio / 2 times the number of labeled pairs. Unrelated pairs grow up to the
    number of related pairs.
    """
    rng = np.random.default_rng((seed, 2))
    row = {id: i for i, id in enumerate(graph.ids)}
    inside = sorted(tuple(sorted((row[a], row[b]))) for a, b, _ in excluded if {a, b} <= row.keys())
    held = np.array(inside, np.int64).reshape(-1, 2)
    labeled, reached = len(graph.related) + len(graph.unrelated), within(graph, hops)
    fresh = reached[~np.isin(_keys(graph, reached), _keys(graph, graph.related, graph.unrelated, held))]
    count = max(0, int(ratio * labeled / 2) - len(graph.related))
    related = np.concatenate((graph.related, fresh[rng.permutation(len(fresh))[:count]]))
    known = set(_keys(graph, related, graph.unrelated, held).tolist())
    more = _between(graph, len(related) - len(graph.unrelated), known, rng)
    unrelated = np.concatenate((graph.unrelated, more))
    return replace(graph, related=_ordered(graph, related), unrelated=_ordered(graph, unrelated))


def within(graph: ConceptGraph, hops: int) -> NDArray[np.int64]:
    """Return pairs of documents that are at most ``hops`` related pairs apart. Shape: (n, 2)."""
    size = len(graph.component)
    ends = np.concatenate((graph.related, graph.related[:, ::-1]))
    edges = sparse.csr_matrix((np.ones(len(ends), np.int32), (*ends.T,)), shape=(size, size))
    reach = edges
    for _ in range(hops - 1):
        reach = (reach + reach @ edges).astype(bool).astype(np.int32)
    pairs = sparse.triu(reach, k=1).tocoo()
    return _ordered(graph, np.stack((pairs.row, pairs.col), axis=1).astype(np.int64))


def _between(graph: ConceptGraph, count: int, known: set[int], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return distinct new pairs of documents in different components."""
    new_keys: list[int] = []
    misses = 0
    while len(new_keys) < count and misses < MISSES:
        pairs = rng.integers(len(graph.component), size=(max(64, count - len(new_keys)), 2))
        first, second = graph.component[pairs.T]
        pairs = pairs[(pairs[:, 0] != pairs[:, 1]) & ((first != second) | (first < 0))]
        keys = dict.fromkeys(_keys(graph, np.sort(pairs, axis=1)).tolist())
        fresh = [key for key in keys if key not in known][: count - len(new_keys)]
        known.update(fresh)
        new_keys += fresh
        misses = 0 if fresh else misses + 1
    return np.stack(np.divmod(np.array(new_keys, dtype=np.int64), max(1, len(graph.ids))), axis=1)


def _keys(graph: ConceptGraph, *pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    every = np.concatenate(pairs)
    return every[:, 0] * max(1, len(graph.ids)) + every[:, 1]


def _ordered(graph: ConceptGraph, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    return pairs[np.argsort(_keys(graph, pairs), kind="stable")]
