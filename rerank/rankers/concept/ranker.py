"""Ranking by relatedness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rerank.arrays import to_float32
from rerank.files import write_bytes
from rerank.rankers.base import check_width, content_hash
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document

HEAD = "head.safetensors"
Float32 = NDArray[np.float32]
PARTS = ("first", "second", "apart")
"""Weights of u, v and |u - v|."""


@dataclass(frozen=True)
class Head:
    """sigma(w [u; v; |u - v|] + b), u and v unit vectors (Ma et al. 2023, equation 6).

    first, second, apart: (E,) w.
    bias: b.

    >>> zero = np.zeros(2, dtype=np.float32)
    >>> head = Head(zero, zero, np.float32([-1, -1]), 1.0)
    >>> head.relatedness(np.float32([[1, 0], [1, 0]]), np.float32([[1, 0], [0, 1]])).round(3).tolist()
    [0.731, 0.269]
    """

    first: Float32
    second: Float32
    apart: Float32
    bias: float

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return probabilities, (n,), of (n, E) pairs, averaged over both orders.

        One side may be (1, E) or (E,).
        """
        a, b = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
        difference = a - b
        both = np.abs(difference, out=difference) @ self.apart + np.float32(self.bias)
        sides = np.stack((self.first, self.second), axis=1)
        left, right = a @ sides, b @ sides
        forward = (both + left[..., 0] + right[..., 1]).astype(np.float64)
        backward = (both + right[..., 0] + left[..., 1]).astype(np.float64)
        return (_sigmoid(forward) + _sigmoid(backward)) / 2

    def arrays(self) -> dict[str, Float32]:
        """Return parameters by name."""
        return {**{name: getattr(self, name) for name in PARTS}, "bias": np.full(1, self.bias, np.float32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Float32]) -> Head:
        """Read :meth:`arrays`."""
        first, second, apart = (arrays[name] for name in PARTS)
        return cls(first, second, apart, float(arrays["bias"][0]))


@dataclass(kw_only=True, repr=False)
class ConceptRanker(EncoderRanker):
    """Scores by head probability, averaged over both orders (Ma et al. 2023, equation 6).

    threshold: least score of related texts.

    Feature: unit vector of E fp16; zeros without text.
    """

    family: ClassVar[str] = "concept"
    variant: ClassVar[str] = "concept"  # type: ignore[misc]

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]

    head: Head
    threshold: float = 0.5

    @classmethod
    def of(
        cls, name: str, encoder: TextEncoder, head: Head, threshold: float, trained: Mapping[str, Any]
    ) -> ConceptRanker:
        """Wrap a trained encoder and head."""
        return cls(
            name=name,
            width=encoder.width,
            version=content_hash(encoder.version(), head.arrays().values()),
            head=head,
            threshold=threshold,
            trained=trained,
            _encoder=encoder,
        )

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores, (n,), of (n, E) vectors or features; minimal without text.

        One side may be (E,). Order does not matter.
        """
        a, b = to_float32(a), to_float32(b)
        found = self.head.relatedness(a, b)
        for side in (a, b):
            found[~np.any(side, axis=-1)] = 0.0
        return found

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
        write_bytes(folder / HEAD, save(self.head.arrays()))

    @classmethod
    def own_files(cls, folder: Path) -> dict[str, Any]:
        """Return the head."""
        return {"head": Head.from_arrays(load_file(folder / HEAD))}


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))
