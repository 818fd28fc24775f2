"""Reproducible batches of texts and labeled pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.concept.losses import PairVectors

TRIALS = 64
"""Passes that estimate how often the texts of a pair come together."""
TIED = 0.5
"""Probability that a component is followed by one with an unrelated pair to it: hard pairs come together."""
PASSES = 4
"""Passes over all texts in an epoch."""


@dataclass(frozen=True)
class PairBatch:
    """Texts and pairs; see ``PairVectors``."""

    documents: NDArray[np.int64]
    component: NDArray[np.int64]
    tokens: list[NDArray[np.int32]]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    related: NDArray[np.bool_]
    weight: NDArray[np.float32]

    def texts(self, reads: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """Return the texts to encode."""
        return self.tokens

    def with_vectors(self, encoded: Tensor, reads: tuple[str, ...]) -> PairVectors:
        """Add the pairs to vectors of :meth:`texts`."""
        import torch

        from rerank.rankers.concept.losses import PairVectors

        device = encoded.device
        return PairVectors(
            anchor=encoded,
            documents=torch.from_numpy(self.documents).to(device),
            component=torch.from_numpy(self.component).to(device),
            tokens=self.tokens,
            first=torch.from_numpy(self.first).to(device),
            second=torch.from_numpy(self.second).to(device),
            related=torch.from_numpy(self.related).to(device, encoded.dtype),
            weight=torch.from_numpy(self.weight).to(device, encoded.dtype),
        )


@dataclass(frozen=True)
class LabeledTexts:
    """N texts and P pairs.

    component: (N,) from 0; -1: unrelated.
    first, second: (P,) texts.
    related: (P,) bool.
    """

    component: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    related: NDArray[np.bool_]


class _Orders:
    """Random orders of all texts."""

    def __init__(self, labeled: LabeledTexts) -> None:
        single = labeled.component < 0
        group = labeled.component.copy()
        group[single] = labeled.component.max(initial=-1) + 1 + np.arange(int(single.sum()))
        self.count = int(group.max(initial=-1)) + 1
        self.members = np.argsort(group, kind="stable")
        self.starts = np.searchsorted(group[self.members], np.arange(self.count + 1))
        ends = np.stack((group[labeled.first], group[labeled.second]), axis=1)[~labeled.related]
        ends = ends[ends[:, 0] != ends[:, 1]]
        ends = np.concatenate((ends, ends[:, ::-1]))
        order = np.argsort(ends[:, 0], kind="stable")
        self.tied = ends[order, 1]  # once for each pair
        self.ties = np.searchsorted(ends[order, 0], np.arange(self.count + 1))

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw an order; unrelated pairs often connect consecutive components."""
        rest = rng.permutation(self.count).tolist()
        left = np.ones(self.count, dtype=bool)
        found: list[NDArray[np.int64]] = []
        chosen = -1
        for tie, place in rng.random((self.count, 2)).tolist():
            tied = self.tied[self.ties[chosen] : self.ties[chosen + 1]] if found and tie < TIED else rest[:0]
            tied = [one for one in tied if left[one]]
            if tied:
                chosen = int(tied[int(place * len(tied))])
            else:
                chosen = next(one for one in iter(rest.pop, None) if left[one])
            left[chosen] = False
            found.append(rng.permutation(self.members[self.starts[chosen] : self.starts[chosen + 1]]))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


@dataclass
class PairSampler:
    """Draws texts with all their labeled pairs, weighted by inverse frequency.

    text: position -> tokens.
    batch: texts per step.
    weights: (P,).
    """

    labeled: LabeledTexts
    text: Callable[[int], NDArray[np.int32]]
    batch: int
    seed: int = 0
    weights: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        labeled, size = self.labeled, len(self.labeled.component)
        self._orders = _Orders(labeled)
        self._passes = max(1, size // self.batch)
        together = np.zeros(len(labeled.first))
        for trial in range(TRIALS):
            place = np.full(size, -1)
            order = self._orders.draw(np.random.default_rng((self.seed, 3, trial)))
            order = order[: self._passes * self.batch]
            place[order] = np.arange(len(order)) // self.batch
            first = place[labeled.first]
            together += (first == place[labeled.second]) & (first >= 0)
        weights = TRIALS / np.maximum(together, 1)
        self.weights = (weights / weights.mean()).astype(np.float32)
        ends = np.concatenate((labeled.first, labeled.second))
        order = np.argsort(ends, kind="stable")
        self._pairs = order % max(1, len(labeled.first))  # of each text, text after text
        self._starts = np.searchsorted(ends[order], np.arange(size + 1))

    def steps(self) -> int:
        """Return batches per epoch."""
        return PASSES * self._passes

    def epoch(self, number: int, first: int = 0) -> Iterator[PairBatch]:
        """Yield batches, from ``first``."""
        for step in range(first, self.steps()):
            turn, place = divmod(step, self._passes)
            if step == first or not place:
                order = self._orders.draw(np.random.default_rng((self.seed, number, turn)))
            texts = order[place * self.batch : (place + 1) * self.batch]
            yield self._batch(texts, np.random.default_rng((self.seed, 4, number, step)))

    def _batch(self, texts: NDArray[np.int64], rng: np.random.Generator) -> PairBatch:
        """Return all pairs, each in random order."""
        parts = [self._pairs[self._starts[text] : self._starts[text + 1]] for text in texts.tolist()]
        found, times = np.unique(np.concatenate(parts), return_counts=True)
        pairs, labeled = found[times == 2], self.labeled
        order = np.argsort(texts, kind="stable")
        first, second = (
            order[np.searchsorted(texts[order], side[pairs])] for side in (labeled.first, labeled.second)
        )
        turned = rng.random(len(pairs)) < 0.5
        return PairBatch(
            texts,
            labeled.component[texts],
            [self.text(one) for one in texts.tolist()],
            np.where(turned, second, first),
            np.where(turned, first, second),
            labeled.related[pairs],
            self.weights[pairs],
        )
