"""The route of rerank's processor (docs/opensearch/install.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rerank import __version__
from rerank.common.errors import EngineError, UsageError
from rerank.common.values import only, without_empty
from rerank.engines.opensearch.templates import PROCESSOR, other_processors
from rerank.hook.base import Hook, differs
from rerank.hook.options import HookOptions, split_urls
from rerank.hook.reports import Request

PLUGIN = "rerank"
"""Name of the plugin on a node."""

PRESERVED = (
    "stacks",
    "raw_values",
    "fetch",
    "collapse_factor",
    "max_connections",
    "breaker_failures",
    "breaker_pause",
)
"""Settings of a pipeline that have no option: an installation keeps them."""

ALLOWED = "plugins.rerank_stack.allowed_urls"
"""Setting of the nodes: the URLs that pipelines may call."""


def body(options: HookOptions) -> dict[str, Any]:
    """Return the search pipeline of rerank's processor, as OpenSearch stores it.

    options: its settings. A setting that has no value is left out, so that the plugin uses its default.

    >>> body(HookOptions("http://127.0.0.1:8765", depth=50))["response_processors"]
    [{'rerank_stack': {}}]
    """
    config: dict[str, Any] = {
        "url": options.url,
        "depth": options.depth,
        "timeout": round(1000 * options.timeout),
        "on_failure": options.on_failure,
    }
    if options.stack is not None:
        config["stack"] = options.stack
    if options.min_score is not None:
        config["min_score"] = options.min_score
    if options.shadow:
        config["shadow"] = True
    if options.retrieve is not None:
        config["retrieve"] = options.retrieve
    if options.retrieve:
        config["words"] = list(options.words)
    return {"request_processors": [{PROCESSOR: config}], "response_processors": [{PROCESSOR: {}}]}


def merged(new: Mapping[str, Any], existing: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search pipeline of rerank, with the other processors of an existing one.

    Rerank's processors are next to the search: last before it, first after it.

    new:      the pipeline of rerank, as :func:`body` returns it.
    existing: the definition of another pipeline, or of an older one of rerank.

    >>> merged({"request_processors": [{"rerank_stack": {}}]}, {"request_processors": [{"filter_query": {}}]})
    {'request_processors': [{'filter_query': {}}, {'rerank_stack': {}}]}
    """
    existing_by_phase = other_processors(existing)
    result: dict[str, Any] = without_empty(existing_by_phase)
    for phase, processors in new.items():
        existing_processors = existing_by_phase.get(phase, [])
        if phase == "request_processors":
            result[phase] = [*existing_processors, *processors]
        else:
            result[phase] = [*processors, *existing_processors]
    return result


class PluginHook(Hook):
    """A pipeline with the processor ``rerank_stack``."""

    route = "plugin"
    adds_documents = True
    plugins = (PLUGIN,)

    def _remedy(self, servers: Sequence[str]) -> str:
        archives = " or ".join(f"opensearch-rerank-{__version__}-for-{server}.zip" for server in servers)
        return (
            f"run `bin/opensearch-plugin install -b file:///PATH/ZIP` there with {archives}, and restart it"
            " (docs/opensearch/install.md)"
        )

    def _requests(self, options: HookOptions, pipeline: Mapping[str, Any] | None) -> list[Request]:
        url_problems = self._url_problems(options.urls)
        if url_problems:
            raise EngineError("; ".join(url_problems))
        existing = pipeline
        if options.add_to is not None:
            existing = self.cluster.pipeline(options.add_to)
            if existing is None:
                raise UsageError(
                    f"--add-to {options.add_to}: this search pipeline does not exist; correct the name"
                )
        new = self._pipeline_body(options, existing or {})
        if not differs(pipeline, new):
            return []
        return [Request("PUT", self._path, new)]

    def _url_problems(self, urls: Sequence[str]) -> list[str]:
        """Return why nodes would not call the services."""
        answer = self.cluster.ask("GET", "/_nodes/settings?flat_settings=true")
        problems = []
        for node in answer.get("nodes", {}).values():
            allowed = _allowed_urls(node)
            refused = [url for url in urls if not is_allowed(url, allowed)]
            if refused:
                problems.append(
                    f"node {node['name']} may not call {', '.join(refused)}: write {ALLOWED}:"
                    f" {json.dumps([*allowed, *refused])} into its opensearch.yml and restart it"
                )
        return problems

    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        request_settings = _processor_settings(pipeline, "request_processors")
        response_settings = _processor_settings(pipeline, "response_processors")
        is_complete = len(request_settings) == 1 and len(response_settings) <= 1
        if not is_complete or "url" not in request_settings[0]:
            return None
        config = dict(request_settings[0])

        if isinstance(config["url"], list):
            config["url"] = ",".join(map(str, config["url"]))
        if "timeout" in config:
            config["timeout"] = float(config["timeout"]) / 1000
        if "min_score" in config:
            config["min_score"] = float(config["min_score"])  # OpenSearch also accepts a text
        return config

    def _pipeline_problems(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        urls = split_urls(str(config["url"]))
        return self._url_problems(urls) + super()._pipeline_problems(pipeline, config)

    def _pipeline_body(self, options: HookOptions, pipeline: Mapping[str, Any]) -> dict[str, Any]:
        new = body(options)
        config = new["request_processors"][0][PROCESSOR]
        existing_config = self._config(pipeline) or {}
        config |= only(existing_config, PRESERVED)
        return merged(new, pipeline)

    def _search_options(self, text: str) -> dict[str, Any]:
        return {"ext": {PROCESSOR: {"query": text, "explain": True}}}

    def _plain_options(self) -> dict[str, Any]:
        pipeline = self._pipeline() or {}
        has_others = any(other_processors(pipeline).values())
        if not has_others:
            return {}
        return {"search_pipeline": self.name, "ext": {PROCESSOR: {"off": True}}}

    def outcome(self, answer: Mapping[str, Any], text: str) -> tuple[str, str | None]:
        """Return the outcome that the plugin reports, and the reason if it did not rerank."""
        explanation = answer.get("ext", {}).get(PROCESSOR, {})
        return str(explanation.get("outcome", "unknown")), explanation.get("reason")


def _processor_settings(pipeline: Mapping[str, Any], phase: str) -> list[Mapping[str, Any]]:
    """Return the settings of rerank's processors in a phase of a pipeline."""
    settings: list[Mapping[str, Any]] = []
    for processor in pipeline.get(phase) or []:
        if PROCESSOR in processor:
            settings.append(processor[PROCESSOR])
    return settings


def is_allowed(url: str, allowed: Sequence[str]) -> bool:
    """Return whether nodes may call a URL.

    allowed: the URLs of the setting ``ALLOWED`` of a node. ``*`` at the end stands for any port.

    >>> is_allowed("http://a:8765", ["http://a:*/"]), is_allowed("http://ab:8765", ["http://a:*"])
    (True, False)
    """
    for allowed_url in allowed:
        pattern = re.escape(allowed_url.strip().rstrip("/"))
        with_any_port = re.sub(r":\\\*$", r":\\d+", pattern)
        if re.fullmatch(with_any_port, url):
            return True
    return False


def _allowed_urls(node: Mapping[str, Any]) -> list[str]:
    """Return the URLs that the settings of a node allow: a list, or a text with commas."""
    allowed: list[str] | str = node.get("settings", {}).get(ALLOWED, [])
    if isinstance(allowed, str):
        return allowed.split(",")
    return allowed
