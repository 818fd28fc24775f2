"""The route of ML Commons, for clusters that cannot take a plugin (docs/hook_stock.md).

A connector knows how to call the service, a remote model stands for it, and a pipeline has the processor
``rerank`` of OpenSearch's neural-search plugin ask that model. A search names the pipeline and brings the
words to rerank for: nothing else is reranked.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import exceptions as client_errors

from rerank.engines.opensearch.index import NO_PIPELINE
from rerank.engines.opensearch.layout import Own
from rerank.errors import EngineError, InputError, UsageError, setting_hint
from rerank.files import parse_json
from rerank.hooking.base import Done, Hook, Request, Wanted, differs
from rerank.wording import amount

PLUGINS = ("opensearch-ml", "opensearch-neural-search")
"""What every node needs: ML Commons, and the plugin that has the processor."""

ENDPOINT = "/v1/rerank_ids"
"""What the service answers with scores of documents that the engine has."""

MADE = "made by rerank for the route stock"
"""The description of everything that is ours."""

CHANGED = "changed_settings"
"""The parameter of a connector that says, in JSON, which of the cluster's settings were changed for it."""

TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"
REMOTE = "plugins.ml_commons.remote_inference.enabled"

_DEPLOYMENT = 60.0  # seconds for all nodes to deploy a model; it takes one or two
_CONNECTIONS = 128  # of a node to the service
_ML = "/_plugins/_ml"

# `from` beyond 0 is left alone: no stock processor can cut the front of a page off.
_RAISE = (
    "def s = ctx._source;"
    " if ((s['from'] == null || s['from'] < 1) && s['size'] > 0 && s['size'] < params.depth)"
    " { s['size'] = params.depth }"
)


@dataclass(frozen=True)
class StockWanted(Wanted):
    """What only this route is told. ``timeout`` is rounded up to whole seconds.

    token:            that the service wants; it goes into the connector's credential, which is encrypted.
    id_field:         the field that repeats ``_id`` in a hit's ``_source`` or ``fields``; None: ``id`` of the
                      indices that rerank makes, ``_id`` of others (searches then ask for it by
                      ``"docvalue_fields": ["_id"]``).
    cluster_settings: change the settings of ML Commons that forbid the call.
    """

    token: str = field(default="", repr=False)
    id_field: str | None = None
    cluster_settings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.urls) > 1:
            raise UsageError(f"the route stock calls one {setting_hint('service')}; name one URL")
        if self.shadow or self.share != 100 or self.token_name is not None:
            names = ", ".join(map(setting_hint, ("shadow", "share", "token_name")))
            raise UsageError(f"{names} are for the route plugin")


def connector(name: str, wanted: StockWanted, changed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The connector, as ML Commons takes it.

    changed: what was changed for it in the cluster's settings, see ``CHANGED``.

    >>> made = connector("hook", StockWanted("http://localhost:8765", stack="bm25,text"))
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
        "parameters": {CHANGED: json.dumps(changed)} if changed else {},
        "credential": {"token": "<token>" if wanted.token else "none"},  # it must not be empty
        "actions": [action],
        "client_config": {
            "max_connection": _CONNECTIONS,
            "connection_timeout": math.ceil(wanted.timeout),
            "read_timeout": math.ceil(wanted.timeout),
            "max_retry_times": 0,
        },
    }


def body(wanted: StockWanted, model: str) -> dict[str, Any]:
    """The pipeline. ``oversample`` by 1 notes the user's size, which ``truncate_hits`` cuts back to."""
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
    """A pipeline of OpenSearch's own processors, a model and a connector, all of the pipeline's name."""

    route = "stock"
    plugins = PLUGINS
    suffix = "-stock"

    # -- install -----------------------------------------------------------------------------------------

    def install(self, wanted: Wanted, *, default: bool = False, dry_run: bool = False) -> Done:
        """Make the connector, the model and the pipeline. What is there already is not sent again.

        A change makes a new connector and model, leads the pipeline to them and takes the old ones away.
        What was made is taken away again if a later step fails.

        Raises UsageError for ``default``: searches without the words to rerank for would be slower for
        nothing. EngineError when a node lacks a plugin, when a setting forbids the call and ``wanted`` does
        not say ``cluster_settings``, or when the pipeline is somebody else's.
        """
        if default:
            raise UsageError(
                f"{setting_hint('default')} is for the route plugin: by the route stock only those searches"
                " are reranked that bring the words to rerank for (docs/hook_stock.md)"
            )
        wanted = self._complete(wanted)
        self._token = wanted.token or self._token  # the service says what it serves to those who know it
        warnings = self._ready(wanted)
        there = self._ours()
        models, connectors = self._found("models"), self._found("connectors")
        settings, changed = self._permission(wanted, connectors.values())
        requests = []
        if settings and not wanted.cluster_settings:
            raise EngineError(
                f"{self.settings.where}: the settings of ML Commons forbid to call {wanted.urls[0]};"
                f" have them changed ({settings[0]}), or install with"
                f" {setting_hint('cluster_settings')}"
            )
        model = self._usable(wanted, models, connectors)
        if settings or model is None:  # a model keeps the settings that it was deployed with
            about = {"name": self.name, "function_name": "remote", "connector_id": "<connector>"}
            requests = [
                *settings,
                Request("POST", f"{_ML}/connectors/_create", connector(self.name, wanted, changed)),
                Request("POST", f"{_ML}/models/_register?deploy=true", {**about, "description": MADE}),
            ]
            model = "<model>"
        written = body(wanted, model)
        if differs(there, written):
            requests.append(Request("PUT", self._path, written))
        old_models = [id for id in models if id != model]
        kept = {models[model]["connector_id"]} if model in models else set()
        requests += self._deletions(old_models, [id for id in connectors if id not in kept])
        if not dry_run:
            ids = self._install(requests, wanted)
            problem = self._predict(ids.get("<model>", model))
            if problem is not None:
                warnings.append(f"the cluster cannot use the service: {problem}")
        return Done(self.name, tuple(requests), tuple(warnings), dry_run)

    def _complete(self, wanted: Wanted) -> StockWanted:
        """Fill in what was left out, and check what the workspace and the index can say of it."""
        own = isinstance(self.engine.layout, Own)
        given = {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}
        given["id_field"] = given.get("id_field") or ("id" if own else "_id")
        answer = self._ask(
            "GET",
            f"/{self.settings.index}/_settings/index.max_result_window",
            params={"flat_settings": "true", "include_defaults": "true"},
            doing="reading the index's settings",
        )
        for index, about in (answer or {}).items():
            both = {**about.get("defaults", {}), **about.get("settings", {})}
            most = int(both.get("index.max_result_window", 10_000))
            if wanted.depth > most:
                raise UsageError(
                    f"{setting_hint('depth')} {wanted.depth}: index {index!r} gives {most} hits at most"
                    " (index.max_result_window), so every search would fail; choose a smaller depth"
                )
        return StockWanted(**given)

    def _usable(
        self,
        wanted: StockWanted,
        models: Mapping[str, Mapping[str, Any]],
        connectors: Mapping[str, Mapping[str, Any]],
    ) -> str | None:
        """A deployed model whose connector does what is wanted, and whose token the service takes."""
        written = connector(self.name, wanted)
        for id, model in models.items():
            there = connectors.get(str(model.get("connector_id")))
            if there is None or model.get("model_state") != "DEPLOYED" or not _same(there, written):
                continue
            if wanted.token and "401" in (self._predict(id) or ""):
                continue
            return id
        return None

    def _permission(
        self, wanted: StockWanted, ours: Iterable[Mapping[str, Any]]
    ) -> tuple[list[Request], dict[str, Any]]:
        """What to change for ML Commons to call the service, and all that was changed for our connectors.

        The latter is kept in the connector, for :meth:`remove` to undo it.
        """
        url, now = wanted.urls[0] + ENDPOINT, self._cluster_settings()
        changed = _changes(ours)
        wishes: dict[str, Any] = {}
        if not any(_matches(pattern, url) for pattern in now.patterns):
            own = f"^{re.escape(url)}$"
            wishes[TRUSTED] = [*now.patterns, own]
            changed[TRUSTED] = sorted({*changed.get(TRUSTED, ()), own})
            if now.is_default(TRUSTED):
                changed["defaults"] = now.patterns
        if not now.on(PRIVATE) and _private(str(urlsplit(wanted.urls[0]).hostname)):
            wishes[PRIVATE] = changed[PRIVATE] = True
        if not now.on(REMOTE):
            wishes[REMOTE] = changed[REMOTE] = True
        return now.requests(wishes), changed

    def _install(self, requests: Sequence[Request], wanted: StockWanted) -> dict[str, str]:
        """Send requests, filled in with what is known by then; undo all if one up to the pipeline's fails."""
        doing, known = "installing the hook", {"<token>": wanted.token}
        before, groups = self._cluster_settings(), set(self._found("model_groups"))
        changed: list[str] = []
        cut = next((i + 1 for i, request in enumerate(requests) if request.path == self._path), 0)
        try:
            for request in requests[:cut]:
                filled = _filled(request.body, known)
                if request.path == "/_cluster/settings":
                    changed += [name for part in (request.body or {}).values() for name in part]
                answer = self._ask(request.method, request.path, filled, doing=doing) or {}
                if "connector_id" in answer:
                    known["<connector>"] = str(answer["connector_id"])
                if "model_id" in answer:
                    known["<model>"] = str(answer["model_id"])
                    self._wait(known["<model>"])
        except BaseException:
            made = [[known[name]] if name in known else [] for name in ("<model>", "<connector>")]
            self._quietly(self._deletions(*made))
            self._quietly(_without(set(self._found("model_groups")) - groups))
            self._quietly(before.restoring(changed))
            raise
        self._send(requests[cut:], doing)
        return known

    def _quietly(self, requests: Sequence[Request]) -> None:
        for request in requests:
            try:
                self._ask(request.method, request.path, request.body, doing="undoing the installation")
            except EngineError:
                continue

    def _wait(self, model: str) -> None:
        give_up = time.monotonic() + _DEPLOYMENT
        state = ""
        while time.monotonic() < give_up:
            about = self._ask("GET", f"{_ML}/models/{model}", doing="waiting for the model") or {}
            state = str(about.get("model_state"))
            if state == "DEPLOYED":
                return
            if state == "DEPLOY_FAILED":
                break
            time.sleep(0.2)
        raise EngineError(
            f"{self.settings.where}: the model was not deployed (state {state}); see the nodes' logs"
        )

    # -- remove ------------------------------------------------------------------------------------------

    def _removal(self) -> tuple[list[Request], list[str]]:
        requests, warnings = super()._removal()
        models, connectors = self._found("models"), self._found("connectors")
        requests += self._deletions(models, connectors)
        requests += _without(self._found("model_groups"))
        undoing = self._cluster_settings().undoing(_changes(connectors.values()))
        everybody = self._found("connectors", all_names=True).values() if undoing else ()
        others = sorted({str(about["name"]) for about in everybody} - {self.name})
        if others:
            later = "; ".join(map(str, undoing))
            warnings.append(
                f"the cluster's settings stay, as {', '.join(others)} may need them; later: {later}"
            )
        else:
            requests += undoing
        return requests, warnings

    def _deletions(self, models: Iterable[str], connectors: Iterable[str]) -> list[Request]:
        requests = []
        for id in models:
            requests.append(Request("POST", f"{_ML}/models/{id}/_undeploy"))
            requests.append(Request("DELETE", f"{_ML}/models/{id}"))
        return requests + [Request("DELETE", f"{_ML}/connectors/{id}") for id in connectors]

    # -- what there is -----------------------------------------------------------------------------------

    def _lacking(self, nodes: Mapping[str, str | None]) -> str:
        lacking = [name for name, version in nodes.items() if version is None]
        return (
            f"{' and '.join(PLUGINS)} are not both on {', '.join(lacking)} ({len(lacking)} of"
            f" {amount(len(nodes), 'node[|s]')}); OpenSearch's full distribution has them"
        )

    def _found(self, kind: str, *, all_names: bool = False) -> dict[str, dict[str, Any]]:
        """Id -> our models, connectors or model groups of this name, or of any."""
        if None in self.nodes().values():
            return {}
        answer = self._ask(
            "POST",
            f"{_ML}/{kind}/_search",
            {"query": {"match_all": {}}, "size": 1000},
            doing=f"looking for {kind}",
        )
        found = {hit["_id"]: hit["_source"] for hit in (answer or {}).get("hits", {}).get("hits", ())}
        return {
            id: about
            for id, about in sorted(found.items())
            if about.get("description") == MADE and (all_names or about.get("name") == self.name)
        }

    def _config(self, pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
        if pipeline.get("description") != MADE:
            return None
        try:
            request = {name: about for part in pipeline["request_processors"] for name, about in part.items()}
            rerank = pipeline["response_processors"][0]["rerank"]
            config: dict[str, Any] = {
                "url": None,
                "stack": None,
                "depth": int(request["script"]["params"]["depth"]),
                "on_failure": "first_stage" if rerank.get("ignore_failure") else "error",
                "id_field": str(rerank["context"]["document_fields"][0]),
                "model": str(rerank["ml_opensearch"]["model_id"]),
            }
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        model = self._ask("GET", f"{_ML}/models/{config['model']}", doing="reading the model") or {}
        there = None
        if "connector_id" in model:
            path = f"{_ML}/connectors/{model['connector_id']}"
            there = self._ask("GET", path, doing="reading the connector")
        if there is not None:
            action = there["actions"][0]
            sent = re.search(r'"stack":("[^"]*")', action["request_body"])
            config["url"] = action["url"].removesuffix(ENDPOINT)
            config["stack"] = parse_json(sent[1]) if sent else None
            config["timeout"] = float(there.get("client_config", {}).get("read_timeout", 30))
            config["token"] = "Authorization" in action.get("headers", {})
        config["state"] = str(model.get("model_state", "missing"))
        return config

    def _wrong(self, pipeline: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
        again = "; install it again"
        if config["url"] is None or config["state"] != "DEPLOYED":
            return [f"the model of pipeline {self.name!r} is {config['state'].lower()}{again}"]
        problems = []
        names = ("stack", "depth", "timeout", "on_failure", "id_field")
        try:
            wanted = StockWanted(config["url"], **{name: config[name] for name in names})
            if differs(pipeline, body(wanted, config["model"])):
                problems.append(f"pipeline {self.name!r} has been changed by hand")
            if wanted.stack is not None:
                self._stack(wanted.stack)
            for request in self._permission(wanted, ())[0]:
                problems.append(
                    f"the settings of ML Commons forbid to call {wanted.urls[0]}; needed: {request}"
                )
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

    def _predict(self, model: str, text: str = "words", ids: Sequence[str] = ()) -> str | None:
        """Have the cluster ask the service; why it cannot, or None. No ids: that of any document."""
        if not ids:
            found = self._plain({"query": {"match_all": {}}, "search_pipeline": NO_PIPELINE}, 1)
            ids = [hit["_id"] for hit in found["hits"]["hits"]]
        if not ids:
            return None
        sent = {"parameters": {"query": text, "documents": list(ids)}}
        try:
            self._client.transport.perform_request("POST", f"{_ML}/models/{model}/_predict", body=sent)
        except client_errors.NotFoundError:
            return "the model is missing"
        except client_errors.TransportError as error:
            reason = f"{_innermost(error.info) or error.error} ({error.status_code})"
            if error.status_code == 401:
                reason += f"; install again with its token in {setting_hint('token_file')}"
            return reason
        return None

    def _asked(self, text: str, *, explain: bool = False) -> dict[str, Any]:
        own = isinstance(self.engine.layout, Own)
        return {
            "docvalue_fields": ["id" if own else "_id"],  # the search for a test leaves _source out
            "ext": {"rerank": {"query_context": {"query_text": text}}},
        }

    def _outcome(
        self, answer: Mapping[str, Any], config: Mapping[str, Any], text: str
    ) -> tuple[str, str | None]:
        hits = [hit["_id"] for hit in answer["hits"]["hits"]]
        reason = self._predict(config["model"], text, hits) if hits else "there are no hits"
        return ("failed" if hits else "passed", reason) if reason is not None else ("reranked", None)

    def _cluster_settings(self) -> ClusterSettings:
        answer = self._ask(
            "GET",
            "/_cluster/settings",
            params={"flat_settings": "true", "include_defaults": "true"},
            doing="reading the cluster's settings",
        )
        return ClusterSettings(answer or {})


class ClusterSettings:
    """What ML Commons is allowed. answer: that of ``GET /_cluster/settings``, flat and with defaults."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._levels = {name: answer.get(name) or {} for name in ("transient", "persistent", "defaults")}

    def level(self, name: str) -> str:
        """Where a change of a setting has effect."""
        return "transient" if name in self._levels["transient"] else "persistent"

    def get(self, name: str) -> Any:
        """The value in effect, or None."""
        return next((found[name] for found in self._levels.values() if name in found), None)

    def on(self, name: str) -> bool:
        """Whether a setting is true."""
        return str(self.get(name)).lower() == "true"

    def is_default(self, name: str) -> bool:
        """Whether nobody has set it."""
        return name not in self._levels["transient"] and name not in self._levels["persistent"]

    @property
    def patterns(self) -> list[str]:
        """The URLs that connectors may call, as regular expressions."""
        return list(self.get(TRUSTED) or ())

    def undoing(self, changed: Mapping[str, Any]) -> list[Request]:
        """What takes changes back: patterns out of the list, and everything else to its default."""
        values: dict[str, Any] = {}
        for name, value in changed.items():
            if name == TRUSTED:
                left = [pattern for pattern in self.patterns if pattern not in value]
                if left == self.patterns:
                    continue
                values[name] = None if left == changed.get("defaults") else left
            elif name != "defaults" and self.on(name):
                values[name] = None
        return self.requests(values)

    def restoring(self, names: Sequence[str]) -> list[Request]:
        """What gives settings the values that they have here."""
        return self.requests({name: self._levels[self.level(name)].get(name) for name in names})

    def requests(self, values: Mapping[str, Any]) -> list[Request]:
        """What gives settings these values, each where it has effect."""
        requests = []
        for level in ("transient", "persistent"):
            here = {name: value for name, value in values.items() if self.level(name) == level}
            if here:
                requests.append(Request("PUT", "/_cluster/settings", {level: here}))
        return requests


def _without(groups: Iterable[str]) -> list[Request]:
    return [Request("DELETE", f"{_ML}/model_groups/{id}") for id in sorted(groups)]


def _same(there: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Whether a stored connector calls the service as the written one would."""
    old, new = there.get("actions", [{}])[0], written["actions"][0]
    alike = all(
        (old.get(name) or {}) == (value or {}) for name, value in new.items() if name != "action_type"
    )
    config = there.get("client_config") or {}
    return alike and all(config.get(name) == value for name, value in written["client_config"].items())


def _changes(connectors: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Which settings were changed for connectors.

    ``defaults`` is the list of patterns before ours were added, if nobody had set one.
    """
    changed: dict[str, Any] = {}
    for about in connectors:
        try:
            found = parse_json((about.get("parameters") or {}).get(CHANGED, "{}"))
        except ValueError:
            continue
        if not isinstance(found, dict):  # somebody has changed it
            continue
        for name, value in found.items():
            changed[name] = sorted({*changed.get(name, ()), *value}) if name == TRUSTED else value
    return changed


def _innermost(info: object) -> str:
    """What an error's body says last."""
    found: Any = info.get("error") if isinstance(info, Mapping) else None
    reason = ""
    while isinstance(found, Mapping):
        reason, found = str(found.get("reason") or reason), found.get("caused_by")
    return " ".join(reason.split())[:300]


def _filled(value: Any, known: Mapping[str, str]) -> Any:
    """Put what is known in the place of ``<name>``."""
    if isinstance(value, Mapping):
        return {name: _filled(item, known) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, known) for item in value]
    return known.get(value, value) if isinstance(value, str) else value


def _matches(pattern: str, url: str) -> bool:
    try:
        return re.fullmatch(pattern, url) is not None
    except re.error:
        return False


def _private(host: str) -> bool:
    """Whether ML Commons takes a host for a private one; what has no address here is taken for public."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return any(ipaddress.ip_address(str(about[4][0]).partition("%")[0]).is_private for about in found)
