"""Packed sequences, and the arrays of stored features.

A feature with several vectors has F blocks of E numbers, then the number of filled blocks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_VECTORS = 1024  # passage vectors multiplied together, in cache


@dataclass(frozen=True)
class Ragged:
    """n sequences of integers in one array, 4 bytes per integer.

    flat:    (total length,) all sequences, one after the other.
    offsets: (n + 1,) sequence i is ``flat[offsets[i]:offsets[i + 1]]``.
    """

    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int] | NDArray[np.int32]]) -> Ragged:
        """Pack sequences in their order.

        >>> packed = Ragged.from_lists([[7, 8], [], [9]])
        >>> packed.flat.tolist(), packed.offsets.tolist()
        ([7, 8, 9], [0, 2, 2, 3])
        """
        offsets = _offsets([len(sequence) for sequence in sequences])
        return cls(np.fromiter(chain.from_iterable(sequences), np.int32, int(offsets[-1])), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The (n,) lengths of the sequences."""
        return np.diff(self.offsets)

    def take(self, rows: NDArray[np.integer]) -> Ragged:
        """Return the sequences with these numbers, in this order; a number may occur several times."""
        lengths = self.lengths[rows]
        return Ragged(self.flat[ranges(self.offsets[rows], lengths)], _offsets(lengths))

    def padded(self, minimum: int) -> Ragged:
        """Append zeros to each non-empty sequence that is shorter than ``minimum``."""
        lengths = self.lengths
        short = (lengths > 0) & (lengths < minimum)
        if not short.any():
            return self
        offsets = _offsets(np.where(short, minimum, lengths))
        flat = np.zeros(offsets[-1], dtype=np.int32)
        flat[ranges(offsets[:-1], lengths)] = self.flat
        return Ragged(flat, offsets)


def _offsets(lengths: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate the ranges that start at ``begins`` and have these lengths: (sum of lengths,).

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(lengths.sum())


def feature_width(passages: int, numbers: int) -> int:
    """Return the width of features with vectors of ``numbers`` numbers; ``passages`` 0: one vector."""
    return passages * numbers + 1 if passages else numbers


def split_passages(features: NDArray[Any], passages: int) -> NDArray[Any]:
    """Return an (n, F, E) view of (n, F * E + 1) features.

    >>> split_passages(np.array([[1, 2, 3, 4, 2]]), 2).tolist()
    [[[1, 2], [3, 4]]]
    """
    return features[:, :-1].reshape(len(features), passages, (features.shape[1] - 1) // passages)


def passage_counts(features: NDArray[Any], passages: int) -> NDArray[np.int64]:
    """Return the (n,) numbers of vectors in (n, F * E + 1) features; 0 for a corrupt number.

    >>> passage_counts(np.array([[1, 2, 3, 4, 2], [1, 2, 3, 4, 100], [1, 2, 3, 4, -5]], np.int8), 2).tolist()
    [2, 0, 0]
    """
    counts = features[:, -1].astype(np.int64)
    return np.where((counts >= 0) & (counts <= passages), counts, 0)


def passage_cosines(query: NDArray[Any], features: NDArray[Any], passages: int) -> NDArray[Any]:
    """(n, most) cosines of documents' vectors with the query; 0: no vector.

    query: (E,) of length 1, in the dtype of the result. most: maximum number of vectors.

    >>> features = np.array([[3, 4, 5, 0, 2], [0, 2, 0, 0, 1]], np.int8)
    >>> passage_cosines(np.array([1.0, 0.0]), features, 2).tolist()
    [[0.6, 1.0], [0.0, 0.0]]
    """
    counts = passage_counts(features, passages)
    most = int(counts.max(initial=0))
    result = np.zeros((len(features), max(most, 1)), dtype=query.dtype)
    rows, places = np.nonzero(np.arange(most) < counts[:, None])
    unpacked = split_passages(features, passages)
    for begin in range(0, len(rows), _VECTORS):
        part = slice(begin, begin + _VECTORS)
        vectors = unpacked[rows[part], places[part]].astype(query.dtype)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        result[rows[part], places[part]] = (vectors @ query) / np.maximum(lengths, 1e-9)
    return result


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Map a safetensors file read-only: name -> array. Processes share its memory.

    Numbers of 16 bits in the format bfloat16, which NumPy lacks, are copied to 32 bits.

    Raises OSError for a missing file, ValueError for a damaged one and for numbers of another kind.
    """
    # As plain arrays: np.memmap makes every access slower.
    data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    try:
        header = json.loads(data[8:begin].tobytes())
        header.pop("__metadata__", None)
        if max((about["data_offsets"][1] for about in header.values()), default=0) != len(data[begin:]):
            raise ValueError("its size is wrong")
        return {name: _array(data[begin:], **about) for name, about in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error


NUMBERS = {"BOOL": "b1", "BF16": "u2"} | {
    f"{kind}{bits}": f"{kind.lower()}{bits // 8}" for kind in "IU" for bits in (8, 16, 32, 64)
}
NUMBERS |= {f"F{bits}": f"f{bits // 8}" for bits in (16, 32, 64)}
"""Kind of the numbers in a safetensors file -> the type in NumPy."""


def _array(data: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    first, end = data_offsets
    if dtype not in NUMBERS:
        raise ValueError(f"numbers of the kind {dtype} cannot be read; convert them to F32")
    if not 0 <= first <= end <= len(data):
        raise ValueError(f"bytes {first} to {end} of {len(data)}")
    array = data[first:end].view(f"<{NUMBERS[dtype]}").reshape(shape)
    if dtype == "BF16":  # the upper half of a number of 32 bits
        return (array.astype(np.uint32) << 16).view(np.float32)
    if not array.flags.aligned:  # written by another program: safetensors sorts by alignment
        array = array.copy()
        array.flags.writeable = False
    return array
