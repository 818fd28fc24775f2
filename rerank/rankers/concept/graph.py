"""The concept graph: documents that labeled pairs call related, and what follows from that (Ma et al. 2023).

Relatedness is taken as reflexive, commutative and transitive, so the graph's connected components are groups
of related concepts, and two documents of different components are unrelated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rerank.records import LabeledPair

Pairs = NDArray[np.int64]
"""(n, 2) positions of documents, the smaller one first, in ascending order, each pair once."""
Concentration = Literal["rescaled", "raw"]

ROWS = 512
"""Documents whose neighborhoods are expanded at once."""
FLOOR = 0.02
"""Least concentration of a component, where it is used as it is."""
MISSES = 50
"""Draws in a row that give nothing new, as a multiple of what is wanted, after which drawing ends."""


@dataclass(frozen=True)
class PairCounts:
    """What was found in the pairs.

    repeated:       pairs that are there once more, the same way round or the other, with the same label.
    reflexive:      documents paired with themselves.
    disagreeing:    pairs that are labeled both ways. They are left out: neither label is believed.
    contradictions: pairs labeled as unrelated within a component. They stay what they are labeled, as does
                    the component, and are never drawn as related.
    withheld:       pairs left out because they are kept for measuring.
    implied:        kept pairs, labeled as related, that follow from the graph. They are never drawn.
    """

    repeated: int = 0
    reflexive: int = 0
    disagreeing: int = 0
    contradictions: int = 0
    withheld: int = 0
    implied: int = 0


@dataclass(frozen=True)
class Expansion:
    """Labeled pairs, and what was drawn to go with them.

    related, unrelated: all, the annotated ones included.
    possible: related pairs there are within so many hops.
    target: related pairs that were asked for; None: all that there are.
    ratio: realised: twice the related pairs over the annotated pairs, as the paper counts it.
    """

    related: Pairs
    unrelated: Pairs
    possible: int
    target: int | None
    ratio: float


@dataclass(frozen=True)
class ConceptGraph:
    """N documents that occur in the labeled pairs to learn from, in ascending order of their ids.

    related, unrelated: the annotated pairs. kept: pairs to measure by, which are not in the graph and are
    never drawn.
    component: (N,) of each document; numbered by their first documents.

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
        """Build it from the pairs to learn from. Their order, and which of two comes first, say nothing.

        kept: pairs to measure by (dev, test). None of them enters the graph: one that is among the pairs to
        learn from is left out there, and counted.
        """
        labels: dict[tuple[str, str], set[bool]] = {}
        repeated = reflexive = 0
        for pair in pairs:
            if pair.a == pair.b:
                reflexive += 1
                continue
            known = labels.setdefault(pair.key, set())
            repeated += pair.related in known
            known.add(pair.related)
        apart = {pair.key: pair.related for pair in kept}
        withheld = [key for key in labels if key in apart]
        for key in withheld:
            del labels[key]
        disagreeing = [key for key, found in labels.items() if len(found) > 1]
        for key in disagreeing:
            del labels[key]
        ids = tuple(sorted({one for key in labels for one in key}))
        at = {one: i for i, one in enumerate(ids)}

        def positions(of: Iterable[tuple[str, str]]) -> Pairs:
            found = sorted((at[a], at[b]) for a, b in of)
            return np.array(found, dtype=np.int64).reshape(-1, 2)

        related = positions(key for key, found in labels.items() if found == {True})
        unrelated = positions(key for key, found in labels.items() if found == {False})
        inside = [key for key in apart if key[0] in at and key[1] in at and key[0] != key[1]]
        component = _components(len(ids), related)
        counts = PairCounts(
            repeated,
            reflexive,
            len(disagreeing),
            int((component[unrelated[:, 0]] == component[unrelated[:, 1]]).sum()),
            len(withheld),
            sum(apart[a, b] and component[at[a]] == component[at[b]] for a, b in inside),
        )
        graph = cls(ids, related, unrelated, positions(inside), component, counts)
        together = np.concatenate((graph.related, graph.unrelated))
        learned = np.isin(graph._keys(together), graph._keys(graph.kept))
        assert not learned.any(), "a kept pair is learned from"
        return graph

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Documents of each component; of 1: a document that is related to none."""
        return np.bincount(self.component)

    @property
    def groups(self) -> int:
        """Count the components of at least two documents."""
        return int((self.sizes > 1).sum())

    @property
    def closure(self) -> int:
        """Count the related pairs that follow by transitivity, the annotated ones included.

        >>> ConceptGraph.of([LabeledPair(*pair, True) for pair in ("AB", "BC", "CD", "EF")]).closure
        7
        """
        return int((self.sizes * (self.sizes - 1) // 2).sum())

    def within(self, hops: int) -> Pairs:
        """Related pairs at most so many edges apart, whatever they are labeled."""
        found = list(self._reached(hops))
        return np.concatenate(found) if found else np.zeros((0, 2), dtype=np.int64)

    def expand(self, hops: int | None = 2, ratio: float | None = 2.0, *, seed: int = 0) -> Expansion:
        """Draw more pairs (Ma et al. 2023, section 3.2).

        Related ones at most ``hops`` edges apart, None: of one component. So many that there are ratio/2
        times as many as annotated pairs of both labels; None: all. Annotated ones count. Then unrelated ones,
        until they are as many as the related ones, or there are no more. Annotated pairs all stay, and keep
        their labels; ``kept`` pairs are never drawn.

        Deterministic in the seed. One hop draws no related pairs.
        """
        rng = np.random.default_rng((seed, 2))
        annotated = len(self.related) + len(self.unrelated)
        target = None if ratio is None else int(ratio * annotated / 2)
        taken = np.concatenate((self.related, self.unrelated, self.kept))
        if hops is None and target is not None:
            possible = self.closure
            fresh = self._drawn(target - len(self.related), self._of_a_component, taken, rng)
        else:
            reached = self.within(hops if hops is not None else max(1, len(self.ids)))
            possible = len(reached)
            fresh = reached[~np.isin(self._keys(reached), self._keys(taken))]
            if target is not None:
                count = min(max(0, target - len(self.related)), len(fresh))
                fresh = fresh[rng.permutation(len(fresh))[:count]]
        related = self._sorted(np.concatenate((self.related, fresh)))
        taken = np.concatenate((related, self.unrelated, self.kept))
        others = self._drawn(len(related) - len(self.unrelated), self._of_two_components, taken, rng)
        unrelated = self._sorted(np.concatenate((self.unrelated, others)))
        return Expansion(related, unrelated, possible, target, 2 * len(related) / max(1, annotated))

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
                reach.data[:] = frontier.data[:] = 1  # whether, not how often
                if reach.nnz == before:
                    break
            pairs = reach.tocoo()
            found = np.stack((pairs.row.astype(np.int64) + begin, pairs.col.astype(np.int64)), axis=1)
            yield self._sorted(found[found[:, 0] < found[:, 1]])

    def _drawn(self, count: int, draw: object, taken: Pairs, rng: np.random.Generator) -> Pairs:
        """Draw ``count`` different pairs that are not taken; fewer where there are no more."""
        assert callable(draw)
        seen = set(self._keys(taken).tolist())
        found: list[int] = []
        misses = 0
        while len(found) < count and misses < MISSES:
            pairs = draw(max(64, count - len(found)), rng)
            before = len(found)
            for key in self._keys(np.sort(pairs, axis=1)).tolist():
                if key not in seen and len(found) < count:
                    seen.add(key)
                    found.append(key)
            misses = 0 if len(found) > before else misses + 1
        keys = np.array(found, dtype=np.int64)
        return np.stack(np.divmod(keys, max(1, len(self.ids))), axis=1)

    def _of_a_component(self, count: int, rng: np.random.Generator) -> Pairs:
        """Pairs of one component, all alike: the component by how many pairs it has."""
        weights = self.sizes * (self.sizes - 1.0)
        if not weights.any():
            return np.zeros((0, 2), dtype=np.int64)
        which = rng.choice(len(weights), size=count, p=weights / weights.sum())
        first = rng.integers(self.sizes[which])
        second = (first + rng.integers(1, self.sizes[which])) % self.sizes[which]
        return np.stack((self._member(which, first), self._member(which, second)), axis=1)

    def _of_two_components(self, count: int, rng: np.random.Generator) -> Pairs:
        pairs = rng.integers(len(self.ids), size=(count, 2)) if self.ids else np.zeros((0, 2), np.int64)
        found: Pairs = pairs[self.component[pairs[:, 0]] != self.component[pairs[:, 1]]]
        return found

    def _member(self, component: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """The documents that are the ``number``-th of components."""
        order = np.argsort(self.component, kind="stable")
        starts = np.cumsum(self.sizes) - self.sizes
        found: NDArray[np.int64] = order[starts[component] + number]
        return found

    def _keys(self, pairs: Pairs) -> NDArray[np.int64]:
        keys: NDArray[np.int64] = pairs[:, 0] * max(1, len(self.ids)) + pairs[:, 1]
        return keys

    def _sorted(self, pairs: Pairs) -> Pairs:
        found: Pairs = pairs[np.argsort(self._keys(pairs), kind="stable")]
        return found


def _components(size: int, related: Pairs) -> NDArray[np.int64]:
    """(size,) components, numbered by their first members."""
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    if not size:
        return np.zeros(0, dtype=np.int64)
    edges = sparse.csr_matrix((np.ones(len(related), np.int8), (*related.T,)), shape=(size, size))
    _, found = connected_components(edges, directed=False)
    _, first, number = np.unique(found, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    component: NDArray[np.int64] = rank[number].astype(np.int64)
    return component


def centroids(
    vectors: NDArray[np.floating],
    component: NDArray[np.integer],
    *,
    smoothing: float = 10.0,
    concentration: Concentration = "rescaled",
    temperature: float = 0.1,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centroids of components and how concentrated these are: (C, E) of length 1, and (C,).

    vectors: (n, E) of length 1. component: (n,) from 0 to C - 1; negative: of none.

    A centroid is the mean of its members' vectors, brought to length 1; one of length 0 is zeros, and its
    concentration infinite: no vector is near it. Concentration phi (Ma et al. 2023, equation 3):
    sum_k |z_k - c| / (p ln(p + smoothing)), small where p members are near their centroid. ``raw`` takes it
    as it is, 0.02 at least. ``rescaled`` gives components of one member, whose phi is 0, the largest, cuts
    all off at the 10th and 90th percentile, and scales them to the mean ``temperature`` (Li et al. 2021).

    >>> z = np.array([[1, 0], [0.6, 0.8], [-1, 0], [-0.8, 0.6]])
    >>> c, phi = centroids(z, np.array([0, 0, 1, 1]), concentration="raw")
    >>> c.round(6).tolist(), phi.round(6).tolist()
    ([[0.894427, 0.447214], [-0.948683, 0.316228]], [0.184919, 0.128924])
    """
    there = component >= 0
    vectors, component = vectors[there].astype(np.float64), component[there]
    size = np.bincount(component) if len(component) else np.zeros(0, dtype=np.int64)
    sums = np.zeros((len(size), vectors.shape[1]))
    np.add.at(sums, component, vectors)
    means = sums / np.maximum(size, 1)[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    lost = lengths < 1e-8
    centers = np.where(lost[:, None], 0.0, means / np.maximum(lengths, 1e-8)[:, None])
    apart = np.sqrt(np.square(vectors - centers[component]).sum(axis=1))
    phi = np.bincount(component, apart, minlength=len(size)) / np.maximum(
        size * np.log(size + smoothing), 1e-12
    )
    if concentration == "raw":
        phi = np.maximum(phi, FLOOR)
    elif not lost.all():
        phi[size == 1] = phi[~lost].max()
        phi = np.clip(phi, *np.percentile(phi[~lost], (10, 90)))
        mean = phi[~lost].mean()
        phi = phi * (temperature / mean) if mean > 0 else np.full(len(size), temperature)
        phi = np.maximum(phi, 1e-3 * temperature)
    phi[lost] = np.inf
    return centers, phi
