"""Reproducible batches of anchors, positives and negatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.corruption import Vocabulary
from rerank.rankers.dense.neighbors import Neighbors, StructuralPair
from rerank.rankers.dense.texts import Passages

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.dense.losses import Vectors


@dataclass(frozen=True)
class Quintuplets:
    """Texts of a step, as token numbers.

    pairs: of B anchors.
    anchor, positive, negative, corrupted: B sequences; anchors replace missing pairs.
    near, near_positive, near_negative: (B, B) bool; see ``Vectors``.
    """

    pairs: list[StructuralPair]
    anchor: list[NDArray[np.int32]]
    positive: list[NDArray[np.int32]]
    negative: list[NDArray[np.int32]]
    corrupted: list[NDArray[np.int32]]
    near: NDArray[np.bool_]
    near_positive: NDArray[np.bool_]
    near_negative: NDArray[np.bool_]

    def texts(self, reads: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """Return texts of fields ``reads``."""
        return [text for name in reads for text in getattr(self, name)]

    def with_vectors(self, encoded: Tensor, reads: tuple[str, ...]) -> Vectors:
        """Return vectors of :meth:`texts` by name."""
        import torch

        from rerank.rankers.dense.losses import Vectors

        device, parts = encoded.device, dict(zip(reads, torch.split(encoded, len(self.pairs))))
        return Vectors(
            anchor=parts["anchor"],
            positive=parts.get("positive"),
            negative=parts.get("negative"),
            corrupted=parts.get("corrupted"),
            level=torch.tensor([pair.level for pair in self.pairs], device=device),
            near=torch.from_numpy(self.near).to(device),
            near_positive=torch.from_numpy(self.near_positive).to(device),
            near_negative=torch.from_numpy(self.near_negative).to(device),
        )


@dataclass(frozen=True)
class QuintupletSampler:
    """Draws quintuplets. isolated: unrelated documents are anchors."""

    neighbors: Neighbors
    passages: Passages
    vocabulary: Vocabulary
    batch: int
    isolated: bool = True
    seed: int = 0

    def anchors(self) -> NDArray[np.int64]:
        """Return documents and turns, (A, 2)."""
        usable = self.neighbors.usable
        documents = np.flatnonzero(usable if self.isolated else usable & self.neighbors.paired)
        turns = np.maximum(self.neighbors.turns(), self.isolated)[documents]
        numbers = np.arange(int(turns.sum())) - np.repeat(np.cumsum(turns) - turns, turns)
        return np.stack((np.repeat(documents, turns), numbers), axis=1)

    def steps(self) -> int:
        """Return batches per epoch."""
        return max(1, len(self.anchors()) // self.batch)

    def epoch(self, number: int, first: int = 0) -> Iterator[Quintuplets]:
        """Yield batches, from ``first``."""
        order = np.random.default_rng((self.seed, number)).permutation(self.anchors())
        for step in range(first, self.steps()):
            yield self.draw(order[step * self.batch : (step + 1) * self.batch].tolist(), number)

    def draw(self, anchors: list[tuple[int, int]], epoch: int) -> Quintuplets:
        """Draw the texts of (document, turn) anchors."""
        size = (len(anchors), len(anchors))
        batch = Quintuplets([], [], [], [], [], *(np.zeros(size, np.bool_) for _ in range(3)))
        for anchor, turn in anchors:
            key = (self.seed, epoch, anchor)
            rng = np.random.default_rng(key)
            pair = self.neighbors.draw(anchor, rng, turn)
            if turn:  # other passages than in the turns before
                rng = np.random.default_rng((*key, turn))
            text, source = self.passages.draw(anchor, rng), self.passages.draw(anchor, rng)
            batch.pairs.append(pair)
            batch.anchor.append(text)
            batch.positive.append(self.passages.draw(pair.positive, rng) if pair.level else text)
            batch.negative.append(self.passages.draw(pair.negative, rng) if pair.level else text)
            batch.corrupted.append(self.vocabulary.corrupt(source, rng))
        for row, pair in enumerate(batch.pairs):
            own = {pair.anchor, pair.positive, *self.neighbors.near(pair.anchor).tolist()}
            batch.near[row] = [one.anchor in own for one in batch.pairs]
            batch.near_positive[row] = [one.positive in own for one in batch.pairs]
            batch.near_negative[row] = [one.negative in own for one in batch.pairs]
        return batch
