"""Reading documents by id, by location, or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rerank.common.errors import EngineError
from rerank.documents.records import Document
from rerank.documents.text import join_names
from rerank.engines.base import IndexSlice
from rerank.engines.opensearch.index import Index

LONGEST_ID = 512
"""Maximum length of an id in bytes."""

Hits = Sequence[Mapping[str, Any]]
"""Hits of a search, as OpenSearch returns them."""

_PAGE = 1000  # documents per request
_KEEP = "10m"  # how long the cluster keeps a point in time between two pages


def ids_of(hits: Hits) -> list[str]:
    """Return the ids of hits."""
    return [hit["_id"] for hit in hits]


class DocumentVersion(NamedTuple):
    """One version of a document: every write of a document gets the next sequence number of its shard.

    index_name:   name of the index.
    seq_no:       sequence number.
    primary_term: it increases whenever another copy of the shard becomes the primary one.
    """

    index_name: str
    seq_no: int
    primary_term: int


class Reader:
    """Reads the documents of an index: by id, by location, or all."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._client = index.client
        self._settings = index.settings
        self._layout = index.layout

    def ids(self) -> list[str]:
        """Read the ids of all documents at one point in time, and sort them by code point."""
        body = {"size": 10 * _PAGE, "_source": False}
        ids: set[str] = set()
        for hits in self.pages(body):
            ids.update(ids_of(hits))
        return sorted(ids)

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that a document in the index has, without unknown ones."""
        return {hit["_id"] for hit in self.hits(ids, _source=False)}

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents of these ids, in this order; None for an id that no document has."""
        documents: dict[str, Document] = {}
        for hit in self.hits(ids, _source=self._layout.source):
            documents[hit["_id"]] = self._layout.document(hit["_id"], hit["_source"])
        return list(map(documents.get, ids))

    def hits(self, ids: Iterable[str], **body: object) -> Iterator[dict[str, Any]]:
        """Search for documents by their ids; yield a hit for each id that exists.

        A search is needed because an alias of several indices, or routing, do not allow to get documents.
        Each shard may have a document of the same id. Only one of them is returned.

        body: other parts of the search, such as ``_source``.
        """
        usable_ids = list(filter(usable, dict.fromkeys(ids)))
        shape = self.index.shape()
        page_size = max(1, min(_PAGE, shape.window // shape.shards))
        for start in range(0, len(usable_ids), page_size):
            page = usable_ids[start : start + page_size]
            request = {**body, "size": len(page) * shape.shards, "query": {"ids": {"values": page}}}
            answer = self.index.search("reading documents", request)
            hits_by_id = {hit["_id"]: hit for hit in answer["hits"]["hits"]}
            yield from hits_by_id.values()

    def at(self, locations: Sequence[tuple[str, int, int]]) -> list[Document | None]:
        """Return the documents at these locations; None if a document was changed or deleted since.

        locations: uuid of the index, number of the shard, and sequence number of the document.
        """
        seq_nos_by_shard: dict[tuple[str, int], list[int]] = {}
        for uuid, shard, seq_no in locations:
            seq_nos_by_shard.setdefault((uuid, shard), []).append(seq_no)
        names = self._names_of_indices({uuid for uuid, _ in seq_nos_by_shard})

        documents: dict[tuple[str, int, int], Document] = {}
        for (uuid, shard), seq_nos in seq_nos_by_shard.items():
            if uuid not in names:
                continue
            query = {"terms": {"_seq_no": seq_nos}}
            for hit in self.shard(names[uuid], shard, query, len(seq_nos)):
                location = (uuid, shard, hit["_seq_no"])
                documents[location] = self._layout.document(hit["_id"], hit["_source"])
        return list(map(documents.get, locations))

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
        """Read all documents at one point in time, page by page; yield each id once."""
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
        """Yield all hits of the index; see :func:`pages`."""
        yield from pages(self.index, body, index_slice)


def pages(
    index: Index, body: Mapping[str, Any], index_slice: IndexSlice | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Yield all hits of an index at one point in time, by page.

    body:        body of the search, with ``size``, the number of hits on a page.
    index_slice: yield only the hits of this part.
    """
    names, empty = _names_to_read(index)
    if not names:
        return
    with index.asking("reading documents"):
        pit = index.client.create_pit(
            index=names,
            params={"keep_alive": _KEEP, "allow_partial_pit_creation": "false"},
        )
    pit_id = pit["pit_id"]
    try:
        number, total = index_slice or (1, 1)
        shards = int(pit["_shards"]["total"])
        slices = shards * total
        if empty and slices > 1:
            raise EngineError(
                f"the alias {index.settings.index!r} has a filter and an index without mapping,"
                f" {join_names(empty)}, so OpenSearch cannot read it in slices; remove this index from the"
                " alias, or add a field to its mapping"
            )
        # Slice s is a part of the shard s % shards, so each search reads one shard, which is fastest.
        for shard in range(shards):
            page = {**body, "sort": ["_doc"], "pit": {"id": pit_id, "keep_alive": _KEEP}}
            if slices > 1:
                page["slice"] = {"id": (number - 1) * shards + shard, "max": slices}
            yield from _pages_of_slice(index, page)
    finally:
        with suppress(Exception):
            params = {"request_timeout": min(1.0, index.settings.timeout)}
            index.client.delete_pit(body={"pit_id": [pit_id]}, params=params)


def _names_to_read(index: Index) -> tuple[str, list[str]]:
    """Return the alias or the names of the indices to read, and the unused indices among them.

    The first value is empty if no index can have documents. An index without any mapping has never received a
    document. It is left out, because OpenSearch answers status 400 if such an index is read in slices. Only
    an alias applies its filter, so an alias with a filter is read with its unused indices.
    """
    alias = index.settings.index
    states = index.indices()
    unused = _unused_indices(index, states)
    if not unused:
        return alias, []
    names_in_use = sorted(states.keys() - unused)
    if names_in_use and _has_filter(states, alias):
        return alias, unused
    return ",".join(names_in_use), []


def _unused_indices(index: Index, states: Mapping[str, Any]) -> list[str]:
    """Return the indices without mapping and documents. Documents without fields leave the mapping empty."""
    unused: list[str] = []
    for name, state in states.items():
        if not state["mappings"] and not index.count(index=name):
            unused.append(name)
    return unused


def _has_filter(states: Mapping[str, Any], alias: str) -> bool:
    """Return whether an alias filters the documents of an index. states: name -> state of the index."""
    return any("filter" in state["aliases"].get(alias, {}) for state in states.values())


def _pages_of_slice(index: Index, body: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Yield the hits of a search in one slice, by page."""
    page = dict(body)
    while True:
        hits = index.search("reading documents", page, None)["hits"]["hits"]
        if hits:
            yield hits
        if len(hits) < page["size"]:
            return
        page["search_after"] = hits[-1]["sort"]


def primary(shard: int) -> str:
    """Return the preference of searches that read only one primary shard. shard: its number."""
    return f"_shards:{shard}|_primary"


def usable(id: str) -> bool:
    """Return whether OpenSearch accepts an id: text of 1 to ``LONGEST_ID`` bytes in UTF-8."""
    try:
        return 0 < len(id.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False
