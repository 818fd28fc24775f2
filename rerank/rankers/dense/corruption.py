"""Texts with some of their tokens replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rerank.settings import setting

How = Literal["mixed", "random", "mask"]


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


@dataclass(frozen=True)
class Corruption:
    """How the semantic positive of an anchor is made."""

    corrupted: float = setting(
        0.25, "share of the tokens of the semantic positive that are replaced", above=0, high=1
    )
    corruption: How = setting(
        "mixed", "by random tokens, the mask token, or each of the two for half of them"
    )
    same_fragment: bool = setting(
        False, "the semantic positive is made of the anchor's own fragment, not of any of its document"
    )

    def apply(
        self, tokens: NDArray[np.int32], vocabulary: Vocabulary, rng: np.random.Generator
    ) -> NDArray[np.int32]:
        """Replace max(1, round(share T)) distinct tokens of T, each by another one.

        >>> vocabulary = Vocabulary(np.arange(10, 20, dtype=np.int32), mask=3)
        >>> before = np.arange(10, 18, dtype=np.int32)
        >>> after = Corruption().apply(before, vocabulary, np.random.default_rng(0))
        >>> int((before != after).sum())
        2
        """
        count = len(tokens)
        if not count:
            return tokens
        changed: NDArray[np.int32] = tokens.copy()
        where = rng.choice(count, size=min(count, max(1, round(self.corrupted * count))), replace=False)
        drawn = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=len(where))]
        for _ in range(100):
            same = drawn == tokens[where]
            if not same.any():
                break
            drawn[same] = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=int(same.sum()))]
        if vocabulary.mask is not None and self.corruption != "random":
            every = self.corruption == "mask"
            masked = np.ones(len(where), dtype=bool) if every else rng.random(len(where)) < 0.5
            drawn[masked] = vocabulary.mask
        changed[where] = drawn
        return changed
