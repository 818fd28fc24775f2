"""The processor if the service fails, hangs, sends invalid answers, restarts, or is overloaded."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.hook import (
    COUNT,
    NUMBERS,
    PLACES,
    WHOLE,
    WORDS,
    Answering,
    Dummy,
    Handler,
    Hook,
    flat,
    ids,
    requested,
    reverse,
    without_took,
)
from tests.support.service import wait_until
from tools.opensearch_node import Node


def hang(handler: Handler, body: dict[str, Any]) -> None:
    time.sleep(60)


def hang_in_body(handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"ids": [')
    handler.wfile.flush()
    time.sleep(60)


def endless(handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    while True:
        handler.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


def hang_up(handler: Handler, body: dict[str, Any]) -> None:
    handler.close_connection = True


def sending(change: Callable[[dict[str, Any]], object], **more: Any) -> Answering:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        result = reverse(body)
        changed = change(result)
        handler.send(result if changed is None else changed, **more)

    return answer


def put(name: str, value: Callable[[list[Any]], list[Any]]) -> Answering:
    return sending(lambda answer: answer.update({name: value(answer[name])}))


FAULTS: dict[str, tuple[str, Answering]] = {
    "hangs": ("timeout", hang),
    "hangs in the body": ("timeout", hang_in_body),
    "hangs up": ("connection", hang_up),
    "truncated": ("connection", sending(lambda answer: None, cut=40)),
    "500": ("status_500", sending(lambda answer: None, status=500)),
    "503": ("status_503", sending(lambda answer: None, status=503)),
    "401": ("status_401", sending(lambda answer: {"detail": "token"}, status=401)),
    "413": ("status_413", sending(lambda answer: {"detail": "large"}, status=413)),
    "redirect": ("status_302", sending(lambda answer: None, status=302)),
    "HTML": ("bad_answer", sending(lambda answer: b"<html><body>Welcome</body></html>", kind="text/html")),
    "empty": ("bad_answer", sending(lambda answer: b"")),
    "another object": ("bad_answer", sending(lambda answer: {"results": []})),
    "too few scores": ("bad_answer", put("scores", lambda scores: scores[:-1])),
    "unknown id": ("bad_answer", put("ids", lambda ids: ids[:-1] + ["x"])),
    "a pattern for features": (
        "bad_answer",
        sending(lambda answer: answer.update(requested_fields=requested("*"))),
    ),
    "huge": ("too_large", sending(lambda answer: b"x" * 20_000_000)),
    "endless": ("too_large", endless),
    "deep": (
        "bad_answer",
        sending(lambda answer: (100_007).to_bytes(4, "big") + b'{"ids": ' + b"[" * 99_999),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_search_is_answered_despite_a_fault_of_the_service(
    hook: Hook, dummy: Dummy, fault: str
) -> None:
    reason, dummy.answering = FAULTS[fault]
    hook.configure(timeout=1000 if reason == "timeout" else 20000)
    body = {**WORDS, "from": 2, "size": 3, "docvalue_fields": ["n"]}
    start = time.monotonic()
    answer, counters = hook.counted(body)
    took = time.monotonic() - start
    assert counters == {f"failed.{reason}": 1}
    assert without_took(answer) == without_took(hook.plain(body))
    if reason == "timeout":
        assert 1 <= took < 30
        assert answer["took"] >= 950  # milliseconds of a coarse clock
    dummy.reverse()
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]


@pytest.mark.parametrize("requested_fields", [WHOLE, PLACES], ids=["whole", "places"])
def test_features_are_removed_from_hits_also_after_a_failure(
    hook: Hook, dummy: Dummy, requested_fields: dict[str, Any]
) -> None:
    dummy.reverse(requested_fields=requested_fields)
    hook.search(WORDS)
    for answering in (FAULTS["500"][1], lambda handler, body: handler.send({"passed": "x"})):
        dummy.answering = answering
        answer = hook.search(WORDS)
        assert "text@v" in dummy.last["features"]
        assert without_took(answer) == without_took(hook.plain(WORDS))


def test_a_service_that_does_not_listen(hooked: Node, dummy: Dummy) -> None:
    dummy.end()
    hook = Hook(hooked, dummy.url)
    answer, counters = hook.counted(WORDS)
    assert counters == {"failed.refused": 1}
    assert without_took(answer) == without_took(hook.plain(WORDS))
    hook = Hook(hooked, "http://host.invalid:1")
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.refused": 1}


def test_failures_are_errors_with_on_failure_error(hook: Hook, dummy: Dummy) -> None:
    hook.configure(on_failure="error", breaker_failures=1, breaker_pause=60000)
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    dummy.answering = FAULTS["401"][1]
    with pytest.raises(ValueError, match=r"503 .*status_401"):
        hook.search(WORDS)

    def opened() -> bool:
        with pytest.raises(ValueError, match="503 ") as caught:
            hook.search(WORDS)
        return "breaker_open" in str(caught.value)

    wait_until(opened)  # right after the answer to the failing search
    assert ids(hook.search({**WORDS, "sort": ["n"]}))  # this search is not reranked, so it does not fail


def test_the_breaker_opens_tries_again_and_closes(hook: Hook, dummy: Dummy) -> None:
    hook.configure(breaker_failures=3, breaker_pause=600_000)
    for fault in ("503", "413", "503", "500", "503", "503"):  # 413 and 500 are faults of one search
        dummy.answering = FAULTS[fault][1]
        hook.search(WORDS)
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.status_503": 1, "breaker_opened": 1}
    called = len(dummy.seen)
    counted = hook.changes(lambda: [hook.search(WORDS) for _ in range(5)])
    assert counted == {"failed.breaker_open": 5}
    assert len(dummy.seen) == called


def test_an_open_breaker_tries_again_after_its_pause_and_closes(hook: Hook, dummy: Dummy) -> None:
    """On a busy machine two searches can take longer than the pause. Then they are repeated."""
    hook.configure(breaker_failures=1, breaker_pause=5000, timeout=5000)
    dummy.answering = FAULTS["503"][1]
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.status_503": 1, "breaker_opened": 1}
    for _ in range(30):
        time.sleep(5.1)
        begin = time.monotonic()
        trial, after_trial = [hook.changes(lambda: hook.search(WORDS)) for _ in range(2)]
        if time.monotonic() - begin < 5:
            break
    assert trial == {"failed.status_503": 1}  # one trial, then open again
    assert after_trial == {"failed.breaker_open": 1}
    dummy.reverse()
    time.sleep(5.1)
    assert hook.changes(lambda: [hook.search(WORDS) for _ in range(3)]) == {"reranked": 3}


def test_the_processor_reconnects_after_a_restart_of_the_service(hooked: Node) -> None:
    first = Dummy()
    hook = Hook(hooked, first.url)
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    first.end()
    second = Dummy(first.server_port)
    try:
        # The node still has a closed connection.
        assert hook.changes(lambda: hook.search(WORDS)) == {"reranked": 1}
    finally:
        second.end()


def test_a_connection_that_breaks_once_is_retried(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        dummy.reverse()
        hang_up(handler, body)

    dummy.answering = answer
    assert hook.counted(WORDS)[1] == {"reranked": 1}
    assert len(dummy.seen) == 2


def test_the_number_of_concurrent_calls_is_limited(hook: Hook, dummy: Dummy) -> None:
    some_are_refused = threading.Event()

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        with dummy.lock:
            now[0] += 1
            now[1] = max(now)
        some_are_refused.wait(300)
        with dummy.lock:
            now[0] -= 1
        handler.send(reverse(body))

    def search_at_once() -> None:
        refused_before = flat(hook.stats())["failed.busy"]
        with ThreadPoolExecutor(30) as pool:
            searches = [pool.submit(hook.search, WORDS) for _ in range(30)]
            wait_until(lambda: flat(hook.stats())["failed.busy"] > refused_before)
            some_are_refused.set()
        for search in searches:
            search.result()

    now = [0, 0]
    hook.configure(max_connections=4, timeout=60_000)
    dummy.answering = answer
    counted = hook.changes(search_at_once)
    assert now[1] <= 4
    assert set(counted) == {"reranked", "failed.busy"}
    assert sum(counted.values()) == 30


def test_waiting_for_the_service_blocks_no_search_thread(hook: Hook, dummy: Dummy) -> None:
    waiting = threading.Event()

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        waiting.wait(300)
        handler.send(reverse(body))

    dummy.answering = answer
    hook.configure(timeout=60_000)
    with ThreadPoolExecutor(60) as pool:
        runs = [pool.submit(hook.search, WORDS) for _ in range(60)]
        wait_until(lambda: len(dummy.seen) == 60)
        wait_until(lambda: active_threads(hook.node) < 10)  # a busy node also has other work
        plain = hook.plain(WORDS)  # more searches wait than there are threads, but this one runs
        waiting.set()
        assert ids(plain) == NUMBERS[:10]
        assert all(ids(run.result()) == NUMBERS[::-1][:10] for run in runs)


def active_threads(node: Node) -> int:
    """Return how many threads of a pool for searches or other work are active, at most."""
    pools = node.request("GET", "/_cat/thread_pool/search,generic?format=json&h=name,active")
    return max(int(pool["active"]) for pool in pools)


def test_long_queries_and_many_hits_are_reranked(hook: Hook, dummy: Dummy) -> None:
    words = "cell " + "x" * 100_000
    hook.search({"query": {"match": {"text": {"query": words}}}})
    assert dummy.last["query"]["match"]["text"]["query"] == words
    hook.configure(depth=10000)
    assert ids(hook.search({**WORDS, "size": 10000})) == NUMBERS[::-1]
    assert hook.changes(lambda: hook.plain({**WORDS, "size": 10000})) == {}


SLOW_SCRIPT = """
    long work(int n) { long sum = 0; for (int i = 0; i < 900000; i++) { sum += i % n } return sum }
    long total = 0; for (int i = 1; i < 60; i++) { total += work(i) } return total
"""
SLOW = {**WORDS, "script_fields": {"slow": {"script": SLOW_SCRIPT}}}
"""Takes some tenths of a second for each hit, and ends between two hits if it is cancelled."""


def search_tasks(node: Node) -> list[str]:
    """Return the ids of running searches that no other task has started."""
    found = node.request("GET", "/_tasks?actions=indices:data/read/search")["nodes"]
    tasks = [task for about in found.values() for task in about["tasks"].values()]
    return [f"{task['node']}:{task['id']}" for task in tasks if "parent_task_id" not in task]


def completed(node: Node, act: Callable[[], object]) -> int:
    """Return how many shard searches an action completes, with their documents."""

    def fetches() -> int:
        return int(node.request("GET", "/cells/_stats/search")["_all"]["total"]["search"]["fetch_total"])

    before = fetches()
    act()
    return fetches() - before


def all_tasks(node: Node) -> list[str]:
    found = node.request("GET", "/_tasks?actions=indices:data/read/search*")["nodes"]
    return [task for about in found.values() for task in about["tasks"]]


@pytest.mark.parametrize("how", ["task", "disconnect", "interval"])
def test_a_cancelled_search_ends_and_is_not_repeated(hook: Hook, dummy: Dummy, how: str) -> None:
    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            if how == "disconnect":
                with socket.create_connection(("127.0.0.1", hook.node.port)) as client:
                    body = json.dumps(SLOW).encode()
                    head = ["POST /cells/_search?search_pipeline=hook HTTP/1.1", "Host: node"]
                    head += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
                    client.sendall("\r\n".join(head).encode() + body)
                    wait_until(lambda: bool(search_tasks(hook.node)))
            else:
                more = "&cancel_after_time_interval=500ms" if how == "interval" else ""
                search = pool.submit(hook.search, SLOW, "", more)
                if how == "task":
                    wait_until(lambda: bool(search_tasks(hook.node)))
                    (task,) = search_tasks(hook.node)
                    hook.node.request("POST", f"/_tasks/{task}/_cancel?wait_for_completion=true")
                with pytest.raises(ValueError, match="cancelled"):
                    search.result()
            wait_until(lambda: not all_tasks(hook.node))

    assert completed(hook.node, run) == 0
    assert dummy.seen == []


def test_cancelling_ends_a_search_that_waits_for_the_service(hook: Hook, dummy: Dummy) -> None:
    """It does not wait for the answer, and the connection to the service is closed."""
    closed = threading.Event()

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        if not handler.connection.recv(1):  # the node has closed the connection
            closed.set()
        handler.close_connection = True

    dummy.reverse(requested_fields=PLACES)
    hook.search(WORDS)
    hook.search(WORDS)  # its page is fetched by a second search
    dummy.answering = answer
    hook.configure(timeout=60_000)

    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            calls = len(dummy.seen)
            search = pool.submit(hook.search, WORDS)
            wait_until(lambda: len(dummy.seen) > calls)
            (task,) = search_tasks(hook.node)
            hook.node.request("POST", f"/_tasks/{task}/_cancel")
            assert closed.wait(50)  # the time limit of this call is 60 seconds
            with pytest.raises(ValueError, match="cancelled"):
                search.result()

    assert completed(hook.node, run) == 1


def test_inner_searches_are_children_of_the_search_of_the_user(hook: Hook, dummy: Dummy) -> None:
    """The second search, for the page, computes a slow field and ends with the search of the user."""
    dummy.reverse(requested_fields=PLACES)
    hook.search(WORDS)

    def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            calls = len(dummy.seen)
            search = pool.submit(hook.search, {**SLOW, "size": COUNT})
            wait_until(lambda: len(dummy.seen) > calls and len(all_tasks(hook.node)) > 1)
            (task,) = search_tasks(hook.node)
            hook.node.request("POST", f"/_tasks/{task}/_cancel?wait_for_completion=true")
            with pytest.raises(ValueError, match="cancelled"):
                search.result()
            assert not all_tasks(hook.node)

    assert completed(hook.node, run) == 1


def test_a_search_that_needs_too_much_memory_is_not_repeated(hook: Hook) -> None:
    def trips() -> int:
        (node,) = hook.node.request("GET", "/_nodes/stats/breaker")["nodes"].values()
        return int(node["breakers"]["request"]["tripped"])

    def tripped(search: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
        before = trips()
        with pytest.raises(ValueError, match=": 429 "):
            search({**WORDS, "aggs": {"kinds": {"terms": {"field": "kind"}}}})
        return trips() - before

    with hook.node.changed({"indices.breaker.request.limit": "100b"}):
        assert tripped(hook.search) == tripped(hook.plain) > 0


@pytest.mark.parametrize("response", [None, {"rerank_stack": {"ignore_failure": True}}])
def test_a_page_never_shows_the_candidates(hook: Hook, dummy: Dummy, response: dict[str, Any] | None) -> None:
    """Half a pipeline has no processor that cuts the page; one that ignores its failure does not either."""
    config = {"url": dummy.url, "timeout": 20_000, "on_failure": "error"}
    pipeline = {"request_processors": [{"rerank_stack": config}]}
    if response is not None:
        pipeline["response_processors"] = [response]
        dummy.answering = FAULTS["500"][1]
    hook.node.request("PUT", "/_search/pipeline/hook", pipeline)
    body = {**WORDS, "from": 1, "size": 3}
    answer, counters = hook.counted(body)
    assert without_took(answer) == without_took(hook.plain(body))
    assert counters["failed.pipeline"] == 1


def test_a_call_that_needs_too_much_memory_is_not_sent(hook: Hook, dummy: Dummy) -> None:
    """Its answer has no fields that were fetched for the service."""
    for fields in (None, WHOLE, PLACES):
        if fields is not None:
            dummy.reverse(requested_fields=fields)
            hook.search(WORDS)
        calls = len(dummy.seen)
        with hook.node.changed({"breaker.rerank_stack.limit": "100b"}):
            answer, counters = hook.counted(WORDS)
        assert counters == {"failed.memory": 1}
        assert without_took(answer) == without_took(hook.plain(WORDS))
        assert len(dummy.seen) == calls
    assert hook.changes(lambda: hook.search(WORDS)) == {"reranked": 1}
    (node,) = hook.node.request("GET", "/_nodes/stats/breaker")["nodes"].values()
    assert node["breakers"]["rerank_stack"]["estimated_size_in_bytes"] == 0
