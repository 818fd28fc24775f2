"""The features of an attached index, in workspace files. The index is only read.

Every change gets the next ``_seq_no`` of its shard, so a range query finds the changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Encoder, Encoding, FeatureStore
from rerank.engines.opensearch.doc_value_features import DocValueFeatures
from rerank.engines.opensearch.reading import Hits, primary
from rerank.engines.opensearch.text_rows import TextRows
from rerank.records import Document

_BATCH = 256  # documents per call of an encoder
_KEPT = 2  # versions of a ranker: the service still uses the one before


class Shard(NamedTuple):
    """A shard. last: writes up to this sequence number are complete."""

    name: str
    uuid: str
    number: int
    last: int


class AttachedFeatures(FeatureStore):
    """Writes and reads the features of one attached index. doc_values: for rankers that retrieve."""

    def __init__(self, doc_values: DocValueFeatures) -> None:
        self._doc_values, self._reader = doc_values, doc_values.reader
        self._index = self._reader.index
        fields = json.dumps(self._index.layout.fields, sort_keys=True)
        layout = hashlib.sha256(fields.encode()).hexdigest()[:8]
        self._rows = TextRows(self._index.folder / "features", layout)

    @property
    def rows(self) -> TextRows:
        """Current rows and features. Row numbers are valid for this object only."""
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
                known = rows.of_texts([self._document(hit) for hit in hits])
                count += int(rows.features.read(name, version, known)[1].sum())
        return count

    def changed(self, name: str, version: str) -> int:
        """Count the documents written since the last encoding. Every search reads such hits again."""
        rows, count = self.rows, 0
        for shard in self._shards():
            last = rows.encoded(name, version, shard.uuid, shard.number)
            where = primary(shard.number)
            count += self._index.count(_after(last, shard), shard.name, preference=where)
        return count

    def count_missing_vectors(self, name: str, version: str) -> int | None:
        """Vectors are in the index, not in the files."""
        return self._doc_values.count_missing_vectors(name, version)

    @property
    def locates(self) -> bool:
        """Whether sequence numbers identify encoded documents: every index has one shard."""
        shape = self._index.shape()
        return self._rows.exist and shape.shards == len(shape.uuids)

    def ids(self, results: Sequence[Hits]) -> list[list[str]]:
        """Return the ids of the hits of several searches; "": not encoded. Only if :attr:`locates`."""
        # After the searches: an index may have replaced one of the same name.
        uuids = self._index.shape(fresh=True).uuids
        versions = [
            [(hit["_index"], hit["_seq_no"], hit["_primary_term"]) for hit in hits] for hits in results
        ]
        known: dict[tuple[str, int, int], str] = {}
        for name, uuid in uuids.items():
            some = [(seq_no, term) for of in versions for index, seq_no, term in of if index == name]
            seq_nos, terms = np.array(some, np.int64).reshape(-1, 2).T
            _, found = self.rows.find(uuid, np.zeros(len(some), np.int64), seq_nos, terms)
            known |= zip([(name, *pair) for pair in some], found)
        return [[known.get(version, "") for version in of] for of in versions]

    def read(
        self, features: Mapping[str, str], ids: Sequence[str], versions: Sequence[tuple[str, int, int]]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        """Return the features of n hits, and (n,) bool: missing. Changed texts are looked up.

        features: ranker -> version. versions: index, sequence number and primary term of each hit.
        """
        uuids, rows = self._index.shape().uuids if ids else {}, self.rows
        found = np.full(len(ids), -1, np.int64)
        for name in {name for name, _, _ in versions}:
            where = np.array([i for i, (index, _, _) in enumerate(versions) if index == name])
            seq_nos, terms = np.array([versions[i][1:] for i in where.tolist()], np.int64).T
            some = [ids[i] for i in where.tolist()]
            found[where], _ = rows.find(uuids.get(name, ""), None, seq_nos, terms, some)
        unknown = np.flatnonzero(found < 0)
        stored = rows.features.versions() if len(unknown) else {}
        if any(version in stored.get(name, ()) for name, version in features.items()):
            documents = self._reader.get([ids[i] for i in unknown.tolist()])
            there = [i for i, document in enumerate(documents) if document is not None]
            found[unknown[there]] = rows.of_texts([one for one in documents if one is not None])
        values, missing = {}, {}
        for name, version in features.items():
            values[name], missing[name] = rows.features.read(name, version, found)
        return values, missing

    def write(self, encoding: Encoding) -> dict[str, int]:
        """Encode changed documents; see :meth:`Engine.write_features`.

        The index itself is only written for rankers that retrieve.
        """
        encoders, force = encoding.encoders, encoding.force
        self._index.check()
        encoded = {encoder.name: 0 for encoder in encoders}
        if not encoders:
            return encoded
        self._doc_values.stored()
        retrieving = self._doc_values.retrieving(encoders)
        if some := [encoder for encoder in encoders if encoder.name in retrieving]:
            self._doc_values.write(Encoding(some, keep=encoding.keep))
        rows, shards = self.rows, self._shards()
        self._index.refresh("reading documents")
        for shard in shards:
            place = shard.uuid, shard.number
            last = [-1 if force else rows.encoded(one.name, one.version, *place) for one in encoders]
            for hits, reached in self._pages(shard, min(last)):
                some = [encoder for encoder, end in zip(encoders, last) if end < reached]
                for name, count in self._store(rows, shard, hits, some, force).items():
                    encoded[name] += count
                    encoding.advance(len(hits))
                for encoder in some:
                    rows.set_encoded(encoder.name, encoder.version, *place, reached)
        for name in encoded:
            for other in rows.features.versions().get(name, [])[:-_KEPT]:
                if other not in encoding.versions(name):
                    rows.remove(name, other)
        rows.keep_indices(shard.uuid for shard in shards)
        return encoded

    def _store(
        self, rows: TextRows, shard: Shard, hits: Hits, encoders: Sequence[Encoder], force: bool
    ) -> dict[str, int]:
        """Encode new texts; store all locations. Returns ranker -> number of encoded texts."""
        if not hits:
            return {}
        documents = [self._document(hit) for hit in hits]
        numbers, encoded = rows.add(documents), {}
        for encoder in encoders:
            encoded[encoder.name] = rows.features.encode(encoder, numbers, documents, force=force)
            rows.features.sync(encoder.name, encoder.version)
        seq_nos, terms = np.array([(hit["_seq_no"], hit["_primary_term"]) for hit in hits], np.int64).T
        shards, ids = np.full(len(hits), shard.number), [hit["_id"] for hit in hits]
        rows.locate(shard.uuid, shards, seq_nos, terms, ids, numbers)
        return encoded

    def _document(self, hit: Mapping[str, Any]) -> Document:
        return self._index.layout.document(hit["_id"], hit["_source"])

    def _shards(self) -> list[Shard]:
        with self._index.asking("reading the index's state"):
            client, name = self._index.client, self._index.settings.index
            stats = client.indices.stats(index=name, metric="docs", level="shards")
        return [
            Shard(name, about["uuid"], int(number), copy["seq_no"]["global_checkpoint"])
            for name, about in sorted(stats["indices"].items())
            for number, copies in sorted(about["shards"].items())
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def _pages(self, shard: Shard, last: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Read the documents after a sequence number; yields hits and the number reached."""
        while last < shard.last:
            hits = self._reader.shard(shard.name, shard.number, _after(last, shard), _BATCH)
            last = hits[-1]["_seq_no"] if len(hits) == _BATCH else shard.last
            yield hits, last


def _after(last: int, shard: Shard) -> dict[str, Any]:
    """The query for complete writes after a sequence number."""
    return {"range": {"_seq_no": {"gt": last, "lte": shard.last}}}
