"""The hook under faults, with the plugin on a real node and the real service.

All searches are answered. A search that cannot be reranked has the order of the first stage, and a counter of
the node or the service shows it. Wrong answers of a service are tested in ``test_hook_trouble.py``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.rankers.cnn.ranker import CnnRanker
from rerank.rankers.cnn.towers import Head
from rerank.workspace.workspace import Workspace
from tests.support.hook import Hits, Hook, articles, flat, scored, texts
from tests.support.service import Server, run_clients, serving, wait_until
from tools.opensearch_node import Node, free_port

pytestmark = pytest.mark.slow

STACK = "bm25*0.2 + text*0.5 + meta*0.3"
INDEX = "articles"


class Clients(Hook):
    """Query texts of clients for the index of a collection, and their hits."""

    index = INDEX

    def __init__(self, node: Node, queries: list[str]) -> None:
        self.node, self.queries = node, queries

    def install(self, url: str, **settings: object) -> None:
        self.url = url
        self.configure(**{"stack": STACK, "depth": 50, "timeout": 60_000, **settings})

    def hits(self, text: str) -> Hits:
        return self._hits(self.search, text)

    def plain_hits(self, text: str) -> Hits:
        return self._hits(self.plain, text)

    def _hits(self, search: Callable[[dict[str, Any]], dict[str, Any]], text: str) -> Hits:
        return scored(search({"query": {"match": {"content": text}}, "_source": False}))

    def counts(self) -> Counter[str]:
        return flat(self.stats())

    def expect(self, counter: str) -> None:
        """Assert that a search returns the hits of the first stage, and that only this counter increases."""
        text, before = self.queries[0], self.counts()
        assert self.hits(text) == self.plain_hits(text)
        assert self.counts() - before == {counter: 1}


@contextlib.contextmanager
def expect_increase(server: Server, metric: str) -> Iterator[None]:
    """Assert that this metric of the service increases in the block."""
    before = server.metric(metric)
    yield
    assert server.metric(metric) > before, metric


def assert_reranked(hook: Clients) -> None:
    before = hook.counts()
    actual = [hook.hits(text) for text in hook.queries]
    assert actual != [hook.plain_hits(text) for text in hook.queries]
    assert hook.counts() - before == {"reranked": len(actual)}


@contextlib.contextmanager
def search_during(hook: Clients, clients: int = 16, pause: float = 0.0) -> Iterator[list[tuple[str, Hits]]]:
    """Run searches in the block; each client pauses that many seconds after an answer. All searches are
    answered.

    The yielded list contains (text, hits) when the block ends.
    """
    answers: list[tuple[str, Hits]] = []

    def searches(number: int, over: threading.Event) -> None:
        while not over.is_set():
            text = hook.queries[number % len(hook.queries)]
            answers.append((text, hook.hits(text)))
            number += 1
            over.wait(pause)

    with run_clients(searches, clients):
        yield answers


def wait_for_more(answers: list[Any], count: int = 40) -> None:
    """Wait for twice as many answers as clients, so that some were requested after the call."""
    wanted = len(answers) + count
    wait_until(lambda: len(answers) >= wanted)


def are_equal(one: Hits, other: Hits, within: float = 1e-3) -> bool:
    """Return whether both have the same hits and, except for rounding in other batches, the same scores."""
    if sorted(id for id, _ in one) != sorted(id for id, _ in other):
        return False
    scores = dict(other)
    return all(abs(score - scores[id]) <= within for id, score in one)


@pytest.fixture(scope="module")
def hook(plugged, small) -> Clients:
    return Clients(plugged, texts(small, 8))


@pytest.fixture(scope="module")
def folder(hook, small, trained, tmp_path_factory) -> Path:
    return articles(hook.node, small, trained, tmp_path_factory.mktemp("faults") / "ws")


@pytest.fixture(scope="module")
def service(folder, script, tmp_path_factory) -> Iterator[Server]:
    with serving(script, folder, tmp_path_factory.mktemp("serve"), "--max-encoded", 50) as started:
        yield started


@pytest.fixture
def reranked(hook, service) -> Iterator[None]:
    """Searches are reranked before and after a test."""
    hook.install(service.url)
    assert_reranked(hook)
    yield
    hook.install(service.url)
    assert_reranked(hook)


def test_a_service_with_a_broken_ranker_is_counted_and_logged(hook, script, folder, tmp_path):
    """The query vectors of the ranker are NaN: only searches that use it keep their order."""
    broken = Path(shutil.copytree(folder, tmp_path / "ws"))
    workspace = Workspace.open(broken)
    ranker = workspace.ranker("text")
    assert isinstance(ranker, CnnRanker)
    (network,) = ranker.networks
    arrays = {**network.head.arrays, "query": np.full_like(network.head.arrays["query"], np.nan)}
    networks = [replace(network, head=Head(arrays))]
    workspace.install(replace(ranker, networks=networks, version=""))  # the version comes from the arrays
    with serving(script, broken, tmp_path) as server:
        hook.install(server.url)
        with expect_increase(server, 'rerank_passed_total{reason="scoring failed"}'):
            hook.expect("passed.scoring failed")
        assert any(line["event"] == "failed" for line in server.log())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_service_that_restarts_under_load(hook, service, reranked, script, folder, tmp_path, how):
    both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
    port = free_port()
    hook.install(f"http://127.0.0.1:{port}", breaker_failures=5, breaker_pause=100, timeout=5000)
    before = hook.counts()
    with search_during(hook, pause=0.05) as answers:  # the service starts during the searches
        for _ in range(2):
            with serving(script, folder, tmp_path, "--port", port) as server:
                wait_for_more(answers)
                if how == signal.SIGKILL:
                    server.ends = -signal.SIGKILL
                server.process.send_signal(how)
                server.process.wait()
            wait_for_more(answers)
        with serving(script, folder, tmp_path, "--port", port):
            up = hook.counts()
            wait_until(lambda: (hook.counts() - up)["reranked"] >= 20)
    counts = hook.counts() - before
    opened = counts.pop("breaker_opened")
    assert opened > 0
    assert sum(counts.values()) == len(answers)
    assert counts["reranked"] > 0
    assert counts["failed.refused"] > 0
    assert all(hits == both[text][0] or are_equal(hits, both[text][1]) for text, hits in answers)


def test_a_worker_that_is_killed_under_load(hook, service, reranked, script, folder, tmp_path):
    both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
    with serving(script, folder, tmp_path, "--workers", 2) as server:
        server.wait_for("started", 2)
        hook.install(server.url)
        before = hook.counts()
        with search_during(hook) as answers:
            wait_for_more(answers)
            os.kill(max(line["pid"] for line in server.log() if line["event"] == "started"), signal.SIGKILL)
            server.wait_for("started", 3)
            wait_for_more(answers)
        counts = hook.counts() - before
        assert sum(counts.values()) == len(answers)
        assert set(counts) <= {"reranked", "failed.connection"}
        assert all(hits == both[text][0] or are_equal(hits, both[text][1]) for text, hits in answers)
        assert_reranked(hook)


def test_a_thousand_concurrent_searches_are_answered(hook, service, reranked):
    both = {text: (hook.plain_hits(text), hook.hits(text)) for text in hook.queries}
    ready = threading.Barrier(1000)
    texts = [hook.queries[i % len(hook.queries)] for i in range(1000)]

    def search(text: str) -> Hits:
        ready.wait(120)
        return hook.hits(text)

    before = hook.counts()
    with ThreadPoolExecutor(1000) as pool:
        actual = list(pool.map(search, texts))
    counts = hook.counts() - before
    assert sum(counts.values()) == 1000
    assert counts["reranked"] > 30
    assert set(counts) <= {"reranked", "failed.busy", "failed.status_503", "failed.status_504"}
    assert all(hits == both[text][0] or are_equal(hits, both[text][1]) for text, hits in zip(texts, actual))
