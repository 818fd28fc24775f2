"""The model in NumPy: tokens -> vectors -> convolution -> pooling -> score (Kuwa et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import Ragged, ranges, single_precision
from rerank.common.values import items_at
from rerank.documents.categories import nearest_known
from rerank.documents.records import Document, Query
from rerank.documents.text import words

Part = Literal["text", "meta"]
CHUNK = 16_384
"""Windows that are convolved at once; they fit into the caches (about 10 MB)."""


@dataclass
class Vocabulary:
    """The words or categories of one part, and the row of each in the embedding.

    Rows count from 1, because row 0 is the zero vector that pads short texts. ``longest`` is the number of
    words or categories that are read per text.
    """

    part: Part
    names: list[str]
    longest: int
    index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.index = dict(zip(self.names, range(1, len(self.names) + 1)))

    def tokens(self, record: Document | Query) -> list[int]:
        """Return the rows of the known words among the first ``longest``, or of ``longest`` known categories.

        An unknown category counts as its nearest known prefix.
        """
        index = self.index
        if self.part == "text":
            content = record.content if isinstance(record, Document) else record.text
            rows = map(index.get, words(content)[: self.longest])
            return list(filter(None, rows))
        names = {nearest_known(category, index) for category in record.categories}
        return sorted(items_at(index, filter(None, names)))[: self.longest]


@dataclass
class Tower:
    """Turns the tokens of one part, of queries or of documents, into a pooled vector per text.

    vectors:    (V + 1, k) embeddings; row 0 is zero.
    importance: (V + 1,) weight of each token in the pooling; None gives all tokens the same weight.
    filters:    (h, k, m) weights of the convolution of width h.
    bias:       (m,) bias of the convolution.
    mean:       whether the mean of the token vectors is appended, which is not in the paper.
    """

    vocabulary: Vocabulary
    vectors: NDArray[np.floating]
    importance: NDArray[np.float32] | None
    filters: NDArray[np.float32]
    bias: NDArray[np.float32]
    mean: bool

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to store, by name. The embeddings are in fp16."""
        arrays: dict[str, NDArray[Any]] = {"vectors": self.vectors.astype(np.float16, copy=False)}
        arrays |= {"filters": self.filters, "bias": self.bias}
        if self.importance is not None:
            arrays["importance"] = self.importance
        return arrays

    @property
    def width(self) -> int:
        """The length of a pooled vector: m, or m + k with ``mean``."""
        return len(self.bias) + (self.vectors.shape[1] if self.mean else 0)

    def encode(self, records: Sequence[Document] | Sequence[Query]) -> NDArray[np.float32]:
        """Return the pooled vectors of n documents or queries, (n, width)."""
        return self.pool(Ragged.from_lists([self.vocabulary.tokens(record) for record in records]))

    def pool(self, tokens: Ragged) -> NDArray[np.float32]:
        """Return the pooled vectors of n token sequences, (n, width); a sequence without tokens gives zeros.

        The sequences are convolved and averaged (Kuwa et al. 2020, section 3.1):

        p_i = tanh([x_i; ...; x_{i+h-1}] W + b), c = sum_i w_i p_i / sum_i w_i; w_i is 1, or the sum of
        the window's importances. Short sequences are padded to h.
        """
        pooled = np.zeros((len(tokens), self.width), dtype=np.float32)
        tokens = tokens.padded(len(self.filters))
        filled = np.flatnonzero(tokens.lengths)
        first = 0
        while first < len(filled):
            limit = tokens.offsets[filled[first]] + CHUNK
            last = max(first + 1, int(np.searchsorted(tokens.offsets[filled + 1], limit, side="right")))
            rows = filled[first:last]
            pooled[rows] = self._pool_filled(tokens.take(rows))
            first = last
        return pooled

    def _pool_filled(self, tokens: Ragged) -> NDArray[np.float32]:
        h = len(self.filters)
        windows = tokens.lengths - h + 1  # (n,) per sequence, at least 1
        starts = ranges(tokens.offsets[:-1], windows)
        vectors = single_precision(self.vectors[tokens.flat])  # (T, k)
        hidden = vectors[starts] @ self.filters[0]  # (windows, m)
        for j in range(1, h):
            hidden += vectors[starts + j] @ self.filters[j]
        hidden += self.bias
        np.tanh(hidden, out=hidden)
        if self.importance is None:
            token_weights = (tokens.flat > 0).astype(np.float32)  # padding is no token
        else:
            token_weights = self.importance[tokens.flat]
        window_weights = token_weights[starts].copy()
        for j in range(1, h):
            window_weights += token_weights[starts + j]
        pooled = _weighted_mean(hidden, window_weights, np.cumsum(windows) - windows)
        if not self.mean:
            return pooled
        return np.concatenate((pooled, _weighted_mean(vectors, token_weights, tokens.offsets[:-1])), axis=1)


def _weighted_mean(
    rows: NDArray[np.float32], weights: NDArray[np.float32], begins: NDArray[np.int64]
) -> NDArray[np.float32]:
    total = np.add.reduceat(weights, begins)
    summed = np.add.reduceat(rows * weights[:, None], begins, axis=0)
    mean: NDArray[np.float32] = summed / np.maximum(total, np.float32(1e-9))[:, None]
    return mean


@dataclass(frozen=True)
class Head:
    """Scores the pooled vectors c of a query and of documents.

    Cosine: S = cos(P_q c_q + a_q, P_d c_d + a_d).
    MLP:    S = tanh(O relu(... relu(U_q c_q + U_d c_d + b))) (section 3.1).

    arrays: ``query``, ``document`` (width, z) and ``query_bias`` (z,). Cosine: ``document_bias`` (z,). MLP:
        ``hidden.I`` (z, z), ``hidden.I_bias`` (z,), ``output`` (z, 1), ``output_bias`` (1,).
    """

    arrays: dict[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        if missing := {"query", "query_bias", "document"} - self.arrays.keys():
            raise ValueError(f"the head has no {min(missing)}")

    @property
    def cosine(self) -> bool:
        """Whether the score is a cosine."""
        return "output" not in self.arrays

    def encode(self, side: str, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """Apply the first layer of the side ``query`` or ``document`` to (n, width) pooled vectors.

        Returns (n, z) vectors, which have length 1 if the score is a cosine.
        """
        encoded = self._linear(side, pooled)
        if not self.cosine:
            return encoded
        norms = np.sqrt(np.einsum("ij,ij->i", encoded, encoded))
        unit: NDArray[np.float32] = encoded / np.maximum(norms, 1e-9)[:, None]
        return unit

    def score(self, query: NDArray[np.float32], documents: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the (n,) scores in [-1, 1] of encoded documents, (n, z), for an encoded query, (z,)."""
        if self.cosine:
            cosines: NDArray[np.float32] = single_precision(documents) @ query
            return cosines.astype(np.float64)
        layer = single_precision(documents) + query
        np.maximum(layer, 0.0, out=layer)
        for i in range(sum(name.startswith("hidden") for name in self.arrays) // 2):
            layer = self._linear(f"hidden.{i}", layer)
            np.maximum(layer, 0.0, out=layer)
        return np.tanh(self._linear("output", layer)[:, 0].astype(np.float64))

    def _linear(self, name: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        mapped: NDArray[np.float32] = rows @ self.arrays[name]
        if (bias := self.arrays.get(f"{name}_bias")) is not None:
            mapped += bias
        return mapped


@dataclass(frozen=True)
class Network:
    """A trained network: encodes queries and documents, and scores them.

    query:    the towers of queries, one per part of the ranker.
    document: the towers of documents, in the same order.
    """

    query: list[Tower]
    document: list[Tower]
    head: Head

    def encode_documents(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return the vectors of n documents, (n, z)."""
        return self.head.encode("document", _pooled(self.document, documents))

    def encode_query(self, query: Query) -> NDArray[np.float32]:
        """Return the vector of a query, (z,)."""
        vector: NDArray[np.float32] = self.head.encode("query", _pooled(self.query, [query]))[0]
        return vector


def _pooled(towers: Sequence[Tower], records: Sequence[Document] | Sequence[Query]) -> NDArray[np.float32]:
    pooled = [tower.encode(records) for tower in towers]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)
