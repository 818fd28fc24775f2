"""fp16 numbers to float32, several times as fast as NumPy does it: half of what scoring candidates costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 17  # numbers that are converted together: they stay in the cache
_FEW = 1 << 13  # numbers, up to which a dozen calls of NumPy take longer than one


def single(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert to float32; what is float32 already is returned as it is.

    >>> single(np.array([1.5, -0.25, 0, np.inf], np.float16)).tolist()
    [1.5, -0.25, 0.0, inf]
    """
    if values.dtype != np.float16 or values.size <= _FEW:
        return values.astype(np.float32, copy=False)
    halves = np.ascontiguousarray(values).view(np.int16).reshape(-1)
    converted = np.empty(halves.shape, np.float32)
    for begin in range(0, len(halves), _BLOCK):
        part = halves[begin : begin + _BLOCK]
        if (part & 0x7C00).max(initial=0) == 0x7C00:  # infinite, or no number
            return values.astype(np.float32)
        bits = converted[begin : begin + _BLOCK].view(np.int32)
        bits[:] = part  # the sign is in all of the upper bits now
        bits <<= 13
        bits &= -0x70002000  # 0x8FFFE000: sign, exponent, fraction
    converted *= np.float32(2.0**112)  # from the exponent's bias of 15 to that of 127
    return converted.reshape(values.shape)
