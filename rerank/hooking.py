"""The hook: a search pipeline that sends a plain ``_search``'s hits to the service (docs/hook_plugin.md).

Installed on the index of a workspace, looked at, tried, and taken away again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import urllib3
from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.connection import asking, connect
from rerank.engines.opensearch.searching import NO_PIPELINE
from rerank.engines.opensearch.writing import DEFAULT_PIPELINE
from rerank.errors import EngineError, InputError, UsageError
from rerank.records import Query
from rerank.stack import Stack
from rerank.workspace import Workspace

PLUGIN = "rerank"
"""The plugin's name on a node."""

PROCESSOR = "rerank"
"""The processor's name in a pipeline, in both phases."""

ON_FAILURE = ("first_stage", "error")
"""What a search that cannot be reranked may answer."""

_PATIENCE = 5.0  # seconds for the service to say whether it is ready
_RUNS = 5  # timed searches of each kind


@dataclass(frozen=True)
class Wanted:
    """What a pipeline is to do.

    service:    URL of the service, as the cluster's nodes reach it.
    stack:      which stack scores; None: the service's own.
    depth:      candidates of a search.
    timeout:    milliseconds that a search may wait for the service.
    on_failure: one of ON_FAILURE.

    >>> Wanted("http://127.0.0.1:8765", depth=50).body()["response_processors"]
    [{'rerank': {}}]
    """

    service: str
    stack: str | None = None
    depth: int = 100
    timeout: int = 1000
    on_failure: str = "first_stage"

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.service)
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            right = False
        if not right or set("?#@ ") & set(self.service):
            raise UsageError(
                f"{self.service!r} is no URL of a service; for example http://127.0.0.1:8765 (and its token"
                " belongs in the nodes' keystore)"
            )
        object.__setattr__(self, "service", self.service.rstrip("/"))

    def body(self) -> dict[str, Any]:
        """The pipeline, as OpenSearch stores it."""
        config: dict[str, Any] = {"url": self.service, "depth": self.depth, "timeout": self.timeout}
        config["on_failure"] = self.on_failure
        if self.stack is not None:
            config["stack"] = self.stack
        return {"request_processors": [{PROCESSOR: config}], "response_processors": [{PROCESSOR: {}}]}


@dataclass(frozen=True)
class Request:
    """A request that changes the cluster."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f" {json.dumps(self.body)}" if self.body is not None else "")


@dataclass(frozen=True)
class Done:
    """What was sent, or would be (``dry_run``), and what to know of it. No requests: all is there already."""

    pipeline: str
    requests: tuple[Request, ...]
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class Status:
    """How a pipeline stands.

    there:      whether it exists. config: what its ``rerank`` processor was told; None where it has none.
    problems:   why searches would not be reranked as they should; empty: all is well.
    default_of: indices that use it for every search. indices: those of the workspace.
    nodes:      node -> version of the plugin, None where it is missing.
    service:    what it says it serves; None when it cannot be reached.
    statistics: URL of a node -> its counters.
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


@dataclass(frozen=True)
class Trial:
    """One search with and without the pipeline, and what ``rerank query`` gives.

    outcome, reason: what the processor says of the search. same: whether ids and their order are those of
    ``rerank query``; difference: the largest between two scores of the same hit.
    milliseconds: ``plain``, ``candidates`` (the same search for as many hits as are reranked), ``reranked``.
    """

    pipeline: str
    query: dict[str, Any]
    stack: str
    depth: int
    outcome: str
    reason: str | None
    plain: tuple[str, ...]
    reranked: tuple[str, ...]
    expected: tuple[str, ...]
    same: bool
    difference: float | None
    milliseconds: dict[str, float] = field(default_factory=dict)


class Hook:
    """The pipeline of a workspace's index. name: the pipeline's; None: ``rerank-INDEX``.

    Raises UsageError when the workspace's documents are not in OpenSearch.
    """

    def __init__(self, workspace: Workspace, name: str | None = None) -> None:
        engine = workspace.engine
        if not isinstance(engine, OpenSearchEngine):
            raise UsageError(
                f"{workspace.folder}: keeps its documents in this folder; the hook is for a workspace on"
                " OpenSearch (`rerank ingest --url`, `rerank attach`)"
            )
        self.workspace, self.engine, self.settings = workspace, engine, engine.settings
        self.name = name or f"rerank-{engine.settings.index}"
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", self.name, re.ASCII):
            raise UsageError(f"{self.name!r} is no name of a pipeline; use letters, digits, - and _")
        with asking(self.settings, "connecting"):
            self._client = connect(self.settings)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- what there is -----------------------------------------------------------------------------------

    def nodes(self) -> dict[str, str | None]:
        """Every node, with the version of the plugin on it; None: it is missing."""
        answer = self._ask("GET", "/_nodes/plugins", doing="looking for the plugin") or {}
        return {
            about["name"]: next((p["version"] for p in about["plugins"] if p["name"] == PLUGIN), None)
            for about in answer.get("nodes", {}).values()
        }

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
        """Look at everything that reranking needs."""
        pipeline, nodes, defaults = self.pipeline(), self.nodes(), self.default_of()
        indices = tuple(sorted(self.engine.indices()))
        config = None if pipeline is None else _config(pipeline)
        problems = [_lacking(nodes)] if None in nodes.values() else []
        service = None
        if pipeline is None:
            problems.append(f"there is no pipeline {self.name!r}; `rerank hook install` makes it")
        elif config is None:
            problems.append(f"pipeline {self.name!r} was not made by rerank")
        else:
            problems += self._wrong(pipeline, config)
            service, warnings = self._service(str(config.get("url")))
            problems += warnings
        statistics = {url: found for url in self.settings.url if (found := self._statistics(url)) is not None}
        default_of = tuple(index for index, default in defaults.items() if default == self.name)
        if pipeline is None and default_of:
            problems.append(f"{', '.join(default_of)} cannot be searched: the default pipeline is not there")
        return Status(
            self.name,
            pipeline is not None,
            config,
            tuple(problems),
            default_of,
            indices,
            nodes,
            service,
            statistics,
        )

    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        """How a pipeline differs from what :meth:`install` would write with the same settings."""
        stack = config.get("stack")
        problems = []
        try:
            names = {"service": "url"}
            given = {
                name: config[names.get(name, name)]
                for name in Wanted.__dataclass_fields__
                if names.get(name, name) in config
            }
            written = Wanted(**given).body()
            if any(pipeline.get(phase) != processors for phase, processors in written.items()):
                problems.append(f"pipeline {self.name!r} has been changed by hand")
            if stack is not None:
                self._stack(stack)
        except (UsageError, InputError) as error:
            problems.append(str(error))
        return problems

    def _statistics(self, url: str) -> dict[str, Any] | None:
        settings = replace(self.settings, url=(url,), timeout=min(self.settings.timeout, _PATIENCE))
        try:
            with asking(settings, "reading the counters"):
                client = connect(settings)
                try:
                    found: dict[str, Any] = client.transport.perform_request("GET", "/_rerank/stats")
                finally:
                    client.close()
        except EngineError:  # no plugin, or no node
            return None
        return found

    def _service(self, url: str) -> tuple[dict[str, Any] | None, list[str]]:
        """What the service says it serves, and what does not fit."""
        try:
            with urllib3.PoolManager(retries=False, timeout=_PATIENCE) as pool:
                answer = pool.request("GET", f"{url}/readyz")
            about = json.loads(answer.data) if answer.status == 200 else {}
        except (urllib3.exceptions.HTTPError, ValueError):
            return None, [f"no service answers at {url} from here; start it with `rerank serve`"]
        if not isinstance(about, dict) or not about.get("ready"):
            return None, [f"what answers at {url} is no service that is ready (status {answer.status})"]
        here = {name: self.workspace.ranker(name).version for name in self.workspace.trained()}
        served = about.get("rankers", {})
        others = sorted(name for name in here if served.get(name) != here[name])
        warnings = [f"the service at {url} has other versions of {', '.join(others)}"] if others else []
        return about, warnings

    # -- install and remove ------------------------------------------------------------------------------

    def install(self, wanted: Wanted, *, default: bool = False, dry_run: bool = False) -> Done:
        """Make the pipeline and, with ``default``, have every search of the index use it.

        What is there already is not sent again.

        Raises EngineError when a node lacks the plugin, or when a pipeline of that name, or a default, is
        somebody else's; UsageError, InputError when the workspace has no such stack.
        """
        if wanted.stack is not None:
            self._stack(wanted.stack)
        nodes = self.nodes()
        if None in nodes.values():
            raise EngineError(_lacking(nodes))
        _, warnings = self._service(wanted.service)
        requests = []
        there, body = self._ours(), wanted.body()
        if there is None or any(there.get(phase) != body[phase] for phase in body):
            requests.append(Request("PUT", self._path, body))
        if default:
            defaults = self.default_of()
            indices = sorted(self.engine.indices())
            if not indices:
                raise EngineError(f"{self.settings.where} has no index {self.settings.index!r}")
            for index in indices:
                other = defaults.get(index)
                if other not in (None, NO_PIPELINE, self.name):
                    raise EngineError(
                        f"index {index!r} has the default pipeline {other!r} already; take it away, or leave"
                        " --default out and name the pipeline in searches (?search_pipeline=)"
                    )
                if other != self.name:
                    settings = {DEFAULT_PIPELINE: self.name}
                    requests.append(Request("PUT", f"/{index}/_settings", settings))
        return self._send(requests, "installing the hook", warnings, dry_run)

    def remove(self, *, dry_run: bool = False) -> Done:
        """Take the default setting and then the pipeline away; what is not there is no error.

        Raises EngineError when the pipeline is somebody else's, or the default of another index.
        """
        there = self._ours()
        users = [index for index, default in self.default_of().items() if default == self.name]
        mine = self.engine.indices()
        others = [index for index in users if index not in mine]
        if others:
            raise EngineError(
                f"pipeline {self.name!r} is also the default of {', '.join(others)}, which could not be"
                f" searched without it; set {DEFAULT_PIPELINE} to null there first"
            )
        requests = [Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: None}) for index in users]
        if there is not None:
            requests.append(Request("DELETE", self._path))
        return self._send(requests, "removing the hook", [], dry_run)

    def _ours(self) -> dict[str, Any] | None:
        there = self.pipeline()
        if there is not None and _config(there) is None:
            raise EngineError(
                f"{self.settings.where} has a pipeline {self.name!r} that rerank has not made; choose another"
                " --name"
            )
        return there

    def _send(self, requests: Sequence[Request], doing: str, warnings: Sequence[str], dry_run: bool) -> Done:
        if not dry_run:
            for request in requests:
                self._ask(request.method, request.path, request.body, doing=doing)
        return Done(self.name, tuple(requests), tuple(warnings), dry_run)

    # -- test --------------------------------------------------------------------------------------------

    def test(self, text: str, count: int = 10) -> Trial:
        """Search with and without the pipeline, and compare with what the workspace itself answers.

        Raises EngineError when there is no pipeline.
        """
        pipeline = self._ours()
        config = None if pipeline is None else _config(pipeline)
        if config is None:
            raise EngineError(f"there is no pipeline {self.name!r}; `rerank hook install` makes it")
        if not text.strip():
            raise UsageError("the query is empty; give some words to search for")
        stack = self._stack_of(config)
        depth = int(config.get("depth", 100))
        answer = self.workspace.pipeline(stack.signals).answer(
            Query("query", text), replace(stack, depth=depth)
        )
        expected = answer.ranking.top(count)
        query = self.engine.layout.query(text, stack.first_stage)
        # The first one on a node tells it which features to send, and what became of it is asked for.
        explain = {"ext": {"rerank": {"explain": True}}}
        about = self._search(query, count, self.name, explain)[0].get("ext", {}).get("rerank", {})
        times: dict[str, list[float]] = {"plain": [], "candidates": [], "reranked": []}
        for _ in range(_RUNS):
            plain, seconds = self._search(query, count, NO_PIPELINE)
            times["plain"].append(seconds)
            times["candidates"].append(self._search(query, max(depth, count), NO_PIPELINE)[1])
            reranked, seconds = self._search(query, count, self.name)
            times["reranked"].append(seconds)
        scores = {hit["_id"]: float(hit["_score"]) for hit in reranked["hits"]["hits"]}
        ids = tuple(hit.id for hit in expected)
        return Trial(
            self.name,
            query,
            str(stack),
            depth,
            str(about.get("outcome", "unknown")),
            about.get("reason"),
            tuple(hit["_id"] for hit in plain["hits"]["hits"]),
            tuple(scores),
            ids,
            tuple(scores) == ids,
            max((abs(scores[hit.id] - hit.score) for hit in expected if hit.id in scores), default=None),
            {name: round(1000 * median(found), 2) for name, found in times.items()},
        )

    def _search(
        self, query: Mapping[str, Any], size: int, pipeline: str, more: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], float]:
        """The same search as any client's; copies of a shard and idf are those of the workspace's own."""
        params = {
            "search_pipeline": pipeline,
            "search_type": self.settings.search_type,
            "preference": "rerank-hook",
        }
        body = {"query": query, "size": size, "_source": False, **(more or {})}
        begin = time.perf_counter()
        with asking(self.settings, "searching"):
            answer: dict[str, Any] = self._client.search(index=self.settings.index, body=body, params=params)
        return answer, time.perf_counter() - begin

    def _stack(self, text: str) -> Stack:
        if text.endswith(".json"):
            raise UsageError(
                "a pipeline names its stack by signals or weights; a file is for `rerank serve --stack`"
            )
        return self.workspace.stack(text)

    def _stack_of(self, config: Mapping[str, Any]) -> Stack:
        """The stack that scores: the pipeline's, else the one that the service has as its own."""
        if "stack" in config:
            return self._stack(str(config["stack"]))
        service, problems = self._service(str(config["url"]))
        if service is None:
            raise EngineError(f"the pipeline leaves the stack to the service, and {problems[0]}")
        served = str(service["stack"])
        for path in sorted((self.workspace.folder / "stacks").glob("*.json")):
            if str(tuned := Stack.load(path)) == served:  # in writing, weights are rounded
                return tuned
        names = served.split("*")
        return self._stack(names[0] if len(names) == 2 else served)

    # -- requests ----------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"/_search/pipeline/{self.name}"

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        doing: str,
    ) -> dict[str, Any] | None:
        """Send a request; None when what it names is not there."""
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


def as_dict(report: Done | Status | Trial) -> dict[str, Any]:
    """A report as JSON values."""
    return asdict(report)


def _config(pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a pipeline's processor was told; None when it has others, or none of ours."""
    request = pipeline.get("request_processors") or []
    others = [*request, *(pipeline.get("response_processors") or [])]
    others += pipeline.get("phase_results_processors") or []
    if not request or any(list(processor) != [PROCESSOR] for processor in others):
        return None
    config: dict[str, Any] = request[0][PROCESSOR]
    return config


def _lacking(nodes: Mapping[str, str | None]) -> str:
    lacking = [name for name, plugin in nodes.items() if plugin is None]
    return (
        f"the plugin is not on {', '.join(lacking)} ({len(lacking)} of {len(nodes)} nodes): run"
        " `bin/opensearch-plugin install file:///PATH/opensearch-rerank-VERSION.zip` there and restart;"
        " docs/hook_plugin.md says how to build it"
    )
