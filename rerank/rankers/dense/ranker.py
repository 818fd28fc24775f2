"""Ranking by passage cosines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.common import arrays
from rerank.documents.categories import with_names_as_text
from rerank.documents.records import Document
from rerank.rankers.base import check_width, content_hash
from rerank.rankers.dense.neighborhood import Neighborhood
from rerank.rankers.encoder.modules import document_tokens
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.transformer import TextEncoder

if TYPE_CHECKING:
    from rerank.rankers.training.job import TrainingJob

BEST = 2
"""Passages whose cosines make the score of a document; measurements: benchmarks/README.md."""
DECAY = 0.05
"""Omega (Raman et al. 2021, section 4.2)."""


def windows(length: int, size: int, limit: int | None = None) -> list[int]:
    """Return where the windows of a text of ``length`` tokens begin.

    Windows have ``size`` tokens and overlap by half, and the last one ends with the text. If there are more
    than ``limit``, as many are returned, evenly spaced.

    >>> windows(100, 128), windows(128, 128), windows(200, 128), windows(1000, 128, limit=3)
    ([0], [0], [0, 64, 72], [0, 436, 872])
    """
    if length <= size:
        return [0] if length > 0 else []
    last = length - size
    starts = [*range(0, last, max(1, size // 2)), last]
    if limit is None or len(starts) <= limit:
        return starts
    if limit <= 1:
        return [0]
    return [round(number * last / (limit - 1)) for number in range(limit)]


def decayed_sum(
    cosines: NDArray[np.float32], counts: NDArray[np.integer], *, best: int = BEST, normalize: bool = True
) -> NDArray[np.float64]:
    """Return the (n,) scores of documents from the cosines of passages (Raman et al. 2021, equation 6).

    The k-th largest cosine has the weight exp(-DECAY k), and negative cosines count as 0.

    cosines: (n, F) cosines with the query; 0 after the last passage.
    counts: (n,) numbers of passages.
    best: how many of the largest cosines are summed.
    normalize: whether to divide by the sum of the weights, so that scores are from 0 to 1.
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
    """Scores a document by the passages that are nearest to the query (Raman et al. 2021, section 3.4).

    ``dense`` and ``adapter`` are such rankers. The features of a document are F vectors of E int8 numbers,
    and the number of its passages: F * E + 1 bytes.

    passages:  F, the maximum number of passages of a document.
    best:      how many cosines of passages are summed; see :func:`decayed_sum`.
    separator: whether a separator token follows titles.
    names:     whether it reads the names of categories instead of titles and texts.
    neighbors: documents toward which the vectors of a document move; 0: they do not move.
    neighborhood: moves them, if there are neighbors.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]
    retrieves = True

    family: str = "dense"  # type: ignore[misc]
    variant: str = "dense"
    passages: int = field()
    best: int = BEST
    separator: bool = False
    names: bool = False
    neighbors: int = 0
    neighborhood: Neighborhood | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the stored documents of a ranker with neighbors are missing."""
        super().__post_init__()
        if self.neighbors and self.neighborhood is None:
            raise ValueError("the vectors of its neighbors are missing")

    def version_with(self, encoder: TextEncoder) -> str:
        suffix = "-sep" if self.separator else ""
        suffix += "-names" if self.names else ""
        if self.neighborhood is not None:
            suffix += f"-{content_hash(self.neighbors, [self.neighborhood.vectors])}"
        return f"{encoder.version()}-{self.passages}-{self.best}{suffix}"

    def with_neighbors(self, count: int, job: TrainingJob) -> DenseRanker:
        """Return a ranker that moves documents toward this number of neighbors; 0: this ranker."""
        if not count:
            return self
        return replace(self, neighbors=count, neighborhood=Neighborhood.of(self, job))

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.int8]:
        """Return the vectors of the passages and their number, (n, F * E + 1) int8."""
        features = self._encode_passages(documents)
        if self.neighborhood is not None:
            moved = self.neighborhood.move(features, self.passages, self.neighbors)
            vectors = arrays.split_passages(features, self.passages)
            vectors[:] = quantized(moved.reshape(-1, self.width)).reshape(vectors.shape)
        return features

    def _encode_passages(self, documents: Sequence[Document]) -> NDArray[np.int8]:
        features = np.zeros((len(documents), self.passages * self.width + 1), dtype=np.int8)
        if self.names:
            documents = list(map(with_names_as_text, documents))
        if not any(document.content for document in documents):  # without torch
            return features
        encoder = self.encoder
        room = encoder.room
        separator = encoder.separator if self.separator else None
        pieces: list[list[int]] = []
        rows: list[int] = []
        columns: list[int] = []
        for row, tokens in enumerate(document_tokens(documents, encoder.tokens, separator)):
            starts = windows(len(tokens), room, self.passages)
            features[row, -1] = len(starts)
            for number, start in enumerate(starts):
                pieces.append(tokens[start : start + room])
                rows.append(row)
                columns.append(number)
        if pieces:
            vectors = arrays.split_passages(features, self.passages)
            vectors[rows, columns] = quantized(self.encode_tokens(pieces, encoder))
        return features

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.neighborhood is not None:
            self.neighborhood.save(folder)

    @classmethod
    def own_files(cls, folder: Path) -> dict[str, Any]:
        return {"neighborhood": Neighborhood.load(folder)}

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the (n,) scores, from 0 to 1; 0 without text.

        Raises WorkspaceError if the features are not F * E + 1 numbers wide.
        """
        check_width(self, features, arrays.feature_width(self.passages, self.width))
        cosines = arrays.passage_cosines(query, features, self.passages)
        return decayed_sum(cosines, arrays.passage_counts(features, self.passages), best=self.best)


def quantized(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return vectors, (n, E), as int8 numbers. Each vector is scaled so that its largest number is SCALE."""
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    rounded: NDArray[np.int8] = np.rint(vectors * (SCALE / largest)).astype(np.int8)
    return rounded
