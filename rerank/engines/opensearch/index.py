"""The index of a name: connection, creation, state."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from opensearchpy import OpenSearch
from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError, UsageError
from rerank.documents.text import count_of
from rerank.engines.opensearch.connection import Settings, check, connect
from rerank.engines.opensearch.errors import CREATE_AGAIN, translate_client_errors
from rerank.engines.opensearch.layout import Layout, check_fields, field_types
from rerank.index_templates import index_body

FORMAT = 3
"""Version of index_templates/; an index of another version is not opened."""

_WINDOW = 10_000  # default of index.max_result_window: the hits that an index returns at once

NO_PIPELINE = "_none"
"""No search pipeline: with the hook's pipeline, the service would call itself without end. It is set in the
body, because the header of ``_msearch`` does not accept it. Searches at a point in time may use the default
pipeline; the hook does not change them, because they have no words."""

DEFAULTS: Mapping[str, Any] = {"search_pipeline": NO_PIPELINE, "track_total_hits": False}
"""Parts of the body of every search."""

_SAMPLE = 20  # documents that show whether a field can be read
_ALL: Mapping[str, Any] = {"match_all": {}}
FRESH = 2.0  # seconds until indices and pipelines are read again


class Shape(NamedTuple):
    """The indices of a name: uuid of each, maximum hits per search, and number of shards."""

    uuids: Mapping[str, str]
    window: int
    shards: int


def neighbors_per_shard(depth: int, shape: Shape) -> int:
    """Return how many nearest vectors each shard finds: a shard has about its share of the nearest."""
    return min(depth, 2 * depth // shape.shards + 100, shape.window)


class Index:
    """An index in a cluster. folder: of the engine."""

    def __init__(
        self, settings: Settings, folder: Path, layout: Layout | None = None, lang: str | None = None
    ) -> None:
        self.settings = settings
        self.layout = layout or Layout(lang=lang)
        self.lang = lang
        self.folder = folder
        self._shape: tuple[float, Shape] | None = None
        with translate_client_errors(settings, "connecting"):
            self.client: OpenSearch = connect(settings)
        # The client is in a reference cycle, so its connections would stay open for long.
        weakref.finalize(self, self.client.close)

    def check(self, if_missing: str = CREATE_AGAIN) -> None:
        """Check that the cluster has an index that rerank made, or the fields of an attached one.

        if_missing: what to do if there is no index.

        Raises EngineError if there is none or it has an old format, and UsageError if rerank did not make it.
        """
        check(self.client, self.settings)
        indices = self.indices()
        if not indices:
            raise EngineError(f"{self.settings.where} has no index {self.settings.index!r}; {if_missing}")
        for name, description in indices.items():
            if self.layout.attached:
                check_fields(name, description["mappings"], self.layout.fields)
            else:
                self._check_format(name, description["mappings"])

    def _check_format(self, name: str, mappings: Mapping[str, Any]) -> None:
        """Raise UsageError for an index that rerank did not make, EngineError for one of an old format."""
        format = mappings.get("_meta", {}).get("rerank", {}).get("format")
        if format is None:
            fields = field_types(mappings.get("properties", {}))
            described = ", ".join(f"{path} ({kind})" for path, kind in fields)
            raise UsageError(
                f"index {name!r} at {self.settings.where} was not made by rerank; choose another name,"
                " or name the fields with title, text, categories, links and lang in `rerank attach`;"
                f" it has {described or 'no fields'}"
            )
        if format != FORMAT:
            raise EngineError(f"index {name!r} has another format, {format}; ingest again with --replace")

    def check_values(self) -> None:
        """Raise UsageError for a field of an attached index that has values, but not in ``_source``.

        Such a field is filled from others (``copy_to``), so its texts cannot be read.
        """
        for name, paths in self.layout.fields.items():
            for path in paths:
                self._check_values_of_field(path, name)

    def _check_values_of_field(self, path: str, name: str) -> None:
        """Raise UsageError if no document of a sample has the value of a field in its ``_source``."""
        body = {"size": _SAMPLE, "query": {"exists": {"field": path}}, "_source": [path]}
        hits = self.search("reading documents", body)["hits"]["hits"]
        if hits and not any(self.layout.has_value(path, hit["_source"]) for hit in hits):
            raise UsageError(
                f"field {path!r} of index {self.settings.index!r} is empty in the _source of"
                f" {count_of(len(hits), 'document')} that have it, so {name} cannot be read;"
                " another field fills it (copy_to): name that one"
            )

    def indices(self, name: str = "") -> dict[str, dict[str, Any]]:
        """Return the indices of a name (default: of the settings), with mappings, settings and aliases."""
        with self.asking("looking for the index"):
            indices: dict[str, dict[str, Any]] = self.client.indices.get(
                index=name or self.settings.index, ignore_unavailable=True, allow_no_indices=True
            )
        return indices

    def uuid(self, name: str) -> str | None:
        """Return the uuid of an index, or None if it does not exist. name: of the index, not of an alias."""
        description = self.indices(name).get(name)
        return description["settings"]["index"]["uuid"] if description is not None else None

    def shape(self, *, fresh: bool = False) -> Shape:
        """Return the uuids, window and shards of the indices.

        The state is read at most every two seconds. fresh: read it now.
        """
        now = time.monotonic()
        if fresh or self._shape is None or now > self._shape[0] + FRESH:
            self._shape = now, self._read_shape()
        return self._shape[1]

    def _read_shape(self) -> Shape:
        """Ask the cluster for the uuids, the smallest window and the number of shards of the indices."""
        with self.asking("looking for the index"):
            answer = self.client.indices.get_settings(index=self.settings.index)
        settings = {name: description["settings"]["index"] for name, description in answer.items()}
        uuids = {name: index["uuid"] for name, index in settings.items()}
        windows = [int(index.get("max_result_window", _WINDOW)) for index in settings.values()]
        shards = sum(int(index["number_of_shards"]) for index in settings.values())
        return Shape(uuids, min(windows, default=_WINDOW), shards)

    def make(self, name: str, *, alias: bool, like: Mapping[str, Any] | None = None) -> None:
        """Create an empty index, optionally with the alias.

        like: settings of the index that it replaces; the new index gets the same k1, b and window.
        """
        body = index_body(self.lang, shards=self.settings.shards, replicas=self.settings.replicas)
        body["mappings"]["_meta"]["rerank"]["lang"] = self.lang or ""
        settings = body["settings"]["index"]
        like = like or {}
        settings["similarity"]["rerank_bm25"] |= like.get("similarity", {}).get("rerank_bm25", {})
        settings["max_result_window"] = like.get("max_result_window", _WINDOW)
        if alias:
            body["aliases"] = {self.settings.index: {}}
        # It can only be set now. Clusters without the k-NN plugin refuse it.
        settings["knn"] = True
        with self.asking("creating the index"):
            try:
                self.client.indices.create(index=name, body=body)
            except client_errors.RequestError as error:
                if "unknown setting [index.knn]" not in str(error.info):
                    raise
                del settings["knn"]
                self.client.indices.create(index=name, body=body)
            self._wait_for_copies(name)

    def _wait_for_copies(self, name: str) -> None:
        """Wait for replicas: without them, a node that dies loses the only copy."""
        patience = min(10.0, self.settings.timeout / 2)
        params = {
            "wait_for_no_initializing_shards": "true",
            "wait_for_events": "languid",
            "timeout": f"{1000 * patience:.0f}ms",
            "request_timeout": self.settings.timeout,
            "ignore": 408,
        }
        self.client.cluster.health(index=name, params=params)

    def refresh(self, doing: str, index: str = "") -> None:
        """Make all writes to an index visible for searches, in all copies of its shards.

        doing: the action, for messages. index: default: the index of the settings.

        Raises EngineError if a shard does not answer.
        """
        for _ in range(3):
            with self.asking(doing):
                answer = self.client.indices.refresh(index=index or self.settings.index)
            if not answer["_shards"]["failed"]:
                return
        raise EngineError(
            f"not all shards of {self.settings.index!r} answer; look at `GET _cluster/health`, and run again"
        )

    def asking(self, doing: str) -> AbstractContextManager[None]:
        """Return a context that turns errors of the client into EngineError. doing: the action in it."""
        return translate_client_errors(self.settings, doing)

    def search(self, doing: str, body: Mapping[str, Any], index: str | None = "", **params: str) -> Any:
        """Return the answer of all shards. index: default: of the settings; None: of a point in time.

        The searches of a dying node fail; copies of its shards answer the second request.
        """
        index = self.settings.index if index == "" else index
        body = {**DEFAULTS, **body}
        params = {"allow_partial_search_results": "false", **params}
        with self.asking(doing):
            try:
                return self.client.search(index=index, body=body, params=params)
            except client_errors.TransportError as error:
                if not isinstance(error.status_code, int) or error.status_code < 500:
                    raise
            return self.client.search(index=index, body=body, params=params)

    def count(self, query: Mapping[str, Any] = _ALL, index: str = "", **params: str) -> int:
        """Count the documents that match a query. A missing shard is an error, unlike with ``_count``."""
        body = {"size": 0, "track_total_hits": True, "query": query}
        return int(self.search("counting documents", body, index, **params)["hits"]["total"]["value"])
