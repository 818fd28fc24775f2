"""Random replacement of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
            drawn[same] = self.ordinary[rng.integers(len(self.ordinary), size=int(same.sum()))]
        if self.mask is not None:
            drawn[rng.random(len(where)) < 0.5] = self.mask
        changed[where] = drawn
        return changed
