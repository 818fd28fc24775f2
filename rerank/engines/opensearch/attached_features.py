"""The features of an attached index, in workspace files. The index is only read.

Every change gets the next ``_seq_no`` of its shard, so a range query finds the changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.common.arrays import feature_width
from rerank.common.errors import UsageError, WorkspaceError
from rerank.common.order import rank
from rerank.common.values import items_at
from rerank.documents.records import Document
from rerank.documents.text import count_of
from rerank.engines.base import Encoder, Encoding, FeatureStore
from rerank.engines.nearest import SingleSearch, nearest, products
from rerank.engines.opensearch.columns import Column, feature_key, with_vectors
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.index import FRESH
from rerank.engines.opensearch.reading import DocumentVersion, Hits, ids_of, primary
from rerank.engines.opensearch.text_rows import LocatedDocuments, TextRows
from rerank.engines.search_request import VectorQuery, cannot_retrieve

_BATCH = 256  # documents per call of an encoder
_VERSIONS_TO_KEEP = 2  # of a ranker: the service still uses the one before

MOST_IN_FILES = 300_000
"""Documents in which a ranker retrieves by reading all vectors in the files, in about 20 ms on one core."""

OVER_FETCH = 4
"""With conditions, so many times the depth is retrieved: the files do not know which documents meet them."""


class Shard(NamedTuple):
    """A primary shard of an index. last: all writes up to this sequence number are complete."""

    name: str
    uuid: str
    number: int
    last: int


class AttachedFeatures(FeatureStore):
    """Writes and reads the features of one attached index.

    doc_values: writes the vectors of rankers that retrieve from the index.
    """

    def __init__(self, doc_values: DocValueFeatures) -> None:
        self._doc_values = doc_values
        self._mapping_read = -math.inf
        self._searches: dict[tuple[str, str], tuple[LocatedDocuments, SingleSearch]] = {}
        self._reader = doc_values.reader
        self._index = self._reader.index
        fields = json.dumps(self._index.layout.fields, sort_keys=True)
        layout = hashlib.sha256(fields.encode()).hexdigest()[:8]
        self._rows = TextRows(self._index.folder / "features", layout)

    @property
    def rows(self) -> TextRows:
        """The current rows and features of texts. Numbers of rows are valid for this object only."""
        self._rows = self._rows.current()
        return self._rows

    def missing(self, name: str, version: str) -> int:
        """Count the documents without a feature of their text.

        Documents that were written since the last encoding are read.
        """
        rows = self.rows
        if version not in rows.features.versions().get(name, ()):
            return self._index.count()
        count = 0
        for shard in self._shards():
            for hits, _ in self._pages(shard, rows.encoded(name, version, shard.uuid, shard.number)):
                rows_of_hits = rows.of_texts([self._document(hit) for hit in hits])
                _, missing = rows.features.read(name, version, rows_of_hits)
                count += int(missing.sum())
        return count

    def changed(self, name: str, version: str) -> int:
        """Count the documents written since the last encoding. Every search reads such hits again."""
        rows = self.rows
        count = 0
        for shard in self._shards():
            last = rows.encoded(name, version, shard.uuid, shard.number)
            preference = primary(shard.number)
            count += self._index.count(_after(last, shard), shard.name, preference=preference)
        return count

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        """Count the documents without a vector: in the index if it has vectors, else in the files."""
        missing = self._doc_values.count_missing_vectors(name, version)
        if missing is None and self._index.count() <= MOST_IN_FILES:
            missing = self.missing(name, version)
        return missing

    def column(self, name: str, version: str) -> Column | None:
        """Return the column of a ranker's vectors in the index, or None: the files are searched.

        The mapping is read at most every two seconds.
        """
        column = with_vectors(self._doc_values.columns.get(feature_key(name, version)))
        now = time.monotonic()
        if column is None and now > self._mapping_read + FRESH:
            self._mapping_read = now
            return self._doc_values.searchable(name, version)
        return column

    def nearest(self, query: VectorQuery, depth: int, *, fresh: bool = True) -> list[str]:
        """Return the ids of the ``depth`` documents whose features are nearest to a vector, best first.

        The files are searched, exactly. Equal products: ascending ids. fresh: see :meth:`TextRows.located`.

        Raises UsageError without features or for too many documents, WorkspaceError for another width.
        """
        text_rows = self.rows
        located = text_rows.located(list(self._index.shape().uuids.values()), fresh=fresh)
        name = query.name
        if len(located.ids) > MOST_IN_FILES:
            documents = count_of(len(located.ids), "document")
            raise UsageError(
                f"{name} cannot retrieve from {documents} in files; run `rerank encode --retrieve {name}` (it"
                " writes vectors into the index)"
            )
        if not located.ids:
            return []
        matrix = self._matrix(text_rows, query, count=int(located.rows[-1]) + 1)
        unused = located.unused[located.unused < len(matrix)]

        if matrix.dtype == np.float16 and not query.passages:
            single = self._single_search(query, matrix, located)
            rows = single.nearest(query.vector, depth, unused, located.first_ids)
        else:
            (rows,) = nearest(matrix, query.vector[None, :], depth, query.passages, unused, located.first_ids)

        products_of_rows = products(matrix[rows], query.vector, query.passages)
        ids, row_of_id = located.ids_of(rows)
        order = rank(ids, products_of_rows[row_of_id])
        distinct_ids = dict.fromkeys(items_at(ids, order.tolist()))
        return list(distinct_ids)[:depth]

    @staticmethod
    def _matrix(text_rows: TextRows, query: VectorQuery, count: int) -> NDArray[Any]:
        """Return the features of the first ``count`` rows, or fewer if the last ones are not encoded.

        Raises UsageError if there are none, WorkspaceError if they do not fit the vector of the query.
        """
        name = query.name
        matrix = text_rows.features.matrix(name, query.version, count)[:count]
        if not len(matrix):
            raise cannot_retrieve(name)
        width = feature_width(query.passages, len(query.vector))
        if matrix.shape[1] != width:
            raise WorkspaceError(
                f"the {name} features have {matrix.shape[1]} numbers, not {width}; train {name} again"
            )
        return matrix

    def _single_search(
        self, query: VectorQuery, matrix: NDArray[Any], located: LocatedDocuments
    ) -> SingleSearch:
        """Return the search of a matrix, made once per state of the files."""
        key = (query.name, query.version)
        documents, search = self._searches.get(key, (None, None))
        if search is not None and documents is located and len(search.matrix) == len(matrix):
            return search
        search = SingleSearch(matrix)
        self._searches[key] = (located, search)
        return search

    @property
    def locates(self) -> bool:
        """Whether a sequence number identifies an encoded document, because every index has one shard."""
        shape = self._index.shape()
        return self._rows.exist and shape.shards == len(shape.uuids)

    def ids(self, results: Sequence[Hits]) -> list[list[str]]:
        """Return the ids of the hits of several searches; "": not encoded. Only if :attr:`locates`."""
        # After the searches: an index may have replaced one of the same name.
        uuids = self._index.shape(fresh=True).uuids
        versions_by_index: dict[str, list[DocumentVersion]] = {}
        for hit in chain.from_iterable(results):
            versions_by_index.setdefault(hit["_index"], []).append(_version(hit))

        id_by_version: dict[DocumentVersion, str] = {}
        for name in versions_by_index.keys() & uuids.keys():
            versions = versions_by_index[name]
            seq_nos, terms = _numbers(versions)
            shards = np.zeros(len(versions), np.int64)
            _, ids = self.rows.find(uuids[name], shards, seq_nos, terms)
            id_by_version.update(zip(versions, ids))

        ids_of_results: list[list[str]] = []
        for hits in results:
            ids_of_results.append([id_by_version.get(_version(hit), "") for hit in hits])
        return ids_of_results

    def read(
        self, features: Mapping[str, str], ids: Sequence[str], versions: Sequence[DocumentVersion]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        """Return the features of n hits, and (n,) bool: missing. Changed texts are looked up.

        features: ranker -> version. versions: of the documents of the hits.
        """
        text_rows = self.rows
        rows = self._rows_of_versions(text_rows, ids, versions)
        unknown = np.flatnonzero(rows < 0).tolist()
        if unknown and self._has_any(text_rows, features):
            documents = self._reader.get(items_at(ids, unknown))
            has_document = [document is not None for document in documents]
            positions = list(compress(unknown, has_document))
            rows[positions] = text_rows.of_texts(list(filter(None, documents)))

        values = {}
        missing = {}
        for name, version in features.items():
            values[name], missing[name] = text_rows.features.read(name, version, rows)
        return values, missing

    @staticmethod
    def _has_any(text_rows: TextRows, features: Mapping[str, str]) -> bool:
        """Return whether the files have features of one of these rankers in its version."""
        stored = text_rows.features.versions()
        return any(version in stored.get(name, ()) for name, version in features.items())

    def _rows_of_versions(
        self, text_rows: TextRows, ids: Sequence[str], versions: Sequence[DocumentVersion]
    ) -> NDArray[np.int64]:
        """Return the (n,) rows of documents that have not changed since they were encoded; -1 for others."""
        uuids = self._index.shape().uuids if ids else {}
        rows = np.full(len(ids), -1, np.int64)
        for name, positions in _positions_by_index(versions).items():
            seq_nos, terms = _numbers(items_at(versions, positions))
            ids_of_index = items_at(ids, positions)
            rows[positions], _ = text_rows.find(uuids.get(name, ""), None, seq_nos, terms, ids_of_index)
        return rows

    def write(self, encoding: Encoding) -> dict[str, int]:
        """Encode changed documents; see :meth:`Engine.write_features`.

        The index itself is only written for rankers that retrieve.
        """
        encoders = encoding.encoders
        self._index.check()
        encoded = {encoder.name: 0 for encoder in encoders}
        if not encoders:
            return encoded
        self._write_vectors(encoding)

        rows = self.rows
        shards = self._shards()
        self._index.refresh("reading documents")
        for shard in shards:
            self._encode_shard(rows, shard, encoding, encoded)
        for name in encoded:
            old_versions = rows.features.versions().get(name, [])[:-_VERSIONS_TO_KEEP]
            unused_versions = set(old_versions) - encoding.versions(name)
            for version in unused_versions:
                rows.remove(name, version)
        rows.keep_indices(shard.uuid for shard in shards)
        return encoded

    def _write_vectors(self, encoding: Encoding) -> None:
        """Write the vectors of the rankers that retrieve from the index."""
        self._doc_values.stored()
        retrieving = self._doc_values.retrieving(encoding.encoders)
        searched = [encoder for encoder in encoding.encoders if encoder.name in retrieving]
        if searched:
            self._doc_values.write(Encoding(searched, keep=encoding.keep))

    def _encode_shard(
        self, rows: TextRows, shard: Shard, encoding: Encoding, encoded: dict[str, int]
    ) -> None:
        """Encode the documents after the last encoding. encoded: ranker -> count, which grows."""
        ends = self._ends(rows, shard, encoding)
        for hits, reached in self._pages(shard, min(ends.values())):
            behind = [encoder for encoder in encoding.encoders if ends[encoder.name] < reached]
            for name, count in self._store(rows, shard, hits, behind, encoding.force).items():
                encoded[name] += count
                encoding.advance(len(hits))
            for encoder in behind:
                rows.set_encoded(encoder.name, encoder.version, shard.uuid, shard.number, reached)

    @staticmethod
    def _ends(rows: TextRows, shard: Shard, encoding: Encoding) -> dict[str, int]:
        """Return ranker -> the last sequence number that it has encoded; -1: encode all documents."""
        ends: dict[str, int] = {}
        for encoder in encoding.encoders:
            name = encoder.name
            ends[name] = -1
            if not encoding.force:
                ends[name] = rows.encoded(name, encoder.version, shard.uuid, shard.number)
        return ends

    def _store(
        self, rows: TextRows, shard: Shard, hits: Hits, encoders: Sequence[Encoder], force: bool
    ) -> dict[str, int]:
        """Encode new texts; store all locations. Returns ranker -> number of encoded texts."""
        if not hits:
            return {}
        documents = [self._document(hit) for hit in hits]
        numbers = rows.add(documents)
        encoded = {}
        for encoder in encoders:
            encoded[encoder.name] = rows.features.encode(encoder, numbers, documents, force=force)
            rows.features.sync(encoder.name, encoder.version)
        seq_nos, terms = np.array([(hit["_seq_no"], hit["_primary_term"]) for hit in hits], np.int64).T
        shards = np.full(len(hits), shard.number)
        ids = ids_of(hits)
        rows.locate(shard.uuid, shards, seq_nos, terms, ids, numbers)
        return encoded

    def _document(self, hit: Mapping[str, Any]) -> Document:
        return self._index.layout.document(hit["_id"], hit["_source"])

    def _shards(self) -> list[Shard]:
        with self._index.asking("reading the index's state"):
            name = self._index.settings.index
            stats = self._index.client.indices.stats(index=name, metric="docs", level="shards")
        shards: list[Shard] = []
        for index_name, index in sorted(stats["indices"].items()):
            for number, copies in sorted(index["shards"].items()):
                for copy in copies:
                    if copy["routing"]["primary"]:
                        last = copy["seq_no"]["global_checkpoint"]
                        shards.append(Shard(index_name, index["uuid"], int(number), last))
        return shards

    def _pages(self, shard: Shard, last: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Read the documents after a sequence number; yields hits and the number reached."""
        while last < shard.last:
            hits = self._reader.shard(shard.name, shard.number, _after(last, shard), _BATCH)
            last = hits[-1]["_seq_no"] if len(hits) == _BATCH else shard.last
            yield hits, last


def _numbers(versions: Sequence[DocumentVersion]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the (n,) sequence numbers and (n,) primary terms of n versions of documents."""
    seq_nos = [version.seq_no for version in versions]
    terms = [version.primary_term for version in versions]
    return np.array(seq_nos, np.int64), np.array(terms, np.int64)


def _version(hit: Mapping[str, Any]) -> DocumentVersion:
    return DocumentVersion(hit["_index"], hit["_seq_no"], hit["_primary_term"])


def _after(last: int, shard: Shard) -> dict[str, Any]:
    """The query for complete writes after a sequence number."""
    return {"range": {"_seq_no": {"gt": last, "lte": shard.last}}}


def _positions_by_index(versions: Iterable[DocumentVersion]) -> dict[str, list[int]]:
    """Return the name of each index -> the positions of its documents."""
    positions: dict[str, list[int]] = {}
    for position, version in enumerate(versions):
        positions.setdefault(version.index_name, []).append(position)
    return positions
