"""Ranking by relatedness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rerank.common.arrays import single_precision
from rerank.common.files import write_bytes
from rerank.documents.records import Document
from rerank.rankers.base import check_width, content_hash
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.transformer import TextEncoder

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Head:
    """sigma(w [u; v; |u - v|] + b), u and v unit vectors (Ma et al. 2023, equation 6).

    first, second, apart: (E,) the three parts of w.
    bias: (1,) b.
    """

    first: Float32
    second: Float32
    apart: Float32
    bias: Float32

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the probabilities, (n,), that pairs of vectors are related; 0 if one has no text.

        The probability is the mean over both orders of a pair.

        a, b: (n, E) vectors; one side may be (1, E) or (E,).
        """
        a = single_precision(a)
        b = single_precision(b)
        difference = a - b
        symmetric = np.abs(difference, out=difference) @ self.apart + self.bias
        sides = np.stack((self.first, self.second), axis=1)
        products_of_a = a @ sides
        products_of_b = b @ sides
        forward = (symmetric + products_of_a[..., 0] + products_of_b[..., 1]).astype(np.float64)
        backward = (symmetric + products_of_b[..., 0] + products_of_a[..., 1]).astype(np.float64)
        with_text = np.any(a, axis=-1) & np.any(b, axis=-1)
        return np.where(with_text, (_sigmoid(forward) + _sigmoid(backward)) / 2, 0.0)


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


HEAD = "head.safetensors"


@dataclass(kw_only=True, repr=False)
class ConceptRanker(EncoderRanker):
    """Scores a document by the probability that it is related to the query (Ma et al. 2023, equation 6).

    The features of a document are its vector of length 1, E fp16 numbers; zeros without text.

    head:      computes the probability from two vectors.
    threshold: the least score of texts that count as related.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]

    family: str = "concept"  # type: ignore[misc]
    variant: str = "concept"
    head: Head
    threshold: float = 0.5

    def version_with(self, encoder: TextEncoder) -> str:
        return content_hash(encoder.version(), vars(self.head).values())

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores of pairs of vectors or features; see :meth:`Head.relatedness`."""
        return self.head.relatedness(a, b)

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """Return the vectors of documents, (n, E) fp16."""
        return self.vectors([document.content for document in documents]).astype(np.float16)

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the (n,) probabilities. Raises WorkspaceError if the features are not E numbers wide."""
        check_width(self, features, self.width)
        return self.relatedness(features, query)

    def save(self, folder: Path) -> None:
        super().save(folder)
        write_bytes(folder / HEAD, save(vars(self.head)))

    @classmethod
    def own_files(cls, folder: Path) -> dict[str, Any]:
        return {"head": Head(**load_file(folder / HEAD))}
