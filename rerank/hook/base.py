"""The hook of a workspace: the steps that all routes have in common.

A route is a way in which a cluster calls the service. Installing, removing and checking a pipeline have the
same steps for all routes, so a route only describes its requests.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, ClassVar

from rerank.common.errors import EngineError, InputError, RerankError, UsageError
from rerank.common.values import only, without_empty
from rerank.documents.text import count_of
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.opensearch.errors import translate_client_errors
from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.legs import WITH_SCORES, is_hybrid
from rerank.engines.opensearch.writing import DEFAULT_PIPELINE
from rerank.hook.cluster import Cluster, Node
from rerank.hook.options import HookOptions, split_urls
from rerank.hook.readiness import (
    ServiceCheck,
    ServiceState,
    as_problem,
    check_services,
    field_problems,
    index_problems,
    min_score_problems,
)
from rerank.hook.reports import InstallReport, Request, Status
from rerank.hook.retrieval import decide_retrieval, retrieval_problems
from rerank.stack.relevance import check_min_score
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace

_NO_TOKEN = "shows its stack only with its token; give it in RERANK_SERVICE_TOKEN"


class Hook(ABC):
    """A search pipeline of a cluster. It reranks the hits of searches by the stacks of a workspace.

    workspace: its documents must be in OpenSearch.
    name:      name of the pipeline; None: ``rerank-INDEX``, with the suffix of the route.
    token:     token of the service, which hides its stack without it.

    Raises UsageError if the documents are not in OpenSearch, or for an invalid name.
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
        self.workspace = workspace
        self.engine = engine
        self.settings = engine.settings
        self.cluster = Cluster(engine)
        self._token = token
        self.name = name or f"rerank-{engine.settings.index}{self.suffix}"
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", self.name, re.ASCII):
            raise UsageError(f"--name {self.name!r}: not a name of a pipeline; use letters, digits, - and _")
        self._path = f"/_search/pipeline/{self.name}"
        self._client = engine.index.client

    @abstractmethod
    def _remedy(self, servers: Sequence[str]) -> str:
        """What to do about nodes without the plugins. servers: their versions of OpenSearch."""

    def _complete(self, options: HookOptions, default: bool) -> HookOptions:
        """Return the options with this route's defaults. Raises UsageError for options of the other route."""
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
    def _pipeline_body(self, options: HookOptions, pipeline: Mapping[str, Any]) -> dict[str, Any]:
        """The pipeline for these options, with the other processors of an existing one."""

    def _pipeline_problems(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        """Problems of an installed pipeline."""
        settings = only(config, {option.name for option in fields(HookOptions)})
        problems: list[str] = []
        with as_problem(problems, UsageError, InputError):
            options = HookOptions(config["url"], **settings)
            if differs(pipeline, self._pipeline_body(options, pipeline)):
                problems.append(f"pipeline {self.name!r} has been changed by hand")
            if options.stack is not None:
                self._stack(options.stack)
        return problems

    @abstractmethod
    def _search_options(self, text: str) -> dict[str, Any]:
        """Parts of a search that is reranked for these words and explained."""

    def _plain_options(self) -> dict[str, Any]:
        """Parts of the same search without reranking, if the pipeline has other processors."""
        return {}

    @abstractmethod
    def outcome(self, answer: Mapping[str, Any], text: str) -> tuple[str, str | None]:
        """Return the outcome of a search, such as ``reranked``, and the reason if it was not reranked.

        answer: the answer of the cluster to :meth:`search` with this text.
        """

    def _missing_plugins(self, nodes: Sequence[Node]) -> list[str]:
        """Return the problem that nodes lack plugins, or no problem."""
        without_plugins = [node for node in nodes if node.plugin_version(self.plugins) is None]
        if not without_plugins:
            return []
        names = ", ".join(node.name for node in without_plugins)
        share = f"{len(without_plugins)} of {count_of(len(nodes), 'node')}"
        plugins = " and ".join(self.plugins)
        servers = sorted({node.version for node in without_plugins})
        return [f"plugin missing on {names} ({share}): {plugins}; {self._remedy(servers)}"]

    def _pipeline(self) -> dict[str, Any] | None:
        """Return the definition of the pipeline in the cluster, or None if it does not exist."""
        return self.cluster.pipeline(self.name)

    def config(self) -> dict[str, Any]:
        """Return the settings that the pipeline got at its installation.

        Raises EngineError if the pipeline does not exist, or if rerank did not make it.
        """
        config = self._config(self._own_pipeline() or {})
        if config is None:
            command = f"`rerank hook install --route {self.route}`"
            raise EngineError(f"the pipeline {self.name!r} does not exist; {command} makes it")
        return config

    def _default_of(self) -> list[str]:
        """Return the indices whose default pipeline is this one."""
        indices: list[str] = []
        for index, pipeline in self.cluster.default_pipelines().items():
            if pipeline == self.name:
                indices.append(index)
        return indices

    def status(self) -> Status:
        """Check the nodes, the pipeline, the service and the index; return the state and all problems.

        Raises EngineError if the cluster does not answer.
        """
        pipeline = self._pipeline()
        nodes = self.cluster.nodes()
        default_of = tuple(self._default_of())
        indices = tuple(sorted(self.engine.index.indices()))
        config = None if pipeline is None else self._config(pipeline)
        counters = {url: self.cluster.counters(url) for url in self.settings.url}

        problems = self._missing_plugins(nodes)
        for url, counts in counters.items():
            if counts is None:
                problems.append(f"the node {url} does not answer; start it")

        service: ServiceState | None = None
        stack: Stack | None = None
        if pipeline is None:
            problems.append(f"the pipeline {self.name!r} does not exist; install it")
        elif config is None:
            problems.append(f"pipeline {self.name!r} was not made by rerank for the route {self.route}")
        else:
            problems += self._pipeline_problems(pipeline, config)
            depth = int(config.get("depth", 100))
            check = self._check_services(split_urls(config["url"]), config.get("stack"), depth)
            service = check.service
            problems += check.unreachable + check.problems
            stack = self._readable_stack(config.get("stack"), service)
            problems += field_problems(self.engine, config.get("stack") or (service or {}).get("stack"))

        problems += index_problems(self.workspace, self.engine, indices, default_of)
        problems += self.cluster.template_problems()
        if pipeline is None and default_of:
            problems.append(
                f"{', '.join(default_of)} cannot be searched: the default pipeline does not exist"
            )
        if stack is not None and config is not None:
            problems += self._stack_problems(stack, config)
        return Status(
            pipeline=self.name,
            exists=pipeline is not None,
            config=config,
            problems=tuple(problems),
            default_of=default_of,
            indices=indices,
            nodes={node.name: node.plugin_version(self.plugins) for node in nodes},
            service=service,
            statistics=without_empty(counters),
            weights={} if stack is None else stack.combiner.summary(),
            stack=stack,
        )

    def _stack_problems(self, stack: Stack, config: Mapping[str, Any]) -> list[str]:
        """Return why the stack does not fit the settings of the pipeline."""
        problems: list[str] = []
        min_score = config.get("min_score")
        if min_score is not None:
            problems += min_score_problems(min_score, stack)
        if self.adds_documents:
            problems += retrieval_problems(self.engine, stack, config)
        return problems

    def _check_services(self, urls: Sequence[str], stack: str | None, depth: int) -> ServiceCheck:
        return check_services(urls, self._token, self.workspace.versions(), stack, depth)

    def _preflight(self, options: HookOptions, default: bool) -> tuple[list[str], Stack | None]:
        """Check all requirements; return warnings, and the stack if it can be read.

        Raises UsageError or InputError for a stack that cannot be used, EngineError if nodes lack a plugin or
        searches would fail.
        """
        if options.stack is not None:
            self._stack(options.stack)
        unusable_fields = field_problems(self.engine, options.stack)
        if unusable_fields:
            raise UsageError("; ".join(unusable_fields))
        missing_plugins = self._missing_plugins(self.cluster.nodes())
        if missing_plugins:
            raise EngineError("; ".join(missing_plugins))

        check = self._check_services(options.urls, options.stack, options.depth)
        if default and check.problems:
            raise EngineError(f"{'; '.join(check.problems)}: searches would fail; nothing was changed")
        warnings = check.unreachable + check.problems
        if check.service is not None and "rankers" not in check.service:
            warnings.insert(0, f"the service at {options.url} was not checked: it {_NO_TOKEN}")

        stack = self._readable_stack(options.stack, check.service)
        if options.min_score is not None and stack is not None:
            check_min_score(options.min_score, stack.relevance)
        return warnings, stack

    def install(self, options: HookOptions, *, default: bool = False, dry_run: bool = False) -> InstallReport:
        """Make the pipeline, and delete what an earlier one leaves. default: use it for every search.

        Raises EngineError if nodes lack a plugin or must not call the service, or if rerank did not make the
        pipeline or default; UsageError or InputError for options of the other route and unknown stacks.
        """
        options = self._complete(options, default)
        warnings, stack = self._preflight(options, default)
        options, notes = decide_retrieval(options, self.engine, stack, self.adds_documents)
        warnings += notes
        requests = self._requests(options, self._own_pipeline())
        requests += self._defaults(options) if default else []
        if not dry_run:
            self._send(requests)
            warnings += self._call_problems()
        return InstallReport(self.name, tuple(requests), tuple(warnings), dry_run)

    def _own_pipeline(self) -> dict[str, Any] | None:
        """The pipeline, or None. Raises EngineError if rerank did not make it."""
        pipeline = self._pipeline()
        if pipeline is not None and self._config(pipeline) is None:
            raise EngineError(
                f"rerank did not make pipeline {self.name!r} by the route {self.route}; use another --name"
            )
        return pipeline

    def _defaults(self, options: HookOptions) -> list[Request]:
        """Return the requests that make the pipeline the default of the workspace's indices.

        Raises EngineError if the index does not exist, or if it has another default pipeline.
        """
        requests = []
        default_pipelines = self.cluster.default_pipelines()
        indices = sorted(self.engine.index.indices())
        if not indices:
            raise EngineError(f"{self.settings.where} has no index {self.settings.index!r}")
        for index in indices:
            current = default_pipelines.get(index)
            if current not in (None, NO_PIPELINE, self.name, options.add_to):
                raise EngineError(
                    f"index {index!r} already has the default pipeline {current!r}; remove it, or leave out"
                    " --default and name the pipeline in searches (?search_pipeline=)"
                )
            if current != self.name:
                requests.append(Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: self.name}))
        return requests

    def remove(self, *, dry_run: bool = False) -> InstallReport:
        """Remove the default setting and the pipeline; return the requests.

        dry_run: only return the requests, and send none.

        Raises EngineError if rerank did not make the pipeline or another index uses it.
        """
        requests = self._removal()
        if not dry_run:
            self._send(requests)
        return InstallReport(self.name, tuple(requests), dry_run=dry_run)

    def _removal(self) -> list[Request]:
        pipeline = self._own_pipeline()
        default_of = self._default_of()
        foreign = sorted(set(default_of) - self.engine.index.indices().keys())
        if foreign:
            raise EngineError(
                f"pipeline {self.name!r} is the default of {', '.join(foreign)}; change {DEFAULT_PIPELINE}"
            )

        requests: list[Request] = []
        for index in default_of:
            requests.append(Request("PUT", f"/{index}/_settings", {DEFAULT_PIPELINE: None}))
        if pipeline is not None:
            requests.append(Request("DELETE", self._path))
        return requests

    def search(self, body: Mapping[str, Any], size: int, text: str | None = None) -> dict[str, Any]:
        """Search for ids and scores as a client of the cluster does; return the answer.

        body: the search. size: number of hits.
        text: words for which the hook reranks; None: without reranking, but with the scores of named clauses.

        Raises EngineError if the search fails.
        """
        request = self.engine.templates.ids_only(body, size)
        del request["track_total_hits"]  # stock processors do not rerank a search without a total
        params = {"search_type": self.settings.search_type, "preference": "rerank-hook"}
        if is_hybrid(body):
            params["search_type"] = "query_then_fetch"
        plain_options = self._plain_options()
        if plain_options:
            request |= {"_source": True, **plain_options}  # response processors may read fields
        if text is None:
            params |= WITH_SCORES
        else:
            request |= {"search_pipeline": self.name, **self._search_options(text)}
        with translate_client_errors(self.settings, "searching"):
            answer: dict[str, Any] = self._client.search(
                index=self.settings.index, body=request, params=params
            )
        return answer

    def _stack(self, text: str) -> Stack:
        if text.endswith(".json"):
            raise UsageError(f"--stack {text}: a pipeline takes signals; `rerank serve --stack` takes a file")
        return self.workspace.stack(text)

    def _readable_stack(self, text: str | None, service: ServiceState | None) -> Stack | None:
        """Return the stack that a text names, or else the stack of the service, if it can be read.

        service: its answer to ``/readyz``.
        """
        with suppress(RerankError):
            if text is not None:
                return self._stack(text)
            if service is not None and "definition" in service:
                return Stack.from_json(service["definition"])
        return None

    def stack_of(self, config: Mapping[str, Any]) -> Stack:
        """Return the stack that scores the hits of a pipeline: the one in its settings, or the service's.

        config: the settings of the pipeline, see :meth:`config`.

        Raises UsageError or InputError for a stack that cannot be used, and EngineError if the service does
        not answer or hides its stack.
        """
        if config.get("stack") is not None:
            return self._stack(str(config["stack"]))
        check = self._check_services(split_urls(config["url"]), None, 1)
        stack = self._readable_stack(None, check.service)
        if stack is None:
            reason = check.unreachable[0] if check.service is None else f"the service {_NO_TOKEN}"
            raise EngineError(f"the pipeline uses the stack of the service, but {reason}")
        return stack

    def _send(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.cluster.ask(request.method, request.path, request.body)


def differs(pipeline: Mapping[str, Any] | None, body: Mapping[str, Any]) -> bool:
    """Return whether a pipeline must be written.

    pipeline: its definition in the cluster; None: it is missing.
    body:     the definition to write. Other entries of the pipeline do not matter.
    """
    if pipeline is None:
        return True
    return any(pipeline.get(name) != value for name, value in body.items())
