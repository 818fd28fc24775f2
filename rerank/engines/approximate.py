"""Approximate search for the nearest documents, with the inverted file index (IVF) of FAISS.

An exact search compares a query with every vector, so its time grows with the collection. An IVF index
clusters the vectors, and a query is compared with the vectors of the nearest clusters only. The
documents found in this way are scored again with the stored features; so only their choice is approximate.

The index is a file next to the features, with a copy of each vector in 8 bits per number. It is mapped into
memory, and all processes of a machine share it. It is derived from the features: if it is missing, searches
are exact, and the next encoding writes it. FAISS is the extra ``scale``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.arrays import passage_counts, split_passages
from rerank.engines.nearest import nearest
from rerank.files import sync_folder

Float32 = NDArray[np.float32]
Rows = NDArray[np.int64]
Ids = Callable[[Rows], list[str]]

MIN_ROWS = 100_000
"""Documents from which an index is built. Below, an exact search takes about 5 ms on one core."""
MAX_NEW_SHARE = 0.05
"""Share of documents that may be newer than the index. They are compared exactly."""

_NAME = "nearest.{}.faiss"  # with the number of rows
_PATTERN = r"nearest\.(\d{1,12})\.faiss"
_SAMPLE_PER_CLUSTER = 40  # vectors that train the center of a cluster; FAISS warns below 39
_BATCH = 65_536  # rows that are added together
_OVERSAMPLING = 2  # times the requested documents are scored again, because 8 bits order them roughly
_TEST_QUERIES = 50  # documents whose neighbors tell how many clusters a query has to read
_TEST_DEPTH = 1000
_TARGET_RECALL = 0.99  # share of the nearest documents that the test has to find
_FEW_ROWS = 20_000  # documents that are compared exactly if a filter leaves no more of them

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ApproximateIndex:
    """An open index over the first rows of a matrix of features.

    ivf:      the index of FAISS. The ids of its vectors are rows; with passages, a row has several vectors.
    rows:     number of rows that the index covers.
    passages: the largest number of vectors in a feature; 0 if a feature is one vector.
    """

    ivf: Any
    rows: int
    passages: int

    @classmethod
    def build(cls, matrix: NDArray[Any], passages: int) -> ApproximateIndex:
        """Index all rows of a matrix. The same matrix gives the same index.

        The number of clusters is the square root of the number of vectors, as the guidelines of FAISS
        recommend. A query reads as many of them as a test with stored documents needs.

        matrix:   (n, width) features.
        passages: the largest number of vectors in a feature; 0 if a feature is one vector.
        """
        faiss = _faiss()
        rng = np.random.default_rng(0)
        clusters = max(1, int(np.sqrt(len(matrix) * max(1, passages))))
        sample_size = min(len(matrix), clusters * _SAMPLE_PER_CLUSTER)
        sample_rows = np.sort(rng.choice(len(matrix), sample_size, replace=False))
        sample, _ = _vectors(matrix[sample_rows], passages)
        clusters = max(1, min(clusters, len(sample) // _SAMPLE_PER_CLUSTER))
        width = sample.shape[1]
        codes = faiss.ScalarQuantizer.QT_8bit
        metric = faiss.METRIC_INNER_PRODUCT
        ivf = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(width), width, clusters, codes, metric)
        ivf.train(sample)
        for begin in range(0, len(matrix), _BATCH):
            vectors, rows = _vectors(matrix[begin : begin + _BATCH], passages)
            ivf.add_with_ids(vectors, rows + begin)
        index = cls(ivf, len(matrix), passages)
        index._choose_probes(matrix, rng)
        return index

    def _choose_probes(self, matrix: NDArray[Any], rng: np.random.Generator) -> None:
        """Store how many clusters a query has to read, measured with documents as queries."""
        test_rows = rng.choice(len(matrix), min(_TEST_QUERIES, len(matrix)), replace=False)
        vectors, _ = _vectors(matrix[np.sort(test_rows)], self.passages)
        queries = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        nothing = np.empty(0, np.int64)
        exact = list(nearest(matrix, queries, _TEST_DEPTH, self.passages, nothing, _no_ids))
        self.ivf.nprobe = 1
        while self.ivf.nprobe < self.ivf.nlist:
            returned = [self.search(matrix, query, _TEST_DEPTH, nothing, _no_ids) for query in queries]
            hits = sum(len(np.intersect1d(rows, expected)) for rows, expected in zip(returned, exact))
            if hits >= _TARGET_RECALL * sum(map(len, exact)):
                break
            self.ivf.nprobe = min(self.ivf.nprobe * 5 // 4 + 1, self.ivf.nlist)

    def _probes(self, depth: float) -> int:
        """Return how many clusters a query for ``depth`` documents reads.

        Measured with 1 million vectors, 1,000 documents need 2 to 3 times as many clusters as 100 for the
        same recall.
        """
        share: float = (depth / _TEST_DEPTH) ** 0.4
        probes = round(int(self.ivf.nprobe) * share)
        return min(max(probes, 1), int(self.ivf.nlist))

    def search(self, matrix: NDArray[Any], query: Float32, depth: int, excluded: Rows, ids: Ids) -> Rows:
        """Return the rows of about the ``depth`` nearest documents with a product above 0, ascending.

        Rows that are newer than the index, and the rows that a selective filter leaves, are compared exactly.

        matrix:   (n, width) features, the covered rows first.
        query:    (E,) vector, of length 1 with passages.
        excluded: rows that are left out.
        ids:      of rows, to order equal products.
        """
        is_allowed = np.ones(len(matrix), np.bool_)
        is_allowed[excluded] = False
        compared = np.flatnonzero(is_allowed)
        candidate_count = _OVERSAMPLING * depth
        if len(compared) > max(_FEW_ROWS, candidate_count):
            covered = np.searchsorted(compared, self.rows)
            new_rows = compared[covered:]
            # The nearest of a third of the documents are as far away as three times as many of all.
            probes = self._probes(depth * self.rows / max(int(covered), 1))
            selector = is_allowed[: self.rows] if len(excluded) else None
            candidates = self._candidates(query, candidate_count, probes, selector)
            compared = np.concatenate([candidates, new_rows])
        (positions,) = nearest(
            matrix[compared],
            query[None],
            depth,
            self.passages,
            np.empty(0, np.int64),
            lambda tied: ids(compared[tied]),
        )
        return compared[positions]

    def _candidates(
        self, query: Float32, least: int, probes: int, is_allowed: NDArray[np.bool_] | None
    ) -> Rows:
        """Return the ascending rows of the nearest vectors of at least ``least`` documents, if there are.

        probes:     clusters to read; more if they have too few documents.
        is_allowed: (rows,) bool; None: all rows.
        """
        faiss = _faiss()
        selector = None
        if is_allowed is not None:
            bits = np.packbits(is_allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(is_allowed), faiss.swig_ptr(bits))
        vector_count = least
        while True:
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
            _, (rows_of_vectors,) = self.ivf.search(query[None], vector_count, params=parameters)
            rows_of_vectors = rows_of_vectors[rows_of_vectors >= 0]
            rows = np.unique(rows_of_vectors)
            is_full = len(rows_of_vectors) == vector_count
            if len(rows) >= least or (not is_full and probes == self.ivf.nlist):
                return rows
            if is_full and vector_count == self.ivf.ntotal:
                return rows
            if is_full:  # several passages of the same documents
                vector_count = min(2 * vector_count, self.ivf.ntotal)
            else:  # a filter leaves few documents of the nearest clusters
                probes = min(2 * probes, self.ivf.nlist)

    def write(self, folder: Path) -> None:
        """Write the index into a folder, and remove older ones.

        After a crash, the old or the new one exists.
        """
        path = folder / _NAME.format(self.rows)
        temporary = path.with_suffix(".tmp")
        _faiss().write_index(self.ivf, str(temporary))
        temporary.rename(path)
        sync_folder(folder)
        for old_path in folder.glob(_NAME.format("*")):
            if old_path != path:
                old_path.unlink()


def open_index(folder: Path, passages: int) -> ApproximateIndex | None:
    """Map the index of a folder into memory. None: there is none, or FAISS is missing or cannot read it.

    passages: the largest number of vectors in a feature; 0 if a feature is one vector.
    """
    rows = indexed_rows(folder)
    if not rows or not is_available():
        return None
    faiss = _faiss()
    path = folder / _NAME.format(rows)
    try:
        ivf = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        _logger.warning("%s cannot be read, so searches are exact until the next encoding: %s", path, error)
        return None
    return ApproximateIndex(ivf, rows, passages)


def needs_index(folder: Path, rows: int, *, rebuild: bool = False) -> bool:
    """Return whether an index of so many rows is to be built: FAISS is installed, and it pays.

    rebuild: also if there is an index of the same rows.
    """
    if rows < MIN_ROWS or not is_available():
        return False
    return rebuild or rows - indexed_rows(folder) > MAX_NEW_SHARE * rows


def indexed_rows(folder: Path) -> int:
    """Return the number of rows that the index of a folder covers; 0 without an index."""
    matches = (re.fullmatch(_PATTERN, path.name) for path in folder.glob(_NAME.format("*")))
    return max((int(match[1]) for match in matches if match), default=0)


def is_available() -> bool:
    """Return whether FAISS is installed."""
    return util.find_spec("faiss") is not None


def _faiss() -> ModuleType:
    return import_module("faiss")


def _vectors(features: NDArray[Any], passages: int) -> tuple[Float32, Rows]:
    """Return the vectors of features, and the position of the feature of each.

    Vectors of passages get length 1, because they are compared by cosine.
    """
    if not passages:
        return features.astype(np.float32), np.arange(len(features))
    is_present = np.arange(passages) < passage_counts(features, passages)[:, None]
    vectors = split_passages(features, passages)[is_present].astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return vectors, np.nonzero(is_present)[0]


def _no_ids(rows: Rows) -> list[str]:
    """Order equal products by row."""
    return [f"{row:012}" for row in rows.tolist()]
