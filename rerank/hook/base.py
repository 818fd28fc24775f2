"""The hook of a workspace: options, reports and common steps."""

from __future__ import annotations

import dataclasses
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec.structs import replace
from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.connection import connect, is_url
from rerank.engines.opensearch.errors import translate_client_errors
from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.legs import WITH_SCORES, is_hybrid
from rerank.engines.opensearch.writing import DEFAULT_PIPELINE
from rerank.errors import EngineError, InputError, RerankError, UsageError
from rerank.hook.readiness import (
    PATIENCE,
    check_service,
    field_problems,
    index_problems,
    retrieval_problems,
    retrieving_rankers,
)
from rerank.results import Report
from rerank.stack.relevance import check_min_score
from rerank.stack.stack import Stack
from rerank.text import count_of, join_names
from rerank.workspace import Workspace

STATISTICS = "/_plugins/_rerank_stack/stats"
"""The counters of the plugin on one node."""

_NO_TOKEN = "shows its stack only with its token; give it in RERANK_SERVICE_TOKEN"


@dataclass(frozen=True)
class HookOptions:
    """The settings of a pipeline.

    service:    URL of the service, as the nodes reach it.
    stack:      the stack that scores; None: the default.
    depth:      candidates per search.
    timeout:    seconds to wait for the service.
    on_failure: ``first_stage`` or ``error``: answer of a search that cannot be reranked.
    add_to:     an existing pipeline whose processors are copied into this one.
    min_score:  smallest probability of relevance of a hit, from 0 to 1; None: no hit is removed.
    shadow:     score and count, but keep the order.
    retrieve:   for the route plugin: add documents that the rankers of the stack retrieve; None: if it was
                tuned with such rankers.
    words:      fields with the words of users, in which a required match does not restrict added documents.
    token:      for the route stock; ML Commons encrypts it.
    id_field:   for the route stock: the field that repeats ``_id``. None: ``id`` in indices of rerank, else
                ``_id`` (send ``"docvalue_fields": ["_id"]``).
    """

    service: str
    stack: str | None = None
    depth: int = 100
    timeout: float = 1.0
    on_failure: str = "first_stage"
    add_to: str | None = None
    min_score: float | None = None
    shadow: bool = False
    retrieve: bool | None = None
    words: Sequence[str] = ()
    token: str = field(default="", repr=False)
    id_field: str | None = None

    @property
    def url(self) -> str:
        """The URL without a slash at the end."""
        return self.service.rstrip("/")

    def __post_init__(self) -> None:
        if not is_url(self.service) or set("?#@") & set(self.service):
            raise UsageError(
                f"--service {self.service!r}: not a URL like http://a:8765; a token belongs in the keystore"
            )
        if not 0.001 <= self.timeout <= 60:
            raise UsageError(f"--timeout {self.timeout}: give 0.001 to 60 seconds")
        if self.min_score is not None and not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score {self.min_score:g}: give a number from 0 to 1")


@dataclass(frozen=True)
class Request:
    """A request that changes the cluster. ``<name>``: from an earlier answer."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f" {json.dumps(self.body)}" if self.body is not None else "")


@dataclass
class InstallReport(Report):
    """The requests, sent or planned (``dry_run``)."""

    pipeline: str
    requests: tuple[Request, ...]
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass
class Status(Report):
    """The state of a pipeline and its requirements.

    there:      whether it exists. config: its settings; None if rerank did not make it.
    problems:   why searches are not reranked as configured.
    default_of: indices that use it by default. indices: of the workspace.
    nodes:      node -> plugin version or None.
    service:    answer to ``/readyz`` or None.
    statistics: URL of a node -> counters.
    weights:    ``stack``, ``normalization`` and ``cases``.
    of:         their stack; None: unknown.
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
    """The pipeline of a workspace. Raises UsageError if the documents are not in OpenSearch.

    name:  of the pipeline; None: from the index.
    token: of the service, which otherwise hides its stack.
    """

    route: ClassVar[str]
    plugins: ClassVar[tuple[str, ...]]
    """The plugins that every node needs; reports have the version of the first."""
    adds_documents: ClassVar[bool] = False
    """Whether searches can get documents that rankers retrieve."""
    suffix: ClassVar[str] = ""
    """End of the name of the pipeline, after ``rerank-INDEX``."""

    def __init__(self, workspace: Workspace, name: str | None = None, token: str = "") -> None:
        engine = workspace.engine
        if not isinstance(engine, OpenSearchEngine):
            raise UsageError(
                f"{workspace.folder}: the hook needs OpenSearch (`rerank ingest --url URL`, `rerank attach`)"
            )
        self.workspace, self.engine, self.settings = workspace, engine, engine.settings
        self._token = token
        self._servers: dict[str, str] = {}  # node -> version of OpenSearch
        self.name = name or f"rerank-{engine.settings.index}{self.suffix}"
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", self.name, re.ASCII):
            raise UsageError(f"--name {self.name!r}: not a name of a pipeline; use letters, digits, - and _")
        self._path = f"/_search/pipeline/{self.name}"
        self._client = engine.index.client

    @abstractmethod
    def _remedy(self, servers: Sequence[str]) -> str:
        """What to do about nodes without the plugins. servers: their versions of OpenSearch."""

    def _complete(self, options: HookOptions, default: bool) -> HookOptions:
        """The options with this route's defaults. Raises UsageError for options of the other route."""
        return options

    @abstractmethod
    def _requests(self, options: HookOptions, pipeline: Mapping[str, Any] | None) -> list[Request]:
        """The necessary requests to install a pipeline, or to replace it."""

    def _call_problems(self) -> list[str]:
        """Why the cluster cannot call the service, if that can be tested."""
        return []

    @abstractmethod
    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        """None if rerank did not make the pipeline."""

    @abstractmethod
    def _written(self, options: HookOptions, pipeline: Mapping[str, Any]) -> dict[str, Any]:
        """The pipeline for these options, with the other processors of an existing one."""

    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        """Problems of an installed pipeline."""
        names = HookOptions.__dataclass_fields__.keys() & config.keys()
        problems = []
        try:
            options = HookOptions(config["url"], **{name: config[name] for name in names})
            if differs(pipeline, self._written(options, pipeline)):
                problems.append(f"pipeline {self.name!r} has been changed by hand")
            if options.stack is not None:
                self._stack(options.stack)
        except (UsageError, InputError) as error:
            problems.append(str(error))
        return problems

    @abstractmethod
    def _search_options(self, text: str) -> dict[str, Any]:
        """Parts of a search that is reranked for these words and explained."""

    def _plain_options(self) -> dict[str, Any]:
        """Parts of the same search without reranking, if the pipeline has other processors."""
        return {}

    @abstractmethod
    def outcome(self, answer: Mapping[str, Any], text: str) -> tuple[str, str | None]:
        """The outcome of a search, and its reason."""

    def nodes(self) -> dict[str, str | None]:
        """Node -> plugin version or None."""
        answer = self._ask("GET", "/_nodes/plugins") or {}
        nodes: dict[str, str | None] = {}
        for about in answer.get("nodes", {}).values():
            versions = {plugin["name"]: plugin["version"] for plugin in about["plugins"]}
            nodes[about["name"]] = versions[self.plugins[0]] if set(self.plugins) <= set(versions) else None
            self._servers[about["name"]] = about["version"]
        return nodes

    def _lacking(self, nodes: Mapping[str, str | None]) -> list[str]:
        """The problem that nodes lack plugins."""
        lacking = [name for name, version in nodes.items() if version is None]
        where = f"{', '.join(lacking)} ({len(lacking)} of {count_of(len(nodes), 'node')})"
        names = " and ".join(self.plugins)
        servers = sorted({self._servers[name] for name in lacking})
        return [f"plugin missing on {where}: {names}; {self._remedy(servers)}"] if lacking else []

    def pipeline(self, name: str | None = None) -> dict[str, Any] | None:
        """The stored pipeline, or None. name: another one."""
        name = name or self.name
        return (self._ask("GET", f"/_search/pipeline/{name}") or {}).get(name)

    def config(self) -> dict[str, Any]:
        """The pipeline's settings. Raises EngineError if it does not exist, or rerank did not make it."""
        config = self._config(self._own_pipeline() or {})
        if config is None:
            made = f"`rerank hook install --route {self.route}`"
            raise EngineError(f"there is no pipeline {self.name!r}; {made} makes it")
        return config

    def default_of(self) -> dict[str, str]:
        """Index -> default pipeline."""
        path = f"/_all/_settings/{DEFAULT_PIPELINE}?flat_settings=true&expand_wildcards=all"
        answer = self._ask("GET", path) or {}
        pipelines = {index: about["settings"].get(DEFAULT_PIPELINE) for index, about in answer.items()}
        return {index: pipeline for index, pipeline in sorted(pipelines.items()) if pipeline}

    def status(self) -> Status:
        """Check all requirements."""
        pipeline, nodes, defaults = self.pipeline(), self.nodes(), self.default_of()
        indices = tuple(sorted(self.engine.index.indices()))
        config = None if pipeline is None else self._config(pipeline)
        counters = {url: self._counters(url) for url in self.settings.url}
        problems = self._lacking(nodes)
        problems += [
            f"the node {url} does not answer; start it" for url, found in counters.items() if found is None
        ]
        service = None
        if pipeline is None:
            problems.append(f"the pipeline {self.name!r} does not exist; install it")
        elif config is None:
            problems.append(f"pipeline {self.name!r} was not made by rerank for the route {self.route}")
        else:
            problems += self._wrong(pipeline, config)
            service, wrong = self._check(config["url"], config.get("stack"), int(config.get("depth", 100)))
            problems += wrong
            problems += field_problems(self.engine, config.get("stack") or (service or {}).get("stack"))
        default_of = tuple(index for index, default in defaults.items() if default == self.name)
        problems += index_problems(self.workspace, self.engine, indices, default_of)
        problems += self._template_problems()
        if pipeline is None and default_of:
            problems.append(
                f"{', '.join(default_of)} cannot be searched: the default pipeline does not exist"
            )
        stack = None if config is None else self._known_stack(config.get("stack"), service)
        if stack is not None and config is not None:
            if config.get("min_score") is not None:
                problems += min_score_problems(config["min_score"], stack)
            if self.adds_documents:
                problems += retrieval_problems(self.engine, stack, config)
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

    def _template_problems(self) -> list[str]:
        """Stored search templates that name a pipeline, without an effect."""
        path = "/_cluster/state/metadata?filter_path=metadata.stored_scripts"
        with suppress(EngineError):  # the user may lack this right
            state = self._ask("GET", path) or {}
            scripts = state.get("metadata", {}).get("stored_scripts", {})
            ignored = [
                name for name, script in scripts.items() if "search_pipeline" in script.get("source", "")
            ]
            return [
                f"OpenSearch ignores the search_pipeline in the stored template {name!r}; name the pipeline"
                " in the URL of its searches, or as the default of the index"
                for name in sorted(ignored)
            ]
        return []

    def _counters(self, url: str) -> dict[str, Any] | None:
        settings = replace(self.settings, url=(url,), timeout=min(self.settings.timeout, PATIENCE))
        with translate_client_errors(settings, "looking for the node"), closing(connect(settings)) as client:
            try:
                answer: dict[str, Any] = client.transport.perform_request("GET", STATISTICS)
            except client_errors.ConnectionError:
                return None
            except client_errors.TransportError:
                return {}
        return answer

    def _check(self, url: str, stack: str | None, depth: int) -> tuple[dict[str, Any] | None, list[str]]:
        return check_service(url, self._token, self.workspace.versions(), stack, depth)

    def _ready(self, options: HookOptions, default: bool) -> tuple[list[str], Stack | None]:
        """Check all requirements; return warnings, and the stack if it is known."""
        if options.stack is not None:
            self._stack(options.stack)
        if wrong := field_problems(self.engine, options.stack):
            raise UsageError("; ".join(wrong))
        if lacking := self._lacking(self.nodes()):
            raise EngineError("; ".join(lacking))
        about, problems = self._check(options.url, options.stack, options.depth)
        if default and about is not None and problems:
            raise EngineError(f"{'; '.join(problems)}: searches would fail; nothing was changed")
        if about is not None and "rankers" not in about:
            problems.insert(0, f"the service at {options.url} was not checked: it {_NO_TOKEN}")
        stack = self._known_stack(options.stack, about)
        if options.min_score is not None and stack is not None:
            check_min_score(options.min_score, stack.relevance)
        return problems, stack

    def _with_retrieval(self, options: HookOptions, stack: Stack | None) -> tuple[HookOptions, list[str]]:
        """Return the options with a decision about retrieval, and notes.

        Raises UsageError if the stack or one of its rankers cannot retrieve.
        """
        names = [] if stack is None else retrieving_rankers(stack)
        if options.retrieve and stack is not None and not names:
            raise UsageError(
                f"--retrieve: the stack {stack.name} has no ranker that retrieves; tune it with `--retrieve"
                f" {stack.first_stage},NAME:100`"
            )
        retrieve = options.retrieve
        if retrieve is None and names and self.adds_documents:
            retrieve = True
        if not retrieve:
            hint = "install with --retrieve" if self.adds_documents else "use the route plugin"
            note = f"the stack retrieves with {join_names(names)}; {hint} to add its documents"
            return options, [note] if names else []
        words = tuple(self.engine.condition_words)
        config = {"words": words, "retrieve": True}
        problems = [] if stack is None else retrieval_problems(self.engine, stack, config)
        if problems:
            raise UsageError("; ".join(problems))
        note = f"searches get documents that {join_names(names)} retrieves; --no-retrieve leaves them out"
        return dataclasses.replace(options, retrieve=True, words=words), [note] if names else []

    def install(self, options: HookOptions, *, default: bool = False, dry_run: bool = False) -> InstallReport:
        """Make the pipeline, and delete what an earlier one leaves. default: use it for every search.

        Raises EngineError if nodes lack a plugin or must not call the service, or if rerank did not make the
        pipeline or default; UsageError or InputError for options of the other route and unknown stacks.
        """
        options = self._complete(options, default)
        warnings, stack = self._ready(options, default)
        options, notes = self._with_retrieval(options, stack)
        warnings += notes
        requests = self._requests(options, self._own_pipeline())
        requests += self._defaults(options) if default else []
        if not dry_run:
            self._send(requests)
            warnings += self._call_problems()
        return InstallReport(self.name, tuple(requests), tuple(warnings), dry_run)

    def _own_pipeline(self) -> dict[str, Any] | None:
        """The pipeline, or None. Raises EngineError if rerank did not make it."""
        pipeline = self.pipeline()
        if pipeline is not None and self._config(pipeline) is None:
            raise EngineError(
                f"rerank did not make pipeline {self.name!r} by the route {self.route}; use another --name"
            )
        return pipeline

    def _defaults(self, options: HookOptions) -> list[Request]:
        requests, defaults = [], self.default_of()
        indices = sorted(self.engine.index.indices())
        if not indices:
            raise EngineError(f"{self.settings.where} has no index {self.settings.index!r}")
        for index in indices:
            other = defaults.get(index)
            if other not in (None, NO_PIPELINE, self.name, options.add_to):
                raise EngineError(
                    f"index {index!r} already has the default pipeline {other!r}; remove it, or leave out"
                    " --default and name the pipeline in searches (?search_pipeline=)"
                )
            if other != self.name:
                requests.append(Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: self.name}))
        return requests

    def remove(self, *, dry_run: bool = False) -> InstallReport:
        """Remove the default setting and the pipeline.

        Raises EngineError if rerank did not make the pipeline or another index uses it.
        """
        requests = self._removal()
        if not dry_run:
            self._send(requests)
        return InstallReport(self.name, tuple(requests), dry_run=dry_run)

    def _removal(self) -> list[Request]:
        pipeline = self._own_pipeline()
        users = [index for index, default in self.default_of().items() if default == self.name]
        own = self.engine.index.indices()
        others = [index for index in users if index not in own]
        if others:
            raise EngineError(
                f"pipeline {self.name!r} is the default of {', '.join(others)}; change {DEFAULT_PIPELINE}"
            )
        requests = [Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: None}) for index in users]
        return requests if pipeline is None else [*requests, Request("DELETE", self._path)]

    def search(self, body: Mapping[str, Any], size: int, text: str | None = None) -> dict[str, Any]:
        """Search for ids and scores like any client. text: rerank for these words by the hook."""
        asked = self.engine.templates.ids_only(body, size)
        del asked["track_total_hits"]  # stock processors do not rerank a search without a total
        params = {"search_type": self.settings.search_type, "preference": "rerank-hook"}
        if is_hybrid(body):
            params["search_type"] = "query_then_fetch"
        if text is None:
            params |= WITH_SCORES
        if plain := self._plain_options():
            asked |= {"_source": True, **plain}  # response processors may read fields
        if text is not None:
            asked |= {"search_pipeline": self.name, **self._search_options(text)}
        with translate_client_errors(self.settings, "searching"):
            answer: dict[str, Any] = self._client.search(index=self.settings.index, body=asked, params=params)
        return answer

    def _stack(self, text: str) -> Stack:
        if text.endswith(".json"):
            raise UsageError(f"--stack {text}: a pipeline takes signals; `rerank serve --stack` takes a file")
        return self.workspace.stack(text)

    def _known_stack(self, text: str | None, service: Mapping[str, Any] | None) -> Stack | None:
        """The stack of a text, else of the service, if it can be read. service: its answer to ``/readyz``."""
        with suppress(RerankError):
            if text is not None:
                return self._stack(text)
            if service is not None and "definition" in service:
                return Stack.from_json(service["definition"])
        return None

    def stack_of(self, config: Mapping[str, Any]) -> Stack:
        """The stack that scores. Raises RerankError."""
        if config.get("stack") is not None:
            return self._stack(str(config["stack"]))
        service, problems = self._check(config["url"], None, 1)
        stack = self._known_stack(None, service)
        if stack is None:
            reason = problems[0] if service is None else f"the service {_NO_TOKEN}"
            raise EngineError(f"the pipeline uses the stack of the service, but {reason}")
        return stack

    def _send(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._ask(request.method, request.path, request.body)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """None for status 404, except for PUT."""
        with translate_client_errors(self.settings, f"{method} {path}"):
            try:
                answer: dict[str, Any] = self._client.transport.perform_request(method, path, body=body)
            except client_errors.NotFoundError:
                if method == "PUT":
                    raise
                return None
        return answer


def min_score_problems(min_score: float, stack: Stack) -> list[str]:
    """Return why a stack removes no hits of a small probability."""
    try:
        check_min_score(min_score, stack.relevance)
    except UsageError as error:
        return [str(error)]
    return []


def differs(pipeline: Mapping[str, Any] | None, written: Mapping[str, Any]) -> bool:
    """Whether a pipeline is missing or different."""
    return pipeline is None or any(pipeline.get(part) != value for part, value in written.items())
