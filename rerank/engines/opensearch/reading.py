"""Reading documents by id, by location, or all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch.columns import FEATURES
from rerank.engines.opensearch.errors import explain
from rerank.engines.opensearch.index import OURS, WHOLE, Index
from rerank.engines.opensearch.layout import AttachedLayout
from rerank.engines.opensearch.text_rows import DocumentLocation
from rerank.errors import EngineError
from rerank.records import Document

LONGEST_ID = 512
"""Maximum length of an id in bytes."""

_PAGE = 1000  # documents per request
_WITHOUT_EFFECT = ("blocks", "number_of_replicas", "auto_expand_replicas", "refresh_interval", "routing")
_KEEP = "10m"  # how long the cluster keeps a point in time between two pages


class Reader:
    """Reads documents."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._client, self._settings, self._layout = index.client, index.settings, index.layout

    def version(self) -> str:
        """Return a hash of everything that can change a search."""
        with self._index.asking("reading the index's state"):
            stats = self._client.indices.stats(index=self._settings.index, metric="docs", level="shards")
        seen = [
            (name, about["uuid"], number, copy["seq_no"]["max_seq_no"])
            for name, about in stats["indices"].items()
            for number, copies in about["shards"].items()
            for copy in copies
            if copy["routing"]["primary"]
        ]
        fields = self._layout.fields if isinstance(self._layout, AttachedLayout) else None
        known = [sorted(seen), self._shapes(), self._pipelines(), fields, self._settings.search_type]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    def _shapes(self) -> dict[str, Any]:
        found = {}
        for name, about in self._index.indices().items():
            mappings, settings = about["mappings"], about["settings"]["index"]
            fields = {**mappings.get("properties", {})}
            fields.pop(FEATURES, None)
            kept = {key: value for key, value in settings.items() if key not in _WITHOUT_EFFECT}
            found[name] = [{**mappings, "_meta": None, "properties": fields}, kept]
        return found

    def _pipelines(self) -> Any:
        """None without permission."""
        try:
            return self._client.transport.perform_request("GET", "/_search/pipeline")
        except client_errors.TransportError as error:
            if error.status_code in (400, 403, 404, 405):
                return None
            raise explain(error, self._settings, "reading the index's state") from error

    def ids(self) -> list[str]:
        """All document ids, ascending by code point."""
        body = {"size": 10 * _PAGE, "_source": False}
        return sorted(hit["_id"] for hits in self.pages(body) for hit in hits)

    def contains(self, ids: Iterable[str]) -> set[str]:
        """Return the existing ids."""
        return {found["_id"] for found in self._mget(list(dict.fromkeys(ids)), False)}

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Return the documents in this order; None: unknown id."""
        found = {
            hit["_id"]: self._layout.document(hit["_id"], hit["_source"])
            for hit in self._mget(list(dict.fromkeys(ids)), self._layout.source)
        }
        return [found.get(id) for id in ids]

    def _mget(self, ids: Sequence[str], source: bool | list[str]) -> Iterator[dict[str, Any]]:
        known = [id for id in ids if usable(id)]
        for i in range(0, len(known), _PAGE):
            some = known[i : i + _PAGE]
            if isinstance(self._layout, AttachedLayout):
                # In several indices, or with routing, only a search finds them.
                body = {**OURS, "size": len(some), "query": {"ids": {"values": some}}, "_source": source}
                with self._index.asking("reading documents"):
                    answer = self._client.search(index=self._settings.index, body=body, params=WHOLE)
                yield from answer["hits"]["hits"]
                continue
            with self._index.asking("reading documents"):
                docs = [{"_id": id, "_source": source} for id in some]
                answer = self._client.mget(index=self._settings.index, body={"docs": docs})
            for found in answer["docs"]:
                if "error" in found:
                    raise EngineError(f"reading documents: {found['error'].get('reason')}")
            yield from (found for found in answer["docs"] if found.get("found"))

    def at(self, locations: Sequence[DocumentLocation]) -> list[Document | None]:
        """Return the documents at these locations; None: changed or deleted."""
        names = {uuid: name for name, uuid in self._index.uuids().items()}
        found: dict[tuple[str, int, int], Document] = {}
        for uuid, shard in dict.fromkeys((one.uuid, one.shard) for one in locations):
            if uuid not in names:
                continue
            numbers = [one.seq_no for one in locations if (one.uuid, one.shard) == (uuid, shard)]
            body = self.numbered({"terms": {"_seq_no": numbers}}, len(numbers))
            for hit in self.shard(names[uuid], shard, body)["hits"]:
                found[uuid, shard, hit["_seq_no"]] = self._layout.document(hit["_id"], hit["_source"])
        return [found.get((one.uuid, one.shard, one.seq_no)) for one in locations]

    def numbered(self, query: Mapping[str, Any], size: int) -> dict[str, Any]:
        """Return the body of a search by sequence number."""
        more = {"_source": self._layout.source, "seq_no_primary_term": True, "track_total_hits": False}
        return {**OURS, **more, "size": size, "query": query, "sort": [{"_seq_no": "asc"}]}

    def shard(self, index: str, number: int, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hits in one primary shard."""
        params = {**WHOLE, "preference": f"_shards:{number}|_primary"}
        with self._index.asking("reading documents"):
            found: dict[str, Any] = self._client.search(index=index, body=body, params=params)["hits"]
        return found

    def documents(self) -> Iterator[Document]:
        """Return all documents as a stream."""
        body = {"size": _PAGE, "_source": self._layout.source}
        for hits in self.pages(body):
            for hit in hits:
                yield self._layout.document(hit["_id"], hit["_source"])

    def pages(
        self, body: Mapping[str, Any], part: tuple[int, int] = (0, 1)
    ) -> Iterator[list[dict[str, Any]]]:
        """Return all hits at one point in time, by page. A slice per shard is fastest."""
        number, count = part
        with self._index.asking("reading documents"):
            pit = self._client.create_pit(
                index=self._settings.index,
                params={"keep_alive": _KEEP, "allow_partial_pit_creation": "false"},
            )
        keep = pit["pit_id"]
        try:
            shards = int(pit["_shards"]["total"])
            for shard in range(shards):
                page = {**body, **OURS, "sort": ["_doc"], "track_total_hits": False}
                if shards * count > 1:
                    page["slice"] = {"id": number * shards + shard, "max": shards * count}
                while True:
                    page["pit"] = {"id": keep, "keep_alive": _KEEP}
                    with self._index.asking("reading documents"):
                        hits = self._client.search(body=page, params=WHOLE)["hits"]["hits"]
                    if hits:
                        yield hits
                    if len(hits) < page["size"]:
                        break
                    page["search_after"] = hits[-1]["sort"]
        finally:
            with suppress(Exception):
                params = {"request_timeout": min(1.0, self._settings.timeout)}
                self._client.delete_pit(body={"pit_id": [keep]}, params=params)


def usable(id: str) -> bool:
    """Return whether an id is valid."""
    try:
        return 0 < len(id.encode()) <= LONGEST_ID
    except UnicodeEncodeError:
        return False
