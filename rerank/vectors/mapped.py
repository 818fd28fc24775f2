"""Reading the arrays of a safetensors file without copying them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> array of a safetensors file, read-only and memory-mapped.

    Nothing is read before it is used, and all processes that map a file share its pages. That is lost
    wherever a whole array is converted (``astype``): convert the rows that are used.

    Raises OSError when there is no such file, ValueError when it is damaged.
    """
    # As plain arrays: np.memmap makes every access slower.
    data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    try:
        header = json.loads(data[8:begin].tobytes())
        header.pop("__metadata__", None)
        if max((about["data_offsets"][1] for about in header.values()), default=0) != len(data[begin:]):
            raise ValueError("it is cut short, or has too much")
        return {name: _array(data[begin:], **about) for name, about in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error


def _array(data: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]) -> NDArray[Any]:
    first, end = data_offsets
    if not 0 <= first <= end <= len(data):
        raise ValueError(f"bytes {first} to {end} of {len(data)}")
    array = data[first:end].view(_DTYPES[dtype]).reshape(shape)
    if not array.flags.aligned:  # by another program: safetensors' own puts the widest numbers first
        array = array.copy()
        array.flags.writeable = False
    return array
