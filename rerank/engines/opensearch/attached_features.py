"""The features of an attached index: updates and reads its sidecar.

The index is only read. Every change of a document gets the next sequence number of its shard. So a range
query over ``_seq_no`` finds the changes since the last encoding, and an interruption loses one batch at most.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rerank.engines.base import Encoder
from rerank.engines.opensearch.index import OURS, Index
from rerank.engines.opensearch.layout import AttachedLayout
from rerank.engines.opensearch.reading import Reader
from rerank.engines.opensearch.sidecar import Place, Ranges, Sidecar, lacking
from rerank.records import Document

_BATCH = 256  # documents a call of an encoder


class Shard(NamedTuple):
    """One shard of the index. last: all writes up to this sequence number are complete."""

    name: str
    uuid: str
    number: int
    last: int


class AttachedFeatures:
    """Fills and reads the sidecar of one attached index."""

    def __init__(self, index: Index, folder: Path) -> None:
        self._index, self._client, self._settings = index, index.client, index.settings
        self._reader = Reader(index)
        layout = index.layout
        fields = json.dumps(layout.fields, sort_keys=True) if isinstance(layout, AttachedLayout) else ""
        self._sidecar = Sidecar(folder, hashlib.sha256(fields.encode()).hexdigest()[:8])

    @property
    def sidecar(self) -> Sidecar:
        """The files of the generation in use. Rows from one sidecar are read from the same one."""
        self._sidecar = self._sidecar.current()
        return self._sidecar

    # -- what there is -----------------------------------------------------------------------------------

    def shards(self) -> list[Shard]:
        """The shards of the indices that the name stands for now."""
        with self._index.asking("reading the index's state"):
            stats = self._client.indices.stats(index=self._settings.index, metric="docs", level="shards")
        return [
            Shard(name, about["uuid"], int(number), copy["seq_no"]["global_checkpoint"])
            for name, about in sorted(stats["indices"].items())
            for number, copies in sorted(about["shards"].items())
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def missing(self, name: str, version: str) -> int:
        """Count the documents that have no feature, or changed after it was made."""
        sidecar = self.sidecar
        if sidecar.about(name, version) is None:
            return len(self._index)
        count = 0
        for shard in self.shards():
            left = lacking(sidecar.covered(name, version, shard.uuid, shard.number), shard.last)
            if left:
                body = {**OURS, "size": 0, "track_total_hits": True, "query": _numbered(left)}
                count += int(self._reader.shard(shard.name, shard.number, body)["total"]["value"])
        return count

    def versions(self) -> dict[str, str]:
        """Ranker -> the version that covers the most, of two the newer."""
        best = {}
        for name, versions in self.sidecar.versions().items():
            fewest = {version: self.missing(name, version) for version in versions}
            best[name] = min(reversed(versions), key=fewest.__getitem__)
        return best

    # -- reading -----------------------------------------------------------------------------------------

    def gather(
        self, features: Mapping[str, str], ids: Sequence[str], versions: Sequence[tuple[str, int, int]]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[np.bool_]]]:
        """Return the features of n hits, and which are missing.

        features: ranker -> version. versions: of each hit its index, sequence number and primary term.
        """
        uuids, sidecar = self._index.uuids() if ids else {}, self.sidecar
        rows = sidecar.find(
            [
                Place(uuids.get(name, ""), -1, seq_no, term, id)
                for id, (name, seq_no, term) in zip(ids, versions)
            ]
        )
        values, missing = {}, {}
        for name, version in features.items():
            values[name], missing[name] = sidecar.gather(name, version, rows)
        return values, missing

    # -- writing -----------------------------------------------------------------------------------------

    def write(
        self,
        encoders: Sequence[Encoder],
        *,
        part: tuple[int, int] = (0, 1),
        force: bool = False,
        keep: Mapping[str, Sequence[str]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, int]:
        """Encode the documents that changed since the last encoding; see :meth:`Engine.write_features`.

        force: encode every document, and replace corrupt files. Features of other rankers and versions stay.
        """
        encoded = {encoder.name: 0 for encoder in encoders}
        if not encoders:
            return encoded

        def count(name: str, number: int, read: int) -> None:
            encoded[name] += number
            if progress is not None:
                progress(read)

        sidecar = self.sidecar
        if force:
            sidecar = sidecar.repair((encoder.name, encoder.version) for encoder in encoders)
        job = _Job(sidecar, encoders, part, force, count)
        shards = self.shards()
        wanted = [job.wanted(shard) for shard in shards]
        if any(wanted):
            with self._index.asking("reading documents"):
                self._index.refresh(self._settings.index)
        for shard, ranges in zip(shards, wanted):
            for (first, last), some in sorted(ranges.items()):
                self._range(job, shard, first, last, some)
        for encoder in encoders:
            kept = {encoder.version, *(keep or {}).get(encoder.name, ())}
            sidecar.drop(encoder.name, kept, [shard.uuid for shard in shards])
        return encoded

    def _range(self, job: _Job, shard: Shard, first: int, last: int, encoders: Sequence[Encoder]) -> None:
        """Encode this process's part of a range of sequence numbers."""
        (number, count), size = job.part, last - first + 1
        begin, end = first + size * number // count, first + size * (number + 1) // count - 1
        body = self._reader.numbered({"range": {"_seq_no": {"gte": begin, "lte": end}}}, _BATCH)
        while begin <= end:
            hits = self._reader.shard(shard.name, shard.number, body)["hits"]
            if hits:
                documents = [self._index.layout.document(hit["_id"], hit["_source"]) for hit in hits]
                job.store(shard, hits, documents, encoders)
                body["search_after"] = hits[-1]["sort"]
            reached = hits[-1]["_seq_no"] if len(hits) == _BATCH else end
            for encoder in encoders:
                job.sidecar.cover(encoder.name, encoder.version, shard.uuid, shard.number, begin, reached)
            begin = reached + 1


@dataclass(frozen=True)
class _Job:
    """One call of :meth:`AttachedFeatures.write`.

    count: called with a ranker, and the numbers of documents that were encoded and read.
    """

    sidecar: Sidecar
    encoders: Sequence[Encoder]
    part: tuple[int, int]
    force: bool
    count: Callable[[str, int, int], None]

    def wanted(self, shard: Shard) -> dict[tuple[int, int], list[Encoder]]:
        """Ranges of sequence numbers, and the encoders whose features do not cover them."""
        wanted: dict[tuple[int, int], list[Encoder]] = {}
        for encoder in self.encoders:
            covered = self.sidecar.covered(encoder.name, encoder.version, shard.uuid, shard.number)
            for first, last in lacking([] if self.force else covered, shard.last):
                wanted.setdefault((first, last), []).append(encoder)
        return wanted

    def store(
        self,
        shard: Shard,
        hits: Sequence[Mapping[str, Any]],
        documents: Sequence[Document],
        encoders: Sequence[Encoder],
    ) -> None:
        """Encode the documents without features, and note where all of them are."""
        rows = self.sidecar.rows_for(documents)
        for name, version, encode, *_ in encoders:
            _, missing = self.sidecar.gather(name, version, rows)
            where = np.arange(len(rows)) if self.force else np.flatnonzero(missing)
            if len(where):
                values = encode([documents[i] for i in where.tolist()])
                self.sidecar.store(name, version, rows[where], values, force=self.force)
            self.count(name, len(where), len(hits))
        places = [
            Place(shard.uuid, shard.number, hit["_seq_no"], hit["_primary_term"], hit["_id"]) for hit in hits
        ]
        self.sidecar.place(shard.uuid, shard.number, places, rows)


def _numbered(ranges: Ranges) -> dict[str, Any]:
    """The query for the documents with these sequence numbers."""
    parts = [{"range": {"_seq_no": {"gte": first, "lte": last}}} for first, last in ranges]
    return {"bool": {"should": parts, "minimum_should_match": 1}}
