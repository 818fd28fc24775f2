"""The parts of a cluster that the hook reads and writes: pipelines, plugins of the nodes, and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.connection import connect
from rerank.engines.opensearch.errors import translate_client_errors
from rerank.engines.opensearch.writing import DEFAULT_PIPELINE
from rerank.hook.readiness import PATIENCE

STATISTICS = "/_plugins/_rerank_stack/stats"
"""The counters of the plugin on one node."""


@dataclass(frozen=True)
class Node:
    """A node of a cluster.

    version: its version of OpenSearch.
    plugins: name -> version of its plugins.
    """

    name: str
    version: str
    plugins: Mapping[str, str]

    def plugin_version(self, plugins: Sequence[str]) -> str | None:
        """Return the version of the first of these plugins, or None if the node lacks one of them.

        >>> Node("a", "3.6.0", {"rerank": "0.1.0"}).plugin_version(["rerank"])
        '0.1.0'
        >>> Node("a", "3.6.0", {"rerank": "0.1.0"}).plugin_version(["rerank", "opensearch-ml"])
        """
        has_plugins = self.plugins.keys() >= set(plugins)
        return self.plugins[plugins[0]] if has_plugins else None


class Cluster:
    """The cluster of an engine. Methods raise EngineError if it does not answer, or refuses a request."""

    def __init__(self, engine: OpenSearchEngine) -> None:
        self.settings = engine.settings
        self._client = engine.index.client

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request; return the answer, or {} for status 404, except for PUT."""
        with translate_client_errors(self.settings, f"{method} {path}"):
            try:
                answer: dict[str, Any] = self._client.transport.perform_request(method, path, body=body)
            except client_errors.NotFoundError:
                if method == "PUT":
                    raise
                return {}
        return answer

    def nodes(self) -> list[Node]:
        """Return all nodes, with their plugins."""
        answer = self.ask("GET", "/_nodes/plugins")
        nodes: list[Node] = []
        for node in answer.get("nodes", {}).values():
            plugins = {plugin["name"]: plugin["version"] for plugin in node["plugins"]}
            nodes.append(Node(node["name"], node["version"], plugins))
        return nodes

    def pipeline(self, name: str) -> dict[str, Any] | None:
        """Return the definition of a search pipeline, or None if it does not exist."""
        pipelines = self.ask("GET", f"/_search/pipeline/{name}")
        return pipelines.get(name)

    def default_pipelines(self) -> dict[str, str]:
        """Return index -> name of its default pipeline, for all indices that have one."""
        path = f"/_all/_settings/{DEFAULT_PIPELINE}?flat_settings=true&expand_wildcards=all"
        answer = self.ask("GET", path)
        pipelines: dict[str, str] = {}
        for index in sorted(answer):
            pipeline = answer[index]["settings"].get(DEFAULT_PIPELINE)
            if pipeline:
                pipelines[index] = pipeline
        return pipelines

    def template_problems(self) -> list[str]:
        """Return the problems of stored search templates that name a pipeline, without an effect."""
        path = "/_cluster/state/metadata?filter_path=metadata.stored_scripts"
        problems: list[str] = []
        with suppress(EngineError):  # the user may lack this right
            state = self.ask("GET", path)
            scripts = state.get("metadata", {}).get("stored_scripts", {})
            for name in sorted(scripts):
                if "search_pipeline" in scripts[name].get("source", ""):
                    problems.append(
                        f"OpenSearch ignores the search_pipeline in the stored template {name!r}; name the"
                        " pipeline in the URL of its searches, or as the default of the index"
                    )
        return problems

    def counters(self, url: str) -> dict[str, Any] | None:
        """Return the counters of the plugin on one node; empty without the plugin.

        None means that the node does not answer.
        """
        timeout = min(self.settings.timeout, PATIENCE)
        settings = msgspec.structs.replace(self.settings, url=(url,), timeout=timeout)
        with translate_client_errors(settings, "looking for the node"), closing(connect(settings)) as client:
            try:
                answer: dict[str, Any] = client.transport.perform_request("GET", STATISTICS)
            except client_errors.ConnectionError:
                return None
            except client_errors.TransportError:
                return {}
        return answer
