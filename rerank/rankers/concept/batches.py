"""Reproducible batches of texts and their labeled pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.concept.graph import ConceptGraph

TRIALS = 64
"""Passes that estimate how often the texts of a pair come together."""
TIED = 0.5
"""Probability that a component is followed by one with an unrelated pair to it: hard pairs come together."""
PASSES = 4
"""Passes over all texts in an epoch."""


@dataclass(frozen=True)
class PairBatch:
    """T texts and P pairs.

    documents: (T,) positions.
    component: (T,); -1: none.
    anchor: T sequences of token numbers.
    ends: (P, 2) places.
    related: (P,) 1.0 or 0.0.
    weight: (P,).
    """

    documents: NDArray[np.int64]
    component: NDArray[np.int64]
    anchor: list[NDArray[np.int32]]
    ends: NDArray[np.int64]
    related: NDArray[np.float32]
    weight: NDArray[np.float32]


class PairSampler:
    """Draws texts with all their labeled pairs, weighted by inverse frequency.

    text: position -> tokens.
    batch: texts per step.
    weights: (P,), of related, then unrelated pairs.
    """

    def __init__(
        self, graph: ConceptGraph, text: Callable[[int], NDArray[np.int32]], batch: int, seed: int = 0
    ) -> None:
        self.graph, self.text, self.batch, self.seed = graph, text, batch, seed
        self.pairs = np.concatenate((graph.related, graph.unrelated))
        self._members, self._tied = _groups(graph)
        self._passes = max(1, len(graph.component) // batch)
        together = np.zeros(len(self.pairs))
        for trial in range(TRIALS):
            order = self._order(np.random.default_rng((seed, 3, trial)))[: self._passes * batch]
            first, second = self._places(order)
            together += (first // batch == second // batch) & (first >= 0) & (second >= 0)
        weights = TRIALS / np.maximum(together, 1)
        self.weights: NDArray[np.float32] = (weights / weights.mean()).astype(np.float32)

    def _order(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw an order of all texts; unrelated pairs often connect consecutive components."""
        count = len(self._members)
        rest = rng.permutation(count).tolist()
        left = np.ones(count, dtype=bool)
        found: list[NDArray[np.int64]] = []
        chosen = -1
        for tie, place in rng.random((count, 2)).tolist():
            tied = [one for one in self._tied[chosen] if left[one]] if found and tie < TIED else []
            if tied:
                chosen = tied[int(place * len(tied))]
            else:
                chosen = next(one for one in iter(rest.pop, None) if left[one])
            left[chosen] = False
            found.append(rng.permutation(self._members[chosen]))
        return np.concatenate(found)

    def _places(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return places of both ends of all pairs in an order, (2, P); -1: not in it."""
        place = np.full(len(self.graph.component), -1)
        place[texts] = np.arange(len(texts))
        ends: NDArray[np.int64] = place[self.pairs.T]
        return ends

    def steps(self) -> int:
        """Return batches per epoch."""
        return PASSES * self._passes

    def epoch(self, number: int, first: int = 0) -> Iterator[PairBatch]:
        """Yield batches, from ``first``."""
        for step in range(first, self.steps()):
            turn, place = divmod(step, self._passes)
            if step == first or not place:
                order = self._order(np.random.default_rng((self.seed, number, turn)))
            texts = order[place * self.batch : (place + 1) * self.batch]
            yield self._batch(texts, np.random.default_rng((self.seed, 4, number, step)))

    def _batch(self, texts: NDArray[np.int64], rng: np.random.Generator) -> PairBatch:
        """Return all pairs, each in random order."""
        ends = self._places(texts)
        pairs = np.flatnonzero((ends >= 0).all(axis=0))
        ends = ends.T[pairs]
        turned = rng.random(len(pairs)) < 0.5
        ends[turned] = ends[turned, ::-1]
        related = pairs < len(self.graph.related)
        return PairBatch(
            texts,
            self.graph.component[texts],
            [self.text(one) for one in texts.tolist()],
            ends,
            related.astype(np.float32),
            self.weights[pairs],
        )


def _groups(graph: ConceptGraph) -> tuple[list[list[int]], list[list[int]]]:
    """Return the texts of each group, a component or a single text, and the groups of its unrelated pairs."""
    group, alone = graph.component.copy(), np.flatnonzero(graph.component < 0)
    count = graph.components + len(alone)
    group[alone] = np.arange(graph.components, count)
    members: list[list[int]] = [[] for _ in range(count)]
    tied: list[list[int]] = [[] for _ in range(count)]
    for text, one in enumerate(group.tolist()):
        members[one].append(text)
    ends = group[graph.unrelated]
    for one, other in np.concatenate((ends, ends[:, ::-1])).tolist():
        if one != other:
            tied[one].append(other)
    return members, tied
