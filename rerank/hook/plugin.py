"""The route of rerank's processor (docs/guides/plugin.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rerank import __version__
from rerank.engines.opensearch.templates import PROCESSOR, other_processors
from rerank.errors import EngineError, UsageError
from rerank.hook.base import Hook, HookOptions, Request, differs

PLUGIN = "rerank"
"""Name of the plugin on a node."""

KEPT = (
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
    """The pipeline.

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


def merged(written: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Combine pipelines. Our processors are next to the search: last before it, first after it.

    >>> merged({"request_processors": [{"rerank_stack": {}}]}, {"request_processors": [{"filter_query": {}}]})
    {'request_processors': [{'filter_query': {}}, {'rerank_stack': {}}]}
    """
    kept = other_processors(others)
    result = {part: processors for part, processors in kept.items() if processors and part not in written}
    for part, ours in written.items():
        before = kept.get(part, [])
        result[part] = [*before, *ours] if part == "request_processors" else [*ours, *before]
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
            " (docs/guides/plugin.md)"
        )

    def _requests(self, options: HookOptions, pipeline: Mapping[str, Any] | None) -> list[Request]:
        if barred := self._barred(options.url):
            raise EngineError("; ".join(barred))
        other = pipeline
        if options.add_to is not None and (other := self.pipeline(options.add_to)) is None:
            raise UsageError(
                f"--add-to {options.add_to}: this search pipeline does not exist; correct the name"
            )
        written = self._written(options, other or {})
        return [Request("PUT", self._path, written)] if differs(pipeline, written) else []

    def _barred(self, url: str) -> list[str]:
        """Why nodes would not call the service."""
        answer = self._ask("GET", "/_nodes/settings?flat_settings=true")
        problems = []
        for about in (answer or {}).get("nodes", {}).values():
            setting = about.get("settings", {}).get(ALLOWED, [])
            allowed = setting.split(",") if isinstance(setting, str) else setting
            if not is_allowed(url, allowed):
                problems.append(
                    f"node {about['name']} may not call {url}: write {ALLOWED}:"
                    f" {json.dumps([*allowed, url])} into its opensearch.yml and restart it"
                )
        return problems

    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        phases = (pipeline.get(part) or [] for part in ("request_processors", "response_processors"))
        request, response = ([one[PROCESSOR] for one in phase if PROCESSOR in one] for phase in phases)
        if len(request) != 1 or len(response) > 1 or "url" not in request[0]:
            return None
        config = dict(request[0])
        if "timeout" in config:
            config["timeout"] = float(config["timeout"]) / 1000
        if "min_score" in config:
            config["min_score"] = float(config["min_score"])  # OpenSearch also accepts a text
        return config

    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        return self._barred(str(config["url"])) + super()._wrong(pipeline, config)

    def _written(self, options: HookOptions, pipeline: Mapping[str, Any]) -> dict[str, Any]:
        written = body(options)
        config = written["request_processors"][0][PROCESSOR]
        for name, value in (self._config(pipeline) or {}).items():
            if name in KEPT:
                config[name] = value
        return merged(written, pipeline)

    def _search_options(self, text: str) -> dict[str, Any]:
        return {"ext": {PROCESSOR: {"query": text, "explain": True}}}

    def _plain_options(self) -> dict[str, Any]:
        if not any(other_processors(self.pipeline() or {}).values()):
            return {}
        return {"search_pipeline": self.name, "ext": {PROCESSOR: {"off": True}}}

    def outcome(self, answer: Mapping[str, Any], text: str) -> tuple[str, str | None]:
        """The outcome of a search, and its reason."""
        about = answer.get("ext", {}).get(PROCESSOR, {})
        return str(about.get("outcome", "unknown")), about.get("reason")


def is_allowed(url: str, allowed: Sequence[str]) -> bool:
    """Whether a URL is allowed; ``*`` is any port.

    >>> is_allowed("http://a:8765", ["http://a:*/"]), is_allowed("http://ab:8765", ["http://a:*"])
    (True, False)
    """
    patterns = (re.escape(one.strip().rstrip("/")) for one in allowed)
    return any(re.fullmatch(re.sub(r":\\\*$", r":\\d+", pattern), url) for pattern in patterns)
