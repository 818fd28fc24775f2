"""Clients of a hook on a collection: one that compares its answers, and many at once."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.hook import flat
from tests.load import without_pause
from tests.node import Node
from tests.service import Server

STACK = "bm25*0.2 + text*0.5 + meta*0.3"
INDEX = "articles"
PATIENT = {"timeout": 60_000, "breaker_failures": 1000}  # the machines that run tests are busy
Hits = list[tuple[str, float]]


@dataclass
class Hook:
    """A node with the plugin, and searches of its index through a pipeline and without."""

    node: Node
    queries: list[str]

    def install(self, url: str, **settings: object) -> None:
        config = {"url": url, "stack": STACK, "depth": 50, **PATIENT, **settings}
        pipeline = {
            "request_processors": [{"rerank_stack": config}],
            "response_processors": [{"rerank_stack": {}}],
        }
        self.node.request("PUT", "/_search/pipeline/faults", pipeline)

    def ask(self, body: dict[str, Any], *, index: str = INDEX, pipeline: str = "faults") -> dict[str, Any]:
        """What any client sends. Raises HTTPError for whatever is no answer."""
        request = urllib.request.Request(
            f"{self.node.url}/{index}/_search?search_pipeline={pipeline}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def search(self, text: str, **more: Any) -> Hits:
        options = {name: more.pop(name) for name in ("index", "pipeline") if name in more}
        answer = self.ask({"query": {"match": {"content": text}}, "_source": False, **more}, **options)
        return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]

    def plain(self, text: str, **more: Any) -> Hits:
        return self.search(text, pipeline="_none", **more)

    def counts(self) -> Counter[str]:
        return Counter(flat(self.node.request("GET", "/_rerank/stats")))

    def expect(self, counter: str, text: str | None = None, **more: Any) -> None:
        """A search comes back as without the hook, and just this counter goes up."""
        text = text or self.queries[0]
        before = self.counts()
        assert self.search(text, **more) == self.plain(text, **more)
        assert self.counts() - before == {counter: 1}


@contextlib.contextmanager
def rising(server: Server, metric: str) -> Iterator[None]:
    """This metric of the service goes up in the block."""
    before = server.metric(metric)
    yield
    assert server.metric(metric) > before, metric


def assert_reranked(hook: Hook) -> None:
    before = hook.counts()
    found = [hook.search(text) for text in hook.queries]
    assert found != [hook.plain(text) for text in hook.queries]
    assert hook.counts() - before == {"reranked": len(found)}


@contextlib.contextmanager
def searching(
    hook: Hook, search: Callable[[str], object] | None = None, clients: int = 16, pause: float = 0.0
) -> Iterator[list[tuple[str, Any]]]:
    """Searches, each client's that many seconds after its last answer; every one of them is answered.

    (text, hits) when the block ends.
    """
    answers: list[tuple[str, Any]] = []

    def searches(number: int, over: threading.Event) -> None:
        while not over.is_set():
            text = hook.queries[number % len(hook.queries)]
            answers.append((text, (search or hook.search)(text)))
            number += 1
            over.wait(pause)

    with without_pause(searches, clients):
        yield answers


def wait_for_more(answers: list[Any], count: int = 40) -> None:
    """More answers have come: twice as many as there are clients, so that some were asked for meanwhile."""
    wanted, until = len(answers) + count, time.monotonic() + 60
    while len(answers) < wanted:
        assert time.monotonic() < until
        time.sleep(0.02)


def same(one: Hits, other: Hits, within: float = 1e-3) -> bool:
    """The same hits with the same scores, but for what another batch's rounding makes of them."""
    if sorted(id for id, _ in one) != sorted(id for id, _ in other):
        return False
    scores = dict(other)
    return all(abs(score - scores[id]) <= within for id, score in one)
