"""Quintuplets: anchor, structural positive and negative, corrupted anchor, batch by batch.

Every draw is keyed by (seed, epoch, document), so the same seed gives the same batches, whatever was drawn
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.training.dense.config import Anchors, Corruption, DenseConfig
from rerank.training.dense.structure import Draw, Structure
from rerank.training.dense.texts import Fragments


@dataclass(frozen=True)
class Vocabulary:
    """What corruption may put in a token's place: an ``ordinary`` token, or ``mask`` (None: none)."""

    ordinary: NDArray[np.int32]
    mask: int | None

    @classmethod
    def of(cls, tokenizer: object) -> Vocabulary:
        """All tokens of a Hugging Face tokenizer but the special ones."""
        special = set(tokenizer.all_special_ids)  # type: ignore[attr-defined]
        names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))  # type: ignore[attr-defined,arg-type]
        kept = [
            i
            for i, name in enumerate(names)
            if i not in special and name is not None and not name.startswith("[unused")
        ]
        mask = tokenizer.mask_token_id  # type: ignore[attr-defined]
        return cls(np.array(kept, dtype=np.int32), None if mask is None else int(mask))


def corrupt(
    tokens: NDArray[np.int32],
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    *,
    share: float = 0.25,
    how: Corruption = "mixed",
) -> NDArray[np.int32]:
    """Replace max(1, round(share T)) distinct tokens of T, each by another one.

    >>> vocabulary = Vocabulary(np.arange(10, 20, dtype=np.int32), mask=3)
    >>> before = np.arange(10, 18, dtype=np.int32)
    >>> after = corrupt(before, vocabulary, np.random.default_rng(0))
    >>> int((before != after).sum())
    2
    """
    count = len(tokens)
    if not count:
        return tokens
    changed: NDArray[np.int32] = tokens.copy()
    where = rng.choice(count, size=min(count, max(1, round(share * count))), replace=False)
    drawn = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=len(where))]
    for _ in range(100):
        same = drawn == tokens[where]
        if not same.any():
            break
        drawn[same] = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=int(same.sum()))]
    if vocabulary.mask is not None and how != "random":
        masked = np.ones(len(where), dtype=bool) if how == "mask" else rng.random(len(where)) < 0.5
        drawn[masked] = vocabulary.mask
    changed[where] = drawn
    return changed


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


@dataclass(frozen=True)
class Sampler:
    """Draws the quintuplets of an epoch.

    semantic: anchors without any structure are kept, for the semantic half of the loss.
    mask_related: documents related to an anchor are no negatives of it in the batch.
    unit: what an epoch has as an anchor once: each document, or each fragment.
    """

    structure: Structure
    fragments: Fragments
    vocabulary: Vocabulary
    batch: int
    semantic: bool = True
    corrupted: float = 0.25
    corruption: Corruption = "mixed"
    same_fragment: bool = False
    mask_related: bool = True
    unit: Anchors = "document"
    seed: int = 0

    @classmethod
    def of(
        cls, structure: Structure, fragments: Fragments, vocabulary: Vocabulary, config: DenseConfig
    ) -> Sampler:
        """Draw as the settings have it."""
        return cls(
            structure,
            fragments,
            vocabulary,
            config.batch,
            semantic=config.keeps_isolated,
            corrupted=config.corrupted,
            corruption=config.corruption,
            same_fragment=config.same_fragment,
            mask_related=config.mask_related,
            unit=config.anchors,
            seed=config.seed,
        )

    def anchors(self) -> NDArray[np.int64]:
        """(A, 2) anchors of an epoch: document, and which of its fragments; -1: any."""
        usable = self.structure.usable.copy()
        if not self.semantic:
            usable &= np.diff(self.structure.indptr) > 0
        documents = np.flatnonzero(usable)
        if self.unit == "document":
            return np.stack((documents, np.full_like(documents, -1)), axis=1)
        counts = [len(self.fragments.starts(document)) for document in documents.tolist()]
        places = np.concatenate([np.arange(count) for count in [0, *counts]])
        return np.stack((np.repeat(documents, counts), places), axis=1)

    def steps(self) -> int:
        """Steps of an epoch; the last, smaller batch is left out unless it is the only one."""
        return max(1, len(self.anchors()) // self.batch)

    def epoch(self, number: int, first: int = 0) -> Iterator[Quintuplets]:
        """Draw the batches of an epoch, from batch ``first`` on: every anchor comes at most once."""
        order = np.random.default_rng((self.seed, number)).permutation(self.anchors())
        for step in range(first, self.steps()):
            yield self.draw(order[step * self.batch : (step + 1) * self.batch].tolist(), number)

    def draw(self, anchors: list[tuple[int, int]], epoch: int) -> Quintuplets:
        """Draw what goes with these anchors."""
        draws: list[Draw] = []
        found = Quintuplets(draws, [], [], [], [], *(np.zeros((len(anchors),) * 2, bool) for _ in range(3)))
        for anchor, place in anchors:
            key = (self.seed, epoch, anchor) if place < 0 else (self.seed, epoch, anchor, place)
            rng = np.random.default_rng(key)
            draw = self.structure.draw(anchor, rng)
            if place < 0:
                text = self.fragments.draw(anchor, rng)
            else:
                text = self.fragments.get(anchor, self.fragments.starts(anchor)[place])
            source = text if self.same_fragment else self.fragments.draw(anchor, rng)
            found.draws.append(draw)
            found.anchor.append(text)
            found.positive.append(self.fragments.draw(draw.positive, rng) if draw.level else text)
            found.negative.append(self.fragments.draw(draw.negative, rng) if draw.level else text)
            found.corrupted.append(
                corrupt(source, self.vocabulary, rng, share=self.corrupted, how=self.corruption)
            )
        for i, draw in enumerate(draws):
            own = {draw.anchor, draw.positive}
            if self.mask_related:
                own.update(self.structure.near(draw.anchor).tolist())
            found.near[i] = [one.anchor in own for one in draws]
            found.near_positive[i] = [one.positive in own for one in draws]
            found.near_negative[i] = [one.negative in own for one in draws]
        return found
