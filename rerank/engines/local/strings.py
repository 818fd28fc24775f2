"""Append-only string tables."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank.engines.local.files import append_to, close_synced


class StringWriter:
    """Appends after ``length`` strings."""

    def __init__(self, path: Path, length: int) -> None:
        ends = np.memmap(path.with_suffix(".ends"), np.int64, "r", shape=(length,)) if length else [0]
        self._end = int(ends[-1])
        self._utf8 = append_to(path.with_suffix(".utf8"), self._end)
        self._ends = append_to(path.with_suffix(".ends"), 8 * length)

    def extend(self, strings: Iterable[str]) -> None:
        """Append strings."""
        encoded = [string.encode() for string in strings]
        ends = np.cumsum([len(string) for string in encoded], dtype=np.int64) + self._end
        if encoded:
            self._utf8.write(b"".join(encoded))
            self._ends.write(ends.tobytes())
            self._end = int(ends[-1])

    def close(self) -> None:
        """Flush everything to disk."""
        close_synced(self._utf8, self._ends)


class Strings:
    """Reads the first ``length`` strings of a table."""

    _OFTEN = 16
    _HUGE = 1_000_000

    def __init__(self, path: Path, length: int) -> None:
        self._asked = 0
        self._all: list[str] | None = [] if length == 0 else None
        self._length = length
        if length:
            ends = np.memmap(path.with_suffix(".ends"), np.int64, "r", shape=(length,))
            self._ends: NDArray[np.int64] = ends.view(np.ndarray)
            with open(path.with_suffix(".utf8"), "rb") as file:
                size = int(ends[-1])
                self._utf8: mmap.mmap | bytes = (
                    mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
                )

    def __len__(self) -> int:
        return self._length

    def get(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return the strings with these numbers."""
        if self._all is None:
            self._asked += 1
            if self._asked <= self._OFTEN or self._length > self._HUGE:
                ends = self._ends[numbers]
                starts = np.where(numbers > 0, self._ends[np.maximum(numbers - 1, 0)], 0)
                utf8 = self._utf8
                return [utf8[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist())]
            self._all = self.all()
        return [self._all[number] for number in numbers.tolist()]

    def all(self) -> list[str]:
        """Return all strings."""
        if self._all is not None:
            return self._all
        ends: list[int] = self._ends.tolist()
        utf8 = bytes(self._utf8[:])
        return [utf8[start:end].decode() for start, end in zip([0, *ends], ends)]

    def find(self, string: str, order: NDArray[np.int32]) -> int:
        """Return a string's number, or -1. order: numbers by UTF-8."""
        wanted = string.encode()
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            number = int(order[middle])
            start = int(self._ends[number - 1]) if number else 0
            string_there = self._utf8[start : int(self._ends[number])]
            if string_there == wanted:
                return number
            if string_there < wanted:
                low = middle + 1
            else:
                high = middle
        return -1
