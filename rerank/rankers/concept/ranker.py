"""The ranker ``concept``: how related a document is to the query, by two vectors and a head."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from rerank.errors import WorkspaceError
from rerank.files import write_bytes, write_text
from rerank.rankers.base import Ranker
from rerank.rankers.concept.head import Head
from rerank.rankers.damage import unreadable
from rerank.rankers.dense.stored import StoredEncoder
from rerank.rankers.dense.transformer import Pooling
from rerank.records import Document, Query
from rerank.vectors.fp16 import single

HEAD = "head.safetensors"


@dataclass
class ConceptRanker(Ranker):
    """Relatedness of two texts (Ma et al. 2023, equation 6): the head's probability, the mean over both
    orders; or, without a head, the cosine of their vectors, which retrieves.

    width:     E, numbers in a vector. head: None: the cosine is the score.
    threshold: from which score on two texts count as related, chosen on the pairs that were kept for it.
    probabilities: whether scores are probabilities that two texts are related.
    longest:   tokens of a text that are read, special ones included.
    trained:   how it was fitted, for people to read.

    The stored features of a document are one vector of length 1, E fp16 numbers; zeros without text.
    """

    kind: ClassVar[str] = "concept"
    role: ClassVar[str] = "concept"  # type: ignore[misc]

    name: str
    width: int
    head: Head | None
    version: str = ""
    threshold: float = 0.5
    trained: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    pooling: Pooling = "mean"
    longest: int = 128
    _stored: StoredEncoder | None = None

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
            name,
            stored.width,
            head,
            digest.hexdigest()[:16],
            threshold,
            trained,
            pooling=stored.pooling,
            longest=stored.longest,
            _stored=stored,
        )

    @property
    def stored(self) -> StoredEncoder:
        """The encoder, loaded when it is first used."""
        if self._stored is None:
            assert self.folder is not None
            self._stored = StoredEncoder(self.width, self.pooling, self.longest, self.folder / "model")
        return self._stored

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(n, E) vectors of length 1 of texts, by torch; zeros for a text without any tokens."""
        return self.stored.many(texts)

    def relatedness(self, a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
        """How related texts are, row by row: (n, E) and (n, E) vectors as :meth:`vectors` gives them, or
        stored features -> (n,) within ``bounds``; :meth:`lowest` where one of two has no text.

        One side may be a single vector, (E,): the same for all. The order of the sides says nothing.
        """
        a, b = single(a), single(b)
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

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """(E,) of length 1, of the query's first tokens, by NumPy where the model is a BERT."""
        return self.stored.one(query.text)

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) relatedness of the query and n documents.

        Raises WorkspaceError for features of another width.
        """
        if features.shape[1:] != (self.width,):
            raise WorkspaceError(
                f"the stored {self.name} features have {features.shape[-1]} numbers, not {self.width};"
                f" train {self.name} again"
            )
        return self.relatedness(features, query)

    def save(self, folder: Path) -> None:
        """Write ``ranker.json`` (readable), the head, and ``model/`` in Hugging Face's layout."""
        folder.mkdir(parents=True, exist_ok=True)
        self.stored.encoder.save(folder / "model")
        if self.head is not None:
            write_bytes(folder / HEAD, save(self.head.arrays()))
        record = {
            "kind": self.kind,
            "role": self.role,
            "name": self.name,
            "version": self.version,
            "width": self.width,
            "score": "cosine" if self.head is None else "head",
            "threshold": self.threshold,
            "pooling": self.pooling,
            "longest": self.longest,
            "trained": dict(self.trained),
        }
        write_text(folder / "ranker.json", json.dumps(record, ensure_ascii=False, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> ConceptRanker:
        """Read ``ranker.json`` and the head; the model is loaded when a text has to be encoded."""
        try:
            record = json.loads((folder / "ranker.json").read_text("utf-8"))
            del record["kind"], record["role"]
            if not (folder / "model" / "config.json").is_file():
                raise ValueError("its model is missing")
            head = None if record.pop("score") == "cosine" else Head.from_arrays(load_file(folder / HEAD))
            return cls(**record, head=head, folder=folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(folder, error) from error
