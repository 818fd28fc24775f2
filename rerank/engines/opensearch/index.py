"""The index of a name: connection, creation, state."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from opensearchpy import OpenSearch
from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch.connection import Settings, check, connect
from rerank.engines.opensearch.errors import CREATE_AGAIN, asking
from rerank.engines.opensearch.layout import AttachedLayout, Layout, OwnedLayout, check_fields, field_types
from rerank.errors import EngineError, UsageError
from rerank.files import folder_lock
from rerank.index_templates import index_body

FORMAT = 2
"""Version of index_templates/; an index of another version is not opened."""

WHOLE = {"allow_partial_search_results": "false"}
"""Parameter of searches: a shard without an answer is an error."""

WINDOW = 10_000
"""Default of index.max_result_window: the hits that an index returns at once."""

NO_PIPELINE = "_none"
"""No search pipeline: with the hook's pipeline, the service would call itself without end. It is set in the
body, because the header of ``_msearch`` does not accept it. Searches at a point in time may use the default
pipeline; the hook does not change them, because they have no words."""

OURS = {"search_pipeline": NO_PIPELINE}
"""The body of our own searches."""

_FRESH = 2.0  # seconds until the indices of the name are read again


class Shape(NamedTuple):
    """The indices of a name: uuid of each, maximum hits per search, and number of shards."""

    uuids: Mapping[str, str]
    window: int
    shards: int


class Index:
    """An index in a cluster. folder: of the engine."""

    def __init__(
        self, settings: Settings, folder: Path, layout: Layout | None = None, lang: str | None = None
    ) -> None:
        self.settings = settings
        self.layout = layout or OwnedLayout()
        self.lang = lang
        self.folder = folder
        self._shape: tuple[float, Shape] | None = None
        with asking(settings, "connecting"):
            self.client: OpenSearch = connect(settings)
        # The client is in a reference cycle, so its connections would stay open for long.
        weakref.finalize(self, self.client.close)

    def check(self) -> None:
        """Raise EngineError or UsageError without a suitable index in the cluster."""
        check(self.client, self.settings)
        found = self.indices()
        if not found:
            raise EngineError(f"{self.settings.where} has no index {self.settings.index!r}; {CREATE_AGAIN}")
        self.check_fields(found)
        if isinstance(self.layout, AttachedLayout):
            return
        for name, about in found.items():
            made = about["mappings"].get("_meta", {}).get("rerank", {}).get("format")
            if made is None:
                fields = field_types(about["mappings"].get("properties", {}))
                raise UsageError(
                    f"index {name!r} at {self.settings.where} was not made by rerank; choose another name,"
                    " or name the fields with title, text, categories, links and lang in `rerank attach`;"
                    f" it has {', '.join(f'{path} ({kind})' for path, kind in fields) or 'no fields'}"
                )
            if made != FORMAT:
                raise EngineError(f"index {name!r} has another format, {made}; ingest again with --replace")

    def check_fields(self, indices: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Raise UsageError or EngineError if an attached index does not have these fields.

        indices: see :meth:`indices`; None: the current ones.
        """
        if isinstance(self.layout, AttachedLayout):
            for name, about in (self.indices() if indices is None else indices).items():
                check_fields(name, about["mappings"], self.layout.fields)

    def indices(self, name: str = "") -> dict[str, dict[str, Any]]:
        """Return the indices of a name (default: of the settings), with mappings, settings and aliases."""
        with self.asking("looking for the index"):
            found: dict[str, dict[str, Any]] = self.client.indices.get(
                index=name or self.settings.index, ignore_unavailable=True, allow_no_indices=True
            )
        return found

    def uuid(self, name: str) -> str | None:
        """Return the uuid of an index, if it exists."""
        about = self.indices(name).get(name)
        return about["settings"]["index"]["uuid"] if about is not None else None

    def shape(self, *, fresh: bool = False) -> Shape:
        """Return the state of the indices, cached for two seconds. fresh: without the cache."""
        if fresh or self._shape is None or time.monotonic() > self._shape[0] + _FRESH:
            now = time.monotonic()
            with self.asking("looking for the index"):
                answer = self.client.indices.get_settings(index=self.settings.index)
            indices = {name: about["settings"]["index"] for name, about in answer.items()}
            window = min((int(i.get("max_result_window", WINDOW)) for i in indices.values()), default=WINDOW)
            shards = sum(int(index["number_of_shards"]) for index in indices.values())
            uuids = {name: index["uuid"] for name, index in indices.items()}
            self._shape = now, Shape(uuids, window, shards)
        return self._shape[1]

    def make(self, name: str, *, alias: bool) -> None:
        """Create an empty index, optionally with the alias."""
        body = index_body(self.lang, shards=self.settings.shards, replicas=self.settings.replicas)
        if alias:
            body["aliases"] = {self.settings.index: {}}
        # It can only be set now. Clusters without the k-NN plugin refuse it.
        body["settings"]["index"]["knn"] = True
        try:
            self.client.indices.create(index=name, body=body)
        except client_errors.RequestError as error:
            if "unknown setting [index.knn]" not in str(error.info):
                raise
            del body["settings"]["index"]["knn"]
            self.client.indices.create(index=name, body=body)
        # Without replicas, a node that dies loses the only copy.
        patience = min(10.0, self.settings.timeout / 2)
        params = {
            "wait_for_no_initializing_shards": "true",
            "wait_for_events": "languid",
            "timeout": f"{1000 * patience:.0f}ms",
            "request_timeout": self.settings.timeout,
            "ignore": 408,
        }
        self.client.cluster.health(index=name, params=params)

    def refresh(self, index: str) -> None:
        """Make all writes visible in all copies."""
        for _ in range(3):
            if not self.client.indices.refresh(index=index)["_shards"]["failed"]:
                return
        raise EngineError(
            f"not all shards of {self.settings.index!r} answer; look at `GET _cluster/health`, and run again"
            " when they do"
        )

    def asking(self, doing: str) -> AbstractContextManager[None]:
        """Turn client errors into EngineError."""
        return asking(self.settings, doing)

    def search(self, doing: str, body: Mapping[str, Any], index: str | None = "", **params: str) -> Any:
        """Return the answer of all shards. index: default: of the settings; None: of a point in time."""
        index = self.settings.index if index == "" else index
        body = {**OURS, "track_total_hits": False, **body}
        with self.asking(doing):
            return self.client.search(index=index, body=body, params={**WHOLE, **params})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder; see :meth:`Engine.lock`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.folder, f"ingesting into {self.settings.index!r}"):
            yield

    def discard(self) -> None:
        """Remove an empty index."""
        with self.asking("removing the empty index"):
            for name, about in self.indices().items():
                if "rerank" in about["mappings"].get("_meta", {}) and not len(self):
                    self.client.indices.delete(index=name)

    def count(self, query: Mapping[str, Any], index: str = "") -> int:
        """Count matches. A missing shard is an error, unlike with ``_count``."""
        body = {"size": 0, "track_total_hits": True, "query": query}
        return int(self.search("counting documents", body, index)["hits"]["total"]["value"])

    def __len__(self) -> int:
        """Count the documents."""
        return self.count({"match_all": {}})

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
