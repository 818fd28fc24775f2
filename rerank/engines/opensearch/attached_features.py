"""The features of an attached index, in workspace files. The index is only read.

Every change gets the next ``_seq_no`` of its shard, so a range query finds the changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Encoder
from rerank.engines.opensearch.index import OURS, Index
from rerank.engines.opensearch.layout import AttachedLayout
from rerank.engines.opensearch.reading import Reader
from rerank.engines.opensearch.text_rows import DocumentLocation, Ranges, TextRows, gaps
from rerank.records import Document

_BATCH = 256  # documents per call of an encoder
_KEPT = 2  # versions of a ranker: the service still uses the one before


class Shard(NamedTuple):
    """A shard. last: writes up to this sequence number are complete."""

    name: str
    uuid: str
    number: int
    last: int


class AttachedFeatures:
    """Writes and reads the features of one attached index."""

    def __init__(self, index: Index, reader: Reader, folder: Path) -> None:
        self._index, self._client, self._settings = index, index.client, index.settings
        self._reader = reader
        layout = index.layout
        fields = json.dumps(layout.fields, sort_keys=True) if isinstance(layout, AttachedLayout) else ""
        self._rows = TextRows(folder, hashlib.sha256(fields.encode()).hexdigest()[:8])

    @property
    def rows(self) -> TextRows:
        """Current rows and features. Row numbers are valid for this object only."""
        self._rows = self._rows.current()
        return self._rows

    def missing(self, name: str, version: str) -> int:
        """Count the documents without a feature. Of many changed documents, all count."""
        rows = self.rows
        if version not in rows.features.versions().get(name, ()):
            return len(self._index)
        count = 0
        for shard in self._shards():
            left = gaps(rows.covered(name, version, shard.uuid, shard.number), shard.last)
            if left:
                body = {**OURS, "size": 0, "track_total_hits": True, "query": _numbered(left)}
                count += int(self._reader.shard(shard.name, shard.number, body)["total"]["value"])
        return count

    def versions(self) -> dict[str, str]:
        """Return ranker -> most complete version, of two the newer."""
        best = {}
        for name, versions in self.rows.features.versions().items():
            fewest = {version: self.missing(name, version) for version in versions}
            best[name] = min(reversed(versions), key=fewest.__getitem__)
        return best

    def read(
        self, features: Mapping[str, str], ids: Sequence[str], versions: Sequence[tuple[str, int, int]]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        """Return the features of n hits, and (n,) bool: missing. Changed texts are looked up.

        features: ranker -> version. versions: index, sequence number and primary term of each hit.
        """
        uuids, rows = self._index.uuids() if ids else {}, self.rows
        found = np.full(len(ids), -1, np.int64)
        for name in {name for name, _, _ in versions}:
            where = np.array([i for i, (index, _, _) in enumerate(versions) if index == name])
            seq_nos, terms = np.array([versions[i][1:] for i in where.tolist()], np.int64).T
            found[where] = rows.find(
                uuids.get(name, ""), None, seq_nos, terms, [ids[i] for i in where.tolist()]
            )
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

    def write(
        self,
        encoders: Sequence[Encoder],
        *,
        part: tuple[int, int] = (0, 1),
        force: bool = False,
        keep: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Encode changed documents; see :meth:`Engine.write_features`.

        force: encode all documents and replace corrupt files.
        """
        encoded = {encoder.name: 0 for encoder in encoders}
        if not encoders:
            return encoded

        def count(name: str, number: int, read: int) -> None:
            encoded[name] += number
            if progress is not None:
                progress(read)

        rows = self.rows.repaired() if force else self.rows
        job = _Job(rows, force, count)
        shards = self._shards()
        work = [job.work(shard, encoders) for shard in shards]
        if any(work):
            with self._index.asking("reading documents"):
                self._index.refresh(self._settings.index)
        number, parts = part
        for shard, ranges in zip(shards, work):
            for (first, last), some in sorted(ranges.items()):
                size = last - first + 1
                begin, end = first + size * number // parts, first + size * (number + 1) // parts - 1
                for hits, documents, reached in self._pages(shard, begin, end):
                    job.store(shard, hits, documents, some)
                    job.cover(shard, some, begin, reached)
        for encoder in encoders:
            kept = {encoder.version, *(keep or {}).get(encoder.name, ())}
            for other in rows.features.versions().get(encoder.name, [])[:-_KEPT]:
                if other not in kept:
                    rows.remove(encoder.name, other)
        rows.drop_indices([shard.uuid for shard in shards])
        return encoded

    def _shards(self) -> list[Shard]:
        with self._index.asking("reading the index's state"):
            stats = self._client.indices.stats(index=self._settings.index, metric="docs", level="shards")
        return [
            Shard(name, about["uuid"], int(number), copy["seq_no"]["global_checkpoint"])
            for name, about in sorted(stats["indices"].items())
            for number, copies in sorted(about["shards"].items())
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def _pages(
        self, shard: Shard, first: int, last: int
    ) -> Iterator[tuple[list[dict[str, Any]], list[Document], int]]:
        """Read a range; yields hits, documents and the number reached."""
        body = self._reader.numbered({"range": {"_seq_no": {"gte": first, "lte": last}}}, _BATCH)
        reached = first - 1
        while reached < last:
            hits = self._reader.shard(shard.name, shard.number, body)["hits"]
            reached = hits[-1]["_seq_no"] if len(hits) == _BATCH else last
            yield hits, [self._index.layout.document(hit["_id"], hit["_source"]) for hit in hits], reached
            if hits:
                body["search_after"] = hits[-1]["sort"]


@dataclass(frozen=True)
class _Job:
    """One call of :meth:`AttachedFeatures.write`. count: callback."""

    rows: TextRows
    force: bool
    count: Callable[[str, int, int], None]

    def work(self, shard: Shard, encoders: Sequence[Encoder]) -> dict[tuple[int, int], list[Encoder]]:
        """Ranges of sequence numbers, and encoders that do not cover them."""
        work: dict[tuple[int, int], list[Encoder]] = {}
        stored = self.rows.features.versions()
        for encoder in encoders:
            covered: Ranges = []
            if not self.force and encoder.version in stored.get(encoder.name, ()):
                covered = self.rows.covered(encoder.name, encoder.version, shard.uuid, shard.number)
            for first, last in gaps(covered, shard.last):
                work.setdefault((first, last), []).append(encoder)
        return work

    def store(
        self,
        shard: Shard,
        hits: Sequence[Mapping[str, Any]],
        documents: Sequence[Document],
        encoders: Sequence[Encoder],
    ) -> None:
        if not documents:
            return
        rows = self.rows.add(documents)
        for name, version, encode, *_ in encoders:
            missing = np.ones(len(rows), np.bool_)
            if not self.force:
                missing = self.rows.features.read(name, version, rows)[1]
            where = np.flatnonzero(missing)
            if len(where):
                values = encode([documents[i] for i in where.tolist()])
                self.rows.features.write(name, version, rows[where], values, replace=self.force)
            self.count(name, len(where), len(hits))
        locations = [
            DocumentLocation(shard.uuid, shard.number, hit["_seq_no"], hit["_primary_term"], hit["_id"])
            for hit in hits
        ]
        self.rows.locate(locations, rows)

    def cover(self, shard: Shard, encoders: Sequence[Encoder], first: int, last: int) -> None:
        for encoder in encoders:
            self.rows.cover(encoder.name, encoder.version, shard.uuid, shard.number, first, last)


def _numbered(ranges: Ranges) -> dict[str, Any]:
    parts = [{"range": {"_seq_no": {"gte": first, "lte": last}}} for first, last in ranges]
    return {"bool": {"should": parts, "minimum_should_match": 1}}
