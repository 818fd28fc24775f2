"""Reproducible batches of anchors, positives and negatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.neighbors import Neighbors, StructuralPair
from rerank.rankers.dense.texts import Passages

SHARE = 0.25
"""Share of replaced tokens (Raman et al. 2021, section 4.2)."""


@dataclass(frozen=True)
class Vocabulary:
    """Replacement tokens: ``ordinary`` and optional ``mask``."""

    ordinary: NDArray[np.int32]
    mask: int | None

    @classmethod
    def of(cls, tokenizer: Any) -> Vocabulary:
        """Return the vocabulary without special tokens."""
        names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        unused = (i for i, name in enumerate(names) if name is None or name.startswith("[unused"))
        ordinary = np.setdiff1d(np.arange(len(names)), [*tokenizer.all_special_ids, *unused])
        return cls(ordinary.astype(np.int32), tokenizer.mask_token_id)

    def corrupt(self, tokens: NDArray[np.int32], rng: np.random.Generator) -> NDArray[np.int32]:
        """Replace max(1, round(SHARE T)) of T tokens, half by the mask."""
        count = len(tokens)
        if not count:
            return tokens
        changed: NDArray[np.int32] = tokens.copy()
        where = rng.choice(count, size=min(count, max(1, round(SHARE * count))), replace=False)
        drawn = self.ordinary[rng.integers(len(self.ordinary), size=len(where))]
        for _ in range(100):
            same = drawn == tokens[where]
            if not same.any():
                break
            drawn[same] = self.ordinary[rng.integers(len(self.ordinary), size=int(same.sum()))]
        if self.mask is not None:
            drawn[rng.random(len(where)) < 0.5] = self.mask
        changed[where] = drawn
        return changed


@dataclass(frozen=True)
class Quintuplets:
    """Token numbers of a step, B sequences per kind of text; anchors replace missing pairs.

    pairs:         of the anchors.
    anchor:        h.
    positive:      structural h_phi+.
    negative:      structural h_phi-.
    corrupted:     semantic positive h_psi+.
    level:         (B,), from 1; 0: no structural pair.
    near:          (B, B) bool: document j is not a negative of i.
    near_positive: (B, B) bool: nor is the positive of j.
    near_negative: (B, B) bool: nor is the negative of j.
    """

    pairs: list[StructuralPair]
    anchor: list[NDArray[np.int32]]
    positive: list[NDArray[np.int32]]
    negative: list[NDArray[np.int32]]
    corrupted: list[NDArray[np.int32]]
    level: NDArray[np.int64]
    near: NDArray[np.bool_]
    near_positive: NDArray[np.bool_]
    near_negative: NDArray[np.bool_]


@dataclass(frozen=True)
class QuintupletSampler:
    """Draws quintuplets.

    vocabulary: to corrupt texts of all usable documents. None: anchors have a positive, no text is corrupted.
    """

    neighbors: Neighbors
    passages: Passages
    vocabulary: Vocabulary | None
    batch: int
    seed: int = 0

    def anchors(self) -> NDArray[np.int64]:
        """Return documents and turns, (A, 2)."""
        turns = self.neighbors.usable * np.maximum(self.neighbors.turns(), self.vocabulary is not None)
        documents = np.repeat(np.arange(len(turns)), turns)
        numbers = np.arange(len(documents)) - np.repeat(np.cumsum(turns) - turns, turns)
        return np.stack((documents, numbers), axis=1)

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
        pairs: list[StructuralPair] = []
        texts: list[tuple[NDArray[np.int32], ...]] = []
        for document, turn in anchors:
            key = (self.seed, epoch, document)
            rng = np.random.default_rng(key)
            pair = self.neighbors.draw(document, rng, turn)
            if turn:  # other passages than in the turns before
                rng = np.random.default_rng((*key, turn))
            text, source = self.passages.draw(document, rng), self.passages.draw(document, rng)
            ends = (pair.positive, pair.negative) if pair.level else ()
            others = [self.passages.draw(end, rng) for end in ends] or [text, text]
            pairs.append(pair)
            changed = self.vocabulary.corrupt(source, rng) if self.vocabulary is not None else source
            texts.append((text, *others, changed))
        own = [{one.anchor, one.positive, *self.neighbors.near(one.anchor).tolist()} for one in pairs]
        numbers, level, positives, negatives = zip(*pairs)
        near = [
            np.array([[one in some for one in those] for some in own])
            for those in (numbers, positives, negatives)
        ]
        anchor, positive, negative, corrupted = map(list, zip(*texts))
        return Quintuplets(pairs, anchor, positive, negative, corrupted, np.array(level), *near)
