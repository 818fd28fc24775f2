"""Cosine of tf-idf vectors, from an inverted index in memory-mapped files.

Weight of a term in a text: (1 + ln tf) * idf, idf = ln((1 + N) / (1 + df)) + 1, the vector then divided
by its length: SMART's ltc on both sides, with the smoothed idf of scikit-learn's ``TfidfVectorizer``
(``sublinear_tf=True``). N and df count living documents. Query terms that no document has are left out.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.engines.local.strings import Strings
from rerank.errors import WorkspaceError
from rerank.files import parse_json

VOCABULARY = "terms"
MANIFEST = "manifest.json"
_STRIDE = 16  # one score in so many is sampled
_TRIES = 50  # to open a snapshot that is just being replaced, with 10 ms in between


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a snapshot covers, and how much of the append-only files belongs to it.

    generation: of the documents; rows: documents counted, dead ones too; documents: living ones;
    terms: length of the vocabulary; counts: entries of the term counts; postings: of living documents.
    files: name in the folder -> bytes that belong to the snapshot, and their CRC-32.
    """

    generation: int
    rows: int
    documents: int
    terms: int
    counts: int
    postings: int
    files: dict[str, tuple[int, int]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the manifest into a snapshot's folder."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read a snapshot's manifest."""
        return cls(**parse_json((folder / MANIFEST).read_bytes()))


def snapshots(folder: Path) -> list[int]:
    """Generations of the complete snapshots in a folder, ascending."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


class TfIdf:
    """One snapshot of the inverted index, open for reading.

    ``starts`` (terms + 1,), ``rows`` (postings,) and ``weights`` (postings,) are the columns of the
    document-term matrix; ``idf`` is 0 for a term that no living document has any more.
    """

    def __init__(self, folder: Path, generation: int) -> None:
        snapshot = folder / str(generation)
        self.manifest = Manifest.load(snapshot)
        self._starts: NDArray[np.int64] = _load(snapshot / "starts.npy")
        self._rows: NDArray[np.integer[Any]] = _load(snapshot / "rows.npy")
        self._weights: NDArray[np.float32] = _load(snapshot / "weights.npy")
        self._idf: NDArray[np.float64] = _load(snapshot / "idf.npy")
        self._order: NDArray[np.int32] = _load(snapshot / "order.npy")
        self._terms = Strings(folder / VOCABULARY, self.manifest.terms)

    @classmethod
    def latest(cls, folder: Path, generation: int) -> TfIdf | None:
        """Open the newest snapshot that is not newer than ``generation``; None when there is none.

        Raises WorkspaceError when it is damaged.
        """
        problem: Exception | None = None
        for _ in range(_TRIES):
            found = [number for number in snapshots(folder) if number <= generation]
            if not found:
                return None
            try:
                return cls(folder, found[-1])
            except FileNotFoundError as error:  # a writer is just replacing it by a newer one
                problem = error
                time.sleep(0.01)
            except (ValueError, TypeError, EOFError) as error:
                problem = error
                break
        raise WorkspaceError(
            f"the tf-idf index in {folder} is damaged ({problem});"
            f" remove {folder / str(found[-1])} to have it made again"
        ) from problem

    def _query(self, terms: Iterable[str]) -> tuple[list[int], NDArray[np.float64]]:
        """The query's vector: term numbers, ascending, and their weights."""
        found = {}
        for term, count in Counter(terms).items():
            number = self._terms.find(term, self._order)
            if number >= 0 and self._idf[number] > 0:
                found[number] = count
        numbers = sorted(found)
        counts = np.array([found[number] for number in numbers], np.float64)
        weights = (1 + np.log(counts)) * self._idf[numbers]
        length = float(np.sqrt(weights @ weights))
        return numbers, weights / length if length else weights

    def all(self, terms: Iterable[str]) -> NDArray[np.float64]:
        """(rows,) scores of every row; none at all when no term is known."""
        numbers, weights = self._query(terms)
        if not numbers:
            return np.empty(0, np.float64)
        spans = [slice(int(self._starts[n]), int(self._starts[n + 1])) for n in numbers]
        rows = np.concatenate([self._rows[span] for span in spans], dtype=np.int64)
        parts = [np.multiply(self._weights[span], w, dtype=np.float64) for span, w in zip(spans, weights)]
        # Added up term after term, so documents with the same vector get exactly the same score.
        return np.bincount(rows, np.concatenate(parts), self.manifest.rows).astype(np.float64, copy=False)


def best(scores: NDArray[np.float64], depth: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows and scores of the best ``depth`` documents and of all that tie with the last, best first."""
    rows = _candidates(scores, depth)
    values = scores[rows]
    if len(rows) > depth:
        cut = np.partition(values, len(values) - depth)[len(values) - depth]
        kept = values >= cut
        rows, values = rows[kept], values[kept]
    order = np.argsort(-values, kind="stable")
    return rows[order], values[order]


def at(scores: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) scores of the given rows; 0 for those that the index does not know yet."""
    if not len(scores):
        return np.zeros(len(rows), np.float64)
    known = rows < len(scores)
    return np.where(known, scores[np.where(known, rows, 0)], 0.0)


def _candidates(scores: NDArray[np.float64], depth: int) -> NDArray[np.int64]:
    """Rows above 0 that contain the best ``depth`` with all their ties; usually not many more.

    Common words give most documents some score. A sample tells how high the cut must lie at least,
    and then only few values are left to be selected from: three times as fast.
    """
    sample = scores[::_STRIDE]
    place = 2 * (depth // _STRIDE) + 32
    if place < len(sample):
        bound = np.partition(sample, len(sample) - place)[len(sample) - place]
        if bound > 0:
            rows = np.flatnonzero(scores >= bound)
            if len(rows) >= depth:
                return rows
    return np.flatnonzero(scores)


def _load(path: Path) -> NDArray[Any]:
    """Map an array; as a plain ndarray, because np.memmap makes every access three times as slow."""
    array: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return array
