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
from rerank.rankers.concept.head import Head
from rerank.rankers.encoder.stored import EncoderRanker
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document

HEAD = "head.safetensors"


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

    def version_with(self, encoder: TextEncoder) -> str:
        """Return a hash of encoder and head."""
        return content_hash(encoder.version(), vars(self.head).values())

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores, (n,), of (n, E) vectors or features; minimal without text.

        One side may be (E,). Order does not matter.
        """
        a, b = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
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
        write_bytes(folder / HEAD, save(vars(self.head)))

    @classmethod
    def own_files(cls, folder: Path) -> dict[str, Any]:
        """Return the head."""
        return {"head": Head(**load_file(folder / HEAD))}
