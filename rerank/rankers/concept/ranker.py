"""The ranker ``concept``: how related a document is to the query, by two vectors and a head."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rerank.arrays import to_float32
from rerank.files import write_bytes
from rerank.rankers.concept.head import Head
from rerank.rankers.encoder.stored import EncoderRanker, StoredEncoder
from rerank.records import Document

HEAD = "head.safetensors"


@dataclass(kw_only=True, repr=False)
class ConceptRanker(EncoderRanker):
    """Relatedness of two texts (Ma et al. 2023, equation 6): the head's probability, the mean over both
    orders; or, without a head, the cosine of their vectors, which retrieves.

    head:      None: the cosine is the score.
    threshold: from which score on two texts count as related, chosen on the pairs that were kept for it.
    probabilities: whether scores are probabilities that two texts are related.

    The stored features of a document are one vector of length 1, E fp16 numbers; zeros without text.
    """

    family: ClassVar[str] = "concept"
    variant: ClassVar[str] = "concept"  # type: ignore[misc]

    head: Head | None
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self.retrieves = self.head is None
        self.probabilities = self.head is not None
        self.bounds = (-1.0, 1.0) if self.head is None else (0.0, 1.0)

    @classmethod
    def of(
        cls, name: str, stored: StoredEncoder, head: Head | None, threshold: float, trained: Mapping[str, Any]
    ) -> ConceptRanker:
        """Wrap a trained encoder and head."""
        digest = hashlib.sha256(stored.encoder.version().encode())
        for part, array in sorted((head.arrays() if head else {}).items()):
            digest.update(part.encode() + array.tobytes())
        return cls(
            name=name,
            width=stored.width,
            head=head,
            version=digest.hexdigest()[:16],
            threshold=threshold,
            trained=trained,
            pooling=stored.pooling,
            longest=stored.longest,
            _stored=stored,
        )

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) vectors of length 1 of texts, by torch; zeros for a text without any tokens."""
        return self.stored.many(texts)

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """How related texts are, row by row: (n, E) and (n, E) vectors as :meth:`vectors` gives them, or
        stored features -> (n,) within ``bounds``; :meth:`lowest` where one of two has no text.

        One side may be a single vector, (E,): the same for all. The order of the sides says nothing.
        """
        a, b = to_float32(a), to_float32(b)
        if self.head is None:
            found: NDArray[np.float64] = (a @ b if b.ndim == 1 else (a * b).sum(axis=-1)).astype(np.float64)
            return found
        found = self.head.relatedness(a, b)
        for side in (a, b):
            found[~np.any(side, axis=-1)] = 0.0
        return found

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float16]:
        """(n, E) fp16."""
        return self.vectors([document.content for document in documents]).astype(np.float16)

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) relatedness of the query and n documents.

        Raises WorkspaceError for features of another width.
        """
        self.check(features, self.width)
        return self.relatedness(features, query)

    def save(self, folder: Path) -> None:
        """Write the head beside the rest."""
        super().save(folder)
        if self.head is not None:
            write_bytes(folder / HEAD, save(self.head.arrays()))

    def own_record(self) -> dict[str, Any]:
        """What makes a score, and from which on texts are related."""
        return {"score": "cosine" if self.head is None else "head", "threshold": self.threshold}

    @classmethod
    def own_fields(cls, record: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The head from its file."""
        with_head = record.pop("score") == "head"
        return {**record, "head": Head.from_arrays(load_file(folder / HEAD)) if with_head else None}
