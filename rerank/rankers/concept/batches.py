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
    """One training step: T documents, and the P labeled pairs whose two documents are both among them.

    documents: (T,) positions in the graph.
    component: (T,) the component of each document; -1 if it has none.
    anchor:    T sequences of tokens.
    ends:      (P, 2) the two documents of each pair, as positions in this batch.
    related:   (P,) the label, 1.0 or 0.0.
    weight:    (P,) the inverse of how often a pair is drawn.
    """

    documents: NDArray[np.int64]
    component: NDArray[np.int64]
    anchor: list[NDArray[np.int32]]
    ends: NDArray[np.int64]
    related: NDArray[np.float32]
    weight: NDArray[np.float32]


class PairSampler:
    """Draws documents with all their labeled pairs. The weight of a pair is its inverse frequency.

    text:    returns the tokens of a document, by its position.
    batch:   documents per step.
    weights: (P,) the weights of the related, and then of the unrelated pairs.
    """

    def __init__(
        self, graph: ConceptGraph, text: Callable[[int], NDArray[np.int32]], batch: int, seed: int = 0
    ) -> None:
        self.graph = graph
        self.text = text
        self.batch = batch
        self.seed = seed
        self.pairs = np.concatenate((graph.related, graph.unrelated))
        self._members, self._unrelated = _groups(graph)
        self._passes = max(1, len(graph.component) // batch)
        together = np.zeros(len(self.pairs))
        for trial in range(TRIALS):
            order = self._order(np.random.default_rng((seed, 3, trial)))[: self._passes * batch]
            first, second = self._positions(order)
            together += (first // batch == second // batch) & (first >= 0) & (second >= 0)
        weights = TRIALS / np.maximum(together, 1)
        self.weights: NDArray[np.float32] = (weights / weights.mean()).astype(np.float32)

    def _order(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw an order of all documents; unrelated pairs often connect consecutive groups."""
        count = len(self._members)
        waiting = rng.permutation(count).tolist()
        is_waiting = np.ones(count, dtype=bool)
        documents: list[NDArray[np.int64]] = []
        group = -1
        for tie, choice in rng.random((count, 2)).tolist():
            opposed: list[int] = []
            if documents and tie < TIED:
                opposed = [unrelated for unrelated in self._unrelated[group] if is_waiting[unrelated]]
            if opposed:
                group = opposed[int(choice * len(opposed))]
            else:
                group = waiting.pop()
                while not is_waiting[group]:
                    group = waiting.pop()
            is_waiting[group] = False
            documents.append(rng.permutation(self._members[group]))
        return np.concatenate(documents)

    def _positions(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of both ends of all pairs in an order of documents, (2, P); -1: not in it."""
        position = np.full(len(self.graph.component), -1)
        position[documents] = np.arange(len(documents))
        ends: NDArray[np.int64] = position[self.pairs.T]
        return ends

    def steps(self) -> int:
        """Return the number of batches of an epoch, which passes over the documents several times."""
        return PASSES * self._passes

    def epoch(self, number: int, first: int = 0) -> Iterator[PairBatch]:
        """Yield the batches of an epoch, from batch number ``first``. All calls yield the same batches."""
        for step in range(first, self.steps()):
            turn, position = divmod(step, self._passes)
            if step == first or position == 0:
                order = self._order(np.random.default_rng((self.seed, number, turn)))
            documents = order[position * self.batch : (position + 1) * self.batch]
            yield self._batch(documents, np.random.default_rng((self.seed, 4, number, step)))

    def _batch(self, documents: NDArray[np.int64], rng: np.random.Generator) -> PairBatch:
        """Return the batch of some documents. The two ends of each pair are in random order."""
        ends = self._positions(documents)
        pairs = np.flatnonzero((ends >= 0).all(axis=0))
        ends = ends.T[pairs]
        turned = rng.random(len(pairs)) < 0.5
        ends[turned] = ends[turned, ::-1]
        related = pairs < len(self.graph.related)
        return PairBatch(
            documents=documents,
            component=self.graph.component[documents],
            anchor=[self.text(document) for document in documents.tolist()],
            ends=ends,
            related=related.astype(np.float32),
            weight=self.weights[pairs],
        )


def _groups(graph: ConceptGraph) -> tuple[list[list[int]], list[list[int]]]:
    """Group the documents by component; a document without a component is a separate group.

    Returns the documents of each group, and the groups that it has unrelated pairs with.
    """
    group_of = graph.component.copy()
    alone = np.flatnonzero(graph.component < 0)
    count = graph.components + len(alone)
    group_of[alone] = np.arange(graph.components, count)
    members: list[list[int]] = [[] for _ in range(count)]
    for document, group in enumerate(group_of.tolist()):
        members[group].append(document)
    unrelated: list[list[int]] = [[] for _ in range(count)]
    ends = group_of[graph.unrelated]
    for group, unrelated_group in np.concatenate((ends, ends[:, ::-1])).tolist():
        if group != unrelated_group:
            unrelated[group].append(unrelated_group)
    return members, unrelated
