"""Two stacks interleaved in plain searches of a real node, and the log of the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_experiment import EXPERIMENT, STACK, expected_page, records
from tests.support.hook import TOKEN, articles, texts
from tests.support.hook import ids as ids_of
from tests.support.service import Server, serving, wait_until
from tools.opensearch_node import Node

INDEX = "articles"
DEPTH = 50

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("log") / "searches.ndjson"


@pytest.fixture(scope="module")
def cluster(plugged, small, trained, tmp_path_factory) -> Path:
    folder = articles(plugged, small, trained, tmp_path_factory.mktemp("experiment") / "ws")
    with open(folder / "rerank.toml", "a", encoding="utf-8") as settings:
        settings.write(EXPERIMENT)
    return folder


@pytest.fixture(scope="module")
def service(cluster, script, log, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    with serving(script, cluster, folder, "--ubi-log", log, RERANK_SERVICE_TOKEN=TOKEN) as started:
        started.token = TOKEN
        yield started


@pytest.fixture(scope="module")
def hooked(cluster, service, plugged) -> Iterator[Node]:
    """The node, whose default pipeline calls the service."""
    from tests.support.cli import run_here

    options = ("--service", service.url, "--stack", STACK, "--depth", DEPTH, "--timeout", 20, "--default")
    patch = pytest.MonkeyPatch()
    patch.setenv("RERANK_SERVICE_TOKEN", TOKEN)
    try:
        run_here("hook", "install", "-w", cluster, *options).ok()
        yield plugged
        run_here("hook", "remove", "-w", cluster).ok()
    finally:
        patch.undo()


def search(node: Node, text: str, more: str = "", **body: Any) -> dict[str, Any]:
    query = {"query": {"match": {"content": text}}, "size": 20, **body}
    answer: dict[str, Any] = node.request("POST", f"/{INDEX}/_search{more}", query)
    return answer


def ubi(client: str, query_id: str) -> dict[str, Any]:
    return {"ubi": {"query_id": query_id, "client_id": client, "user_query": "words"}}


def expected(node: Node, text: str, client: str) -> tuple[list[str], str]:
    a = ids_of(search(node, text, "?search_pipeline=_none", size=DEPTH))
    options = {"rerank_stack": {"stack": STACK}}
    b = ids_of(search(node, text, size=DEPTH, ext=options))
    assert a != b
    return expected_page(a, b, client, text)


def test_plain_searches_are_interleaved_and_logged(hooked, small, log):
    reranked = hooked.request("GET", "/_plugins/_rerank_stack/stats")["reranked"]
    for number, text in enumerate(texts(small, 4)):
        client, query_id = f"client {number}", f"node {number}"
        answer = search(hooked, text, ext=ubi(client, query_id))
        documents, teams = expected(hooked, text, client)
        assert ids_of(answer) == documents[:20]
        scores = [hit["_score"] for hit in answer["hits"]["hits"]]
        assert scores == sorted(set(scores), reverse=True)
        (record,) = records(log, query_id)
        assert record["client_id"] == client
        assert record["user_query"] == text
        assert record["query_response_hit_ids"] == documents[:20]
        assert record["query_attributes"] == {"experiment": "new", "teams": teams[:20]}
    assert hooked.request("GET", "/_plugins/_rerank_stack/stats")["reranked"] > reranked


def test_pages_of_a_client_are_parts_of_one_draft(hooked, small):
    text = texts(small, 1)[0]
    whole = ids_of(search(hooked, text, ext=ubi("c1", "pages")))
    pages = [
        ids_of(search(hooked, text, ext=ubi("c1", f"page {begin}"), **{"from": begin, "size": 5}))
        for begin in (0, 5, 10, 15)
    ]
    assert [id for page in pages for id in page] == whole


def test_ties_broken_by_another_key_keep_the_draft(hooked, small):
    """The scores of the page are different, so that the other key does not change its order."""
    text = texts(small, 1)[0]
    options = {"sort": ["_score", {"_doc": "asc"}], "ext": ubi("c1", "sorted")}
    assert ids_of(search(hooked, text, **options)) == expected(hooked, text, "c1")[0][:20]


def test_options_of_the_hook_replace_user_behavior_insights(hooked, small, log):
    """Clusters without its plugin can send the ids to ours."""
    text = texts(small, 1)[0]
    options = {"client_id": "own client", "query_id": "own search", "explain": True}
    answer = search(hooked, text, ext={"rerank_stack": options})
    (record,) = records(log, "own search")
    documents, teams = expected(hooked, text, "own client")
    assert record["client_id"] == "own client"
    assert ids_of(answer) == documents[:20]
    experiment = answer["ext"]["rerank_stack"]["experiment"]
    assert (experiment["name"], experiment["teams"][:20]) == ("new", teams[:20])


def test_a_shadow_pipeline_is_not_in_the_experiment(hooked, service, small, log):
    """Its users see the first stage, so its clicks must not count."""
    text = texts(small, 1)[0]
    name = next(name for name in hooked.request("GET", "/_search/pipeline") if name.endswith(INDEX))
    pipeline = hooked.request("GET", f"/_search/pipeline/{name}")[name]
    shadow = json.loads(json.dumps(pipeline))
    shadow["request_processors"][0]["rerank_stack"]["shadow"] = True
    hooked.request("PUT", "/_search/pipeline/shadow", shadow)
    before = service.metric('rerank_request_seconds_count{endpoint="hook"}')
    shown = search(hooked, text, "?search_pipeline=shadow", ext=ubi("c1", "in shadow"))
    assert ids_of(shown) == ids_of(search(hooked, text, "?search_pipeline=_none"))
    wait_until(lambda: service.metric('rerank_request_seconds_count{endpoint="hook"}') > before)
    search(hooked, text, ext=ubi("c1", "after shadow"))
    assert records(log, "after shadow")
    assert "in shadow" not in log.read_text("utf-8")
