"""Hostile and broken clients: endless headers, incomplete requests, slow bodies, requests from web pages."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rerank.service.server import remove_abandoned_folders
from tests.support.service import Server, call, call_hook, serving, wait_until

WOLF = {"query": "wolf"}
NO_HITS = call({"ids": [], "scores": []})
LIMITS = ("--request-timeout", 1)


@pytest.fixture(scope="module")
def server(script, trained, tmp_path_factory) -> Iterator[Server]:
    with serving(script, trained, tmp_path_factory.mktemp("hostile"), *LIMITS) as started:
        yield started


def connect(server: Server) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.settimeout(200)
    return raw


def rest(raw: socket.socket) -> bytes:
    """Return the answer up to the end of the connection."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(65536):
            answer += part
    return answer


def memory(server: Server) -> int:
    """Return the resident memory in KiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+)", status)
    assert match
    return int(match[1])


POST = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "a header": (b"GET /healthz HTTP/1.1\r\nX: ", b"x" * 65536, b"431"),
    "a name": (b"GET /healthz HTTP/1.1\r\n", b"x" * 65536, b"431|400"),
    "headers": (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n" * 10_000, b"431"),
    "a path": (b"GET /", b"x" * 65536, b"431"),
    "a trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", b"x" * 65536, b"431"),
    "an extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n2;a=", b"x" * 65536, b"431"),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_an_endless_head_is_refused(server, case):
    begin, more, status = ENDLESS[case]
    before = memory(server)
    with connect(server) as raw:
        raw.sendall(begin)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 300 * 2**20:
                raw.sendall(more)
                sent += len(more)
        assert sent < 100 * 2**20
        assert re.match(rb"HTTP/1.1 (" + status + b") ", rest(raw))
    assert memory(server) - before < 20_000
    assert server.post("/v1/search", WOLF).status == 200


@pytest.mark.parametrize(("kilobytes", "status"), [(20, 200), (36, 431)])
def test_a_head_in_one_piece_is_limited(server, kilobytes, status):
    headers = {f"X-{number}": "b" * (1000 * kilobytes // 90) for number in range(90)}
    assert server.get("/healthz", **headers).status == status


INCOMPLETE_REQUESTS = {
    "nothing": b"",
    "a line": b"GET /hea",
    "headers": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
    "a body": POST + b"Content-Length: 10\r\n\r\n{",
    "a body that is not read": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
    "a second request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
}


@pytest.mark.parametrize("case", INCOMPLETE_REQUESTS)
def test_an_incomplete_request_is_ended(server, case):
    begin = time.monotonic()
    with connect(server) as raw:
        raw.sendall(INCOMPLETE_REQUESTS[case])
        answer = rest(raw)
    assert 0.9 < time.monotonic() - begin < 100
    assert b" 408 " in answer


def test_slow_clients_do_not_delay_other_clients(script, trained, tmp_path):
    """The incomplete heads and bodies exceed the limits of requests (4) and connections (64).

    On a busy machine the searches can take as long as the time limit of the slow clients. Then nothing is
    shown, and a second try has a longer limit.
    """
    for seconds in (12, 100):
        options = ("--max-requests", 4, "--request-timeout", seconds, "--deadline", seconds)
        with serving(script, trained, tmp_path, *options) as server:
            slow = [connect(server) for _ in range(150)]
            for number, raw in enumerate(slow):
                with contextlib.suppress(OSError):  # the server closed it to make room
                    raw.sendall(INCOMPLETE_REQUESTS["a body" if number % 2 else "headers"])
            begin = time.monotonic()
            assert server.get("/healthz").json == {"ok": True}
            with ThreadPoolExecutor(2) as pool:
                answers = list(pool.map(lambda _: server.post("/v1/search", WOLF).status, range(20)))
            is_shown = time.monotonic() - begin < seconds - 1
            if is_shown:
                assert answers == [200] * 20
                assert server.metric("rerank_requests_in_hand") == 0
            ended = [rest(raw) for raw in slow]
            assert 40 < sum(b" 408 " in answer for answer in ended) <= 64
            assert server.metric('rerank_refused_total{status="connections"}') >= 86
        if is_shown:
            break
    assert is_shown, "the searches waited until the slow clients were disconnected"


def test_unfinished_bodies_take_limited_memory(script, trained, tmp_path):
    options = ("--request-timeout", 120, "--max-requests", 8)  # 16 + 8 MiB for large bodies
    with serving(script, trained, tmp_path, *options) as server, contextlib.ExitStack() as stack:
        before = memory(server)
        head = POST + b"Content-Length: 16000000\r\n\r\n"
        for _ in range(20):
            raw = stack.enter_context(connect(server))
            with contextlib.suppress(OSError):  # the server answers before the end of the body
                raw.sendall(head + b" " * 10_000_000)
        wait_until(lambda: server.metric('rerank_requests_total{endpoint="search",status="503"}') >= 18)
        assert memory(server) - before < 100_000
        assert server.post("/v1/search", WOLF).status == 200  # small bodies are still read
        assert server.post("/v1/hook", NO_HITS).status == 200


def test_folders_of_killed_services_are_removed(tmp_path):
    abandoned, running = tmp_path / "rerank-metrics-a", tmp_path / "rerank-metrics-b"
    for folder in (abandoned, running):
        folder.mkdir()
        (folder / "lock").touch()
    (tmp_path / "rerank-metrics-other").mkdir()
    with open(running / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_abandoned_folders(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rerank-metrics-b", "rerank-metrics-other"]


def test_a_connection_whose_answer_is_not_read_is_closed(server):
    def connections() -> int:
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    before = connections()
    with connect(server) as raw:
        wait_until(lambda: connections() > before)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            raw.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        wait_until(lambda: connections() <= before)
    assert server.get("/healthz").status == 200


def ask(
    server: Server, method: str, path: str, host: str, body: bytes | None = None, **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode() + str(answer.headers)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost", True), ("LOCALHOST:8765", True), ("127.0.0.1:1", True), ("[::1]:8765", True),
        ("192.168.1.7:8765", True), ("evil.example", False), ("evil.example:8765", False),
        ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("", False),
    ],
)  # fmt: skip
def test_unknown_host_headers_are_refused(server, host, known):
    """With DNS rebinding, a page of evil.example could otherwise read answers of this service."""
    body = json.dumps(WOLF).encode()
    for method, path, sent in (
        ("POST", "/v1/search", body),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
    ):
        status, text = ask(server, method, path, host, sent, Content_Type="application/json")
        assert status == (200 if known else 421), (path, text)
    assert ask(server, "GET", "/healthz", host)[0] == 200


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Origin": "http://evil.example"}), (421, {"Origin": "null"}), (200, {"Origin": "http://localhost"}),
        # A page may send these content types without a preflight request.
        (415, {"Content_Type": None}), (415, {"Content_Type": "text/plain"}),
        (415, {"Content_Type": "application/x-www-form-urlencoded"}),
        (415, {"Content_Type": "multipart/form-data"}),
        (200, {"Content_Type": "application/json; charset=utf-8"}),
        (200, {"Content_Type": "Application/JSON"}),
    ],
)  # fmt: skip
def test_requests_of_web_pages_are_refused(server, status, headers):
    given = {"Content_Type": "application/json", **headers}
    given = {name: value for name, value in given.items() if value}
    bodies = {
        "/v1/search": WOLF,
        "/v1/rerank": {**WOLF, "documents": ["a"]},
    }
    for path, body in bodies.items():
        actual, text = ask(server, "POST", path, "localhost", json.dumps(body).encode(), **given)
        assert actual == status, text
    given = {**given, "Content_Type": "application/octet-stream"} if status == 200 else given
    assert ask(server, "POST", "/v1/hook", "localhost", NO_HITS, **given)[0] == status
    assert "ocation" not in ask(server, "POST", "/v1/search/", "localhost", b"{}", **given)[1]  # no redirect


def test_numbers_that_are_too_large_are_handled(server):
    for document in ({"text": "a", "n": 10**400}, {"text": "a", "n": 2**64}):
        body = {"query": "wolf", "documents": ["b", document], "return_documents": True}
        returned = [one["document"] for one in server.post("/v1/rerank", body).json["results"]]
        assert document in returned
    hook = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [1.7e308, -1.7e308]}
    server.post("/v1/hook", call(hook)).fails(422, "score")
    answer = call_hook(server, {**hook, "scores": [3.4e38, -3.4e38], "stack": "tfidf"})
    assert answer["ids"] == ["a", "b"]
    for stack in ("bm25*1e308 + tfidf*1e308", f"bm25*{'9' * 400} + tfidf*1"):
        server.post("/v1/rerank", {"query": "wolf", "documents": ["wolf", "a"], "stack": stack}).fails(422)


def test_log_lines_contain_no_control_characters(server):
    """A path may contain the one-byte CSI and characters that change the text direction."""
    server.get("/%C2%9B31m%7F%E2%80%AEtxt").fails(404, "Not Found")
    server.get("/healthz")  # an answered request is logged before the next one
    (line,) = [line for line in server.log_file.read_text("utf-8").splitlines() if "31m" in line]
    assert line.isprintable()
    assert json.loads(line)["path"] == "/\x9b31m\x7f\u202etxt"


def test_only_selected_endpoints_are_served(script, trained, tmp_path, run):
    options = ("--only", "hook,rerank", "--allow-host", "search.example")
    with serving(script, trained, tmp_path, *options) as server:
        assert ask(server, "GET", "/readyz", "search.example:8765")[0] == 200
        assert ask(server, "GET", "/readyz", "evil.example")[0] == 421
        server.post("/v1/search", WOLF).fails(404, "search")
        server.post("/v1/rerank_ids", {"query": "wolf", "ids": []}).fails(404, "rerank_ids")
        assert server.post("/v2/rerank", {"query": "wolf", "documents": ["a"]}).status == 200
        assert server.post("/v1/hook", NO_HITS).status == 200
        paths = server.get("/openapi.json").json["paths"]
        served = {"/v1/hook", "/v1/retrieve", "/v1/rerank", "/v2/rerank", "/rerank"}
        assert {path for path, operations in paths.items() if "post" in operations} == served
        assert set(server.get("/").json["post"]) == served
    run("serve", "-w", trained, "--only", "hook,find").fails(2, "--only", "'find'", "rerank_ids")


def test_tokens_can_be_limited_to_endpoints(script, trained, tmp_path, run):
    file = tmp_path / "tokens"
    file.write_text("# everything\nall\n\nnodes hook\nteam rerank,search\nprometheus metrics\n")
    with serving(script, trained, tmp_path, "--token-file", file) as server:

        def statuses(token: str) -> list[int]:
            given = {"Authorization": f"Bearer {token}"}
            posts = {
                "/v1/hook": NO_HITS,
                "/v1/search": WOLF,
                "/v1/rerank": {"query": "wolf", "documents": ["a"]},
            }
            return [
                *(server.post(*one, **given).status for one in posts.items()),
                server.get("/metrics", **given).status,
            ]

        assert statuses("all") == [200, 200, 200, 200]
        assert statuses("nodes") == [200, 403, 403, 403]
        assert statuses("team") == [403, 200, 200, 403]
        assert statuses("prometheus") == [403, 403, 403, 200]
        assert statuses("none") == [401, 401, 401, 401]
        assert ask(server, "GET", "/readyz", "any.example", Authorization="Bearer all")[0] == 200
        assert "rankers" in server.get("/readyz", Authorization="Bearer nodes").json
    for text, part in (
        ("a b c", "tokens:1: "), ("a\nb find", "tokens:2: "), ("a\na hook", "tokens: "),
        ("# a\n", "tokens: "),
    ):  # fmt: skip
        file.write_text(text)
        run("serve", "-w", trained, "--token-file", file).fails(1, part)
