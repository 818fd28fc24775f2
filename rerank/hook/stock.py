"""The route of ML Commons, for clusters without the plugin (docs/guides/stock-processors.md).

A connector calls the service, a model uses the connector, a pipeline the model. Searches must name the
pipeline and the query words.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.layout import OwnedLayout
from rerank.errors import EngineError, InputError, UsageError
from rerank.files import parse_json
from rerank.hook.base import Hook, HookOptions, InstallReport, Request, differs
from rerank.text import plural

PLUGINS = ("opensearch-ml", "opensearch-neural-search")
"""Every node needs both: ML Commons, and the plugin with the processor."""

ENDPOINT = "/v1/rerank_ids"
"""The endpoint that scores documents of the engine by their ids."""

MADE = "made by rerank for the route stock"
"""The description of everything that this route makes."""

_CALL = "rerank_call"
"""The parameter of a connector that repeats, as JSON, the call that it makes."""
_PATIENCE = 60.0  # seconds to deploy a model on all nodes, or to delete one; it takes one or two
_PAUSE = 0.2
_SETTINGS = "docs/guides/stock-processors.md has the settings that ML Commons needs"
_CONNECTIONS = 128  # of a node to the service
_ML = "/_plugins/_ml"
_IDS = ("connector_id", "model_id")

Resources = Mapping[str, Mapping[str, Any]]
"""Id of a model or connector -> its description."""

# A search with `from` above 0 keeps its size: no stock processor can cut off the front of a page.
_RAISE = (
    "def s = ctx._source;"
    " if ((s['from'] == null || s['from'] < 1) && s['size'] > 0 && s['size'] < params.depth)"
    " { s['size'] = params.depth }"
)


@dataclass(frozen=True)
class StockOptions(HookOptions):
    """Settings of this route. ``timeout`` is rounded up to seconds.

    token:    of the service; ML Commons encrypts it.
    id_field: field that repeats ``_id``; None: ``id`` in indices of rerank, else ``_id`` (send
              ``"docvalue_fields": ["_id"]``).
    """

    token: str = field(default="", repr=False)
    id_field: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.urls) > 1:
            raise UsageError("the route stock calls one --service; name one URL")
        if self.shadow or self.share != 100 or self.token_name is not None:
            raise UsageError("--shadow, --share and --token-name are for the route plugin")

    @property
    def call(self) -> dict[str, Any]:
        """The settings that the connector stores."""
        seconds = math.ceil(self.timeout)
        return {"url": self.urls[0], "stack": self.stack, "timeout": seconds, "token": bool(self.token)}


def connector(name: str, wanted: StockOptions) -> dict[str, Any]:
    """The connector for ML Commons.

    >>> made = connector("hook", StockOptions("http://localhost:8765", stack="bm25,text"))
    >>> made["actions"][0]["request_body"]
    '{"query":"${parameters.query}","ids":${parameters.documents},"stack":"bm25,text"}'
    """
    stack = "" if wanted.stack is None else f',"stack":{json.dumps(wanted.stack)}'
    action: dict[str, Any] = {
        "action_type": "predict",
        "method": "POST",
        "url": wanted.urls[0] + ENDPOINT,
        "headers": {"Authorization": "Bearer ${credential.token}"} if wanted.token else {},
        "request_body": '{"query":"${parameters.query}","ids":${parameters.documents}' + stack + "}",
        "pre_process_function": "connector.pre_process.cohere.rerank",
        "post_process_function": "connector.post_process.cohere.rerank",
    }
    return {
        "name": name,
        "description": MADE,
        "version": "1",
        "protocol": "http",
        "parameters": {_CALL: json.dumps(wanted.call)},
        "credential": {"token": "<token>" if wanted.token else "none"},  # it must not be empty
        "actions": [action],
        "client_config": {
            "max_connection": _CONNECTIONS,
            "connection_timeout": wanted.call["timeout"],
            "read_timeout": wanted.call["timeout"],
            "max_retry_times": 0,
        },
    }


def body(wanted: StockOptions, model: str) -> dict[str, Any]:
    """The pipeline. ``oversample`` by 1 stores the size for ``truncate_hits``."""
    script = {"lang": "painless", "source": _RAISE, "params": {"depth": wanted.depth}}
    rerank = {
        "ml_opensearch": {"model_id": model},
        "context": {"document_fields": [wanted.id_field]},
        "ignore_failure": wanted.on_failure == "first_stage",
    }
    return {
        "description": MADE,
        "request_processors": [{"oversample": {"sample_factor": 1.0}}, {"script": script}],
        "response_processors": [{"rerank": rerank}, {"truncate_hits": {}}],
    }


class StockHook(Hook):
    """A pipeline of stock processors, a model and a connector."""

    route = "stock"
    plugins = PLUGINS
    suffix = "-stock"

    def install(self, options: HookOptions, *, default: bool = False, dry_run: bool = False) -> InstallReport:
        """Make connector, model and pipeline. Fitting ones stay, old ones are deleted.

        Raises UsageError for ``default``; EngineError if a node lacks a plugin, if ML Commons forbids the
        call, or if rerank did not make the pipeline.
        """
        if default:
            raise UsageError(
                "--default is for the route plugin; by the route stock, a search is reranked only if it has"
                " ext.rerank (docs/guides/stock-processors.md)"
            )
        stock = self._complete(options)
        self._token = stock.token or self._token
        warnings = self._ready(stock)
        pipeline = self._ours()
        models, connectors = self._made()
        model = self._usable(stock, models, connectors)
        requests = []
        if model is None:
            about = {"name": self.name, "description": MADE, "function_name": "remote"}
            about["connector_id"] = "<connector>"
            requests += [
                Request("POST", f"{_ML}/connectors/_create", connector(self.name, stock)),
                Request("POST", f"{_ML}/models/_register?deploy=true", about),
            ]
        written = body(stock, model or "<model>")
        if differs(pipeline, written):
            requests.append(Request("PUT", self._path, written))
        kept = {} if model is None else {model: models[model]}
        requests += _deletions(models, connectors, kept)
        if not dry_run:
            model = self._carry_out(requests, stock.token) or model
            problem = self._predict(str(model))
            if problem is not None:
                warnings.append(f"the cluster cannot use the service: {problem}")
        return InstallReport(self.name, tuple(requests), tuple(warnings), dry_run)

    def remove(self, *, dry_run: bool = False) -> InstallReport:
        """Delete pipeline, models and connectors. Cluster settings stay."""
        requests = [*self._removal(), *_deletions(*self._made(), {})]
        groups = self._all("model_groups")
        ours = [id for id, about in groups.items() if self._is_ours(about)]
        requests += [Request("DELETE", f"{_ML}/model_groups/{id}") for id in ours]
        if not dry_run:
            self._carry_out(requests)
        return InstallReport(self.name, tuple(requests), dry_run=dry_run)

    def _complete(self, options: HookOptions) -> StockOptions:
        given = {name: getattr(options, name) for name in options.__dataclass_fields__}
        own = isinstance(self.engine.layout, OwnedLayout)
        given["id_field"] = given.get("id_field") or ("id" if own else "_id")
        for index, about in self.engine.index.indices().items():
            most = int(about["settings"]["index"].get("max_result_window", 10_000))
            if options.depth > most:
                raise UsageError(
                    f"--depth {options.depth}: index {index!r} returns at most {most} hits"
                    " (index.max_result_window), so every search would fail; choose a smaller depth"
                )
        return StockOptions(**given)

    def _carry_out(self, requests: Sequence[Request], token: str = "") -> str | None:
        """Return the new model."""
        known = {"<token>": token}
        for request in requests:
            if request.method == "DELETE":
                self._delete(request.path)
                continue
            filled = _filled(request.body, known)
            try:
                answer = self._ask(request.method, request.path, filled, doing="changing the hook") or {}
            except EngineError as error:
                raise EngineError(f"{error}; {_SETTINGS}") from error
            known |= {f"<{name[:-3]}>": str(id) for name, id in answer.items() if name in _IDS}
            if "model_id" in answer:
                self._wait(known["<model>"])
        return known.get("<model>")

    def _delete(self, path: str) -> None:
        """Delete a resource; retry while in use."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                if path.startswith(f"{_ML}/models/"):
                    self._ask("POST", f"{path}/_undeploy", doing="undeploying the model")
                self._ask("DELETE", path, doing="changing the hook")
                return
            except EngineError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE)

    def _wait(self, model: str) -> None:
        give_up, state = time.monotonic() + _PATIENCE, ""
        while state not in ("DEPLOYED", "DEPLOY_FAILED") and time.monotonic() < give_up:
            time.sleep(_PAUSE)
            about = self._ask("GET", f"{_ML}/models/{model}", doing="waiting for the model") or {}
            state = str(about.get("model_state"))
        if state != "DEPLOYED":
            raise EngineError(f"{self.settings.where}: the model is {state}; see the logs of the nodes")

    def _all(self, kind: str) -> dict[str, dict[str, Any]]:
        """Id -> model, connector or model group."""
        if None in self.nodes().values():
            return {}
        every = {"query": {"match_all": {}}, "size": 1000}
        answer = self._ask("POST", f"{_ML}/{kind}/_search", every, doing=f"looking for {kind}")
        hits = (answer or {}).get("hits", {}).get("hits", ())
        return {hit["_id"]: hit["_source"] for hit in sorted(hits, key=lambda hit: str(hit["_id"]))}

    def _is_ours(self, about: Mapping[str, Any]) -> bool:
        return about.get("description") == MADE and about.get("name") == self.name

    def _made(self) -> tuple[Resources, Resources]:
        connectors = {id: about for id, about in self._all("connectors").items() if self._is_ours(about)}
        models = {
            id: about
            for id, about in self._all("models").items()
            if self._is_ours(about) or about.get("connector_id") in connectors
        }
        return models, connectors

    def _usable(self, options: StockOptions, models: Resources, connectors: Resources) -> str | None:
        """A deployed model with the same call and a valid token."""
        call = json.dumps(options.call)
        for id, model in models.items():
            parameters = connectors.get(str(model.get("connector_id")), {}).get("parameters") or {}
            if model.get("model_state") != "DEPLOYED" or parameters.get(_CALL) != call:
                continue
            if not options.token or "401" not in (self._predict(id) or ""):
                return id
        return None

    def _lacking(self, nodes: Mapping[str, str | None]) -> str:
        lacking = [name for name, version in nodes.items() if version is None]
        return (
            f"{' and '.join(PLUGINS)} are not both on {', '.join(lacking)} ({len(lacking)} of"
            f" {plural(len(nodes), 'node[|s]')}); OpenSearch's full distribution has them"
        )

    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        model = _model_of(pipeline)
        if model is None:
            return None
        rerank = pipeline["response_processors"][0]["rerank"]
        about = self._ask("GET", f"{_ML}/models/{model}", doing="reading the model") or {}
        path = f"{_ML}/connectors/{about.get('connector_id')}"
        found = self._ask("GET", path, doing="reading the connector") if "connector_id" in about else None
        try:
            call = parse_json(((found or {}).get("parameters") or {}).get(_CALL, "{}"))
            return {
                **{"url": None, "stack": None, **call},
                "depth": int(pipeline["request_processors"][1]["script"]["params"]["depth"]),
                "on_failure": "first_stage" if rerank.get("ignore_failure") else "error",
                "id_field": str(rerank["context"]["document_fields"][0]),
                "model": model,
                "state": str(about.get("model_state", "missing")),
            }
        except (KeyError, IndexError, TypeError, ValueError):  # changed by another user
            return None

    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        if config["url"] is None or config["state"] != "DEPLOYED":
            return [f"the model of pipeline {self.name!r} is {config['state'].lower()}; install it again"]
        problems = []
        names = ("stack", "depth", "timeout", "on_failure", "id_field")
        try:
            wanted = StockOptions(config["url"], **{name: config[name] for name in names})
            if differs(pipeline, body(wanted, config["model"])):
                problems.append(f"pipeline {self.name!r} has been changed by hand")
            if wanted.stack is not None:
                self._stack(wanted.stack)
        except (UsageError, InputError) as error:
            problems.append(str(error))
        reason = self._predict(config["model"])
        if reason is not None:
            problems.append(f"the cluster cannot use the service: {reason}")
        if self.name in self.default_of().values():
            problems.append(
                f"pipeline {self.name!r} is a default pipeline: searches that bring no words to rerank"
                " for are not reranked by it, and slower"
            )
        return problems

    # -- calls of the service by the cluster -------------------------------------------------------------

    def _predict(self, model: str, text: str = "words", ids: Sequence[str] = ()) -> str | None:
        """Test the model; return the problem or None."""
        if not ids:
            found = self.plain({"query": {"match_all": {}}, "search_pipeline": NO_PIPELINE}, 1)
            ids = [hit["_id"] for hit in found["hits"]["hits"]]
        if not ids:
            return None
        sent = {"parameters": {"query": text, "documents": list(ids)}}
        try:
            self._client.transport.perform_request("POST", f"{_ML}/models/{model}/_predict", body=sent)
        except client_errors.NotFoundError:
            return "the model is missing"
        except client_errors.TransportError as error:
            again = "install again with its token in --token-file"
            reason = f"{_innermost(error.info) or error.error} ({error.status_code})"
            return f"{reason}; {again if error.status_code == 401 else _SETTINGS}"
        return None

    def asked(self, text: str, *, explain: bool = False) -> dict[str, Any]:
        """Search options for reranking and explanation."""
        own = isinstance(self.engine.layout, OwnedLayout)
        return {
            "docvalue_fields": ["id" if own else "_id"],  # the search of a test leaves _source out
            "ext": {"rerank": {"query_context": {"query_text": text}}},
        }

    def outcome(
        self, answer: Mapping[str, Any], config: Mapping[str, Any], text: str
    ) -> tuple[str, str | None]:
        """The outcome of a search, and its reason."""
        hits = [hit["_id"] for hit in answer["hits"]["hits"]]
        reason = self._predict(config["model"], text, hits) if hits else "there are no hits"
        return ("failed" if hits else "passed", reason) if reason is not None else ("reranked", None)


def _deletions(models: Resources, connectors: Resources, kept: Resources) -> list[Request]:
    in_use = {str(about.get("connector_id")) for about in kept.values()}
    parts = {"models": models.keys() - kept.keys(), "connectors": connectors.keys() - in_use}
    return [Request("DELETE", f"{_ML}/{kind}/{id}") for kind, ids in parts.items() for id in sorted(ids)]


def _model_of(pipeline: Mapping[str, Any] | None) -> str | None:
    if pipeline is None or pipeline.get("description") != MADE:
        return None
    try:
        return str(pipeline["response_processors"][0]["rerank"]["ml_opensearch"]["model_id"])
    except (KeyError, IndexError, TypeError):
        return None


def _innermost(info: object) -> str:
    found: Any = info.get("error") if isinstance(info, Mapping) else None
    reason = ""
    while isinstance(found, Mapping):
        reason, found = str(found.get("reason") or reason), found.get("caused_by")
    return " ".join(reason.split())[:300]


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, known) for item in value]
    return known.get(value, value) if isinstance(value, str) else value
