"""Sums of bytes that tell damage: one 64-bit number for each block of 4,096 bytes, at the speed of memory.

No protection against whoever means harm; a flipped bit, a zeroed page or a page of another file changes them.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 4096
"""Bytes of a block: a page, which is read from the disk as a whole anyway."""
_WORDS = BLOCK // 8
_AT_ONCE = 4096  # blocks
# Odd factors: a change of one word always changes the sum, and so does an exchange of two.
_FACTORS = np.random.default_rng(0).integers(0, 2**63, _WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_PLACE = np.uint64(0x9E3779B97F4A7C15)  # a block in the place of another has another sum


def block_sums(data: NDArray[np.uint8], first: int = 0) -> NDArray[np.uint64]:
    """Sum up each block of ``data``, the last one filled up with zeros: (ceil(n / BLOCK),).

    first: the number of the first block.

    >>> data = np.arange(10_000, dtype=np.uint8)
    >>> sums = block_sums(data)
    >>> data[5000] ^= 1
    >>> (sums == block_sums(data)).tolist(), (sums[1:] == block_sums(data[BLOCK:], 1)).tolist()
    ([True, False, True], [False, True])
    """
    whole = len(data) // BLOCK
    blocks = data[: whole * BLOCK].view(np.uint64).reshape(whole, _WORDS)
    parts = [sums_of(blocks[at : at + _AT_ONCE], first + at) for at in range(0, whole, _AT_ONCE)]
    if len(data) > whole * BLOCK:
        tail = np.zeros(BLOCK, np.uint8)
        tail[: len(data) - whole * BLOCK] = data[whole * BLOCK :]
        parts.append(sums_of(tail.view(np.uint64)[None], first + whole))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def sums_of(blocks: NDArray[np.uint64], numbers: int | NDArray[np.int64]) -> NDArray[np.uint64]:
    """(n,) sums of (n, BLOCK / 8) blocks; numbers: of the blocks, or of the first where they are a row."""
    if isinstance(numbers, int):
        numbers = np.arange(numbers, numbers + len(blocks))
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", blocks, _FACTORS)
    sums += numbers.astype(np.uint64) * _PLACE
    return sums


def row_sums(values: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(n,) sums of the rows of an (n, width) array, odd and so never 0; numbers: (n,), of the rows.

    >>> values = np.ones((3, 5), np.float16)
    >>> sums = row_sums(values, np.arange(3))
    >>> values[1, 4] = 2
    >>> (sums == row_sums(values, np.arange(3))).tolist(), len(set(sums.tolist()))
    ([True, False, True], 3)
    """
    width = values.shape[1] * values.itemsize
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
    words = -(-width // 8)
    if width < 8 * words:
        rows = np.pad(rows, ((0, 0), (0, 8 * words - width)))
    factors = _FACTORS[:words] if words <= _WORDS else np.resize(_FACTORS, words)
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", rows.view(np.uint64), factors)
    sums += numbers.astype(np.uint64) * _PLACE
    sums |= np.uint64(1)
    return sums


def digest(data: NDArray[np.uint8]) -> str:
    """One text for all of ``data`` and its length.

    >>> digest(np.zeros(3, np.uint8)) == digest(np.zeros(4, np.uint8))
    False
    """
    return blake2b(block_sums(data).tobytes() + len(data).to_bytes(8, "little"), digest_size=12).hexdigest()


def file_digest(path: Path, length: int | None = None) -> str:
    """The :func:`digest` of a file, or of its first bytes. Raises OSError, ValueError where it is shorter."""
    size = path.stat().st_size if length is None else length
    if not size:
        with open(path, "rb"):
            return digest(np.empty(0, np.uint8))
    return digest(np.memmap(path, np.uint8, "r", shape=(size,)).view(np.ndarray))
