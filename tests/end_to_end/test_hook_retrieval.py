"""Retrieval in searches of an attached index: live results equal `rerank query`, `hook test` and `evaluate`.

The tests use the real plugin and the real service, also while the service is killed, frozen and replaced, and
while the index is replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ir_measures
import pytest
from ir_measures import nDCG

from rerank import Qrels, Query, Stack, Workspace, evaluate
from rerank.documents.records import SearchTemplate
from rerank.hook import hook as open_hook
from rerank.hook import try_search
from tests.support.hook import TOKEN, Hits, assert_equal_hits, hook_status, scored
from tests.support.hook import texts as query_texts
from tests.support.service import Server, serving, wait_until
from tools.opensearch_node import Node, free_port

pytestmark = pytest.mark.slow

MAPPING = {
    "properties": {
        "head": {"type": "text"},
        "body": {"type": "text"},
        "tags": {"type": "keyword"},
        "n": {"type": "integer"},
    }
}
SIZE = 120
DEPTH = 20
TEMPLATE = """{"query": {"function_score": {"query": {"bool": {
  "must": {"multi_match": {"query": "{{q}}", "fields": ["body", "head^2"]}},
  "filter": [{"range": {"n": {"lt": 100}}}], "must_not": [{"term": {"n": 7}}]}},
  "field_value_factor": {"field": "n", "modifier": "log2p"}}}}"""
STACK = replace(
    Stack.parse("search*0.4 + text*0.6"),
    search=SearchTemplate("template", "own.json", TEMPLATE),
    retrieve=("search", "text:15"),
    depth=DEPTH,
)


def make(node: Node, index: str, documents: list[Any], **more: Any) -> None:
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    node.request("PUT", f"/{index}", {"settings": settings, "mappings": MAPPING, **more})
    for i, document in enumerate(documents):
        source = {"head": document["title"], "body": document["text"], "tags": document["categories"]}
        node.request("PUT", f"/{index}/_doc/{i}", {**source, "n": i})
    node.request("POST", f"/{index}/_refresh")


@pytest.fixture(scope="module")
def library(plugged, small, trained, run, tmp_path_factory) -> Path:
    """A workspace with rankers, attached to an alias."""
    make(plugged, "wide-1", small.documents[:SIZE], aliases={"wide": {}})
    folder: Path = tmp_path_factory.mktemp("retrieval") / "ws"
    where = ("--url", plugged.url, "--index", "wide", "-w", folder, "--lang", "en")
    run("attach", "title=head", "text=body", "categories=tags", *where).ok()
    shutil.copytree(trained / "rankers", folder / "rankers")
    run("encode", "-w", folder).ok()
    (folder / "stacks").mkdir()
    workspace = Workspace.open(folder)
    versions = {"text": workspace.versions()["text"]}
    replace(STACK, versions=versions).save(workspace.stack_path(STACK.signals))
    return folder


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def service(library, script, port, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    with serving(script, library, folder, "--port", port, RERANK_SERVICE_TOKEN=TOKEN) as started:
        started.token = TOKEN
        yield started


@pytest.fixture(scope="module")
def texts(small) -> list[str]:
    return [" ".join(text.split()[:8]) for text in query_texts(small, 12)]


def install(run: Any, library: Path, service: Server, *options: object) -> dict[str, Any]:
    stack = ("--stack", "search,text", "--depth", DEPTH, "--timeout", 20)
    report: dict[str, Any] = run(
        "hook", "install", "-w", library, "--service", service.url, *stack, *options, "--json"
    ).json
    return report


@pytest.fixture(scope="module")
def installed(library, service, run, plugged, texts) -> None:
    install(run, library, service)
    search(plugged, library, texts[0])  # the node learns which fields the service requests


def search(node: Node, library: Path, text: str, size: int = 10, **more: Any) -> dict[str, Any]:
    workspace = Workspace.open(library)
    assert STACK.search is not None
    body = workspace.engine.templates.body(STACK.search, Query("q", text))  # type: ignore[attr-defined]
    workspace.engine.close()
    path = "/wide/_search?search_pipeline=rerank-wide"
    answer: dict[str, Any] = node.request("POST", path, {**body, "size": size, **more})
    return answer


def query(library: Path, text: str, count: int = 10) -> Hits:
    workspace = Workspace.open(library)
    hits = workspace.search(text, count, stack=Stack.load(workspace.stack_path(STACK.signals))).hits
    workspace.engine.close()
    return [(hit["id"], hit["score"]) for hit in hits]


def test_installing_adds_documents_if_the_stack_retrieves(library, service, run, plugged) -> None:
    report = install(run, library, service, "--dry-run")
    (request,) = report["requests"]
    config = request["body"]["request_processors"][0]["rerank_stack"]
    assert (config["retrieve"], config["words"]) == (True, ["head", "body"])
    assert any("text retrieves" in warning for warning in report["warnings"])
    report = install(run, library, service, "--dry-run", "--no-retrieve")
    assert not any("retriev" in warning for warning in report["warnings"])
    refused = run("hook", "install", "-w", library, "--service", service.url, "--stack", "bm25", "--retrieve")
    refused.fails(2, "the stack bm25 has no ranker that retrieves")


def test_live_results_equal_query_and_trial(library, installed, plugged, texts) -> None:
    added = 0
    for text in texts:
        live = search(plugged, library, text, 50, ext={"rerank_stack": {"explain": True}})
        told = live["ext"]["rerank_stack"]
        assert told["outcome"] == "reranked"
        added += told["added"]["documents"]
        wanted = query(library, text, 50)
        assert_equal_hits(scored(live)[: len(wanted)], wanted)
        trial = try_search(open_hook(Workspace.open(library)), text)
        assert trial.same
        assert trial.difference is not None
        assert trial.difference < 1e-6
    assert added > 5 * len(texts)


def test_live_results_have_the_value_of_evaluate(library, installed, plugged, texts) -> None:
    judged = [(f"q{i}", str((7 * i + 13 * j) % SIZE), 1) for i in range(len(texts)) for j in range(6)]
    qrels = Qrels(judged)
    queries = [Query(f"q{i}", text) for i, text in enumerate(texts)]
    workspace = Workspace.open(library)
    stack = str(workspace.stack_path(STACK.signals))
    report = evaluate(workspace, [stack], queries=queries, qrels=qrels, protocols=[f"retrieved:{DEPTH}"])
    values = {row.stack: row.measures["nDCG@10"] for row in report.results}
    run = [
        ir_measures.ScoredDoc(one.id, id, score)
        for one in queries
        for id, score in scored(search(plugged, library, one.text, 10))
    ]
    live = ir_measures.calc_aggregate([nDCG @ 10], [ir_measures.Qrel(*one) for one in judged], run)
    (value,) = [value for name, value in values.items() if name != "search"]
    assert value == pytest.approx(live[nDCG @ 10], abs=1e-6)


def test_the_conditions_of_the_query_hold(library, installed, plugged, texts) -> None:
    for text in texts:
        found = search(plugged, library, text, 60)["hits"]["hits"]
        assert all(hit["_source"]["n"] < 100 and hit["_source"]["n"] != 7 for hit in found)


def test_status_reports_whether_pipeline_and_stack_fit(library, service, installed, run) -> None:
    status = hook_status(run, library)
    assert status["config"]["retrieve"] is True
    assert not [problem for problem in status["problems"] if "retriev" in problem]
    assert sum(counters["added"]["documents"] for counters in status["statistics"].values()) > 0


def test_the_end_of_one_of_two_services_is_not_noticed(
    library, service, installed, run, script, plugged, texts, tmp_path
) -> None:
    """All searches are reranked, and have the same hits, while one service is killed."""
    reports: list[str] = []
    errors: list[BaseException] = []
    over = threading.Event()
    expected = [scored(search(plugged, library, text)) for text in texts]

    def searches(number: int) -> None:
        while not over.is_set():
            position = number % len(texts)
            try:
                answer = search(plugged, library, texts[position], ext={"rerank_stack": {"explain": True}})
                assert_equal_hits(scored(answer), expected[position])
                reports.append(answer["ext"]["rerank_stack"]["outcome"])
            except BaseException as error:
                errors.append(error)
            number += 1

    def wait(count: int = 60) -> None:
        wanted = len(reports) + count
        wait_until(lambda: len(reports) >= wanted or errors)

    with serving(script, library, tmp_path, RERANK_SERVICE_TOKEN=TOKEN) as other:
        both = replace(service, url=f"{other.url},{service.url}")
        install(run, library, both)
        threads = [threading.Thread(target=searches, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            wait()
            other.ends = -signal.SIGKILL
            other.process.kill()
            other.process.wait()
            wait(200)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert not errors
    assert set(reports) == {"reranked"}
    problems = hook_status(run, library)["problems"]
    assert any(other.url in problem for problem in problems)
    assert not any(service.url in problem for problem in problems)
    install(run, library, service)


def test_searches_are_answered_despite_faults(
    library, service, installed, run, script, plugged, port, small, texts, tmp_path
) -> None:
    """The service is frozen, killed and started again, and the index is replaced: no search fails."""
    answers: list[dict[str, Any]] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def searches(number: int) -> None:
        while not over.is_set():
            try:
                answers.append(search(plugged, library, texts[number % len(texts)]))
            except BaseException as error:
                errors.append(error)
            number += 1

    def wait(count: int = 45) -> None:
        wanted = len(answers) + count
        wait_until(lambda: len(answers) >= wanted or errors)

    run("hook", "install", "-w", library, "--service", service.url, "--stack", "search,text",
        "--depth", DEPTH, "--timeout", 1).ok()  # fmt: skip
    threads = [threading.Thread(target=searches, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        wait()
        os.kill(service.process.pid, signal.SIGSTOP)
        wait()
        os.kill(service.process.pid, signal.SIGCONT)
        wait()
        make(plugged, "wide-2", small.documents[:SIZE])
        move = [
            {"remove": {"index": "wide-1", "alias": "wide"}},
            {"add": {"index": "wide-2", "alias": "wide"}},
        ]
        plugged.request("POST", "/_aliases", {"actions": move})
        wait()
        run("encode", "-w", library).ok()
        wait()
        service.ends = -signal.SIGKILL
        service.process.kill()
        service.process.wait()
        wait()
        with serving(script, library, tmp_path, "--port", port, RERANK_SERVICE_TOKEN=TOKEN):
            wait()
            before = plugged.request("GET", "/_plugins/_rerank_stack/stats")["added"]["documents"]
            wait_until(
                lambda: (
                    errors
                    or plugged.request("GET", "/_plugins/_rerank_stack/stats")["added"]["documents"] > before
                )
            )
            over.set()
            for thread in threads:
                thread.join()
    finally:
        over.set()
    assert not errors
    assert len(answers) >= 300
    assert all(answer["_shards"]["failed"] == 0 for answer in answers)
    assert all(len(answer["hits"]["hits"]) > 0 for answer in answers)
