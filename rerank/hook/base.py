"""The hook of a workspace: options, reports, and the steps that both routes share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.connection import connect
from rerank.engines.opensearch.errors import asking
from rerank.engines.opensearch.writing import DEFAULT_PIPELINE
from rerank.errors import EngineError, RerankError, UsageError
from rerank.hook.readiness import (
    PATIENCE,
    ask_service,
    field_problems,
    index_problems,
    service_problems,
    word_problems,
)
from rerank.results import Report
from rerank.stack.stack import Stack
from rerank.workspace import Workspace

ON_FAILURE = ("first_stage", "error")
"""Answers of a search that cannot be reranked."""

_NO_TOKEN = "shows what it serves only with its token; give it in RERANK_SERVICE_TOKEN"


@dataclass(frozen=True)
class HookOptions:
    """The settings of a pipeline.

    service:    URL of the service, as the cluster's nodes reach it; or several, tried in turn.
    stack:      the stack that scores; None: the service's own.
    depth:      candidates of a search.
    timeout:    seconds that a search may wait for the service.
    on_failure: one of ON_FAILURE.
    add_to:     an existing pipeline whose processors are added to ours; None: none.
    shadow:     score and count searches, and keep their order.
    share:      percent of the searches that are reranked, by a hash of the client's ``X-Opaque-Id``, or of
                the search's ``ext.rerank.user``.
    token_name: name of the token among the nodes' ``rerank.tokens.*``; None: ``rerank.token``.
    """

    service: str | tuple[str, ...]
    stack: str | None = None
    depth: int = 100
    timeout: float = 1.0
    on_failure: str = "first_stage"
    add_to: str | None = None
    shadow: bool = False
    share: int = 100
    token_name: str | None = None

    def __post_init__(self) -> None:
        given = (self.service,) if isinstance(self.service, str) else tuple(self.service)
        urls = tuple(map(_url, given))
        if not urls:
            raise UsageError("no --service is given; name at least one URL")
        object.__setattr__(self, "service", urls[0] if len(urls) == 1 else urls)

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of all services."""
        return (self.service,) if isinstance(self.service, str) else self.service


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or set("?#@ ") & set(text):
        raise UsageError(
            f"{text!r} is no URL of a service; for example http://127.0.0.1:8765 (a token"
            f" belongs in the nodes' keystore, or in --token-file)"
        )
    return text.rstrip("/")


@dataclass(frozen=True)
class Request:
    """A request that changes the cluster. ``<name>`` is a value that an earlier request returns."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f" {json.dumps(self.body)}" if self.body is not None else "")


@dataclass
class InstallReport(Report):
    """The requests that were sent, or would be (``dry_run``). No requests: nothing needs to change.

    rest: the remaining steps of the user, in order.
    """

    pipeline: str
    requests: tuple[Request, ...]
    warnings: tuple[str, ...] = ()
    dry_run: bool = False
    rest: tuple[str, ...] = ()


@dataclass
class Status(Report):
    """The state of a pipeline and of everything that it needs.

    there:      whether it exists. config: its settings; None if rerank did not make it.
    problems:   why searches are not reranked, or not as they should be.
    default_of: indices that use it for every search. indices: the workspace's indices.
    nodes:      node -> version of the plugin that the route needs; None without the plugin.
    service:    its answer to ``/readyz``; None if it does not answer.
    statistics: URL of a node -> its counters; the stock route has none.
    weights:    ``stack``, ``normalization`` and ``cases`` of the stack that scores, as in ``rerank status``.
    of:         that stack; None if it is not known here.
    """

    pipeline: str
    there: bool
    config: dict[str, Any] | None
    problems: tuple[str, ...]
    default_of: tuple[str, ...]
    indices: tuple[str, ...]
    nodes: dict[str, str | None]
    service: dict[str, Any] | None
    statistics: dict[str, dict[str, Any]]
    weights: dict[str, Any] = field(default_factory=dict)
    of: Stack | None = field(default=None, repr=False)


class Hook(ABC):
    """The pipeline of a workspace's index.

    name:  name of the pipeline; None: made from the name of the index.
    token: token of the service, which shows only with it what it serves.

    Raises UsageError if the documents of the workspace are not in OpenSearch.
    """

    route: ClassVar[str]
    plugins: ClassVar[tuple[str, ...]]
    """The plugins that every node needs; reports have the version of the first."""
    counters_path: ClassVar[str] = "/_rerank/stats"
    """Where a node shows the counters of searches; another node refuses the request."""
    suffix: ClassVar[str] = ""
    """End of the pipeline's name, after ``rerank-INDEX``."""

    def __init__(self, workspace: Workspace, name: str | None = None, token: str = "") -> None:
        engine = workspace.engine
        if not isinstance(engine, OpenSearchEngine):
            raise UsageError(
                f"{workspace.folder}: keeps its documents in this folder; the hook is for a workspace on"
                f" OpenSearch (`rerank ingest --url URL`, `rerank attach`)"
            )
        self.workspace, self.engine, self.settings = workspace, engine, engine.settings
        self._token = token
        self.name = name or f"rerank-{engine.settings.index}{self.suffix}"
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", self.name, re.ASCII):
            raise UsageError(f"{self.name!r} is no name of a pipeline; use letters, digits, - and _")
        with asking(self.settings, "connecting"):
            self._client = connect(self.settings)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- steps of one route ------------------------------------------------------------------------------

    @abstractmethod
    def install(self, wanted: HookOptions, *, default: bool = False, dry_run: bool = False) -> InstallReport:
        """Make the pipeline and, with ``default``, make every search of the index use it.

        Nothing is sent that is already as it should be.
        """

    @abstractmethod
    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        """The settings of a pipeline with ``url``, the service's; None if rerank did not make it."""

    @abstractmethod
    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        """How a pipeline differs from what :meth:`install` would write with the same settings."""

    @abstractmethod
    def _lacking(self, nodes: Mapping[str, str | None]) -> str:
        """The message about nodes without the plugin."""

    @abstractmethod
    def asked(self, text: str, *, explain: bool = False) -> dict[str, Any]:
        """Parts of a search that have it reranked and, if possible, explained."""

    @abstractmethod
    def outcome(
        self, answer: Mapping[str, Any], config: Mapping[str, Any], text: str
    ) -> tuple[str, str | None]:
        """The outcome of a search, and why."""

    # -- status ------------------------------------------------------------------------------------------

    def nodes(self) -> dict[str, str | None]:
        """Node -> version of its plugin; None if a plugin is missing."""
        answer = self._ask("GET", "/_nodes/plugins", doing="looking for the plugins") or {}
        found: dict[str, str | None] = {}
        for about in answer.get("nodes", {}).values():
            versions = {plugin["name"]: plugin["version"] for plugin in about["plugins"]}
            found[about["name"]] = versions[self.plugins[0]] if set(self.plugins) <= set(versions) else None
        return found

    def pipeline(self) -> dict[str, Any] | None:
        """The pipeline as it is stored, or None."""
        answer = self._ask("GET", self._path, doing="reading the pipeline")
        found: dict[str, Any] | None = (answer or {}).get(self.name)
        return found

    def default_of(self) -> dict[str, str]:
        """Index -> its default pipeline, for all indices that have one."""
        answer = self._ask(
            "GET",
            f"/_all/_settings/{DEFAULT_PIPELINE}",
            params={"flat_settings": "true", "expand_wildcards": "all"},
            doing="reading the default pipelines",
        )
        found = {index: about["settings"].get(DEFAULT_PIPELINE) for index, about in (answer or {}).items()}
        return {index: pipeline for index, pipeline in sorted(found.items()) if pipeline}

    def status(self) -> Status:
        """Check everything that reranking needs."""
        pipeline, nodes, defaults = self.pipeline(), self.nodes(), self.default_of()
        indices = tuple(sorted(self.engine.index.indices()))
        config = None if pipeline is None else self._config(pipeline)
        problems = [self._lacking(nodes)] if None in nodes.values() else []
        counters = self._counters()
        silent = [url for url, found in counters.items() if found is None]
        problems += [f"the node {url} does not answer; start it" for url in silent]
        service = None
        if pipeline is None:
            problems.append(f"there is no pipeline {self.name!r}; install it")
        elif config is None:
            problems.append(f"pipeline {self.name!r} was not made by rerank for the route {self.route}")
        else:
            problems += self._wrong(pipeline, config)
            for url in _urls_of(config):
                depth = int(config.get("depth", 100))
                about, unfitting = self._service(url, config.get("stack"), depth)
                service = service or about
                problems += unfitting
            problems += field_problems(self.engine, config.get("stack") or (service or {}).get("stack"))
        default_of = tuple(index for index, default in defaults.items() if default == self.name)
        problems += index_problems(self.workspace, self.engine, indices, default_of)
        if pipeline is None and default_of:
            problems.append(
                f"{', '.join(default_of)} cannot be searched: the default pipeline does not exist"
            )
        stack = self._known_stack(config)
        return Status(
            pipeline=self.name,
            there=pipeline is not None,
            config=config,
            problems=tuple(problems),
            default_of=default_of,
            indices=indices,
            nodes=nodes,
            service=service,
            statistics={url: found for url, found in counters.items() if found},
            weights={} if stack is None else stack.combiner.summary(),
            of=stack,
        )

    def _known_stack(self, config: Mapping[str, Any] | None) -> Stack | None:
        """The stack of a pipeline; None if it is not known here, which is one of the problems."""
        with suppress(RerankError):
            return None if config is None else self.stack_of(config)
        return None

    def _ready(self, wanted: HookOptions, default: bool = False) -> list[str]:
        """Check what an installation needs; return warnings.

        Raises EngineError if a node lacks the plugin, or if the service of a ``default`` answers and does not
        fit; UsageError, InputError if the stack does not exist.
        """
        if wanted.stack is not None:
            self._stack(wanted.stack)
        warnings = word_problems(self.engine.index, self.workspace.words)
        if wrong := field_problems(self.engine, wanted.stack):
            raise UsageError("; ".join(wrong))
        nodes = self.nodes()
        if None in nodes.values():
            raise EngineError(self._lacking(nodes))
        for url in wanted.urls:
            about, problems = self._service(url, wanted.stack, wanted.depth)
            if default and about is not None and problems:
                raise EngineError(
                    f"{'; '.join(problems)}; no search would be reranked as it should: nothing was changed"
                )
            if about is not None and "rankers" not in about:
                warnings.append(f"the service at {url} was not checked: it {_NO_TOKEN}")
            warnings += problems
        return warnings

    def _counters(self) -> dict[str, dict[str, Any] | None]:
        """URL of each configured node -> its counters, empty without the plugin; None: it does not answer."""
        return {url: self._ask_node(url, self.counters_path) for url in self.settings.url}

    def _ask_node(self, url: str, path: str) -> dict[str, Any] | None:
        """Return the answer of one node, empty if it refuses the request; None if it does not answer."""
        settings = replace(self.settings, url=(url,), timeout=min(self.settings.timeout, PATIENCE))
        with asking(settings, "looking for the node"), closing(connect(settings)) as client:
            try:
                answer: dict[str, Any] = client.transport.perform_request("GET", path)
            except client_errors.ConnectionError:
                return None
            except client_errors.TransportError:
                return {}
        return answer

    def _ours(self) -> dict[str, Any] | None:
        there = self.pipeline()
        if there is not None and self._config(there) is None:
            raise EngineError(
                f"{self.settings.where} has a pipeline {self.name!r} that rerank has not made for the"
                f" route {self.route}; choose another --name, or the other route"
            )
        return there

    def _service(self, url: str, stack: str | None, depth: int) -> tuple[dict[str, Any] | None, list[str]]:
        """The answer of a service to ``/readyz``, None if it is not ready; and its problems."""
        about = ask_service(url, self._token)
        if isinstance(about, str):
            return None, [about]
        problems = service_problems(about, self.workspace.versions(), stack, depth)
        return about, [f"the service at {url} {text}" for text in problems]

    # -- remove ------------------------------------------------------------------------------------------

    def remove(self, *, dry_run: bool = False) -> InstallReport:
        """Remove the default setting and then the pipeline, if they exist.

        Raises EngineError if rerank did not make the pipeline, or if it is the default of another index.
        """
        requests = self._removal()
        if not dry_run:
            self._send(requests, "removing the hook")
        return InstallReport(self.name, tuple(requests), dry_run=dry_run, rest=self._rest())

    def _rest(self) -> tuple[str, ...]:
        """The remaining steps on the nodes."""
        return ()

    def _removal(self) -> list[Request]:
        """The requests that remove the default setting and the pipeline."""
        there = self._ours()
        users = [index for index, default in self.default_of().items() if default == self.name]
        mine = self.engine.index.indices()
        others = [index for index in users if index not in mine]
        if others:
            raise EngineError(
                f"pipeline {self.name!r} is also the default of {', '.join(others)}, which could not be"
                f" searched without it; set {DEFAULT_PIPELINE} to null there first"
            )
        requests = [Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: None}) for index in users]
        if there is not None:
            requests.append(Request("DELETE", self._path))
        return requests

    def config(self) -> dict[str, Any] | None:
        """The settings of the pipeline, or None. Raises EngineError if rerank did not make it."""
        pipeline = self._ours()
        return None if pipeline is None else self._config(pipeline)

    def search(self, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Search the index as any client does, with the search type of the workspace."""
        given = {"search_type": self.settings.search_type, "preference": "rerank-hook", **params}
        with asking(self.settings, "searching"):
            answer: dict[str, Any] = self._client.search(
                index=self.settings.index, body=dict(body), params=given
            )
        return answer

    def plain(self, body: Mapping[str, Any], size: int) -> dict[str, Any]:
        """The answer without the hook."""
        return self.search(self.asking(body, size), include_named_queries_score="true")

    def asking(self, body: Mapping[str, Any], size: int) -> dict[str, Any]:
        """A body that returns only ids and scores."""
        asked = self.engine.templates.asked(body, size)
        del asked["track_total_hits"]  # stock processors do not rerank a search without a total
        return asked

    # -- stacks ------------------------------------------------------------------------------------------

    def _stack(self, text: str) -> Stack:
        if text.endswith(".json"):
            raise UsageError(
                "a pipeline names its stack by signals or weights; a file is for `rerank serve --stack FILE`"
            )
        return self.workspace.stack(text)

    def stack_of(self, config: Mapping[str, Any]) -> Stack:
        """The stack that scores: the pipeline's, or the default of the service. Raises RerankError."""
        if config.get("stack") is not None:
            return self._stack(str(config["stack"]))
        urls = _urls_of(config)
        if not urls:
            raise EngineError(f"pipeline {self.name!r} has no service; install it again")
        service, problems = self._service(urls[0], None, 1)
        if service is None:
            raise EngineError(f"the pipeline leaves the stack to the service, and {problems[0]}")
        if "stack" not in service:
            raise EngineError(f"the pipeline leaves the stack to the service, which {_NO_TOKEN}")
        served = str(service["stack"])
        used = self.workspace.releases.stack
        paths = sorted((self.workspace.folder / "stacks").glob("*.json"))
        for tuned in (*([used] if used is not None else []), *map(Stack.load, paths)):
            if str(tuned) == served:  # in writing, weights are rounded
                return tuned
        names = served.split("*")
        return self._stack(names[0] if len(names) == 2 else served)

    # -- requests ----------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"/_search/pipeline/{self.name}"

    def _send(self, requests: Sequence[Request], doing: str) -> None:
        for request in requests:
            self._ask(request.method, request.path, request.body, doing=doing)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        doing: str,
    ) -> dict[str, Any] | None:
        """Send a request; return None for status 404, but not for a PUT."""
        with asking(self.settings, doing):
            try:
                found: dict[str, Any] = self._client.transport.perform_request(
                    method, path, params=dict(params or {}), body=body
                )
            except client_errors.NotFoundError:
                if method == "PUT":
                    raise
                return None
        return found


def _urls_of(config: Mapping[str, Any]) -> list[str]:
    """The URLs of the service in the settings of a pipeline."""
    found = config.get("url") or []
    return [found] if isinstance(found, str) else [str(url) for url in found]


def differs(there: Mapping[str, Any] | None, written: Mapping[str, Any]) -> bool:
    """Whether a stored pipeline is missing, or different from the written one."""
    return there is None or any(there.get(part) != value for part, value in written.items())
