"""Articles in a cluster with the plugin, their service, and the hook on them.

Import the fixtures that a module uses, and ``service_token``, which every test needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hook import TOKEN, Hits, articles, scored
from tests.support.service import Server, serving
from tools.opensearch_node import Node

STACK = "bm25*0.4 + text*0.35 + meta*0.25"
INDEX = "articles"
PIPELINE = "rerank-articles"
DEFAULT = "index.search.default_pipeline"


@pytest.fixture(scope="module")
def cluster(plugged, small, trained, tmp_path_factory) -> Path:
    """A workspace with rankers, whose articles are in the cluster with the plugin."""
    return articles(plugged, small, trained, tmp_path_factory.mktemp("hook") / "ws")


@pytest.fixture(scope="module")
def service(cluster, script, tmp_path_factory) -> Iterator[Server]:
    """The service of the workspace."""
    with serving(script, cluster, tmp_path_factory.mktemp("serve"), RERANK_SERVICE_TOKEN=TOKEN) as started:
        started.token = TOKEN
        yield started


@pytest.fixture(autouse=True)
def service_token(monkeypatch) -> None:
    """Set the token of the service in the environment. Without it, the service does not describe itself."""
    monkeypatch.setenv("RERANK_SERVICE_TOKEN", TOKEN)


@pytest.fixture
def installed(cluster, service, run, plugged) -> Iterator[str]:
    """The pipeline as the default of the index. Yields the name of the index."""
    run("hook", "remove", "-w", cluster)
    run("hook", "install", "-w", cluster, *options(service), "--default", "--json").ok()
    yield index_of_alias(plugged)
    assert run("hook", "remove", "-w", cluster).code == 0


def options(service: Server) -> list[Any]:
    """Return options of ``rerank hook install``, with a long time limit for busy test machines."""
    return ["--service", service.url, "--stack", STACK, "--depth", 50, "--timeout", 20]


def index_of_alias(node: Node) -> str:
    """Return the name of the index of the alias."""
    (name,) = node.request("GET", f"/_alias/{INDEX}")
    return str(name)


def default_of_index(node: Node) -> str | None:
    """Return the name of the default pipeline of the index."""
    settings = node.request("GET", f"/{INDEX}/_settings?flat_settings=true")[index_of_alias(node)]["settings"]
    pipeline: str | None = settings.get(DEFAULT)
    return pipeline


def pipelines(node: Node) -> dict[str, Any]:
    """Return name -> definition of all search pipelines of the cluster."""
    try:
        definitions: dict[str, Any] = node.request("GET", "/_search/pipeline")
    except ValueError:  # 404: none
        return {}
    return definitions


def plain_search(node: Node, text: str, more: str = "") -> Hits:
    """Search like any client, without options of the hook."""
    body = {"query": {"match": {"content": text}}, "size": 10}
    return scored(node.request("POST", f"/{INDEX}/_search{more}", body))
