"""Arrays of stored features.

A feature with several vectors has F blocks of E numbers, then the number of filled blocks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_VECTORS = 1024  # passage vectors multiplied together, in cache


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
