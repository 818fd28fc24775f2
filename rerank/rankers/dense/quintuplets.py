"""Quintuplets: anchor, structural positive and negative, corrupted anchor, batch by batch.

Every draw is keyed by (seed, epoch, document), so the same seed gives the same batches, whatever was drawn
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.config import Anchors, DenseConfig
from rerank.rankers.dense.corruption import Corruption, Vocabulary
from rerank.rankers.dense.draws import Draw, Draws
from rerank.rankers.dense.losses import Vectors
from rerank.rankers.dense.neighbours import Neighbours
from rerank.rankers.dense.texts import Fragments

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Quintuplets:
    """B anchors of a step and the texts that go with them, as token numbers.

    draws: of each anchor. anchor, positive, negative, corrupted: (B) sequences; an anchor without a
    structural pair has itself in their place, and level 0.
    near, near_positive, near_negative: (B, B) bool; see ``losses.Vectors``.
    """

    draws: list[Draw]
    anchor: list[NDArray[np.int32]]
    positive: list[NDArray[np.int32]]
    negative: list[NDArray[np.int32]]
    corrupted: list[NDArray[np.int32]]
    near: NDArray[np.bool_]
    near_positive: NDArray[np.bool_]
    near_negative: NDArray[np.bool_]

    def texts(self, branches: tuple[str, ...]) -> list[NDArray[np.int32]]:
        """All texts to encode, branch by branch."""
        return [text for branch in branches for text in getattr(self, branch)]

    def placed(self, encoded: Tensor, branches: tuple[str, ...]) -> Vectors:
        """Put the vectors of :meth:`texts` in their places."""
        import torch

        found = dict(zip(branches, torch.split(encoded, len(self.draws))))
        device = encoded.device
        return Vectors(
            anchor=found["anchor"],
            positive=found.get("positive"),
            negative=found.get("negative"),
            corrupted=found.get("corrupted"),
            level=torch.tensor([draw.level for draw in self.draws], device=device),
            near=torch.from_numpy(self.near).to(device),
            near_positive=torch.from_numpy(self.near_positive).to(device),
            near_negative=torch.from_numpy(self.near_negative).to(device),
            batch=self,
        )


@dataclass(frozen=True)
class Sampler:
    """Draws the quintuplets of an epoch.

    isolated: documents without neighbours are anchors too. mask_related: documents related to an anchor are
    no negatives of it in the batch. unit: what an epoch has as an anchor once: each document, or each
    fragment.
    """

    neighbours: Neighbours
    draws: Draws
    fragments: Fragments
    vocabulary: Vocabulary
    batch: int
    corruption: Corruption = field(default_factory=Corruption)
    isolated: bool = True
    mask_related: bool = True
    unit: Anchors = "document"
    seed: int = 0

    @classmethod
    def of(
        cls, neighbours: Neighbours, fragments: Fragments, vocabulary: Vocabulary, config: DenseConfig
    ) -> Sampler:
        """Draw as the settings have it."""
        return cls(
            neighbours,
            config.positives,
            fragments,
            vocabulary,
            config.training.batch,
            config.objective.corruption,
            config.objective.keeps_isolated,
            config.objective.masks_related,
            config.anchors,
            config.seed,
        )

    def anchors(self) -> NDArray[np.int64]:
        """(A, 3) anchors of an epoch: document, which of its fragments (-1: any), which of its turns."""
        usable = self.neighbours.usable.copy()
        if not self.isolated:
            usable &= self.neighbours.paired
        documents = np.flatnonzero(usable)
        turns = np.maximum(self.draws.turns(self.neighbours), self.isolated)[documents]
        if self.unit == "document":
            found = np.repeat(np.stack((documents, np.full_like(documents, -1)), axis=1), turns, axis=0)
        else:
            counts = [len(self.fragments.starts(document)) for document in documents.tolist()]
            places = np.concatenate([np.arange(count) for count in [0, *counts]])
            found = np.stack((np.repeat(documents, counts), places), axis=1)
            turns = np.repeat(turns, counts)
            found = np.repeat(found, turns, axis=0)
        return np.concatenate((found, _counted(turns)[:, None]), axis=1)

    def steps(self) -> int:
        """Steps of an epoch; the last, smaller batch is left out unless it is the only one."""
        return max(1, len(self.anchors()) // self.batch)

    def epoch(self, number: int, first: int = 0) -> Iterator[Quintuplets]:
        """Draw the batches of an epoch, from batch ``first`` on: every anchor comes at most once."""
        order = np.random.default_rng((self.seed, number)).permutation(self.anchors())
        for step in range(first, self.steps()):
            yield self.draw(order[step * self.batch : (step + 1) * self.batch].tolist(), number)

    def draw(self, anchors: list[tuple[int, int, int]], epoch: int) -> Quintuplets:
        """Draw what goes with these anchors."""
        draws: list[Draw] = []
        found = Quintuplets(draws, [], [], [], [], *(np.zeros((len(anchors),) * 2, bool) for _ in range(3)))
        for anchor, place, turn in anchors:
            key = (self.seed, epoch, anchor) if place < 0 else (self.seed, epoch, anchor, place)
            rng = np.random.default_rng(key)
            draw = self.draws.take(self.neighbours, anchor, rng, turn)
            if turn:  # other fragments than those of the turns before
                rng = np.random.default_rng((*key, turn))
            if place < 0:
                text = self.fragments.draw(anchor, rng)
            else:
                text = self.fragments.get(anchor, self.fragments.starts(anchor)[place])
            source = text if self.corruption.same_fragment else self.fragments.draw(anchor, rng)
            found.draws.append(draw)
            found.anchor.append(text)
            found.positive.append(self.fragments.draw(draw.positive, rng) if draw.level else text)
            found.negative.append(self.fragments.draw(draw.negative, rng) if draw.level else text)
            found.corrupted.append(self.corruption.apply(source, self.vocabulary, rng))
        for i, draw in enumerate(draws):
            own = {draw.anchor, draw.positive}
            if self.mask_related:
                own.update(self.neighbours.near(draw.anchor).tolist())
            found.near[i] = [one.anchor in own for one in draws]
            found.near_positive[i] = [one.positive in own for one in draws]
            found.near_negative[i] = [one.negative in own for one in draws]
        return found


def _counted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """From 0 to each count.

    >>> _counted(np.array([1, 3])).tolist()
    [0, 0, 1, 2]
    """
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    found: NDArray[np.int64] = np.arange(len(starts)) - starts
    return found
