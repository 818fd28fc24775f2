"""Retrieval in searches of an index that rerank made: a k-NN graph finds the added documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rerank import Query, Stack, Workspace
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.search_request import SearchRequest, VectorQuery
from rerank.hook import hook as open_hook
from rerank.hook import try_search
from tests.support.hook import TOKEN, articles, assert_equal_hits, scored
from tests.support.hook import ids as hit_ids
from tests.support.hook import texts as query_texts
from tests.support.service import Server, serving
from tools.opensearch_node import Node

pytestmark = pytest.mark.slow

DEPTH = 20
STACK = replace(Stack.parse("bm25*0.4 + text*0.6"), retrieve=("bm25", "text:15"), depth=DEPTH)


@pytest.fixture(scope="module")
def cluster(ml_node: Node, small: Any, trained: Path, run: Any, tmp_path_factory: Any) -> Iterator[Path]:
    folder = articles(ml_node, small, trained, tmp_path_factory.mktemp("own") / "ws")
    run("encode", "--retrieve", "text", "-w", folder).ok()
    workspace = Workspace.open(folder)
    versions = {"text": workspace.versions()["text"]}
    (folder / "stacks").mkdir(exist_ok=True)
    replace(STACK, versions=versions).save(workspace.stack_path(STACK.signals))
    yield folder
    ml_node.request("DELETE", "/articles-*")
    ml_node.request("DELETE", "/_search/pipeline/*")


@pytest.fixture(scope="module")
def service(cluster: Path, script: Any, run: Any, tmp_path_factory: Any) -> Iterator[Server]:
    with serving(script, cluster, tmp_path_factory.mktemp("serve"), RERANK_SERVICE_TOKEN=TOKEN) as started:
        options = ("--stack", "bm25,text", "--depth", DEPTH, "--timeout", 20)
        run("hook", "install", "-w", cluster, "--service", started.url, *options).ok()
        yield started


def search(node: Node, text: str, **more: Any) -> dict[str, Any]:
    query = {"match": {"content": {"query": text}}}
    body = {"query": query, "size": 50, "ext": {"rerank_stack": {"explain": True}}, **more}
    answer: dict[str, Any] = node.request("POST", "/articles/_search?search_pipeline=rerank-articles", body)
    return answer


def test_live_results_equal_query_and_trial(
    cluster: Path, service: Server, ml_node: Node, small: Any
) -> None:
    workspace = Workspace.open(cluster)
    stack = Stack.load(workspace.stack_path(STACK.signals))
    added = 0
    for text in query_texts(small, 10):
        search(ml_node, text)  # the node learns which fields the service requests
        live = search(ml_node, text)
        added += live["ext"]["rerank_stack"]["added"]["documents"]
        wanted = [(hit["id"], hit["score"]) for hit in workspace.search(text, 50, stack=stack).hits]
        assert_equal_hits(scored(live)[: len(wanted)], wanted)
        assert try_search(open_hook(workspace), text).same
    assert added > 10


def test_conditions_are_applied_in_the_graph(
    cluster: Path, service: Server, ml_node: Node, small: Any
) -> None:
    """The depth of the ranker is filled with documents that meet the condition, if there are enough."""
    workspace = Workspace.open(cluster)
    engine = workspace.engine
    assert isinstance(engine, OpenSearchEngine)
    allowed = sorted(document["_id"] for document in small.documents)[::3]
    condition = {"ids": {"values": allowed}}
    pipeline = workspace.pipeline(["text"])
    for text in query_texts(small, 5):
        query = {"bool": {"must": {"match": {"content": {"query": text}}}, "filter": condition}}
        for more in ({}, {"aggs": {"tags": {"terms": {"field": "categories"}}}}):
            live = hit_ids(search(ml_node, text, query=query, **more))
            (vector,) = pipeline.retrievers(Query("q", text), ["text:15"])
            assert isinstance(vector, VectorQuery)
            request = SearchRequest(text, "bm25", DEPTH, retrievers=["bm25", vector])
            (union,) = engine.searcher.search([request], [condition])
            assert set(live[: len(union.ids)]) == set(union.ids)
            assert set(live) <= set(allowed)
