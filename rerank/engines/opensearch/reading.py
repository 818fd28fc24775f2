"""Reading documents by id, by location, or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rerank.engines.base import IndexSlice
from rerank.engines.opensearch.index import Index
from rerank.records import Document

LONGEST_ID = 512
"""Maximum length of an id in bytes."""

Hits = Sequence[Mapping[str, Any]]
"""Hits of a search, as OpenSearch returns them."""

_PAGE = 1000  # documents per request
_KEEP = "10m"  # how long the cluster keeps a point in time between two pages


class Reader:
    """Reads the documents of an index: by id, by location, or all."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._client, self._settings, self._layout = index.client, index.settings, index.layout

    def ids(self) -> list[str]:
        """All document ids, ascending by code point."""
        body = {"size": 10 * _PAGE, "_source": False}
        return sorted({hit["_id"] for hits in self.pages(body) for hit in hits})

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Return the existing ids."""
        return {hit["_id"] for hit in self.hits(ids, _source=False)}

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents in this order; None: unknown id."""
        documents = {
            hit["_id"]: self._layout.document(hit["_id"], hit["_source"])
            for hit in self.hits(ids, _source=self._layout.source)
        }
        return [documents.get(id) for id in ids]

    def hits(self, ids: Iterable[str], **body: Any) -> Iterator[dict[str, Any]]:
        """Search for ids: an alias of several indices and routing do not allow to get them.

        Each shard may have a document of the same id. Only one of them is returned.
        """
        usable_ids = [id for id in dict.fromkeys(ids) if usable(id)]
        shape = self.index.shape()
        page_size = max(1, min(_PAGE, shape.window // shape.shards))
        for start in range(0, len(usable_ids), page_size):
            page = usable_ids[start : start + page_size]
            request = {**body, "size": len(page) * shape.shards, "query": {"ids": {"values": page}}}
            answer = self.index.search("reading documents", request)
            yield from {hit["_id"]: hit for hit in answer["hits"]["hits"]}.values()

    def at(self, locations: Sequence[tuple[str, int, int]]) -> list[Document | None]:
        """Return the documents at these locations; None: changed or deleted.

        locations: uuid of the index, shard and sequence number.
        """
        numbers: dict[tuple[str, int], list[int]] = {}
        for uuid, shard, seq_no in locations:
            numbers.setdefault((uuid, shard), []).append(seq_no)
        names = self._names_of_indices({uuid for uuid, _ in numbers})
        documents: dict[tuple[str, int, int], Document] = {}
        for (uuid, shard), seq_nos in numbers.items():
            if uuid not in names:
                continue
            query = {"terms": {"_seq_no": seq_nos}}
            for hit in self.shard(names[uuid], shard, query, len(seq_nos)):
                documents[uuid, shard, hit["_seq_no"]] = self._layout.document(hit["_id"], hit["_source"])
        return [documents.get(location) for location in locations]

    def _names_of_indices(self, uuids: set[str]) -> dict[str, str]:
        """Return uuid -> name of the searched indices. Ask the cluster again if a uuid is unknown."""
        shape = self.index.shape()
        if not uuids <= set(shape.uuids.values()):  # the alias may have moved
            shape = self.index.shape(fresh=True)
        return {uuid: name for name, uuid in shape.uuids.items()}

    def shard(self, index: str, number: int, query: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
        """Return the first hits in one primary shard, by sequence number. size: their maximum number."""
        body = {"size": size, "query": query, "sort": [{"_seq_no": "asc"}]}
        body |= {"_source": self._layout.source, "seq_no_primary_term": True}
        answer = self.index.search("reading documents", body, index, preference=primary(number))
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        return hits

    def documents(self) -> Iterator[Document]:
        """Return all documents as a stream, each id once."""
        body = {"size": _PAGE, "_source": self._layout.source}
        ids_may_repeat = self._layout.attached and self.index.shape().shards > 1
        yielded: set[str] = set()
        for hits in self.pages(body):
            for hit in hits:
                if hit["_id"] not in yielded:
                    yield self._layout.document(hit["_id"], hit["_source"])
                if ids_may_repeat:
                    yielded.add(hit["_id"])

    def pages(
        self, body: Mapping[str, Any], index_slice: IndexSlice | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Return all hits at one point in time, by page."""
        yield from pages(self.index, body, index_slice)


def pages(
    index: Index, body: Mapping[str, Any], index_slice: IndexSlice | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Yield all hits of an index at one point in time, by page.

    body:        body of the search, with ``size``, the number of hits on a page.
    index_slice: yield only the hits of this part.
    """
    number, total = index_slice or (1, 1)
    with index.asking("reading documents"):
        pit = index.client.create_pit(
            index=index.settings.index,
            params={"keep_alive": _KEEP, "allow_partial_pit_creation": "false"},
        )
    keep = pit["pit_id"]
    try:
        shards = int(pit["_shards"]["total"])
        # Slice s is a part of the shard s % shards, so each search reads one shard, which is fastest.
        for shard in range(shards):
            page = {**body, "sort": ["_doc"]}
            if shards * total > 1:
                page["slice"] = {"id": (number - 1) * shards + shard, "max": shards * total}
            while True:
                page["pit"] = {"id": keep, "keep_alive": _KEEP}
                hits = index.search("reading documents", page, None)["hits"]["hits"]
                if hits:
                    yield hits
                if len(hits) < page["size"]:
                    break
                page["search_after"] = hits[-1]["sort"]
    finally:
        with suppress(Exception):
            params = {"request_timeout": min(1.0, index.settings.timeout)}
            index.client.delete_pit(body={"pit_id": [keep]}, params=params)


def primary(shard: int) -> str:
    """Return the preference of searches in one primary shard."""
    return f"_shards:{shard}|_primary"


def usable(id: str) -> bool:
    """Return whether an id is valid."""
    try:
        return 0 < len(id.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False
