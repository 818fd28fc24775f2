"""The ranker ``dense``: a transformer's vectors of a document's passages against the query's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rerank import arrays
from rerank.rankers.encoder.passages import BEST, decayed_sum, passage_weights, windows
from rerank.rankers.encoder.stored import EncoderRanker, StoredEncoder
from rerank.rankers.encoder.tokens import document_tokens
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.records import Document

SCALE = 127
"""A passage's vector is stored as int8: its numbers times SCALE over the largest of them. Its length is not
needed: the stored vector is divided by its own."""


@dataclass(kw_only=True, repr=False)
class DenseRanker(EncoderRanker):
    """Score of a document: the decayed sum of its best passages' cosines (Raman et al. 2021, section 3.4).

    passages: F, of a document at most.
    best, normalize: of the decayed sum. separator: between a document's title and its text, or None.

    The stored features of a document are F vectors of E int8 numbers and the count of those that are filled:
    F * E + 1 bytes.
    """

    family: ClassVar[str] = "dense"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)  # type: ignore[misc]
    retrieves = True

    variant: ClassVar[str] = "dense"  # type: ignore[misc]

    passages: int = field()
    best: int = BEST
    normalize: bool = True
    separator: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.normalize:
            most = float(passage_weights(min(self.best, self.passages)).sum())
            self.bounds = (0.0, most)  # type: ignore[misc]

    @classmethod
    def of(
        cls,
        name: str,
        encoder: TextEncoder,
        passages: int,
        trained: Mapping[str, Any],
        *,
        best: int = BEST,
        normalize: bool = True,
        separator: bool = False,
    ) -> DenseRanker:
        """Wrap a trained encoder."""
        form = f"{'' if normalize else '-sum'}{'-sep' if separator else ''}"
        version = f"{encoder.version()}-{passages}-{best}{form}"
        return cls(
            name=name,
            width=encoder.width,
            passages=passages,
            version=version,
            best=best,
            normalize=normalize,
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

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.int8]:
        """(n, F * E + 1) int8: vectors of the passages, zeros, and how many there are."""
        features = np.zeros((len(documents), self.passages * self.width + 1), dtype=np.int8)
        if not any(one.content for one in documents):  # the service's empty document: no torch for it
            return features
        encoder = self.stored.encoder
        room = encoder.room
        pieces: list[list[int]] = []
        owner: list[tuple[int, int]] = []
        for row, tokens in enumerate(document_tokens(documents, encoder.tokens, self.separator)):
            starts = windows(len(tokens), room, self.passages)
            features[row, -1] = len(starts)
            for place, start in enumerate(starts):
                pieces.append(tokens[start : start + room])
                owner.append((row, place))
        if pieces:
            rows, places = np.array(owner).T
            arrays.split_passages(features, self.passages)[rows, places] = quantised(encoder.encode(pieces))
        return features

    def score(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float64]:
        """(n,) scores within ``bounds``; 0 for a document without text.

        Raises WorkspaceError for features of another width.
        """
        self.check(features, arrays.feature_width(self.passages, self.width))
        counts = features[:, -1].astype(np.int64)
        cosines = self.cosines(query, features)
        return decayed_sum(cosines, counts, best=self.best, normalize=self.normalize)

    def cosines(self, query: NDArray[np.float32], features: NDArray[Any]) -> NDArray[np.float32]:
        """(n, F) cosines of the passages with the query; 0 beyond a document's last."""
        return arrays.passage_cosines(query, features, self.passages)

    def own_record(self) -> dict[str, Any]:
        """How documents are cut and scores are made."""
        return {
            "passages": self.passages,
            "best": self.best,
            "normalize": self.normalize,
            "separator": self.separator,
        }

    @classmethod
    def own_fields(cls, record: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The separator's tokens as a tuple."""
        separator = record.pop("separator", None)
        return {**record, "separator": None if separator is None else tuple(separator)}


def quantised(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """(n, E) vectors as int8, each scaled so that its largest number is SCALE.

    >>> quantised(np.float32([[0.6, -0.8]])).tolist()
    [[95, -127]]
    """
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    rounded: NDArray[np.int8] = np.rint(vectors * (SCALE / largest)).astype(np.int8)
    return rounded
