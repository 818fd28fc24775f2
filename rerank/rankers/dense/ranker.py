"""Ranking by passage cosines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank import arrays
from rerank.rankers.base import check_width
from rerank.rankers.encoder.modules import document_tokens
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document

BEST = 2
"""Passages whose cosines make the score of a document; measurements: benchmarks/README.md."""
DECAY = 0.05
"""Omega (Raman et al. 2021, section 4.2)."""


def windows(length: int, size: int, most: int | None = None) -> list[int]:
    """Return starts of half-overlapping windows; the last ends with the text.

    At most ``most`` are kept, evenly spaced.

    >>> windows(100, 128), windows(128, 128), windows(200, 128), windows(1000, 128, most=3)
    ([0], [0], [0, 64, 72], [0, 436, 872])
    """
    if length <= size:
        return [0] if length > 0 else []
    last = length - size
    starts = [*range(0, last, max(1, size // 2)), last]
    if most is None or len(starts) <= most:
        return starts
    return [round(i * last / (most - 1)) for i in range(most)] if most > 1 else [0]


def decayed_sum(
    cosines: NDArray[np.float32], counts: NDArray[np.integer], *, best: int = BEST, normalize: bool = True
) -> NDArray[np.float64]:
    """Return document scores, (n,) (Raman et al. 2021, equation 6).

    cosines: (n, F), 0 after the last passage.
    counts: (n,) passages.
    best: number of cosines summed with weights exp(-DECAY k), k from 1; negative ones as 0.
    normalize: divide by the weights, for scores from 0 to 1.
    """
    best = min(best, cosines.shape[1])
    ranked = -np.sort(-np.maximum(cosines, 0), axis=1)[:, :best]
    weights = np.exp(-DECAY * np.arange(1, best + 1)).astype(np.float32)
    scores: NDArray[np.float64] = (ranked @ weights).astype(np.float64)
    if normalize:
        sums = np.concatenate(([1.0], np.cumsum(weights, dtype=np.float64)))
        scores /= sums[np.minimum(counts, best)]
    return scores


SCALE = 127
"""Largest number of a stored vector, in int8. Only its direction counts."""


@dataclass(kw_only=True, repr=False)
class DenseRanker(EncoderRanker):
    """Scores by decayed sums of passage cosines (Raman et al. 2021, section 3.4); also of ``adapter``.

    passages:  F, maximum per document.
    best:      number of summed cosines.
    separator: whether a separator follows titles.

    Features: F vectors of E int8, and passage count; F * E + 1 bytes.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]
    retrieves = True

    family: str = "dense"  # type: ignore[misc]
    variant: str = "dense"
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
        return decayed_sum(cosines, arrays.passage_counts(features, self.passages), best=self.best)


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return vectors, (n, E) int8, scaled to maximum SCALE."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    rounded: NDArray[np.int8] = np.rint(vectors * (SCALE / largest)).astype(np.int8)
    return rounded
