"""One version of documents and derived files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tantivy
from numpy.typing import NDArray

from rerank.common.arrays import feature_width
from rerank.common.errors import WorkspaceError
from rerank.common.order import rank
from rerank.common.values import items_at
from rerank.documents.filters import Filter
from rerank.documents.records import Candidates
from rerank.engines.approximate import ApproximateIndex, IndexFile, find_index, open_index
from rerank.engines.file_features import FeatureFiles
from rerank.engines.local.documents import Documents, Version
from rerank.engines.local.text_index import TextIndex
from rerank.engines.local.tfidf import TfIdf
from rerank.engines.nearest import best, nearest, positive_rows
from rerank.engines.search_request import VectorQuery, cannot_retrieve

Rows = NDArray[np.int64]
Scores = NDArray[np.float64]

_CACHED_FILTERS = 16  # sets of filters whose rows are cached
_FEW_REQUESTS = 16  # requests for ids before all ids are read into memory
_MAX_IDS_IN_MEMORY = 1_000_000
_CLOCK_STEP = 2_000_000_000  # nanoseconds: the longest step of the clock of a file system
_ROW_BITS = 40  # lower bits of a handle: the row. Higher bits: the number of the folder


@dataclass(eq=False)
class Filtered:
    """The documents that meet some filters."""

    snapshot: Snapshot
    query: tantivy.Query

    @cached_property
    def rows(self) -> NDArray[np.bool_]:
        """Whether each row of the version, also a dead one, meets the filters: (rows,) bool."""
        mask = np.zeros(self.snapshot.version.rows, np.bool_)
        mask[self.snapshot.index.rows(self.snapshot.searcher, self.query)] = True
        return mask


class _OpenIndex(NamedTuple):
    """The index of a folder when it was listed. changed: see :func:`_time_of_change`."""

    folder: Path
    file: IndexFile | None
    opened: ApproximateIndex | None
    changed: int | None


def _time_of_change(folder: Path) -> int | None:
    """Return when a file of a folder was created, replaced or removed, in nanoseconds.

    None: just now. Clocks of file systems have steps, so another change could follow at the same time.
    """
    try:
        changed = folder.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return changed if time.time_ns() - changed > _CLOCK_STEP else None


@dataclass(eq=False)
class Snapshot:
    """One version of the documents and derived files, open for reading.

    number: number of the folder, which a compaction increases.
    """

    number: int
    version: Version
    documents: Documents
    index: TextIndex
    searcher: tantivy.Searcher
    tfidf: TfIdf
    features: FeatureFiles
    _id_requests: int = 0
    _indices: dict[tuple[str, str], _OpenIndex] = field(default_factory=dict)

    @cached_property
    def _all_ids(self) -> list[str]:
        return self.documents.ids_by_row(self.version)

    def ids(self, rows: Rows) -> list[str]:
        """Return the ids of rows. After several calls, they are read from memory."""
        self._id_requests += 1
        is_large = self.version.rows > _MAX_IDS_IN_MEMORY
        if is_large or self._id_requests <= _FEW_REQUESTS:
            return self.documents.ids_of(rows.tolist())
        return items_at(self._all_ids, rows.tolist())

    @cached_property
    def dead(self) -> Rows:
        """The rows without a document, because it was updated or deleted; ascending."""
        return np.flatnonzero(~self.documents.alive(self.version))

    @cached_property
    def _filter(self) -> Callable[[tuple[Filter, ...]], Filtered]:
        def filtered(filters: tuple[Filter, ...]) -> Filtered:
            return Filtered(self, self.index.filter(self.searcher, filters))

        return lru_cache(_CACHED_FILTERS)(filtered)

    def filtered(self, filters: Sequence[Filter]) -> Filtered | None:
        """Return the documents that meet all filters; None without filters.

        Raises UsageError for a filter that does not fit the values of its field.
        """
        return self._filter(tuple(filters)) if filters else None

    def nearest(
        self, queries: Sequence[VectorQuery], depth: int, filtered: Filtered | None
    ) -> tuple[Iterator[Rows], bool]:
        """Return the nearest rows of each query. All queries are vectors of one ranker.

        Also returns whether an index was used, which may miss some of the nearest documents.

        Raises UsageError without features, WorkspaceError for features of another width.
        """
        name, version, vector, _, passages = queries[0]
        index = self._index(name, version, passages)  # before the matrix, which then has all indexed rows
        matrix = self.features.matrix(name, version, self.version.rows)[: self.version.rows]
        has_features = len(matrix) > 0
        if not has_features and not self.features.has(name, version):
            raise cannot_retrieve(name)
        width = feature_width(passages, len(vector))
        if has_features and matrix.shape[1] != width:
            raise WorkspaceError(
                f"the stored {name} features have {matrix.shape[1]} numbers, not {width}; train {name} again"
            )
        excluded = self.dead if filtered is None else np.flatnonzero(~filtered.rows)
        excluded = excluded[excluded < len(matrix)]
        if index is not None:
            approximate = (index.search(matrix, query.vector, depth, excluded, self.ids) for query in queries)
            return approximate, True
        vectors = np.array([query.vector for query in queries])
        return nearest(matrix, vectors, depth, passages, excluded, self.ids), False

    def _index(self, name: str, version: str, passages: int) -> ApproximateIndex | None:
        """Return the index of this snapshot's rows, or None. An index of another process is opened."""
        last = self._indices.get((name, version))
        folder = self.features.folder(name, version) if last is None else last.folder
        changed = _time_of_change(folder)
        if last is not None and changed is not None and last.changed == changed:
            return last.opened
        file = self._find_index(folder)
        index = None
        if last is not None and last.file == file:
            index = last.opened
        elif file is not None:
            index = open_index(file, passages)
        self._indices[name, version] = _OpenIndex(folder, file, index, changed)
        return index

    def _find_index(self, folder: Path) -> IndexFile | None:
        """Return the newest file of an index, or None. It must not have rows of a later snapshot."""
        file = find_index(folder)
        if file is None or file.rows > self.version.rows:
            return None
        return file

    def rows_of(self, candidates: Candidates) -> Rows | None:
        """Return the rows of candidates; None: a compaction has changed the rows since."""
        if (candidates.rows >> _ROW_BITS != self.number).any():
            return None
        return candidates.rows & ((1 << _ROW_BITS) - 1)

    def candidates(
        self,
        rows: Rows,
        scores: Scores,
        features: Mapping[str, str],
        retrieved_by: Mapping[str, NDArray[np.bool_]] | None = None,
        approximate: Sequence[str] = (),
    ) -> Candidates:
        """Return candidates in order, with features.

        retrieved_by: retriever -> (n,) bool.
        approximate:  retrievers that may have missed some of the nearest documents.
        """
        ids = self.ids(rows)
        order = rank(ids, scores)
        ids = items_at(ids, order.tolist())
        rows = rows[order]
        values = {}
        missing = {}
        for name, version in features.items():
            values[name], missing[name] = self.features.read(name, version, rows)
        ordered_hits = {name: is_hit[order] for name, is_hit in (retrieved_by or {}).items()}
        handles = rows + (self.number << _ROW_BITS)
        return Candidates(
            ids, scores[order], handles, values, missing, ordered_hits, approximate=tuple(approximate)
        )


class Lexical:
    """Cached lexical scores of one text."""

    def __init__(self, snapshot: Snapshot, text: str, filtered: Filtered | None = None) -> None:
        self._snapshot = snapshot
        self._text = text
        self._filtered = filtered
        self._tfidf: Scores | None = None

    @cached_property
    def _query(self) -> tantivy.Query | None:
        return self._snapshot.index.query(self._text)

    def top(self, signal: str, depth: int) -> tuple[Rows, Scores]:
        """Return the rows and the scores of the ``depth`` best documents, in no order.

        Of documents with equal scores, the smallest ids are best.
        """
        snapshot = self._snapshot
        if signal == "bm25":
            condition = None if self._filtered is None else self._filtered.query
            rows, scores = snapshot.index.top(snapshot.searcher, self._query, depth, condition)
        else:
            all_scores = self._tfidf = snapshot.tfidf.scores(snapshot.index.analyze(self._text))
            if self._filtered is not None:
                all_scores = all_scores * self._filtered.rows
            rows = positive_rows(all_scores, depth)
            scores = all_scores[rows]
        return best(rows, scores, depth, snapshot.ids)

    def scores(self, signal: str, rows: Rows) -> Scores:
        """Return the (n,) scores of distinct rows, as :meth:`top` computes them; 0: no shared term."""
        snapshot = self._snapshot
        if signal != "bm25":
            if self._tfidf is None:
                return snapshot.tfidf.scores_of(snapshot.index.analyze(self._text), rows)
            return self._tfidf[rows]
        return snapshot.index.scores(snapshot.searcher, self._query, rows)
