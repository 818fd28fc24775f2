"""Reproducible batches of anchors, positives and negatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.neighbors import Neighbors, StructuralPair
from rerank.rankers.dense.texts import Passages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CORRUPTED_SHARE = 0.25
"""Share of replaced tokens (Raman et al. 2021, section 4.2)."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that replace others in a corrupted text.

    ordinary: all tokens that are not special.
    mask:     the mask token; None if the tokenizer has none.
    """

    ordinary: NDArray[np.int32]
    mask: int | None

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
        """Return the vocabulary of a tokenizer of Hugging Face, without its special and unused tokens."""
        names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        unused = [token for token, name in enumerate(names) if name is None or name.startswith("[unused")]
        ordinary = np.setdiff1d(np.arange(len(names)), [*tokenizer.all_special_ids, *unused])
        return cls(ordinary.astype(np.int32), tokenizer.mask_token_id)

    def corrupt(self, tokens: NDArray[np.int32], rng: np.random.Generator) -> NDArray[np.int32]:
        """Replace max(1, round(CORRUPTED_SHARE T)) of T tokens, about half of them by the mask."""
        count = len(tokens)
        if not count:
            return tokens
        changed: NDArray[np.int32] = tokens.copy()
        size = min(count, max(1, round(CORRUPTED_SHARE * count)))
        positions = rng.choice(count, size=size, replace=False)
        drawn = self.ordinary[rng.integers(len(self.ordinary), size=size)]
        for _ in range(100):
            unchanged = drawn == tokens[positions]
            if not unchanged.any():
                break
            drawn[unchanged] = self.ordinary[rng.integers(len(self.ordinary), size=int(unchanged.sum()))]
        if self.mask is not None:
            drawn[rng.random(size) < 0.5] = self.mask
        changed[positions] = drawn
        return changed


@dataclass(frozen=True)
class Quintuplets:
    """One training step: B anchors, and a token sequence per anchor and kind of text.

    Without a structural pair, the anchor's text is also its positive and its negative.

    pairs:         the structural pair of each anchor.
    anchor:        the anchor's text, h.
    positive:      the structural positive, h_phi+.
    negative:      the structural negative, h_phi-.
    corrupted:     the semantic positive, h_psi+.
    level:         (B,) the level of the structural pair, from 1; 0 without a pair.
    near:          (B, B) bool, whether the anchor j is too near to be a negative of the anchor i.
    near_positive: (B, B) bool, the same for the positive of j.
    near_negative: (B, B) bool, the same for the negative of j.
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
    """Draws the quintuplets of an epoch.

    vocabulary: corrupts the texts, and all documents with a text are anchors. With None, no text is
        corrupted, and only documents with a positive are anchors.
    """

    neighbors: Neighbors
    passages: Passages
    vocabulary: Vocabulary | None
    batch: int
    seed: int = 0

    def anchors(self) -> NDArray[np.int64]:
        """Return the A anchors of an epoch as documents and their turns, (A, 2)."""
        turns = self.neighbors.usable * np.maximum(self.neighbors.turns(), self.vocabulary is not None)
        documents = np.repeat(np.arange(len(turns)), turns)
        numbers = np.arange(len(documents)) - np.repeat(np.cumsum(turns) - turns, turns)
        return np.stack((documents, numbers), axis=1)

    def steps(self) -> int:
        """Return the number of batches per epoch."""
        return max(1, len(self.anchors()) // self.batch)

    def epoch(self, number: int, first: int = 0) -> Iterator[Quintuplets]:
        """Yield the batches of an epoch, from batch number ``first``."""
        order = np.random.default_rng((self.seed, number)).permutation(self.anchors())
        for step in range(first, self.steps()):
            yield self.draw(order[step * self.batch : (step + 1) * self.batch].tolist(), number)

    def draw(self, anchors: list[tuple[int, int]], epoch: int) -> Quintuplets:
        """Draw the pairs and texts of anchors, which are documents and their turns."""
        pairs: list[StructuralPair] = []
        texts: list[tuple[NDArray[np.int32], ...]] = []
        for document, turn in anchors:
            key = (self.seed, epoch, document)
            rng = np.random.default_rng(key)
            pair = self.neighbors.draw(document, rng, turn)
            if turn:  # other passages than in the turns before
                rng = np.random.default_rng((*key, turn))
            pairs.append(pair)
            texts.append(self._texts(pair, rng))
        anchor, positive, negative, corrupted = map(list, zip(*texts))
        near = [{pair.anchor, pair.positive, *self.neighbors.near(pair.anchor).tolist()} for pair in pairs]
        return Quintuplets(
            pairs=pairs,
            anchor=anchor,
            positive=positive,
            negative=negative,
            corrupted=corrupted,
            level=np.array([pair.level for pair in pairs]),
            near=_contain(near, [pair.anchor for pair in pairs]),
            near_positive=_contain(near, [pair.positive for pair in pairs]),
            near_negative=_contain(near, [pair.negative for pair in pairs]),
        )

    def _texts(self, pair: StructuralPair, rng: np.random.Generator) -> tuple[NDArray[np.int32], ...]:
        """Draw passages of an anchor, its positive and its negative, and a corrupted one of the anchor."""
        text = self.passages.draw(pair.anchor, rng)
        source = self.passages.draw(pair.anchor, rng)
        if pair.level:
            positive = self.passages.draw(pair.positive, rng)
            negative = self.passages.draw(pair.negative, rng)
        else:
            positive = negative = text
        corrupted = source if self.vocabulary is None else self.vocabulary.corrupt(source, rng)
        return text, positive, negative, corrupted


def _contain(sets: list[set[int]], documents: list[int]) -> NDArray[np.bool_]:
    """Return which of m sets have which of n documents, (m, n) bool."""
    rows = []
    for members in sets:
        rows.append([document in members for document in documents])
    return np.array(rows)
