"""The route of ML Commons, for clusters without the plugin (docs/opensearch/install.md#stock-processors).

A connector calls the service, a model uses the connector, a pipeline the model. Searches must name the
pipeline and the query words.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opensearchpy import exceptions as client_errors

from rerank.common.errors import EngineError, UsageError
from rerank.common.files import parse_json
from rerank.engines.opensearch.errors import root_cause
from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.reading import ids_of
from rerank.hook.base import Hook
from rerank.hook.options import HookOptions
from rerank.hook.reports import Request

ENDPOINT = "/v1/rerank_ids"
"""The endpoint that scores documents of the engine by their ids."""

MADE = "made by rerank for the route stock"
"""The description of everything that this route makes. In the pipeline, its settings follow as JSON."""

_PATIENCE = 60.0  # seconds to deploy a model on all nodes, or to delete one; it takes one or two
_PAUSE = 0.2
_SETTINGS = "docs/opensearch/install.md#stock-processors has the settings that ML Commons needs"
_CONNECTIONS = 128  # of a node to the service
_ML = "/_plugins/_ml"

# A search with `from` above 0 keeps its size: no stock processor can cut off the front of a page.
_RAISE = (
    "def s = ctx._source;"
    " if ((s['from'] == null || s['from'] < 1) && s['size'] > 0 && s['size'] < params.depth)"
    " { s['size'] = params.depth }"
)


def settings(options: HookOptions) -> dict[str, Any]:
    """Return the settings that the description of a pipeline stores, as JSON values.

    The time limit is in whole seconds, as ML Commons counts it.

    Raises UsageError for options of the route plugin.
    """
    if options.shadow or options.add_to or options.min_score is not None:
        raise UsageError("--shadow, --add-to and --min-score are for the route plugin")
    if len(options.urls) > 1:
        raise UsageError("--service: several URLs are for the route plugin; give the URL of a load balancer")
    return {
        "url": options.url,
        "stack": options.stack,
        "depth": options.depth,
        "on_failure": options.on_failure,
        "id_field": options.id_field,
        "timeout": math.ceil(options.timeout),
    }


def connector(name: str, options: HookOptions) -> dict[str, Any]:
    """Return the connector of ML Commons that calls the service.

    name: name of the connector, which all resources of one pipeline share.

    >>> made = connector("hook", HookOptions("http://localhost:8765", stack="bm25,text"))
    >>> made["actions"][0]["request_body"]
    '{"query":"${parameters.query}","ids":${parameters.documents},"stack":"bm25,text"}'
    """
    seconds = math.ceil(options.timeout)
    stack = "" if options.stack is None else f',"stack":{json.dumps(options.stack)}'
    action: dict[str, Any] = {
        "action_type": "predict",
        "method": "POST",
        "url": options.url + ENDPOINT,
        "headers": {"Authorization": "Bearer ${credential.token}"} if options.token else {},
        "request_body": '{"query":"${parameters.query}","ids":${parameters.documents}' + stack + "}",
        "pre_process_function": "connector.pre_process.cohere.rerank",
        "post_process_function": "connector.post_process.cohere.rerank",
    }
    return {
        "name": name,
        "description": MADE,
        "version": "1",
        "protocol": "http",
        "credential": {"token": "<token>" if options.token else "none"},  # it must not be empty
        "actions": [action],
        "client_config": {
            "max_connection": _CONNECTIONS,
            "connection_timeout": seconds,
            "read_timeout": seconds,
            "max_retry_times": 0,
        },
    }


def body(options: HookOptions, model: str) -> dict[str, Any]:
    """Return the search pipeline that reranks by a deployed model of ML Commons.

    model: id of the model. ``oversample`` by 1 stores the size of a search for ``truncate_hits``.
    """
    script = {"lang": "painless", "source": _RAISE, "params": {"depth": options.depth}}
    rerank = {
        "ml_opensearch": {"model_id": model},
        "context": {"document_fields": [options.id_field]},
        "ignore_failure": options.on_failure == "first_stage",
    }
    return {
        "description": f"{MADE}: {json.dumps(settings(options))}",
        "request_processors": [{"oversample": {"sample_factor": 1.0}}, {"script": script}],
        "response_processors": [{"rerank": rerank}, {"truncate_hits": {}}],
    }


class StockHook(Hook):
    """A pipeline of stock processors, a model and a connector."""

    route = "stock"
    plugins = ("opensearch-ml", "opensearch-neural-search")
    suffix = "-stock"

    def _remedy(self, servers: Sequence[str]) -> str:
        return "OpenSearch's full distribution has them"

    def _requests(self, options: HookOptions, pipeline: Mapping[str, Any] | None) -> list[Request]:
        model = {
            "name": self.name,
            "description": MADE,
            "function_name": "remote",
            "connector_id": "<connector>",
        }
        return [
            Request("POST", f"{_ML}/connectors/_create", connector(self.name, options)),
            Request("POST", f"{_ML}/models/_register?deploy=true", model),
            Request("PUT", self._path, body(options, "<model>")),
            *self._deletions("models", "connectors"),
        ]

    def _call_problems(self) -> list[str]:
        reason = self._predict(_model(self._pipeline() or {}))
        if reason is None:
            return []
        return [f"the cluster cannot use the service: {reason}"]

    def _removal(self) -> list[Request]:
        return [*super()._removal(), *self._deletions("models", "connectors", "model_groups")]

    def _complete(self, options: HookOptions, default: bool) -> HookOptions:
        if default:
            raise UsageError(
                "--default is for the route plugin; by the route stock, each search needs ext.rerank"
            )
        if options.retrieve:
            raise UsageError("--retrieve is for the route plugin; the route stock only reranks hits")
        settings(options)
        window = self.engine.index.shape(fresh=True).window
        if options.depth > window:
            raise UsageError(
                f"--depth {options.depth}: index.max_result_window is {window}; choose a smaller depth"
            )
        self._token = options.token or self._token
        return replace(options, id_field=options.id_field or self._id_field)

    @property
    def _id_field(self) -> str:
        return "_id" if self.engine.layout.attached else "id"

    def _send(self, requests: Sequence[Request]) -> None:
        values = {"<token>": self._token}
        for request in requests:
            if request.method == "DELETE":
                self._delete(request.path)
                continue
            try:
                answer = self.cluster.ask(request.method, request.path, _filled(request.body, values))
            except EngineError as error:
                raise EngineError(f"{error}; {_SETTINGS}") from error
            if "connector_id" in answer:
                values["<connector>"] = str(answer["connector_id"])
            if "model_id" in answer:
                values["<model>"] = str(answer["model_id"])
                self._wait(values["<model>"])

    def _delete(self, path: str) -> None:
        """Delete a resource; retry while in use."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                if path.startswith(f"{_ML}/models/"):
                    self.cluster.ask("POST", f"{path}/_undeploy")
                self.cluster.ask("DELETE", path)
                return
            except EngineError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE)

    def _wait(self, model: str) -> None:
        give_up = time.monotonic() + _PATIENCE
        state = ""
        while state not in ("DEPLOYED", "DEPLOY_FAILED") and time.monotonic() < give_up:
            time.sleep(_PAUSE)
            answer = self.cluster.ask("GET", f"{_ML}/models/{model}")
            state = str(answer.get("model_state"))
        if state != "DEPLOYED":
            raise EngineError(f"{self.settings.where}: the model is {state}; see the logs of the nodes")

    def _deletions(self, *kinds: str) -> list[Request]:
        """Return the requests that delete all resources of this hook, also of interrupted installations."""
        if self._missing_plugins(self.cluster.nodes()):
            return []
        connectors = self._ids_of_own("connectors")
        requests: list[Request] = []
        for kind in kinds:
            for id in self._ids_of_own(kind, connectors):
                requests.append(Request("DELETE", f"{_ML}/{kind}/{id}"))
        return requests

    def _ids_of_own(self, kind: str, connectors: Sequence[str] = ()) -> list[str]:
        """Return the ids of the resources of one kind that this hook made, ascending.

        connectors: ids of its connectors. A model that uses one of them is also a resource of this hook.
        """
        body = {"query": {"match_all": {}}, "size": 1000}
        answer = self.cluster.ask("POST", f"{_ML}/{kind}/_search", body)
        ids: list[str] = []
        for hit in answer.get("hits", {}).get("hits", ()):
            resource = hit["_source"]
            has_own_name = (resource.get("description"), resource.get("name")) == (MADE, self.name)
            if has_own_name or resource.get("connector_id") in connectors:
                ids.append(hit["_id"])
        return sorted(ids)

    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        maker, _, settings_json = str(pipeline.get("description")).partition(": ")
        if maker != MADE:
            return None
        try:
            config: dict[str, Any] = parse_json(settings_json)
            model = self.cluster.ask("GET", f"{_ML}/models/{_model(pipeline)}")
            return {"url": config.pop("url"), **config, "state": str(model.get("model_state", "missing"))}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):  # changed by another user
            return None

    def _pipeline_body(self, options: HookOptions, pipeline: Mapping[str, Any]) -> dict[str, Any]:
        return body(options, _model(pipeline))

    def _pipeline_problems(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        if config["state"] != "DEPLOYED":
            return [f"the model of pipeline {self.name!r} is {config['state'].lower()}; install it again"]
        problems = super()._pipeline_problems(pipeline, config) + self._call_problems()
        if self.name in self.cluster.default_pipelines().values():
            problems.append(
                f"pipeline {self.name!r} is a default pipeline: searches without words for reranking keep"
                " their order, and are slower"
            )
        return problems

    def _predict(self, model: str, text: str = "words", ids: Sequence[str] = ()) -> str | None:
        """Test the model; return the problem or None."""
        if not ids:
            answer = self.search({"query": {"match_all": {}}, "search_pipeline": NO_PIPELINE}, 1)
            ids = ids_of(answer["hits"]["hits"])
        if not ids:
            return None
        call = {"parameters": {"query": text, "documents": list(ids)}}
        try:
            self._client.transport.perform_request("POST", f"{_ML}/models/{model}/_predict", body=call)
        except client_errors.NotFoundError:
            return "the model is missing"
        except client_errors.TransportError as error:
            again = "install again with its token in --token-file"
            reason = f"{root_cause(error.info, str(error.error))[1]} ({error.status_code})"
            return f"{reason}; {again if error.status_code == 401 else _SETTINGS}"
        return None

    def _search_options(self, text: str) -> dict[str, Any]:
        return {
            "docvalue_fields": [self._id_field],  # the search of a test leaves _source out
            "ext": {"rerank": {"query_context": {"query_text": text}}},
        }

    def outcome(self, answer: Mapping[str, Any], text: str) -> tuple[str, str | None]:
        """Return whether the hits of a search were reranked, and the reason if not.

        A search does not report it, so the model is called again with the same hits.
        """
        ids = ids_of(answer["hits"]["hits"])
        if not ids:
            return "passed", "the search has no hits"
        reason = self._predict(_model(self._pipeline() or {}), text, ids)
        if reason is None:
            return "reranked", None
        return "failed", reason


def _model(pipeline: Mapping[str, Any]) -> str:
    return str(pipeline["response_processors"][0]["rerank"]["ml_opensearch"]["model_id"])


def _filled(body: Mapping[str, Any] | None, values: Mapping[str, str]) -> Any:
    """A body with values in place of names like ``<token>``."""
    text = json.dumps(body)
    for name, value in values.items():
        text = text.replace(json.dumps(name), json.dumps(value))
    return json.loads(text)
