"""Cosine of tf-idf vectors.

SMART's ltc with the idf of scikit-learn: (1 + ln tf) * idf, idf = ln((1 + N) / (1 + df)) + 1, length 1.

The folder of a version has one array per file. Terms are sorted:

    terms, ends             UTF-8 of all terms, and the end of each term
    starts, rows, weights   the postings of term t are starts[t] to starts[t + 1], by row; weight: 1 + ln tf
    lengths                 length of each row's vector
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap, read_array_header_1_0, read_magic
from numpy.typing import NDArray

from rerank.common.files import sync_folder

_NAMES = ("terms", "ends", "starts", "rows", "weights", "lengths")
_POSTING = np.dtype([("term", np.int32), ("row", np.int32), ("weight", np.float32)])
_TOGETHER = 1_000_000  # postings inverted together, about 100 bytes each
_REMEMBERED = 10_000  # terms of queries, which users repeat


class TfIdf:
    """One version, with ``documents`` living documents."""

    def __init__(self, folder: Path, version: int, documents: int) -> None:
        arrays = [_load(folder / str(version) / f"{name}.npy") for name in _NAMES]
        terms, ends, self.starts, self.rows, self.weights, self._lengths = arrays
        self._terms = terms.data  # reads one number in less time than an array
        self._ends = ends.data
        self._documents = documents
        self._numbers: dict[str, int] = {}  # of terms of earlier queries

    def terms(self) -> list[str]:
        """Return all terms."""
        text = self._terms.tobytes()
        ends = self._ends.tolist()
        return [text[start:end].decode() for start, end in zip([0, *ends], ends)]

    def _term(self, number: int) -> bytes:
        start = self._ends[number - 1] if number else 0
        return self._terms[start : self._ends[number]].tobytes()

    def _find(self, term: str) -> int | None:
        number = self._numbers.get(term)
        if number is not None:
            return number
        encoded = term.encode()
        number = bisect_left(range(len(self._ends)), encoded, key=self._term)
        if number == len(self._ends) or self._term(number) != encoded:
            return None
        if len(self._numbers) < _REMEMBERED:
            self._numbers[term] = number
        return number

    def frequency(self, term: str) -> int:
        """Return the number of documents with a term; 0 for an unknown term."""
        number = self._find(term)
        return 0 if number is None else int(self.starts[number + 1] - self.starts[number])

    @cached_property
    def mean_length(self) -> float:
        """Mean number of terms per document."""
        parts = range(0, len(self.weights), _TOGETHER)
        # A weight is 1 + ln tf.
        total = sum(float(np.exp(self.weights[start : start + _TOGETHER] - 1.0).sum()) for start in parts)
        return total / max(self._documents, 1)

    def scores(self, terms: Iterable[str]) -> NDArray[np.float64]:
        """Return the (rows,) scores of all rows for the terms of a query; 0: no shared term."""
        query = self._query(terms)
        if not query:
            return np.zeros(len(self._lengths), np.float64)
        rows = np.concatenate([self.rows[span] for span, _ in query], dtype=np.int64)
        parts = [np.multiply(self.weights[span], weight, dtype=np.float64) for span, weight in query]
        # Added term by term: equal vectors get equal scores.
        products = np.bincount(rows, np.concatenate(parts), len(self._lengths))
        scores: NDArray[np.float64] = products / self._lengths
        return scores

    def scores_of(self, terms: Iterable[str], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the (n,) scores of n rows: the same numbers as :meth:`scores`, in less time for few rows."""
        query = self._query(terms)
        products = np.zeros(len(rows), np.float64)
        sought = rows.astype(self.rows.dtype)  # otherwise, NumPy converts all rows of a term
        for span, weight in query:
            rows_of_term = self.rows[span]  # ascending
            positions = np.searchsorted(rows_of_term, sought).clip(max=len(rows_of_term) - 1)
            has_term = rows_of_term[positions] == sought
            products[has_term] += np.multiply(
                self.weights[span][positions[has_term]], weight, dtype=np.float64
            )
        scores: NDArray[np.float64] = products / self._lengths[rows]
        return scores

    def _query(self, terms: Iterable[str]) -> list[tuple[slice, np.float64]]:
        """Return, for each known term in order, its postings and the factor of their weights."""
        count_by_number: dict[int, int] = {}
        for term, occurrences in Counter(terms).items():
            number = self._find(term)
            if number is not None and self.starts[number] < self.starts[number + 1]:
                count_by_number[number] = occurrences
        if not count_by_number:
            return []
        numbers = np.array(sorted(count_by_number))
        begins = self.starts[numbers].astype(np.int64)
        ends = self.starts[numbers + 1].astype(np.int64)
        idf = _idf(ends - begins, self._documents)
        counts = [count_by_number[number] for number in numbers.tolist()]
        weights = (1 + np.log(counts)) * idf
        weights *= idf / np.sqrt(weights @ weights)
        return list(zip(map(slice, begins.tolist(), ends.tolist()), weights))


def _idf(frequency: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    return np.log((1 + documents) / (1 + frequency)) + 1


def _load(path: Path) -> NDArray[Any]:
    """Map as plain ndarray: np.memmap is three times slower, and np.load resolves the path."""
    try:
        with open(path, "rb") as file:
            read_magic(file)
            (length,), _, dtype = read_array_header_1_0(file)
            content = mmap(file.fileno(), 0, access=ACCESS_READ)
            return np.frombuffer(content, dtype, length, file.tell())
    except OSError:
        raise
    except Exception as error:  # NumPy parses the header as Python
        raise ValueError(f"{path.name}: {error}") from error


# -- building --------------------------------------------------------------------------------------------


class TfIdfWriter:
    """Adds new rows to the version ``before``, or to nothing."""

    def __init__(self, folder: Path, before: TfIdf | None) -> None:
        self._folder = folder
        self._before = before
        self._vocabulary = defaultdict[str, int](None, zip(before.terms() if before else (), count()))
        self._vocabulary.default_factory = self._vocabulary.__len__  # new terms are numbered
        self._new = TemporaryFile(dir=folder)  # noqa: SIM115 (closed by write)

    def add(self, rows: Sequence[int], texts: Sequence[Sequence[str]]) -> None:
        """Count the terms in new rows."""
        vocabulary = self._vocabulary
        flat = np.fromiter(map(vocabulary.__getitem__, chain.from_iterable(texts)), np.int64)
        owner = np.repeat(np.arange(len(texts)), [len(terms) for terms in texts])
        size = max(len(vocabulary), 1)
        keys, counts = np.unique(owner * size + flat, return_counts=True)
        postings = np.empty(len(keys), _POSTING)
        postings["term"] = keys % size
        postings["row"] = np.array(rows)[keys // size]
        postings["weight"] = 1 + np.log(counts)
        self._new.write(postings.tobytes())

    def write(self, version: int, alive: NDArray[np.bool_]) -> None:
        """Write the inverted index of living rows durably."""
        terms = sorted(self._vocabulary)
        numbers = np.empty(len(terms), np.int64)  # number while adding -> number in the version
        numbers[[self._vocabulary[term] for term in terms]] = np.arange(len(terms))
        out = self._folder / f"{version}.tmp"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        with self._new:
            self._invert(out, numbers, alive)
        encoded = [term.encode() for term in terms]
        np.save(out / "terms.npy", np.frombuffer(b"".join(encoded), np.uint8))
        np.save(out / "ends.npy", np.cumsum([len(term) for term in encoded], dtype=np.int64))
        for path in out.iterdir():
            sync_folder(path)
        shutil.rmtree(self._folder / str(version), ignore_errors=True)
        os.rename(out, self._folder / str(version))
        sync_folder(self._folder)

    def _invert(self, out: Path, numbers: NDArray[np.int64], alive: NDArray[np.bool_]) -> None:
        frequency = np.zeros(len(numbers), np.int64)
        for term, _, _ in self._postings(numbers, alive):
            frequency += np.bincount(term, minlength=len(numbers))
        starts = np.concatenate(([0], np.cumsum(frequency)))
        rows = _allocate(out / "rows.npy", np.int32, int(starts[-1]))
        weights = _allocate(out / "weights.npy", np.float32, int(starts[-1]))
        filled = starts[:-1].copy()
        for term, row, weight in self._postings(numbers, alive):
            order = _by_term(term)
            term = term[order]
            counts = np.bincount(term, minlength=len(numbers))
            # Postings of one term are adjacent.
            position = filled[term] + np.arange(len(term)) - (np.cumsum(counts) - counts)[term]
            rows[position] = row[order]
            weights[position] = weight[order]
            filled += counts
        idf = _idf(frequency, int(alive.sum()))
        squares = np.zeros(len(alive))
        for term, postings in _parts(starts):
            np.add.at(squares, rows[postings], (weights[postings] * idf[term]) ** 2)
        lengths = np.sqrt(squares).astype(np.float32)  # rounded: sums of equal squares differ slightly
        lengths[lengths == 0] = 1
        np.save(out / "lengths.npy", lengths)
        np.save(out / "starts.npy", starts)

    def _postings(
        self, numbers: NDArray[np.int64], alive: NDArray[np.bool_]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]]:
        """Yield terms, rows and weights of living rows: old ones, then new ones."""
        if self._before is not None:
            for term, positions in _parts(self._before.starts):
                row = self._before.rows[positions]
                is_alive = alive[row]
                yield numbers[term[is_alive]], row[is_alive], self._before.weights[positions][is_alive]
        self._new.seek(0)
        while len(postings := np.fromfile(self._new, _POSTING, _TOGETHER)):
            postings = postings[alive[postings["row"]]]
            yield numbers[postings["term"]], postings["row"], postings["weight"]


def remove_versions(folder: Path, current: int) -> None:
    """Remove all versions but the current one, also unfinished ones."""
    for path in folder.iterdir():
        if path.name.removesuffix(".tmp").isdecimal() and path.name != str(current):
            shutil.rmtree(path)


def _parts(starts: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], slice]]:
    """Yield consecutive slices of the postings, with the term of each posting."""
    for first in range(0, int(starts[-1]), _TOGETHER):
        sizes = np.diff(starts.clip(first, first + _TOGETHER))
        yield np.repeat(np.arange(len(sizes)), sizes), slice(first, first + _TOGETHER)


def _by_term(term: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stable argsort by two 16-bit radix sorts, five times faster."""
    order = np.argsort((term & 0xFFFF).astype(np.uint16), kind="stable")
    high = (term >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")] if high.any() else order


def _allocate(path: Path, dtype: type[np.generic], length: int) -> NDArray[Any]:
    """Map a new .npy file with reserved space, to avoid SIGBUS."""
    if not length:
        np.save(path, np.empty(0, dtype))
        return np.empty(0, dtype)
    array: NDArray[Any] = open_memmap(path, "w+", dtype, (length,))
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array
