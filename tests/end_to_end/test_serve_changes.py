"""``rerank serve`` during changes: rankers and stacks under load, workers, shutdown, a missing cluster."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rerank.documents.records import Query
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace
from tests.support.service import (
    HOOK,
    STACK,
    WORDS,
    Answer,
    Server,
    call,
    call_hook,
    candidates,
    kind_of,
    move_to_cluster,
    negate_scores,
    read_answer,
    run_clients,
    serving,
    wait_until,
)

__all__ = ["candidates"]


@contextmanager
def load(server: Server, clients: int = 4) -> Iterator[list[Answer]]:
    """Send searches without a pause. The yielded list is complete when the block ends."""
    answers: list[Answer] = []

    def ask(_: int, over: threading.Event) -> None:
        while not over.is_set():
            answers.append(server.post("/v1/search", {"query": WORDS, "stack": STACK, "k": 3}))

    with run_clients(ask, clients):
        yield answers


def test_changed_stacks_and_rankers_are_loaded_under_load(script, workspace, tmp_path, spawn):
    opened = Workspace.open(workspace)
    path = opened.stack_path(STACK.split(","))
    loaded = Stack.load(path)
    one = replace(loaded.combiner, cases={})  # its text identifies the stack
    old = replace(loaded, combiner=one)
    old.save(path)
    new = replace(old, combiner=replace(one, weights=tuple(w + 1 for w in one.weights)))

    def use(stack: Stack) -> None:
        stack.save(tmp_path / "stack.json")
        opened.use_stack(str(tmp_path / "stack.json"))

    use(old)
    with serving(script, workspace, tmp_path, "--workers", 1) as server:
        with load(server) as answers:
            wait_until(lambda: answers)
            use(new)
            server.wait_for("reloaded")
            ranker = opened.ranker("text")
            before = ranker.version
            ranker.version = "another"
            opened.install(ranker)
            server.wait_for("reloaded", 2)  # the stack continues with the version it was tuned with
            assert server.get("/readyz").json["rankers"]["text"] == before
            use(replace(new, versions={**new.versions, "text": "another"}))
            server.wait_for("reload waits")  # the new version has no features yet
            assert server.get("/readyz").json["rankers"]["text"] == before
            assert spawn("encode", "-w", workspace).code == 0
            server.wait_for("reloaded", 3)
            assert server.get("/readyz").json["rankers"]["text"] == "another"
            path.write_text("{")
            server.wait_for("reload failed")
            old.save(path)
            server.wait_for("reloaded", 4)
            opened.rollback()
            opened.rollback()
            server.wait_for("reloaded", 5)
            assert server.get("/readyz").json["rankers"]["text"] == before
            count = len(answers)
            wait_until(lambda: len(answers) > count + 4)  # more than the waiting clients
        assert {answer.status for answer in answers} == {200}
        seen = [answer.json["stack"] for answer in answers]
        assert set(seen) == {str(old), str(new)}
        assert seen[-1] == str(old)


@contextmanager
def mixed_load(
    server: Server, bodies: dict[str, bytes], clients: int = 16
) -> Iterator[list[tuple[str, bytes]]]:
    """Send requests of all kinds without a pause, over open connections. All of them must be answered."""
    answers: list[tuple[str, bytes]] = []

    def ask(number: int, over: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=150)
        while not over.is_set():
            path = list(bodies)[number % len(bodies)]
            connection.request("POST", path, bodies[path], {"Content-Type": kind_of(path)})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            answers.append((path, data))
            number += 1
        connection.close()

    with run_clients(ask, clients):
        yield answers


def test_an_answer_uses_only_one_version_of_a_ranker(script, workspace, tmp_path, candidates, small, spawn):
    """All scores of an answer come from the old ranker, or all from the new one. No request fails."""
    text, body, _ = candidates
    (workspace / "releases.json").unlink()  # no stack is in use, so a new ranker is used at once
    opened = Workspace.open(workspace)
    old = opened.ranker("text")
    new = negate_scores(old, "other")
    documents = list(opened.engine.documents())
    expected = []
    for ranker in (old, new):
        scores = ranker.score(ranker.encode_query(Query("q", text)), ranker.encode_documents(documents))
        expected.append(dict(zip([document.id for document in documents], scores.tolist())))
    few = small.documents[:10]
    stack = "tfidf*0.3 + text*0.7"
    bodies: dict[str, Any] = {
        "/v1/search": {"query": text, "k": 100},
        # features are read from the engine
        "/v1/hook": {**body, "features": {}, "raw_values": True, "rerank": {"explain": True}},
        "/v1/rerank": {"query": text, "documents": [{"title": d["title"], "text": d["text"]} for d in few]},
    }

    def which(path: str, data: bytes) -> str:
        answer = read_answer(data, body["ids"]) if path == "/v1/hook" else json.loads(data)
        if path == "/v1/search":
            scores = {hit["id"]: hit["signals"]["text"]["raw"] for hit in answer["hits"]}
        elif path == "/v1/hook":
            signals = [hit["text"]["raw"] for hit in answer["signals"]]
            scores = dict(zip(answer["ids"], signals, strict=True))
        else:
            order = [result["index"] for result in answer["results"]]
            return "old" if order == orders[0] else "new" if order == orders[1] else "half"
        assert max(map(abs, scores.values())) > 0.02  # otherwise both are similar
        fits = [all(abs(score - one[id]) < 0.01 for id, score in scores.items()) for one in expected]
        return {(True, False): "old", (False, True): "new"}.get((fits[0], fits[1]), "half")

    def order() -> list[int]:
        return [result["index"] for result in server.post("/v1/rerank", bodies["/v1/rerank"]).json["results"]]

    with serving(script, workspace, tmp_path, "--stack", stack, "--max-encoded", 1000) as server:
        orders = [order()]
        opened.install(new)
        assert spawn("encode", "-w", workspace).code == 0
        server.wait_for("reloaded")
        orders.append(order())
        assert orders[0] != orders[1]
        sent = {path: json.dumps(one).encode() for path, one in bodies.items()}
        sent["/v1/hook"] = call(bodies["/v1/hook"])
        with mixed_load(server, sent) as answers:
            for count, ranker in enumerate((old, new, old, new), 2):
                wanted = len(answers) + 100
                wait_until(lambda wanted=wanted: len(answers) >= wanted)
                opened.install(ranker)
                server.wait_for("reloaded", count)
    kinds = Counter((path, which(path, answer)) for path, answer in answers)
    assert set(kinds) == {(path, kind) for path in bodies for kind in ("old", "new")}, kinds


@pytest.mark.parametrize("workers", [1, 2])
def test_running_requests_are_finished_at_shutdown(script, trained, tmp_path, small, workers):
    documents = [document["text"] for document in small.documents] * 5
    body = {"query": WORDS, "documents": documents, "stack": "tfidf*0.5 + text*0.5"}
    options = ("--threads", 2, "--workers", workers)
    with serving(script, trained, tmp_path, *options) as server, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.post, "/v1/rerank", body) for _ in range(4)]
        wait_until(lambda: server.metric("rerank_requests_in_hand") == 4)
        server.process.send_signal(signal.SIGTERM)
        assert [answer.result().status for answer in asked] == [200] * 4
        assert server.process.wait(120) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_work_ends_at_the_deadline_and_with_the_process(script, trained, tmp_path, small, workers):
    documents = [document["text"][:4000] for document in small.documents] * 4
    body = {"query": WORDS, "documents": documents[:1000], "stack": "tfidf*0.5 + text*0.5"}
    options = ("--deadline", 0.05, "--workers", workers)  # less than any request takes
    with serving(script, trained, tmp_path, *options) as server, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.post, "/v1/rerank", body) for _ in range(4)]
        assert {answer.result().status for answer in asked} <= {422, 504}
        wait_until(lambda: server.metric("rerank_requests_in_hand") == 0)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 0


SIGNAL_WITH_THE_URL = """
import os, signal, sys, threading
from rerank.service.server import serve
from rerank.service.settings import Settings

if __name__ == "__main__":
    folder, name, workers, delay = sys.argv[1:]
    def send(url):
        end = lambda: os.killpg(os.getpid(), getattr(signal, name))
        threading.Timer(float(delay), end).start() if float(delay) else end()
    serve(Settings(folder=folder, port=0, workers=int(workers), stack="bm25"), send)
"""
"""A service whose process group gets a signal when it reports its URL, or some seconds later."""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(("workers", "delay"), [(1, 0), (2, 0), (2, 0.4)])
def test_a_signal_that_comes_with_the_url_ends_the_service(trained, tmp_path, name, workers, delay):
    (tmp_path / "early.py").write_text(SIGNAL_WITH_THE_URL)
    command = [sys.executable, str(tmp_path / "early.py"), str(trained), name, str(workers), str(delay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, start_new_session=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if workers == 1:
        events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
        assert events == ["started", "stopped"]


def test_several_workers_serve_reload_and_restart(script, workspace, tmp_path):
    with serving(script, workspace, tmp_path, "--workers", 2) as server:
        server.wait_for("started", 2)
        with load(server, 8) as answers:
            wait_until(lambda: len(answers) > 50)
        assert {answer.status for answer in answers} == {200}
        counter = 'rerank_requests_total{endpoint="search",status="200"}'
        wait_until(lambda: server.metric(counter) >= len(answers))  # a worker counts sent answers
        assert server.metric(counter) == len(answers)  # sum of both workers
        path = Workspace.open(workspace).stack_path(STACK.split(","))
        path.write_bytes(path.read_bytes() + b"\n")
        server.wait_for("reloaded", 2)
        workers = {line["pid"] for line in server.log() if line["event"] == "started"}
        assert len(workers) == 2
        os.kill(min(workers), signal.SIGKILL)
        server.wait_for("started", 3)
        assert server.post("/v1/search", {"query": WORDS}).status == 200
        server.process.kill()  # the workers end with it
        server.ends = -signal.SIGKILL
        server.wait_for("stopped", 2)


@pytest.mark.parametrize("options", [(), ("--log-queries",)])
def test_the_log_contains_queries_only_on_request(script, trained, tmp_path, options):
    words = "unmistakable wolves"
    with serving(script, trained, tmp_path, *options) as server:
        server.post("/v1/search", {"query": words})
        server.post("/v1/search", {"query": words, "stack": "nope"})
        call_hook(server, {**HOOK, "query": {"match": {"a": words}}})
        server.post("/v1/rerank", {"query": words, "documents": ["a"]})
    requests = [line for line in server.log() if line["event"] == "request"]
    assert {"time", "level", "method", "path", "status", "ms"} <= requests[0].keys()
    assert [line.get("query") for line in requests] == [words if options else None] * 4
    assert ("unmistakable" in server.log_file.read_text()) == bool(options)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_replaced_snapshots_are_closed(script, trained, tmp_path):
    stack = tmp_path / "stack.json"
    Stack.parse("bm25*0.4 + text*0.3 + meta*0.3").save(stack)
    with serving(script, trained, tmp_path, "--stack", stack) as server:
        opened = []
        for count in range(1, 14):
            assert server.post("/v1/search", {"query": WORDS}).status == 200
            opened.append(len(os.listdir(f"/proc/{server.process.pid}/fd")))
            stack.write_bytes(stack.read_bytes() + b"\n")
            server.wait_for("reloaded", count)
    assert opened[-1] <= opened[0] + 4, opened  # SQLite keeps some files open


def test_a_cluster_that_does_not_run_is_reported(script, trained, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with serving(script, move_to_cluster(trained, tmp_path, port), tmp_path, "--stack", STACK) as server:
        server.post("/v1/search", {"query": WORDS}).fails(502, "the engine cannot answer")
        server.post("/v1/hook", call(HOOK)).fails(502)
        assert server.post("/v1/rerank", {"query": WORDS, "documents": ["a", "b"]}).status == 200
        assert server.metric('rerank_errors_total{endpoint="search",kind="engine"}') == 1
        assert sum(line["event"] == "engine failed" for line in server.log()) == 2


@pytest.mark.slow
def test_no_generated_request_causes_an_internal_error(script, trained, tmp_path):
    """The requests come from the OpenAPI description: each endpoint, with valid and invalid bodies."""
    pytest.importorskip("schemathesis")
    token = "s3cret"
    with serving(script, trained, tmp_path, "--stack", STACK, RERANK_SERVICE_TOKEN=token) as server:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json",
            "--max-examples", "50", "--phases", "examples,coverage,fuzzing", "--seed", "1",
            "--request-timeout", "20",
            # The description cannot express all rules, for example that there are as many scores as ids.
            # JSON reads 1 as true.
            "--exclude-checks", "positive_data_acceptance,negative_data_rejection",
            "-H", f"Authorization: Bearer {token}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-5000:]
        described = server.get("/openapi.json").json["paths"]
        del described["/openapi.json"]  # schemathesis does not test it
        assert f"Tested: {len(described)}" in done.stdout, done.stdout[-5000:]
        server.token = token
        assert server.get("/healthz").status == 200
        requests = [line for line in server.log() if line["event"] == "request"]
        for path in described:
            statuses = Counter(line["status"] for line in requests if line["path"] == path)
            assert not any(status >= 500 for status in statuses), (path, statuses)
            if "post" in described[path]:  # successful requests of pages are not logged
                assert {200, 401, 422} <= statuses.keys(), (path, statuses)
