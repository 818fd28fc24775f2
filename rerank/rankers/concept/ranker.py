"""Ranking by relatedness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rerank.files import write_bytes
from rerank.rankers.base import check_width, content_hash
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Head:
    """sigma(w [u; v; |u - v|] + b), u and v unit vectors (Ma et al. 2023, equation 6).

    first, second, apart: (E,) w.
    bias: (1,) b.
    """

    first: Float32
    second: Float32
    apart: Float32
    bias: Float32

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return probabilities, (n,), of (n, E) pairs, averaged over both orders; 0 without text.

        One side may be (1, E) or (E,).
        """
        a, b = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
        difference = a - b
        both = np.abs(difference, out=difference) @ self.apart + self.bias
        sides = np.stack((self.first, self.second), axis=1)
        left, right = a @ sides, b @ sides
        forward = (both + left[..., 0] + right[..., 1]).astype(np.float64)
        backward = (both + right[..., 0] + left[..., 1]).astype(np.float64)
        with_text = np.any(a, axis=-1) & np.any(b, axis=-1)
        return np.where(with_text, (_sigmoid(forward) + _sigmoid(backward)) / 2, 0.0)


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


HEAD = "head.safetensors"


@dataclass(kw_only=True, repr=False)
class ConceptRanker(EncoderRanker):
    """Scores by head probability, averaged over both orders (Ma et al. 2023, equation 6).

    threshold: least score of related texts.

    Feature: unit vector of E fp16; zeros without text.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]

    family: str = "concept"  # type: ignore[misc]
    variant: str = "concept"
    head: Head
    threshold: float = 0.5

    def version_with(self, encoder: TextEncoder) -> str:
        """Return a hash of encoder and head."""
        return content_hash(encoder.version(), vars(self.head).values())

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores of pairs of vectors or features; see :meth:`Head.relatedness`."""
        return self.head.relatedness(a, b)

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """Return vectors, (n, E) fp16."""
        return self.vectors([document.content for document in documents]).astype(np.float16)

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores, (n,).

        Raises WorkspaceError for wrong feature width.
        """
        check_width(self, features, self.width)
        return self.relatedness(features, query)

    def save(self, folder: Path) -> None:
        """Write also the head."""
        super().save(folder)
        write_bytes(folder / HEAD, save(vars(self.head)))

    @classmethod
    def own_files(cls, folder: Path) -> dict[str, Any]:
        """Return the head."""
        return {"head": Head(**load_file(folder / HEAD))}
