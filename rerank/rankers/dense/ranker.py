"""The ranker ``dense``: a transformer's vectors of a document's fragments against the query's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank.errors import WorkspaceError
from rerank.files import write_text
from rerank.rankers.base import Ranker
from rerank.rankers.damage import unreadable
from rerank.rankers.dense.fragments import BEST, decayed_sum, fragment_weights, windows
from rerank.rankers.dense.stored import StoredEncoder
from rerank.rankers.dense.tokens import document_tokens
from rerank.rankers.dense.transformer import Pooling, TextEncoder
from rerank.records import Document, Query
from rerank.vectors import fragments as fragment_vectors

SCALE = 127
"""A fragment's vector is stored as int8: its numbers times SCALE over the largest of them. Its length is not
needed: the stored vector is divided by its own."""


@dataclass
class DenseRanker(Ranker):
    """Score of a document: the decayed sum of its best fragments' cosines (Raman et al. 2021, section 3.4).

    encoder:   loaded from ``folder`` when it is first used.
    width:     E, numbers in a vector. fragments: F, of a document at most.
    best, decay, normalise: of the decayed sum. separator: between a document's title and its text, or None.
    trained:   how it was fitted, for people to read.

    The stored features of a document are F vectors of E int8 numbers and the count of those that are filled:
    F * E + 1 bytes.
    """

    kind: ClassVar[str] = "dense"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]
    retrieves = True

    role: ClassVar[str] = "dense"  # type: ignore[misc]

    name: str
    width: int
    fragments: int = field()
    version: str = ""
    best: int = BEST
    decay: float = 0.05
    normalise: bool = True
    trained: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    pooling: Pooling = "mean"
    longest: int = 128
    separator: tuple[int, ...] | None = None
    _stored: StoredEncoder | None = None

    def __post_init__(self) -> None:
        if not self.normalise:
            most = float(fragment_weights(min(self.best, self.fragments), self.decay).sum())
            self.bounds = (0.0, most)  # type: ignore[misc]

    @classmethod
    def of(
        cls,
        name: str,
        encoder: TextEncoder,
        fragments: int,
        trained: Mapping[str, Any],
        *,
        best: int = BEST,
        normalise: bool = True,
        separator: bool = False,
    ) -> DenseRanker:
        """Wrap a trained encoder."""
        form = f"{'' if normalise else '-sum'}{'-sep' if separator else ''}"
        version = f"{encoder.version()}-{fragments}-{best}{form}"
        return cls(
            name,
            encoder.width,
            fragments,
            version,
            best=best,
            normalise=normalise,
            trained=trained,
            pooling=encoder.pooling,
            longest=encoder.longest,
            separator=tuple(encoder.separator) if separator else None,
            _stored=StoredEncoder.of(encoder),
        )

    @property
    def encoder(self) -> TextEncoder:
        """The transformer in torch: for documents, and for queries of models that are no BERT."""
        return self.stored.encoder

    @property
    def stored(self) -> StoredEncoder:
        """The encoder, loaded when it is first used."""
        if self._stored is None:
            assert self.folder is not None
            self._stored = StoredEncoder(self.width, self.pooling, self.longest, self.folder / "model")
        return self._stored

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.int8]:
        """(n, F * E + 1) int8: vectors of the fragments, zeros, and how many there are."""
        features = np.zeros((len(documents), self.fragments * self.width + 1), dtype=np.int8)
        if not any(one.content for one in documents):  # the service's empty document: no torch for it
            return features
        encoder, room = self.encoder, self.encoder.room
        pieces: list[list[int]] = []
        owner: list[tuple[int, int]] = []
        for row, tokens in enumerate(document_tokens(documents, encoder.tokens, self.separator)):
            starts = windows(len(tokens), room, self.fragments)
            features[row, -1] = len(starts)
            for place, start in enumerate(starts):
                pieces.append(tokens[start : start + room])
                owner.append((row, place))
        if pieces:
            rows, places = np.array(owner).T
            fragment_vectors.blocks(features, self.fragments)[rows, places] = quantised(
                encoder.encode(pieces)
            )
        return features

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """(E,) of length 1, of the query's first tokens; zeros for a query without any.

        By NumPy where the model is a stored BERT, else by torch.
        """
        return self.stored.one(query.text)

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) scores within ``bounds``; 0 for a document without text.

        Raises WorkspaceError for features of another width.
        """
        numbers = fragment_vectors.width(self.fragments, self.width)
        if features.shape[1:] != (numbers,):
            raise WorkspaceError(
                f"the stored {self.name} features have {features.shape[-1]} numbers, not"
                f" {numbers}; train {self.name} again"
            )
        counts = features[:, -1].astype(np.int64)
        cosines = self.cosines(query, features)
        return decayed_sum(cosines, counts, best=self.best, decay=self.decay, normalise=self.normalise)

    def cosines(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float32]:
        """(n, F) cosines of the fragments with the query; 0 beyond a document's last."""
        return fragment_vectors.cosines(query, features, self.fragments)

    def save(self, folder: Path) -> None:
        """Write ``ranker.json`` (readable) and ``model/`` in Hugging Face's layout."""
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder.save(folder / "model")
        record = {
            "kind": self.kind,
            "role": self.role,
            "name": self.name,
            "version": self.version,
            "width": self.width,
            "fragments": self.fragments,
            "best": self.best,
            "decay": self.decay,
            "normalise": self.normalise,
            "pooling": self.pooling,
            "longest": self.longest,
            "separator": self.separator,
            "trained": dict(self.trained),
        }
        write_text(folder / "ranker.json", json.dumps(record, ensure_ascii=False, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> DenseRanker:
        """Read ``ranker.json``; the model is loaded when a text has to be encoded."""
        try:
            record = json.loads((folder / "ranker.json").read_text("utf-8"))
            del record["kind"], record["role"]
            if not (folder / "model" / "config.json").is_file():
                raise ValueError("its model is missing")
            if record.get("separator") is not None:
                record["separator"] = tuple(record["separator"])
            return cls(**record, folder=folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(folder, error) from error


def quantised(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """(n, E) vectors as int8, each scaled so that its largest number is SCALE.

    >>> quantised(np.float32([[0.6, -0.8]])).tolist()
    [[95, -127]]
    """
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    rounded: NDArray[np.int8] = np.rint(vectors * (SCALE / largest)).astype(np.int8)
    return rounded
