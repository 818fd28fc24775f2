"""The processor if the service fails, hangs, sends invalid answers, restarts, or is overloaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.hook import (
    NUMBERS,
    PLACES,
    WHOLE,
    WORDS,
    Answering,
    Dummy,
    Handler,
    Hook,
    ids,
    requested,
    reverse,
    without_took,
)
from tests.node import Node
from tests.service import wait_until


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
    hook.configure(breaker_failures=3, breaker_pause=3000, timeout=3000)
    for fault in ("503", "413", "500", "503"):  # 413 is the fault of one search, so it resets the count
        dummy.answering = FAULTS[fault][1]
        hook.search(WORDS)
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.status_503": 1, "breaker_opened": 1}
    called = len(dummy.seen)
    counted = hook.changes(lambda: [hook.search(WORDS) for _ in range(5)])
    assert counted == {"failed.breaker_open": 5}
    assert len(dummy.seen) == called
    time.sleep(3.1)
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.status_503": 1}  # one trial, then open again
    assert hook.changes(lambda: hook.search(WORDS)) == {"failed.breaker_open": 1}
    dummy.reverse()
    time.sleep(3.1)
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
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        with dummy.lock:
            now[0] += 1
            now[1] = max(now)
        time.sleep(0.3)
        with dummy.lock:
            now[0] -= 1
        handler.send(reverse(body))

    now = [0, 0]
    hook.configure(max_connections=4)
    dummy.answering = answer
    with ThreadPoolExecutor(30) as pool:
        counted = hook.changes(lambda: list(pool.map(hook.search, [WORDS] * 30)))
    assert now[1] <= 4
    assert set(counted) == {"reranked", "failed.busy"}
    assert sum(counted.values()) == 30


def test_waiting_for_the_service_blocks_no_search_thread(hook: Hook, dummy: Dummy) -> None:
    waiting = threading.Event()

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        waiting.wait(60)
        handler.send(reverse(body))

    dummy.answering = answer
    hook.configure(timeout=60_000)
    with ThreadPoolExecutor(60) as pool:
        runs = [pool.submit(hook.search, WORDS) for _ in range(60)]
        wait_until(lambda: len(dummy.seen) == 60)
        threads = hook.node.request("GET", "/_cat/thread_pool/search,generic?format=json&h=name,active")
        plain = hook.plain(WORDS)  # more searches wait than there are threads, but this one runs
        waiting.set()
        assert ids(plain) == NUMBERS[:10]
        assert max(int(pool["active"]) for pool in threads) < 10
        assert all(ids(run.result()) == NUMBERS[::-1][:10] for run in runs)


def test_long_queries_and_many_hits_are_reranked(hook: Hook, dummy: Dummy) -> None:
    words = "cell " + "x" * 100_000
    hook.search({"query": {"match": {"text": {"query": words}}}})
    assert dummy.last["query"]["match"]["text"]["query"] == words
    hook.configure(depth=10000)
    assert ids(hook.search({**WORDS, "size": 10000})) == NUMBERS[::-1]
    assert hook.changes(lambda: hook.plain({**WORDS, "size": 10000})) == {}
