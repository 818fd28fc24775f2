"""Quintuplets: anchor, structural positive and negative, corrupted anchor, batch by batch.

Every draw is keyed by (seed, epoch, document), so the same seed gives the same batches, whatever was drawn
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.corruption import Vocabulary
from rerank.rankers.dense.neighbors import Draw, Neighbors
from rerank.rankers.dense.texts import Passages

if TYPE_CHECKING:
    from torch import Tensor

    from rerank.rankers.dense.losses import Vectors


@dataclass(frozen=True)
class Quintuplets:
    """B anchors of a step and the texts that go with them, as token numbers.

    draws: of each anchor. anchor, positive, negative, corrupted: (B) sequences; an anchor without a
    structural pair has itself in their place, and level 0. near, near_positive: (B, B) bool; see ``Vectors``.
    """

    draws: list[Draw]
    anchor: list[NDArray[np.int32]]
    positive: list[NDArray[np.int32]]
    negative: list[NDArray[np.int32]]
    corrupted: list[NDArray[np.int32]]
    near: NDArray[np.bool_]
    near_positive: NDArray[np.bool_]

    def texts(self, reads: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """All texts to encode; reads: names of fields."""
        return [text for name in reads for text in getattr(self, name)]

    def placed(self, encoded: Tensor, reads: tuple[str, ...]) -> Vectors:
        """Return the vectors of :meth:`texts` by name."""
        import torch

        from rerank.rankers.dense.losses import Vectors

        found = dict(zip(reads, torch.split(encoded, len(self.draws))))
        device = encoded.device
        return Vectors(
            anchor=found["anchor"],
            positive=found.get("positive"),
            negative=found.get("negative"),
            corrupted=found.get("corrupted"),
            level=torch.tensor([draw.level for draw in self.draws], device=device),
            near=torch.from_numpy(self.near).to(device),
            near_positive=torch.from_numpy(self.near_positive).to(device),
        )


@dataclass(frozen=True)
class Sampler:
    """Draws the quintuplets of an epoch.

    isolated: documents without neighbors are anchors too. mask_related: documents related to an anchor are
    no negatives of it in the batch.
    """

    neighbors: Neighbors
    passages: Passages
    vocabulary: Vocabulary
    batch: int
    isolated: bool = True
    mask_related: bool = True
    seed: int = 0

    def anchors(self) -> NDArray[np.int64]:
        """(A, 2) anchors of an epoch: document, and which of its turns."""
        usable = self.neighbors.usable.copy()
        if not self.isolated:
            usable &= self.neighbors.paired
        documents = np.flatnonzero(usable)
        turns = np.maximum(self.neighbors.turns(), self.isolated)[documents]
        numbers = np.arange(int(turns.sum())) - np.repeat(np.cumsum(turns) - turns, turns)
        return np.stack((np.repeat(documents, turns), numbers), axis=1)

    def steps(self) -> int:
        """Steps of an epoch; the last, smaller batch is left out unless it is the only one."""
        return max(1, len(self.anchors()) // self.batch)

    def epoch(self, number: int, first: int = 0) -> Iterator[Quintuplets]:
        """Draw the batches of an epoch, from batch ``first`` on: every anchor comes at most once."""
        order = np.random.default_rng((self.seed, number)).permutation(self.anchors())
        for step in range(first, self.steps()):
            yield self.draw(order[step * self.batch : (step + 1) * self.batch].tolist(), number)

    def draw(self, anchors: list[tuple[int, int]], epoch: int) -> Quintuplets:
        """Draw the texts of these anchors: (document, turn)."""
        draws: list[Draw] = []
        found = Quintuplets(draws, [], [], [], [], *(np.zeros((len(anchors),) * 2, bool) for _ in range(2)))
        for anchor, turn in anchors:
            key = (self.seed, epoch, anchor)
            rng = np.random.default_rng(key)
            draw = self.neighbors.draw(anchor, rng, turn)
            if turn:  # other passages than those of the turns before
                rng = np.random.default_rng((*key, turn))
            text = self.passages.draw(anchor, rng)
            source = self.passages.draw(anchor, rng)
            found.draws.append(draw)
            found.anchor.append(text)
            found.positive.append(self.passages.draw(draw.positive, rng) if draw.level else text)
            found.negative.append(self.passages.draw(draw.negative, rng) if draw.level else text)
            found.corrupted.append(self.vocabulary.corrupt(source, rng))
        for i, draw in enumerate(draws):
            own = {draw.anchor, draw.positive}
            if self.mask_related:
                own.update(self.neighbors.near(draw.anchor).tolist())
            found.near[i] = [one.anchor in own for one in draws]
            found.near_positive[i] = [one.positive in own for one in draws]
        return found
