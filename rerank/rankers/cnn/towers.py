"""The model in NumPy: tokens -> vectors -> convolution -> pooling -> score (Kuwa et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.categories import nearest_known
from rerank.records import Document, Query
from rerank.text import words

Part = Literal["text", "meta"]
CHUNK = 16_384
"""Windows that are convolved at once; they fit into the caches (about 10 MB)."""


@dataclass(frozen=True)
class Ragged:
    """n sequences in one array: sequence i is ``flat[offsets[i]:offsets[i + 1]]``."""

    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int] | NDArray[np.int32]]) -> Ragged:
        """Pack sequences."""
        offsets = _offsets([len(one) for one in sequences])
        return cls(np.fromiter(chain.from_iterable(sequences), np.int32, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Length of each sequence: (n,)."""
        return np.diff(self.offsets)

    def take(self, which: NDArray[np.integer]) -> Ragged:
        """Select sequences by number, in order."""
        lengths = self.lengths[which]
        return Ragged(self.flat[ranges(self.offsets[which], lengths)], _offsets(lengths))

    def padded(self, least: int) -> Ragged:
        """Pad non-empty sequences with zeros to ``least``."""
        lengths = self.lengths
        short = (lengths > 0) & (lengths < least)
        if not short.any():
            return self
        offsets = _offsets(np.where(short, least, lengths))
        flat = np.zeros(offsets[-1], dtype=np.int32)
        flat[ranges(offsets[:-1], lengths)] = self.flat
        return Ragged(flat, offsets)


def _offsets(lengths: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges of these lengths from these beginnings: (sum of lengths,).

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(lengths.sum())


@dataclass
class Vocabulary:
    """Words or categories and their rows, from 1; row 0 is zero padding."""

    part: Part
    names: list[str]
    longest: int
    index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.index = dict(zip(self.names, range(1, len(self.names) + 1)))

    def tokens(self, record: Document | Query) -> list[int]:
        """Rows of known words among the first ``longest``, or of ``longest`` known categories.

        An unknown category counts as its nearest known prefix.
        """
        index = self.index
        if self.part == "text":
            content = record.content if isinstance(record, Document) else record.text
            return [i for w in words(content)[: self.longest] if (i := index.get(w))]
        known = (nearest_known(category, index) for category in record.categories)
        return sorted({index[name] for name in known if name is not None})[: self.longest]


@dataclass
class Tower:
    """One side of one part: token numbers -> pooled vectors.

    vectors:    (V + 1, k) embeddings, row 0 zero.
    importance: (V + 1,) pooling weights; None: equal.
    filters:    (h, k, m), bias: (m,): convolution of width h.
    mean:       append mean token vectors; not in the paper.
    """

    vocabulary: Vocabulary
    vectors: NDArray[np.floating]
    importance: NDArray[np.float32] | None
    filters: NDArray[np.float32]
    bias: NDArray[np.float32]
    mean: bool

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays by name, embeddings as fp16."""
        arrays = {"filters": self.filters, "bias": self.bias, "importance": self.importance}
        others = {name: array for name, array in arrays.items() if array is not None}
        return {"vectors": self.vectors.astype(np.float16, copy=False), **others}

    @property
    def width(self) -> int:
        """Pooled width: m, or m + k with ``mean``."""
        return len(self.bias) + (self.vectors.shape[1] if self.mean else 0)

    def encode(self, records: Sequence[Document] | Sequence[Query]) -> NDArray[np.float32]:
        """Pool n documents or queries: (n, width)."""
        return self.pool(Ragged.of([self.vocabulary.tokens(record) for record in records]))

    def pool(self, tokens: Ragged) -> NDArray[np.float32]:
        """Convolve and average (Kuwa et al. 2020, section 3.1): (n, width); no tokens give zeros.

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
            which = filled[first:last]
            pooled[which] = self._pool_filled(tokens.take(which))
            first = last
        return pooled

    def _pool_filled(self, tokens: Ragged) -> NDArray[np.float32]:
        h = len(self.filters)
        windows = tokens.lengths - h + 1  # (n,) per sequence, at least 1
        starts = ranges(tokens.offsets[:-1], windows)
        vectors = self.vectors[tokens.flat].astype(np.float32, copy=False)  # (T, k)
        hidden = vectors[starts] @ self.filters[0]  # (windows, m)
        for j in range(1, h):
            hidden += vectors[starts + j] @ self.filters[j]
        hidden += self.bias
        np.tanh(hidden, out=hidden)
        if self.importance is None:
            of_token = (tokens.flat > 0).astype(np.float32)  # padding is no token
        else:
            of_token = self.importance[tokens.flat]
        of_window = of_token[starts].copy()
        for j in range(1, h):
            of_window += of_token[starts + j]
        pooled = _weighted_mean(hidden, of_window, np.cumsum(windows) - windows)
        if not self.mean:
            return pooled
        return np.concatenate((pooled, _weighted_mean(vectors, of_token, tokens.offsets[:-1])), axis=1)


def _weighted_mean(
    rows: NDArray[np.float32], weights: NDArray[np.float32], begins: NDArray[np.int64]
) -> NDArray[np.float32]:
    total = np.add.reduceat(weights, begins)
    summed = np.add.reduceat(rows * weights[:, None], begins, axis=0)
    mean: NDArray[np.float32] = summed / np.maximum(total, np.float32(1e-9))[:, None]
    return mean


@dataclass(frozen=True)
class Head:
    """Pooled vectors c of both sides -> score.

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
        """First layer of ``query`` or ``document``: (n, width) -> (n, z); for a cosine, of length 1."""
        encoded = self._linear(side, pooled)
        if not self.cosine:
            return encoded
        norms = np.sqrt(np.einsum("ij,ij->i", encoded, encoded))
        unit: NDArray[np.float32] = encoded / np.maximum(norms, 1e-9)[:, None]
        return unit

    def score(self, query: NDArray[np.float32], documents: NDArray[np.floating]) -> NDArray[np.float64]:
        """(z,), (n, z) -> (n,) scores in [-1, 1]."""
        if self.cosine:
            cosines: NDArray[np.float32] = documents.astype(np.float32, copy=False) @ query
            return cosines.astype(np.float64)
        layer = documents.astype(np.float32)
        layer += query
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
