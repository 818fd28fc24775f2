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
_EXPONENT = 0x7C00  # bits of a float16; all of them are set in infinities and NaN
_SIGN_AND_VALUE = np.int32(-0x70002000)  # bits of a shifted float16


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
        """Return the sequences with these (m,) numbers, in this order. A number may occur several times.

        >>> Ragged.from_lists([[7, 8], [9]]).take(np.array([1, 0, 1])).flat.tolist()
        [9, 7, 8, 9]
        """
        lengths = self.lengths[rows]
        return Ragged(self.flat[ranges(self.offsets[rows], lengths)], _offsets(lengths))

    def padded(self, minimum: int) -> Ragged:
        """Return the sequences, each non-empty one with as many zeros at its end as ``minimum`` needs.

        >>> Ragged.from_lists([[7], []]).padded(3).flat.tolist()
        [7, 0, 0]
        """
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
    """Return the numbers of n ranges, one range after the other: (sum of lengths,).

    begins: (n,) first numbers. lengths: (n,) number of numbers in each range.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(lengths.sum())


def scatter(values: NDArray[Any], rows: NDArray[Any], count: int, fill: float) -> NDArray[Any]:
    """Return ``count`` rows: the values in the rows that they belong to, and ``fill`` in all others.

    values: (m, ...) numbers.
    rows:   (m,) positions, or (count,) bool with m times True.

    >>> scatter(np.array([2.0, 3.0]), np.array([True, False, True]), 3, 0).tolist()
    [2.0, 0.0, 3.0]
    """
    scattered = np.full((count, *values.shape[1:]), fill, values.dtype)
    scattered[rows] = values
    return scattered


def unit_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Scale (n, E) rows to length 1; rows of zeros stay 0.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).round(3).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    unit: NDArray[Any] = rows / np.maximum(length, 1e-12)[:, None]
    return unit


def single_precision(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32, without a copy if they are float32. float16 takes a fifth of ``astype``.

    NumPy converts each float16 by a call of a function. Its shifted bits are those of a float32 with an
    exponent that is too small by 112.

    >>> single_precision(np.array([[0.5, -2.0]], np.float16)).tolist()
    [[0.5, -2.0]]
    """
    if values.dtype != np.float16:
        return values.astype(np.float32, copy=False)
    bits = values.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _SIGN_AND_VALUE
    singles = bits.view(np.float32)
    singles *= np.float32(2.0**112)
    largest = max(singles.max(initial=0), -singles.min(initial=0))
    if largest > np.finfo(np.float16).max:  # infinity or NaN
        return values.astype(np.float32)
    return singles


def are_finite(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have no infinity and no NaN, (n,) bool.

    rows: (n, width) numbers.

    >>> are_finite(np.array([[0.5, 1], [np.nan, 1]], np.float16)).tolist()
    [True, False]
    """
    if rows.dtype == np.float16:  # in a sixth of the time of np.isfinite
        exponents = rows.view(np.uint16) & _EXPONENT
        largest: NDArray[np.uint16] = exponents.max(axis=1, initial=0)
        return largest < _EXPONENT
    if rows.dtype.kind != "f":
        return np.ones(len(rows), np.bool_)
    finite: NDArray[np.bool_] = np.isfinite(rows).all(axis=1)
    return finite


def unit_passages(features: NDArray[Any], passages: int) -> NDArray[np.float32]:
    """Return the vectors of n documents, (n, F, E), of length 1; zeros after the last vector of a document.

    features: (n, F * E + 1) with up to F vectors each. passages: F.
    """
    vectors = single_precision(split_passages(features, passages))
    units: NDArray[np.float32] = unit_rows(vectors.reshape(-1, vectors.shape[2])).reshape(vectors.shape)
    return units


def mean_of_passages(features: NDArray[Any], passages: int) -> NDArray[np.float32]:
    """Return the mean of the vectors of each of n documents, (n, E), of length 1; zeros without a vector.

    features: (n, F * E + 1) with up to F vectors each. passages: F.

    >>> mean_of_passages(np.array([[1, 0, 0, 1, 2], [0, 0, 0, 0, 0]], np.int8), 2).round(3).tolist()
    [[0.7070000171661377, 0.7070000171661377], [0.0, 0.0]]
    """
    return unit_rows(unit_passages(features, passages).mean(axis=1))


def feature_width(passages: int, numbers: int) -> int:
    """Return the number of columns of features.

    passages: most vectors of a document, or 0 if each document has exactly one.
    numbers:  the numbers of a vector.

    >>> feature_width(2, 128), feature_width(0, 128)
    (257, 128)
    """
    if not passages:
        return numbers
    return passages * numbers + 1


def split_passages(features: NDArray[Any], passages: int) -> NDArray[Any]:
    """Return the vectors of features with several vectors: an (n, F, E) view of (n, F * E + 1) numbers.

    >>> split_passages(np.array([[1, 2, 3, 4, 2]]), 2).tolist()
    [[[1, 2], [3, 4]]]
    """
    return features[:, :-1].reshape(len(features), passages, (features.shape[1] - 1) // passages)


def passage_counts(features: NDArray[Any], passages: int) -> NDArray[np.int64]:
    """Return the (n,) numbers of vectors in (n, F * E + 1) features. A corrupt number gives 0.

    >>> passage_counts(np.array([[1, 2, 3, 4, 2], [1, 2, 3, 4, 100], [1, 2, 3, 4, -5]], np.int8), 2).tolist()
    [2, 0, 0]
    """
    counts = features[:, -1].astype(np.int64)
    return np.where((counts >= 0) & (counts <= passages), counts, 0)


def passage_cosines(query: NDArray[Any], features: NDArray[Any], passages: int) -> NDArray[Any]:
    """Return the cosine of each vector of n documents with the query: (n, m), 0 without a vector.

    m is the largest number of vectors of a document, and at least 1.

    query:    (E,) vector of length 1, in the dtype of the result.
    features: (n, F * E + 1) with up to F vectors each.
    passages: F.

    >>> features = np.array([[3, 4, 5, 0, 2], [0, 2, 0, 0, 1]], np.int8)
    >>> passage_cosines(np.array([1.0, 0.0]), features, 2).tolist()
    [[0.6, 1.0], [0.0, 0.0]]
    """
    counts = passage_counts(features, passages)
    width = max(int(counts.max(initial=0)), 1)
    cosines = np.zeros((len(features), width), dtype=query.dtype)
    rows, columns = np.nonzero(np.arange(width) < counts[:, None])
    unpacked = split_passages(features, passages)
    for begin in range(0, len(rows), _VECTORS):
        block = rows[begin : begin + _VECTORS], columns[begin : begin + _VECTORS]
        vectors = unpacked[block].astype(query.dtype)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        cosines[block] = (vectors @ query) / np.maximum(lengths, 1e-9)
    return cosines


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
        ends = [entry["data_offsets"][1] for entry in header.values()]
        if max(ends, default=0) != len(data[begin:]):
            raise ValueError("its size is wrong")
        return {name: _array(data[begin:], **entry) for name, entry in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error


NUMBERS = {
    "BOOL": "b1",
    "I8": "i1",
    "I16": "i2",
    "I32": "i4",
    "I64": "i8",
    "U8": "u1",
    "U16": "u2",
    "U32": "u4",
    "U64": "u8",
    "BF16": "u2",
    "F16": "f2",
    "F32": "f4",
    "F64": "f8",
}
"""Kind of the numbers in a safetensors file -> the type in NumPy."""


def _array(data: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    """Return the array of an entry in the header, whose fields the parameters are."""
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
