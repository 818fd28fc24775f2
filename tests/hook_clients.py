"""Clients of a hook on a collection: one that compares its answers, and many at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.hook import Hook, flat
from tests.load import without_pause
from tests.node import Node
from tests.service import Server

STACK = "bm25*0.2 + text*0.5 + meta*0.3"
INDEX = "articles"
Hits = list[tuple[str, float]]


class Clients(Hook):
    """Texts that clients search for in the index of a collection, and the hits that they get."""

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
        answer = search({"query": {"match": {"content": text}}, "_source": False})
        return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]

    def counts(self) -> Counter[str]:
        return Counter(flat(self.stats()))

    def expect(self, counter: str) -> None:
        """A search comes back as without the hook, and just this counter goes up."""
        text, before = self.queries[0], self.counts()
        assert self.hits(text) == self.plain_hits(text)
        assert self.counts() - before == {counter: 1}


@contextlib.contextmanager
def rising(server: Server, metric: str) -> Iterator[None]:
    """This metric of the service goes up in the block."""
    before = server.metric(metric)
    yield
    assert server.metric(metric) > before, metric


def assert_reranked(hook: Clients) -> None:
    before = hook.counts()
    found = [hook.hits(text) for text in hook.queries]
    assert found != [hook.plain_hits(text) for text in hook.queries]
    assert hook.counts() - before == {"reranked": len(found)}


@contextlib.contextmanager
def searching(
    hook: Clients, search: Callable[[str], object] | None = None, clients: int = 16, pause: float = 0.0
) -> Iterator[list[tuple[str, Any]]]:
    """Searches, each client's that many seconds after its last answer; every one of them is answered.

    (text, hits) when the block ends.
    """
    answers: list[tuple[str, Any]] = []

    def searches(number: int, over: threading.Event) -> None:
        while not over.is_set():
            text = hook.queries[number % len(hook.queries)]
            answers.append((text, (search or hook.hits)(text)))
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
