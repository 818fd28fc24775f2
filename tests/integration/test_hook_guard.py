"""Limits of the processor for authors of pipelines, for search requests, and for answers of a service."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.hook import (
    NUMBERS,
    WORDS,
    Dummy,
    Handler,
    Hook,
    ids,
    requested,
    reverse,
    without_took,
)
from tools.opensearch_node import Node
from tools.opensearch_plugin import put_pipeline


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.2:8765", "https://127.0.0.1:8765", "http://127.0.0.1:1/path", "http://localhost:1"],
)
def test_only_allowed_urls_are_called(hooked: Node, url: str) -> None:
    """Another URL would receive the node's token and the queries of all users."""
    with pytest.raises(ValueError, match=r": 400 .*plugins\.rerank_stack\.allowed_urls"):
        put_pipeline(hooked, "elsewhere", url=url)


def test_the_service_cannot_request_other_fields(hook: Hook, dummy: Dummy) -> None:
    greedy = {**requested("text@v", ids=True), "id": "n", "categories": "n"}
    dummy.reverse(requested_fields=greedy)
    hook.search(WORDS)
    hook.search(WORDS)
    assert (dummy.last["ids"], [*dummy.last["features"]]) == (NUMBERS, ["text@v"])
    dummy.reverse(requested_fields=requested("text@v,n"))
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.bad_answer": 1}


def test_a_query_that_is_too_long_does_not_open_the_breaker(hook: Hook, dummy: Dummy) -> None:
    hook.configure(breaker_failures=1, timeout=20_000)
    with pytest.raises(ValueError, match=r": 400 .*too long"):
        hook.search({**WORDS, "ext": {"rerank_stack": {"query": "x" * 850_000}}})
    long = {"query": {"bool": {"must": WORDS["query"], "must_not": {"term": {"kind": "x" * 300_000}}}}}
    answer, counters = hook.counted(long)
    assert counters == {"passed.query_too_long": 1}
    assert without_took(answer) == without_took(hook.plain(long))
    assert dummy.seen == []
    # Failures of long queries that are sent do not open the breaker either.
    dummy.answering = lambda handler, body: handler.send(b"", 503)
    slow = {**WORDS, "ext": {"rerank_stack": {"query": "x" * 99_000}}}
    assert hook.changes(lambda: hook.search(slow)) == {"failed.status_503": 1}
    dummy.reverse()
    assert hook.changes(lambda: hook.search(WORDS)) == {"reranked": 1}


def test_one_query_that_fails_does_not_open_the_breaker_for_others(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        poisoned = "poison" in str(body["query"])
        handler.send(b"", 500) if poisoned else handler.send(reverse(body))

    dummy.answering = answer
    hook.configure(breaker_failures=2, breaker_pause=60_000)
    poisoned = {"query": {"match": {"text": "cell poison"}}}
    for _ in range(4):
        assert hook.changes(lambda: hook.search(poisoned)) == {"failed.status_500": 1}
        assert hook.changes(lambda: hook.search(WORDS)) == {"reranked": 1}


def test_damaged_features_count_as_missing(hook: Hook, dummy: Dummy) -> None:
    """In a copied index, dynamic mapping has made keywords of the features."""
    hook.configure(stack="copied")
    dummy.reverse(requested_fields=requested("text@v"))
    keyword = {"properties": {"rerank_features": {"properties": {"text@v": {"type": "keyword"}}}}}
    hook.node.request("PUT", "/copied", {"mappings": keyword})
    try:
        for i, row in enumerate(["AAAA", "no Base64!", "AAAB"]):
            source = {"text": "cell " * (3 - i), "rerank_features": {"text@v": row}}
            hook.node.request("PUT", f"/copied/_doc/{i}?refresh=true", source)
        hook.search(WORDS, "copied")
        answer, counters = hook.counted(WORDS, "copied")
        assert counters == {"reranked": 1}
        assert dummy.last["features"] == {"text@v": ["AAAA", None, "AAAB"]}  # damaged rows are missing
        assert ids(answer) == ["2", "1", "0"]
        assert all("fields" not in hit for hit in answer["hits"]["hits"])
    finally:
        hook.node.request("DELETE", "/copied")


def test_shadow_mode_counts_and_changes_no_results(hook: Hook, dummy: Dummy) -> None:
    hook.configure(shadow=True)
    before = hook.stats()["shadow"]
    answer, counters = hook.counted(WORDS)
    assert counters == {"passed.shadow": 1}
    assert without_took(answer) == without_took(hook.plain(WORDS))
    told = hook.search({**WORDS, "ext": {"rerank_stack": {"explain": True}}})["ext"]["rerank_stack"]
    assert (told["outcome"], told["reason"], told["would_move"]) == ("passed", "shadow", 10)
    dummy.answering = lambda handler, body: handler.send(
        {
            "ids": [body["ids"][1], body["ids"][0], *body["ids"][2:]],
            "scores": [*range(len(body["ids"]), 0, -1)],
        }
    )
    hook.search(WORDS)
    after = hook.stats()["shadow"]
    assert (after["count"] - before["count"], after["moved"] - before["moved"]) == (3, 22)
    assert after["total_ms"] > before["total_ms"]


def test_answers_are_processed_outside_the_connection_thread(hook: Hook, dummy: Dummy) -> None:
    """The node has one thread for connections, which only reads. A separate pool processes answers."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(reverse(body, signals=[{"text": {"raw": 1.0}}] * len(body["ids"])))

    def completed() -> int:
        nodes = hook.node.request("GET", "/_nodes/stats/thread_pool")["nodes"]
        (about,) = nodes.values()
        return int(about["thread_pool"]["rerank"]["completed"])

    dummy.answering = answer
    before = completed()
    for _ in range(5):
        hook.search({**WORDS, "ext": {"rerank_stack": {"explain": True}}})
    assert completed() >= before + 5
