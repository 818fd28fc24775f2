"""The route of rerank's own processor, which reranks plain searches (docs/guides/plugin.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.layout import OwnedLayout
from rerank.engines.opensearch.writing import DEFAULT_PIPELINE
from rerank.errors import EngineError, InputError, UsageError
from rerank.hook.base import Hook, HookOptions, InstallReport, Request, differs
from rerank.text import plural

PLUGIN = "rerank"
"""The plugin's name on a node."""

PROCESSOR = "rerank_stack"
"""The processor's name in a pipeline, in both phases."""

EXT = "rerank"
"""The name of its part of a search's ``ext``."""


ALLOWED = "rerank.allowed_urls"
"""The setting of the nodes that lists what pipelines may call."""

OWN_FIELDS = {"id_field": "id", "categories_field": "categories"}
"""Fields of the indices that rerank makes, whose doc values are ids and categories."""


def body(wanted: HookOptions, fields: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The pipeline, as OpenSearch stores it. fields: see ``OWN_FIELDS``; of other indices none.

    >>> body(HookOptions("http://127.0.0.1:8765", depth=50))["response_processors"]
    [{'rerank_stack': {}}]
    """
    config: dict[str, Any] = {"url": wanted.service if len(wanted.urls) == 1 else list(wanted.urls)}
    config |= {"depth": wanted.depth, "timeout": round(1000 * wanted.timeout)}
    config["on_failure"] = wanted.on_failure
    if wanted.stack is not None:
        config["stack"] = wanted.stack
    for name, standard in (("shadow", False), ("share", 100), ("token_name", None)):
        if getattr(wanted, name) != standard:
            config[name] = getattr(wanted, name)
    config |= fields or {}
    return {"request_processors": [{PROCESSOR: config}], "response_processors": [{PROCESSOR: {}}]}


def beside(written: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Our pipeline with the processors of another: ours are last before the search, and first after it.

    >>> beside({"request_processors": [{"rerank_stack": {}}]}, {"request_processors": [{"filter_query": {}}]})
    {'request_processors': [{'filter_query': {}}, {'rerank_stack': {}}]}
    """
    kept = {
        part: [one for one in processors if PROCESSOR not in one]
        for part, processors in others.items()
        if isinstance(processors, list)
    }
    merged = {part: found for part, found in kept.items() if found and part not in written}
    for part, ours in written.items():
        found = kept.get(part, [])
        merged[part] = [*found, *ours] if part == "request_processors" else [*ours, *found]
    return merged


class PluginHook(Hook):
    """A pipeline with the processor ``rerank`` in both phases."""

    route = "plugin"
    plugins = (PLUGIN,)

    def install(self, wanted: HookOptions, *, default: bool = False, dry_run: bool = False) -> InstallReport:
        """Make the pipeline and, with ``default``, have every search of the index use it.

        Nothing is sent that is already as it should be.

        Raises EngineError when a node lacks the plugin, or when a pipeline of that name, or a default, is
        somebody else's; UsageError, InputError when the workspace has no such stack.
        """
        warnings = self._ready(wanted, default)
        if barred := self._barred(wanted.urls):
            raise EngineError("; ".join(barred))
        there = self._ours()
        written = beside(body(wanted, self._fields()), self._others(wanted.add_to) or there or {})
        requests = [Request("PUT", self._path, written)] if differs(there, written) else []
        if default:
            requests += self._defaults()
        if not dry_run:
            self._send(requests, "installing the hook")
        return InstallReport(self.name, tuple(requests), tuple(warnings), dry_run)

    def _others(self, name: str | None) -> dict[str, Any] | None:
        """The pipeline whose processors are added to ours."""
        if name is None:
            return None
        found = self._ask("GET", f"/_search/pipeline/{name}", doing="reading the pipeline")
        if found is None:
            raise UsageError(f"there is no search pipeline {name!r}; correct --add-to")
        pipeline: dict[str, Any] = found[name]
        return pipeline

    def _rest(self) -> tuple[str, ...]:
        nodes = [name for name, plugin in self.nodes().items() if plugin]
        if not nodes:
            return ()
        return (
            f"the plugin is still on {', '.join(nodes)}, and does nothing; to take it off, node by node:",
            f"take {ALLOWED} out of opensearch.yml and `bin/opensearch-keystore remove rerank.token`, for a"
            " node without the plugin does not start with them",
            "`bin/opensearch-plugin remove rerank`, and restart the node",
        )

    def _fields(self) -> dict[str, str]:
        return OWN_FIELDS if isinstance(self.engine.layout, OwnedLayout) else {}

    def _barred(self, urls: Sequence[str]) -> list[str]:
        """Why nodes would not call the service."""
        params = {"flat_settings": "true"}
        answer = self._ask("GET", "/_nodes/settings", params=params, doing="reading the nodes' settings")
        problems = []
        built = None
        for about in (answer or {}).get("nodes", {}).values():
            found = about.get("settings", {}).get(ALLOWED)
            if found is None:
                found = built = self._built_in() if built is None else built
            allowed = found.split(",") if isinstance(found, str) else found
            absent = [url for url in urls if not is_allowed(url, allowed)]
            if absent:
                problems.append(
                    f"node {about['name']} may not call {', '.join(absent)}: write {ALLOWED}:"
                    f" {json.dumps([*allowed, *absent])} into its opensearch.yml and restart it"
                )
        return problems

    def _built_in(self) -> list[str]:
        """The URLs that the plugin was built with, for nodes without this setting."""
        params = {"flat_settings": "true", "include_defaults": "true"}
        with suppress(EngineError):
            answer = self._ask("GET", "/_cluster/settings", params=params, doing="reading the settings")
            return list((answer or {}).get("defaults", {}).get(ALLOWED, ()))
        return []

    def _defaults(self) -> list[Request]:
        """What makes the pipeline the default of the index."""
        requests, defaults = [], self.default_of()
        indices = sorted(self.engine.index.indices())
        if not indices:
            raise EngineError(f"{self.settings.where} has no index {self.settings.index!r}")
        for index in indices:
            other = defaults.get(index)
            if other not in (None, NO_PIPELINE, self.name):
                raise EngineError(
                    f"index {index!r} has the default pipeline {other!r} already; take it away, or leave"
                    f" --default out and name the pipeline in searches (?search_pipeline=)"
                )
            if other != self.name:
                requests.append(Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: self.name}))
        return requests

    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        phases = (pipeline.get(part) or [] for part in ("request_processors", "response_processors"))
        request, response = ([one[PROCESSOR] for one in phase if PROCESSOR in one] for phase in phases)
        if len(request) != 1 or len(response) > 1:  # ours, even where somebody has changed it
            return None
        config = dict(request[0])
        if "timeout" in config:
            config["timeout"] = float(config["timeout"]) / 1000
        return config if "url" in config else None  # ML Commons has a processor of that name, too

    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        problems = []
        try:
            given = {name: config[name] for name in HookOptions.__dataclass_fields__ if name in config}
            wanted = HookOptions(service=config["url"], **given)
            problems += self._barred(wanted.urls)
            if differs(pipeline, beside(body(wanted, self._fields()), pipeline)):
                problems.append(f"pipeline {self.name!r} has been changed by hand")
            if config.get("stack") is not None:
                self._stack(config["stack"])
        except (UsageError, InputError) as error:
            problems.append(str(error))
        return problems

    def _lacking(self, nodes: Mapping[str, str | None]) -> str:
        lacking = [name for name, plugin in nodes.items() if plugin is None]
        return (
            f"the plugin is not on {', '.join(lacking)} ({len(lacking)} of"
            f" {plural(len(nodes), 'node[|s]')}): run"
            " `bin/opensearch-plugin install -b file:///PATH/opensearch-rerank-VERSION-for-SERVER.zip`"
            " there and restart;"
            " docs/guides/plugin.md says how to build it"
        )

    def asked(self, text: str, *, explain: bool = False) -> dict[str, Any]:
        """Parts of a search that have it reranked and, if possible, explained."""
        return {"ext": {EXT: {"explain": True}}} if explain else {}

    def outcome(
        self, answer: Mapping[str, Any], config: Mapping[str, Any], text: str
    ) -> tuple[str, str | None]:
        """The outcome of a search, and why."""
        about = answer.get("ext", {}).get(EXT, {})
        return str(about.get("outcome", "unknown")), about.get("reason")


def is_allowed(url: str, allowed: Sequence[str]) -> bool:
    """Whether the nodes' setting lists a URL, as the plugin reads it; a port may be a star.

    >>> is_allowed("http://a:8765", ["http://a:*/"]), is_allowed("http://ab:8765", ["http://a:*"])
    (True, False)
    """
    patterns = (re.escape(one.strip().rstrip("/")) for one in allowed)
    return any(re.fullmatch(re.sub(r":\\\*$", r":\\d+", pattern), url) for pattern in patterns)
