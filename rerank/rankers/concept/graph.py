"""Labeled pairs as a graph (Ma et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rerank.records import LabeledPair

Pairs = NDArray[np.int64]
"""(n, 2) positions of documents, the smaller one first, in ascending order, each pair once."""

ROWS = 512
"""Documents whose neighborhoods are expanded at once."""
MISSES = 50
"""Rounds without a new pair after which sampling ends."""


@dataclass(frozen=True)
class PairCounts:
    """Counts of labeled pairs.

    repeated: again with the same label, in either order.
    reflexive: of one document.
    disagreeing: with both labels; excluded.
    contradictions: unrelated within a component; never sampled.
    withheld: excluded dev pairs.
    implied: related dev pairs in a component; never sampled.
    """

    repeated: int = 0
    reflexive: int = 0
    disagreeing: int = 0
    contradictions: int = 0
    withheld: int = 0
    implied: int = 0


@dataclass(frozen=True)
class Expansion:
    """Labeled and sampled pairs. ratio: twice the related pairs per labeled pair."""

    related: Pairs
    unrelated: Pairs
    ratio: float


@dataclass(frozen=True)
class ConceptGraph:
    """N documents, ordered by id.

    related, unrelated: labeled pairs.
    kept: dev pairs, never sampled.
    component: (N,) by first document.

    >>> pairs = [LabeledPair(*pair, True) for pair in ("AB", "BC", "CD", "EF")]
    >>> pairs += [LabeledPair(*pair, False) for pair in ("AE", "FG")]
    >>> graph = ConceptGraph.of(pairs)
    >>> graph.component.tolist(), graph.sizes.tolist()
    ([0, 0, 0, 0, 1, 1, 2], [4, 2, 1])
    >>> [graph.ids[a] + graph.ids[b] for a, b in graph.within(2)]
    ['AB', 'AC', 'BC', 'BD', 'CD', 'EF']
    """

    ids: tuple[str, ...]
    related: Pairs
    unrelated: Pairs
    kept: Pairs
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

        def positions(keys: Iterable[tuple[str, str]]) -> Pairs:
            found = sorted((place[a], place[b]) for a, b in keys)
            return np.array(found, dtype=np.int64).reshape(-1, 2)

        related = positions(key for key, found in labels.items() if found == {True})
        unrelated = positions(key for key, found in labels.items() if found == {False})
        inside = [key for key in dev if key[0] in place and key[1] in place and key[0] != key[1]]
        component = _components(len(ids), related)
        counts = PairCounts(
            repeated,
            reflexive,
            len(disagreeing),
            int((component[unrelated[:, 0]] == component[unrelated[:, 1]]).sum()),
            len(withheld),
            sum(dev[a, b] and component[place[a]] == component[place[b]] for a, b in inside),
        )
        return cls(ids, related, unrelated, positions(inside), component, counts)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Documents per component."""
        return np.bincount(self.component)

    @property
    def groups(self) -> int:
        """Number of components with several documents."""
        return int((self.sizes > 1).sum())

    def within(self, hops: int) -> Pairs:
        """Return pairs within ``hops`` related pairs, with any label."""
        found = list(self._reached(hops))
        return np.concatenate(found) if found else np.zeros((0, 2), dtype=np.int64)

    def expand(self, hops: int = 2, ratio: float = 2.0, *, seed: int = 0) -> Expansion:
        """Sample pairs (Ma et al. 2023, section 3.2).

        Related: at most ``hops`` apart, up to ratio / 2 times the labeled pairs.
        Unrelated: of different components, equally many.
        Labels do not change; dev pairs are excluded.
        """
        rng = np.random.default_rng((seed, 2))
        labeled = len(self.related) + len(self.unrelated)
        target, reached = int(ratio * labeled / 2), self.within(hops)
        taken = np.concatenate((self.related, self.unrelated, self.kept))
        fresh = reached[~np.isin(self._keys(reached), self._keys(taken))]
        fresh = fresh[rng.permutation(len(fresh))[: max(0, target - len(self.related))]]
        related = self._sorted(np.concatenate((self.related, fresh)))
        taken = np.concatenate((related, self.unrelated, self.kept))
        others = self._sample(len(related) - len(self.unrelated), taken, rng)
        unrelated = self._sorted(np.concatenate((self.unrelated, others)))
        return Expansion(related, unrelated, 2 * len(related) / max(1, labeled))

    def _reached(self, hops: int) -> Iterator[Pairs]:
        from scipy import sparse

        size = len(self.ids)
        ends = np.concatenate((self.related, self.related[:, ::-1]))
        edges = sparse.csr_matrix((np.ones(len(ends), np.int32), (*ends.T,)), shape=(size, size))
        for begin in range(0, size, ROWS):
            frontier = reach = edges[begin : begin + ROWS]
            for _ in range(hops - 1):
                frontier = frontier @ edges
                before = reach.nnz
                reach = reach + frontier
                reach.data[:] = frontier.data[:] = 1
                if reach.nnz == before:
                    break
            pairs = reach.tocoo()
            found = np.stack((pairs.row.astype(np.int64) + begin, pairs.col.astype(np.int64)), axis=1)
            yield self._sorted(found[found[:, 0] < found[:, 1]])

    def _sample(self, count: int, taken: Pairs, rng: np.random.Generator) -> Pairs:
        """Sample distinct new pairs between components."""
        known = set(self._keys(taken).tolist())
        found: list[int] = []
        misses = 0
        while len(found) < count and misses < MISSES:
            pairs = rng.integers(len(self.ids), size=(max(64, count - len(found)), 2))
            pairs = pairs[self.component[pairs[:, 0]] != self.component[pairs[:, 1]]]
            keys = dict.fromkeys(self._keys(np.sort(pairs, axis=1)).tolist())
            fresh = [key for key in keys if key not in known][: count - len(found)]
            known.update(fresh)
            found += fresh
            misses = 0 if fresh else misses + 1
        return np.stack(np.divmod(np.array(found, dtype=np.int64), max(1, len(self.ids))), axis=1)

    def _keys(self, pairs: Pairs) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = pairs[:, 0] * max(1, len(self.ids)) + pairs[:, 1]
        return keys

    def _sorted(self, pairs: Pairs) -> Pairs:
        found: Pairs = pairs[np.argsort(self._keys(pairs), kind="stable")]
        return found


def _components(size: int, related: Pairs) -> NDArray[np.int64]:
    """Return components, (size,), by first member."""
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    if not size:
        return np.zeros(0, dtype=np.int64)
    edges = sparse.csr_matrix((np.ones(len(related), np.int8), (*related.T,)), shape=(size, size))
    _, found = connected_components(edges, directed=False)
    _, first, number = np.unique(found, return_index=True, return_inverse=True)
    component: NDArray[np.int64] = np.argsort(np.argsort(first))[number].astype(np.int64)
    return component


def centroids(
    vectors: NDArray[np.floating],
    component: NDArray[np.integer],
    smoothing: float = 10.0,
    mean: float = 0.1,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return unit centroids, (C, E), and concentrations, (C,).

    vectors: (n, E), unit length.
    component: (n,) from 0; negative: none.

    Concentration of p members: sum_k |z_k - c| / (p ln(p + smoothing)) (Ma et al. 2023, equation 3).
    It is infinite for a zero mean, maximal for one member, clipped to the 10th and 90th percentile,
    and scaled to ``mean`` (Li et al. 2021).

    >>> z = np.array([[1, 0], [0.6, 0.8], [-1, 0], [-0.8, 0.6]])
    >>> c, phi = centroids(z, np.array([0, 0, 1, 1]))
    >>> c.round(6).tolist(), phi.round(3).tolist()
    ([[0.894427, 0.447214], [-0.948683, 0.316228]], [0.114, 0.086])
    """
    there = component >= 0
    vectors, component = vectors[there].astype(np.float64), component[there]
    size = np.bincount(component) if len(component) else np.zeros(0, dtype=np.int64)
    sums = np.zeros((len(size), vectors.shape[1]))
    np.add.at(sums, component, vectors)
    means = sums / np.maximum(size, 1)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    invalid = lengths < 1e-8
    centers = np.where(invalid[:, None], 0.0, means / np.maximum(lengths, 1e-8)[:, None])
    apart = np.sqrt(np.square(vectors - centers[component]).sum(axis=1))
    weights = np.maximum(size * np.log(size + smoothing), 1e-12)
    phi = np.bincount(component, apart, minlength=len(size)) / weights
    if not invalid.all():
        phi[size == 1] = phi[~invalid].max()
        phi = np.clip(phi, *np.percentile(phi[~invalid], (10, 90)))
        average = phi[~invalid].mean()
        phi = phi * (mean / average) if average > 0 else np.full(len(size), mean)
        phi = np.maximum(phi, 1e-3 * mean)
    phi[invalid] = np.inf
    return centers, phi
