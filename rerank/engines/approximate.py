"""Approximate search for the nearest documents, with the inverted file index (IVF) of FAISS.

An exact search compares a query with every vector, so its time grows with the collection. An IVF index
clusters the vectors, and a query is compared with the vectors of the nearest clusters only. The
documents found in this way are scored again with the stored features; so only their choice is approximate.

The index is a file next to the features, with a copy of each vector: 2 to 4 bits per number (product
quantization) up to 2 million vectors, 8 bits for more. It is derived from the features: if it is missing or
cannot be read, searches are exact, and the next encoding writes it. FAISS is the extra ``scale``.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import passage_counts, single_precision, split_passages
from rerank.common.files import atomic_write
from rerank.engines.nearest import Float32, Ids, Rows, best, nearest, products

MIN_ROWS = 30_000
"""The smallest number of rows with an index. Below it, an exact search takes at most 1.5 ms on one core."""
MAX_NEW_SHARE = 0.05
"""The largest share of rows that may be newer than the index. They are compared exactly."""

_NAME = "nearest.{}.faiss"  # with the number of rows
_PATTERN = r"nearest\.(\d{1,12})\.faiss"
_ALL_FILES = "*nearest.*"  # also the temporary file of an interrupted writer
_SAMPLE_PER_CLUSTER = 40  # vectors that train the center of a cluster; FAISS warns below 39
_BATCH = 65_536  # rows that are added together
_MAX_SHORT_CODES = 2_000_000  # vectors: 4 bits find 0.99 of the nearest 100 in 2 ms. More: not measured
_ONE_QUERY = 11  # FAISS reads one list after the other, which is a sixth faster for one query
_BITS = 4  # of a short code. FAISS compares 32 vectors of such codes at once, in registers
_MIN_WIDTH_OF_PAIRS = 128  # from this width, a code is of two numbers; in short vectors, of one number
_OVERSAMPLING = 4  # candidates per requested document: 2 find 0.96 of the nearest 100, 4 find 0.995
_MIN_CANDIDATES = ((100_000, 400), (math.inf, 800))
"""Number of rows -> the smallest number of candidates, by size.

Of 63,436 vectors, 40 candidates find 0.92 of the nearest 10, 400 find 0.998. Of 250,000, 400 find 0.991 of
the nearest 100, 800 find 0.999. Of 2 million, 400 find 0.981, 800 find 0.996.
"""
_TEST_QUERIES = 50  # documents that are used as queries to measure how many clusters a query has to read
_TEST_DEPTH = 1000
_TEST_SAMPLE = 200_000  # documents among which the nearest ones are searched
_TARGET_RECALL = 0.995  # share of the nearest documents whose clusters are read
_MAX_AT_ONCE = 2_000  # rows that are compared in double precision at once, faster than in two passes
_MAX_EXACT = 20_000  # if a filter leaves at most as many documents, all are compared, in up to 3 ms

_NO_ROWS = np.empty(0, np.int64)

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
        rng = np.random.default_rng(0)
        clusters = max(1, int(np.sqrt(len(matrix) * max(1, passages))))
        sample_size = min(len(matrix), clusters * _SAMPLE_PER_CLUSTER)
        sample_rows = np.sort(rng.choice(len(matrix), sample_size, replace=False))
        sample, _ = _vectors(matrix[sample_rows], passages)
        clusters = max(1, min(clusters, len(sample) // _SAMPLE_PER_CLUSTER))
        width = sample.shape[1]
        ivf = _new_index(width, clusters, len(matrix) * max(1, passages))
        with _one_thread():
            ivf.train(sample)
            for begin in range(0, len(matrix), _BATCH):
                vectors, rows = _vectors(matrix[begin : begin + _BATCH], passages)
                ivf.add_with_ids(vectors, rows + begin)
            index = cls(ivf, len(matrix), passages)
            index._choose_probes(matrix, rng)
        return index

    def _choose_probes(self, matrix: NDArray[Any], rng: np.random.Generator) -> None:
        """Store how many clusters a query has to read, measured with documents as queries.

        The clusters of their nearest documents are counted, of which codes can miss some. In a sample of a
        tenth of the documents, the nearest 100 are as far away as the nearest 1,000 of all documents.
        """
        sample_size = min(len(matrix), _TEST_SAMPLE)
        sample = matrix[np.sort(rng.choice(len(matrix), sample_size, replace=False))]
        test_rows = rng.choice(sample_size, min(_TEST_QUERIES, sample_size), replace=False)
        vectors, _ = _vectors(sample[np.sort(test_rows)], self.passages)
        queries = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        depth = math.ceil(_TEST_DEPTH * sample_size / len(matrix))
        positions: list[NDArray[np.int64]] = []
        for query, rows in zip(queries, nearest(sample, queries, depth, self.passages, _NO_ROWS, _numbers)):
            positions.append(self._positions_of_clusters(query, sample[rows]))
        needed = np.quantile(np.concatenate(positions), _TARGET_RECALL, method="higher")
        self.ivf.nprobe = int(needed) + 1

    def _positions_of_clusters(self, query: Float32, features: NDArray[Any]) -> NDArray[np.int64]:
        """Return, for each of n features, how many clusters are nearer to a query than the cluster with it.

        With passages, the cluster of the nearest passage counts.
        """
        vectors, owners = _vectors(features, self.passages)
        order = np.lexsort((vectors @ query, owners))
        is_nearest = np.append(owners[order][1:] != owners[order][:-1], True)
        _, cluster_of_features = self.ivf.quantizer.search(vectors[order[is_nearest]], 1)
        _, (nearest_clusters,) = self.ivf.quantizer.search(query[None], self.ivf.nlist)
        positions = np.empty(self.ivf.nlist, np.int64)
        positions[nearest_clusters] = np.arange(self.ivf.nlist)
        clusters: Rows = cluster_of_features[:, 0]
        return positions[clusters]

    def _probes(self, depth: float) -> int:
        """Return how many clusters a query for ``depth`` documents reads.

        Queries are farther from the documents than the documents that chose the number. Therefore, 100
        documents need almost as many clusters as 1,000: four fifths, measured with 63,436 documents.
        """
        share: float = (depth / _TEST_DEPTH) ** 0.1
        probes = round(int(self.ivf.nprobe) * share)
        return min(max(probes, 1), int(self.ivf.nlist))

    def search(self, matrix: NDArray[Any], query: Float32, depth: int, excluded: Rows, ids: Ids) -> Rows:
        """Return the rows of about the ``depth`` nearest documents with a product above 0, ascending.

        Rows that are newer than the index, and the rows that a selective filter leaves, are compared exactly.

        matrix:   (n, width) features, the covered rows first.
        query:    (E,) vector, of length 1 with passages.
        excluded: rows that are left out.
        ids:      returns the ids of rows. Of equal products, the smallest ids are taken.
        """
        compared = self._compared_rows(query, len(matrix), depth, excluded)
        if len(compared) > _MAX_AT_ONCE:
            features = matrix[compared]
            (positions,) = nearest(
                features, query[None], depth, self.passages, _NO_ROWS, lambda tied: ids(compared[tied])
            )
            return compared[positions]
        scores = products(matrix[compared], query, self.passages)
        is_positive = scores > 0
        rows, _ = best(compared[is_positive], scores[is_positive], depth, ids)
        return np.sort(rows)

    def _compared_rows(self, query: Float32, row_count: int, depth: int, excluded: Rows) -> Rows:
        """Return the ascending rows whose features are compared with a query, for the arguments of search."""
        min_candidates = next(count for rows, count in _MIN_CANDIDATES if self.rows <= rows)
        candidate_count = max(_OVERSAMPLING * depth, min_candidates)
        allowed_count = row_count - len(excluded)
        is_small = allowed_count <= max(_MAX_EXACT, candidate_count)
        if not len(excluded) and not is_small:
            candidates = self._candidates(query, candidate_count, self._probes(depth), None)
            if self.rows == row_count:
                return candidates
            return np.concatenate([candidates, np.arange(self.rows, row_count)])
        is_allowed = np.ones(row_count, np.bool_)
        is_allowed[excluded] = False
        if is_small:
            return np.flatnonzero(is_allowed)
        new_rows = self.rows + np.flatnonzero(is_allowed[self.rows :])
        covered_count = allowed_count - len(new_rows)
        # If a filter leaves a third of the documents, the nearest of them are as far away as three times
        # as many of all documents.
        probes = self._probes(depth * self.rows / max(covered_count, 1))
        allowed_rows = is_allowed[: self.rows]
        probes = self._probes_of_filter(query, probes, candidate_count, allowed_rows)
        candidates = self._candidates(query, candidate_count, probes, allowed_rows)
        return np.concatenate([candidates, new_rows])

    @cached_property
    def _clusters(self) -> tuple[Rows, Rows]:
        """Return the rows of the vectors of all clusters, and (clusters,) where each cluster begins."""
        faiss = _faiss()
        lists = self.ivf.invlists
        sizes = [lists.list_size(cluster) for cluster in range(self.ivf.nlist)]
        rows = np.empty(sum(sizes), np.int64)
        begins = np.cumsum([0, *sizes[:-1]])
        for cluster, (begin, size) in enumerate(zip(begins.tolist(), sizes)):
            if size:
                rows[begin : begin + size] = faiss.rev_swig_ptr(lists.get_ids(cluster), size)
        return rows, begins

    def _probes_of_filter(
        self, query: Float32, probes: int, count: int, is_allowed: NDArray[np.bool_]
    ) -> int:
        """Return how many clusters have the share of the allowed vectors that ``probes`` have of all vectors.

        A filter can leave out the nearest clusters. Then more clusters are read.

        count: smallest number of allowed vectors to read.
        """
        rows, begins = self._clusters
        sizes = np.diff(begins, append=len(rows))
        allowed_by_cluster = np.zeros(len(begins), np.int64)
        is_allowed_vector = is_allowed[rows].view(np.uint8)
        allowed_by_cluster[sizes > 0] = np.add.reduceat(is_allowed_vector, begins[sizes > 0], dtype=np.int64)
        _, (nearest_clusters,) = self.ivf.quantizer.search(query[None], self.ivf.nlist)
        total = int(allowed_by_cluster.sum())
        required = min(max(total * probes / self.ivf.nlist, count), total)
        cluster_count = np.searchsorted(np.cumsum(allowed_by_cluster[nearest_clusters]), required) + 1
        return min(int(cluster_count), int(self.ivf.nlist))

    def _candidates(
        self, query: Float32, count: int, probes: int, is_allowed: NDArray[np.bool_] | None
    ) -> Rows:
        """Return the ascending rows of the nearest vectors: at least ``count`` rows if so many are allowed.

        probes:     number of clusters to read. More are read if these have too few rows.
        is_allowed: (rows,) bool; None: all rows.
        """
        faiss = _faiss()
        selector = None
        if is_allowed is not None:
            bits = np.packbits(is_allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
        vector_count = count
        while True:
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)
            _, (rows_of_vectors,) = self.ivf.search(query[None], vector_count, params=parameters)
            rows_of_vectors = rows_of_vectors[rows_of_vectors >= 0]
            # np.unique takes five times as long, and only passages repeat a row.
            rows = np.unique(rows_of_vectors) if self.passages else np.sort(rows_of_vectors)
            is_full = len(rows_of_vectors) == vector_count
            if len(rows) >= count or (not is_full and probes == self.ivf.nlist):
                return rows
            if is_full and vector_count == self.ivf.ntotal:
                return rows
            if is_full:  # several passages of the same documents
                vector_count = min(2 * vector_count, self.ivf.ntotal)
            else:  # several passages of the same documents in these clusters
                probes = min(2 * probes, self.ivf.nlist)

    def write(self, folder: Path) -> None:
        """Write the index into a folder, and remove older ones. The caller holds the lock.

        After a crash, the old or the new one exists. Raises RerankError for a full disk.
        """
        faiss = _faiss()
        path = folder / _NAME.format(self.rows)
        with atomic_write(path) as file:
            faiss.write_index(self.ivf, faiss.PyCallbackIOWriter(file.write))
        for old_path in folder.glob(_ALL_FILES):
            if old_path != path:
                old_path.unlink()


def _new_index(width: int, clusters: int, count: int) -> Any:
    """Return an empty index of FAISS, with short codes for a small number of vectors."""
    faiss = _faiss()
    quantizer = faiss.IndexFlatIP(width)
    metric = faiss.METRIC_INNER_PRODUCT
    if count > _MAX_SHORT_CODES:
        codes = faiss.ScalarQuantizer.QT_8bit
        return faiss.IndexIVFScalarQuantizer(quantizer, width, clusters, codes, metric)
    parts = width // 2 if width % 2 == 0 and width >= _MIN_WIDTH_OF_PAIRS else width
    index = faiss.IndexIVFPQFastScan(quantizer, width, clusters, parts, _BITS, metric)
    index.by_residual = True  # the difference from the center of the cluster needs fewer bits
    return index


class IndexFile(NamedTuple):
    """The file of an index.

    rows:  number of rows that the index covers.
    inode: changes if the file is replaced, also by an index of the same rows.
    """

    path: Path
    rows: int
    inode: int


def find_index(folder: Path) -> IndexFile | None:
    """Return the file of the index in a folder, or None."""
    files: list[IndexFile] = []
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):  # a fifth of the time of Path.glob, which matters for each query
            match = re.fullmatch(_PATTERN, name)
            if match is None:
                continue
            path = folder / name
            with suppress(FileNotFoundError):  # another process has just replaced it
                files.append(IndexFile(path, int(match[1]), path.stat().st_ino))
    return max(files, key=lambda file: file.rows, default=None)


def open_index(file: IndexFile, passages: int) -> ApproximateIndex | None:
    """Map an index into memory. Return None if FAISS is missing or cannot read it.

    passages: the largest number of vectors in a feature; 0 if a feature is one vector.
    """
    if not is_available():
        return None
    faiss = _faiss()
    try:
        ivf = faiss.read_index(str(file.path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        _logger.warning(
            "%s cannot be read, so searches are exact until the next encoding: %s", file.path, error
        )
        return None
    if isinstance(ivf, faiss.IndexIVFFastScan):
        ivf.implem = _ONE_QUERY
    return ApproximateIndex(ivf, file.rows, passages)


def needs_index(folder: Path, rows: int, *, rebuild: bool = False) -> bool:
    """Return whether to build an index: FAISS is installed, and the index is missing, outdated or unreadable.

    rows:    number of rows with features. Below :data:`MIN_ROWS`, no index is built.
    rebuild: replace an index in any case.
    """
    if rows < MIN_ROWS or not is_available():
        return False
    file = find_index(folder)
    if rebuild or file is None:
        return True
    new_rows = rows - file.rows
    if new_rows > MAX_NEW_SHARE * rows:
        return True
    return open_index(file, 0) is None


def is_available() -> bool:
    """Return whether FAISS is installed."""
    return util.find_spec("faiss") is not None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread of FAISS in the block.

    Its threads wait for each other actively after each of many short steps. On a busy machine, this
    took more than ten times as much processor time as one thread.
    """
    faiss = _faiss()
    count = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(count)


def _faiss() -> ModuleType:
    return import_module("faiss")


def _vectors(features: NDArray[Any], passages: int) -> tuple[Float32, Rows]:
    """Return m vectors of n features, and (m,) the position of the feature of each vector.

    Vectors of passages get length 1, because they are compared by cosine.
    """
    if not passages:
        return single_precision(features), np.arange(len(features))
    is_present = np.arange(passages) < passage_counts(features, passages)[:, None]
    vectors = split_passages(features, passages)[is_present].astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return vectors, np.nonzero(is_present)[0]


def _numbers(rows: Rows) -> list[str]:
    """Return ids that have the order of the rows."""
    return [f"{row:012}" for row in rows.tolist()]
