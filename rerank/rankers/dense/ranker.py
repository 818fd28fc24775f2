"""Ranking by passage cosines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank import arrays
from rerank.rankers.base import check_width
from rerank.rankers.encoder.passages import BEST, decayed_sum, windows
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.tokens import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document

SCALE = 127
"""Largest number of a stored vector, in int8. Only its direction counts."""


@dataclass(kw_only=True, repr=False)
class DenseRanker(EncoderRanker):
    """Scores by decayed sums of passage cosines (Raman et al. 2021, section 3.4).

    passages:  F, maximum per document.
    best:      number of summed cosines.
    separator: whether a separator follows titles.

    Features: F vectors of E int8, and passage count; F * E + 1 bytes.
    """

    family: ClassVar[str] = "dense"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]
    retrieves = True

    variant: ClassVar[str] = "dense"  # type: ignore[misc]

    passages: int = field()
    best: int = BEST
    separator: bool = False

    def version_with(self, encoder: TextEncoder) -> str:
        """Return the encoder's hash and the options."""
        return f"{encoder.version()}-{self.passages}-{self.best}{'-sep' * self.separator}"

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.int8]:
        """Return passage vectors and count, (n, F * E + 1) int8."""
        features = np.zeros((len(documents), self.passages * self.width + 1), dtype=np.int8)
        if not any(one.content for one in documents):  # without torch
            return features
        encoder = self.encoder
        room, separator = encoder.room, encoder.separator if self.separator else None
        pieces: list[list[int]] = []
        owner: list[tuple[int, int]] = []
        for row, tokens in enumerate(document_tokens(documents, encoder.tokens, separator)):
            starts = windows(len(tokens), room, self.passages)
            features[row, -1] = len(starts)
            for place, start in enumerate(starts):
                pieces.append(tokens[start : start + room])
                owner.append((row, place))
        if pieces:
            rows, places = np.array(owner).T
            arrays.split_passages(features, self.passages)[rows, places] = quantized(encoder.encode(pieces))
        return features

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores, (n,), from 0 to 1; 0 without text.

        Raises WorkspaceError for wrong feature width.
        """
        check_width(self, features, arrays.feature_width(self.passages, self.width))
        cosines = arrays.passage_cosines(query, features, self.passages)
        return decayed_sum(cosines, features[:, -1].astype(np.int64), best=self.best)


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return vectors, (n, E) int8, scaled to maximum SCALE."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    rounded: NDArray[np.int8] = np.rint(vectors * (SCALE / largest)).astype(np.int8)
    return rounded
