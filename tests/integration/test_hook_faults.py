"""The hook under every fault: a real node with the plugin, and the real service.

Whatever happens, a search answers, in the order of the first stage where it cannot be reranked, and a
counter of the node or of the service shows it. Nothing here knows how the two talk; answers that are wrong in
themselves (too few scores, NaN, a score for an unknown id, ...) are in ``test_hook_plugin.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.rankers.cnn.ranker import CnnRanker
from rerank.records import Query
from rerank.workspace import Workspace
from tests.hook import TOKEN, texts
from tests.hook_clients import (
    INDEX,
    STACK,
    Clients,
    Hits,
    assert_reranked,
    rising,
    same,
    searching,
    wait_for_more,
)
from tests.node import free_port
from tests.plugin import set_token
from tests.service import Server, other_way_round, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hook(plugged, small) -> Clients:
    return Clients(plugged, texts(small, 8))


@pytest.fixture(scope="module")
def folder(hook, small, trained, spawn, tmp_path_factory) -> Path:
    """A workspace on the node, with rankers that were trained elsewhere."""
    folder: Path = tmp_path_factory.mktemp("faults") / "ws"
    where = ("--index", INDEX, "--replicas", 0, "--url", hook.node.url, "-w", folder)
    done = spawn("ingest", small.corpus, "--categories", small.categories, *where)
    assert done.code == 0, done.err
    shutil.copytree(trained / "rankers", folder / "rankers")
    assert spawn("encode", "-w", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def service(folder, script, tmp_path_factory) -> Iterator[Server]:
    with serving(script, folder, tmp_path_factory.mktemp("serve"), "--max-encoded", 50) as started:
        yield started


@pytest.fixture
def reranked(hook, service) -> Iterator[None]:
    """Nothing is wrong before a test, nor after it."""
    hook.install(service.url)
    assert_reranked(hook)
    yield
    hook.install(service.url)
    assert_reranked(hook)


# ------------------------------------------------------------------------------------ the service is not well


def test_hanging(hook, script, folder, tmp_path):
    """The process is frozen: it still has its sockets."""
    with serving(script, folder, tmp_path) as server:
        hook.install(server.url, timeout=1000)
        server.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            hook.expect("failed.timeout")
            assert time.monotonic() - begin < 10
        finally:
            server.process.send_signal(signal.SIGCONT)
        hook.install(server.url)
        assert_reranked(hook)


def test_a_bug_in_it(hook, script, folder, tmp_path):
    """A ranker whose numbers are no numbers: the service fails, counts it and logs it."""
    broken = Path(shutil.copytree(folder, tmp_path / "ws"))
    workspace = Workspace.open(broken)
    ranker = workspace.ranker("text")
    assert isinstance(ranker, CnnRanker)
    ranker.head = replace(ranker.head, query=np.full_like(ranker.head.query, np.nan))
    workspace.install(ranker)
    with serving(script, broken, tmp_path) as server:
        hook.install(server.url)
        with rising(server, 'rerank_errors_total{endpoint="hook",kind="internal"}'):
            hook.expect("failed.status_500")
        assert any(line["event"] == "failed" for line in server.log())


def test_too_many_requests(hook, script, folder, tmp_path):
    """What the service does not take comes in the order of the first stage."""
    with serving(script, folder, tmp_path, "--max-requests", 2) as server:
        hook.install(server.url)
        before = hook.counts()
        with searching(hook) as answers:
            while not {"reranked", "failed.status_503"} <= (hook.counts() - before).keys():
                wait_for_more(answers)
        counts = hook.counts() - before
        assert set(counts) == {"reranked", "failed.status_503"}
        assert sum(counts.values()) == len(answers)
        hook.install(server.url)
        both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
        assert all(any(same(hits, one) for one in both[text]) for text, hits in answers)
        busy = server.metric('rerank_requests_total{endpoint="hook",status="503"}')
        assert busy == counts["failed.status_503"]


# ------------------------------------------------------------------------------------------------ under load


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_restarted_under_load(hook, service, reranked, script, folder, tmp_path, how):
    both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
    port = free_port()
    hook.install(f"http://127.0.0.1:{port}", breaker_failures=5, breaker_pause=100, timeout=5000)
    before = hook.counts()
    with searching(hook, pause=0.05) as answers:  # the service starts beside them
        for _ in range(2):
            with serving(script, folder, tmp_path, "--port", port) as server:
                wait_for_more(answers)
                if how == signal.SIGKILL:
                    server.ends = -signal.SIGKILL
                server.process.send_signal(how)
                server.process.wait()
            wait_for_more(answers)
        with serving(script, folder, tmp_path, "--port", port):
            up, until = hook.counts(), time.monotonic() + 60
            while (hook.counts() - up)["reranked"] < 20:
                assert time.monotonic() < until
                time.sleep(0.05)
    counts = hook.counts() - before
    opened = counts.pop("breaker_opened")
    assert opened > 0
    assert sum(counts.values()) == len(answers)
    assert counts["reranked"] > 0
    assert counts["failed.refused"] > 0
    assert all(hits == both[text][0] or same(hits, both[text][1]) for text, hits in answers)


def test_a_worker_killed_under_load(hook, service, reranked, script, folder, tmp_path):
    both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
    with serving(script, folder, tmp_path, "--workers", 2) as server:
        server.wait_for("started", 2)
        hook.install(server.url)
        before = hook.counts()
        with searching(hook) as answers:
            wait_for_more(answers)
            os.kill(max(line["pid"] for line in server.log() if line["event"] == "started"), signal.SIGKILL)
            server.wait_for("started", 3)
            wait_for_more(answers)
        counts = hook.counts() - before
        assert sum(counts.values()) == len(answers)
        assert set(counts) <= {"reranked", "failed.connection"}
        assert all(hits == both[text][0] or same(hits, both[text][1]) for text, hits in answers)
        assert_reranked(hook)


def test_a_model_swapped_under_load(hook, service, reranked, script, folder, tmp_path, spawn, small):
    """Every search is reranked, and all hits of one by the same ranker, the old or the new."""
    mine = Path(shutil.copytree(folder, tmp_path / "ws"))
    workspace = Workspace.open(mine)
    old = workspace.ranker("text")
    new = other_way_round(old, "other")
    documents = list(workspace.engine.documents())
    expected: dict[str, list[dict[str, float]]] = {}
    for text in hook.queries:
        for ranker in (old, new):
            scores = ranker.score(ranker.encode_query(Query("q", text)), ranker.encode_documents(documents))
            of_document = dict(zip([document.id for document in documents], scores.tolist()))
            expected.setdefault(text, []).append(of_document)

    def which(text: str, answer: dict[str, Any]) -> str:
        scores = {hit["_id"]: hit["fields"]["_rerank"][0]["signals"]["text"]["raw"] for hit in hits(answer)}
        assert max(map(abs, scores.values())) > 0.05  # else the two are much the same
        fits = [all(abs(score - one[id]) < 0.01 for id, score in scores.items()) for one in expected[text]]
        return {(True, False): "old", (False, True): "new"}.get((fits[0], fits[1]), "half")

    def hits(answer: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = answer["hits"]["hits"]
        return found

    kinds: list[str] = []

    def search(text: str) -> None:
        query = {"match": {"content": text}}
        answer = hook.search({"query": query, "size": 50, "ext": {"rerank_stack": {"explain": True}}})
        kinds.append(which(text, answer))

    try:
        with serving(script, mine, tmp_path) as server:
            hook.install(server.url)
            before = hook.counts()
            with searching(hook, search):
                wait_for_more(kinds)
                workspace.install(new)
                server.wait_for("reload waits")  # its features are not stored yet
                assert set(kinds) == {"old"}
                assert spawn("encode", "-w", mine).code == 0
                server.wait_for("reloaded")
                wait_for_more(kinds)
                workspace.install(old)
                server.process.send_signal(signal.SIGHUP)  # whatever is stored
                server.wait_for("reloaded", 2)
                wait_for_more(kinds)
            assert hook.counts() - before == {"reranked": len(kinds)}
            assert kinds[-1] == "old"
    finally:
        assert spawn("encode", "-w", folder).code == 0
    assert set(kinds) == {"old", "new"}, Counter(kinds)


def test_a_thousand_searches_at_once(hook, service, reranked):
    both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
    ready = threading.Barrier(1000)
    texts = [hook.queries[i % len(hook.queries)] for i in range(1000)]

    def search(text: str) -> Hits:
        ready.wait(120)
        return hook.hits(text)

    before = hook.counts()
    with ThreadPoolExecutor(1000) as pool:
        found = list(pool.map(search, texts))
    counts = hook.counts() - before
    assert sum(counts.values()) == 1000
    assert counts["reranked"] > 30
    assert set(counts) <= {"reranked", "failed.busy", "failed.status_503", "failed.status_504"}
    assert all(hits == both[text][0] or same(hits, both[text][1]) for text, hits in zip(texts, found))


# ---------------------------------------------------------------------------------------------- what is asked


def test_a_wrong_token(hook, script, folder, tmp_path):
    with serving(script, folder, tmp_path, RERANK_SERVICE_TOKEN="another") as server:
        server.token = "another"
        hook.install(server.url)
        with rising(server, 'rerank_errors_total{endpoint="other",kind="token"}'):
            hook.expect("failed.status_401")
        set_token(hook.node, "another")
        hook.node.request("POST", "/_nodes/reload_secure_settings")
        try:
            assert_reranked(hook)
        finally:
            set_token(hook.node, TOKEN)
            hook.node.request("POST", "/_nodes/reload_secure_settings")


# --------------------------------------------------------------------------------------------------- features


def missing(server: Server) -> float:
    return server.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}')


@pytest.mark.parametrize("case", ["gone", "gone of all", "of another version", "damaged"])
def test_features_are_missing(hook, service, reranked, folder, spawn, case):
    """What is missing is computed: the search is reranked all the same, and the service counts it."""
    text, before = hook.queries[1], missing(service)
    hit, expected = hook.hits(text)[0][0], answer_of(service, text)
    assert missing(service) == before
    key = f"text@{Workspace.open(folder).ranker('text').version}"
    # Features are no part of _source: whoever writes a document drops them, and may write others.
    others = {"of another version": {"text@old": "AAAA"}, "damaged": {key: "AAAA"}}.get(case, {})
    if case == "of another version":
        features = {"properties": {"text@old": {"type": "binary", "doc_values": True}}}
        mapping = {"properties": {"rerank_features": features}}
        hook.node.request("PUT", f"/{INDEX}/_mapping", mapping)
    query = {"match_all": {}} if case == "gone of all" else {"ids": {"values": [hit]}}
    body: dict[str, Any] = {"query": query}
    if others:
        source = "ctx._source.rerank_features = params.features"
        body["script"] = {"source": source, "params": {"features": others}}
    try:
        done = hook.node.request("POST", f"/{INDEX}/_update_by_query?refresh=true", body)
        assert done["updated"] == (200 if case == "gone of all" else 1)
        counts = hook.counts()
        found = hook.hits(text)
        assert hook.counts() - counts == {"reranked": 1}
        assert missing(service) - before == (50 if case == "gone of all" else 1)
        # A search of the service itself refuses what is damaged. One document changes idf a little.
        assert same(found, expected, 0.02) if case == "damaged" else same(found, answer_of(service, text))
    finally:
        body.pop("script", None)
        hook.node.request("POST", f"/{INDEX}/_update_by_query?refresh=true", body)  # damage is no lack
        assert spawn("encode", "-w", folder).code == 0
    before = missing(service)
    assert same(hook.hits(text), answer_of(service, text))
    assert missing(service) == before


def answer_of(server: Server, text: str) -> Hits:
    """What the service itself finds: the index changes, and with it idf."""
    hits = server.post("/v1/search", {"query": text, "stack": STACK, "depth": 50}).json["hits"]
    return [(hit["id"], hit["score"]) for hit in hits]
