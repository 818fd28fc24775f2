"""An encoder as a ranker keeps it: loaded when a text comes, by NumPy for one text where that can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.dense.bert import Bert, readable
from rerank.rankers.dense.transformer import Pooling, TextEncoder


@dataclass
class StoredEncoder:
    """Turns texts into (E,) vectors of length 1; a text without any tokens has zeros.

    width: E. folder: the model, in Hugging Face's layout; None: it is loaded and not saved.
    """

    width: int
    pooling: Pooling
    longest: int
    folder: Path | None = None
    _encoder: TextEncoder | None = None
    _bert: Bert | None = None

    @classmethod
    def of(cls, encoder: TextEncoder) -> StoredEncoder:
        """Wrap one that is loaded."""
        return cls(encoder.width, encoder.pooling, encoder.longest, _encoder=encoder)

    @property
    def encoder(self) -> TextEncoder:
        """The transformer in torch, imported here: for many texts, and for models that are no BERT."""
        if self._encoder is None:
            assert self.folder is not None
            self._encoder = TextEncoder.load(str(self.folder), pooling=self.pooling, longest=self.longest)
        return self._encoder

    def one(self, text: str) -> NDArray[np.float32]:
        """(E,) of a text's first tokens, by NumPy where the model is a stored BERT, else by torch."""
        if self._bert is None and self.folder is not None and readable(self.folder):
            self._bert = Bert.load(self.folder, self.pooling, self.longest)
        if self._bert is not None:
            return self._bert.encode(text)
        found: NDArray[np.float32] = self.many([text])[0]
        return found

    def many(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) of the first tokens of texts, by torch."""
        found = np.zeros((len(texts), self.width), dtype=np.float32)
        if any(texts):
            encoder = self.encoder
            tokens = [one[: encoder.room] for one in encoder.tokens(list(texts))]
            filled = [row for row, one in enumerate(tokens) if one]
            if filled:
                found[filled] = encoder.encode([tokens[row] for row in filled])
        return found
