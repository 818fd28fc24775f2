"""``rerank serve``: a real server in a process of its own, asked by real clients."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.opensearch.features import Column
from rerank.formats import read_queries
from rerank.records import Query
from rerank.stack.stack import Stack
from rerank.workspace import Workspace
from tests.service import Answer, Server, other_way_round, serving

STACK = "tfidf,text,meta"
WORDS = "how do bacteria become resistant"


@pytest.fixture(scope="module")
def server(script, trained, tmp_path_factory) -> Iterator[Server]:
    with serving(script, trained, tmp_path_factory.mktemp("serve"), "--stack", STACK) as started:
        yield started


@pytest.fixture(scope="module")
def candidates(trained, small):
    """A query, what its first stage retrieves with features in Base64, and what the pipeline makes of it."""
    workspace = Workspace.open(trained)
    stack = workspace.stack(STACK)
    pipeline = workspace.pipeline(stack.signals)
    query = read_queries(small.queries)[0]
    asked = pipeline.features(stack.signals)
    found = workspace.engine.search(query.text, first_stage="tfidf", depth=100, features=asked)
    assert len(found) > 20
    features = {}
    for name, version in asked.items():
        values = found.features[name]
        features[f"{name}@{version}"] = Column(values.dtype.str, values.shape[1], 0).encode(values)
    body = {
        "query": {"bool": {"must": {"match": {"content": {"query": query.text}}}}},
        "ids": found.ids,
        "scores": found.scores.tolist(),
        "features": features,
    }
    expected = pipeline.answer(Query("q", query.text), replace(stack, depth=100)).ranking
    return query.text, body, expected


# ------------------------------------------------------------------------------------------------- search


@pytest.mark.parametrize("stack", [STACK, "tfidf", "bm25*0.5 + text*0.5"])
def test_search_answers_what_query_prints(server, trained, run, stack):
    expected = run("query", WORDS, "--stack", stack, "-k", 7, "-w", trained, "--json").json
    assert server.post("/v1/search", {"query": WORDS, "stack": stack, "k": 7}).json == expected
    if stack == STACK:  # the server's default
        assert server.post("/v1/search", {"query": WORDS, "k": 7}).json == expected


def test_lexical_signals_look_for_a_translation(server, trained, run):
    options = ("--lexical-text", WORDS, "--stack", STACK, "-k", 5, "-w", trained, "--json")
    expected = run("query", "gene", *options).json
    asked = {"query": "gene", "lexical_text": WORDS, "k": 5}
    assert server.post("/v1/search", asked).json == expected
    assert expected["found"] == run("query", WORDS, *options[2:]).json["found"]
    documents = {"documents": ["a wolf", "a fox"], "stack": "tfidf"}
    answer = server.post("/v1/rerank", {"query": "volpe", "lexical_text": "fox", **documents}).json
    assert [one["index"] for one in answer["results"]] == [1, 0]


def test_search_takes_categories_and_depth_and_leaves_signals_out(server, trained, run, small):
    category = small.documents[0]["categories"][0]
    options = ("--category", category, "--depth", 5, "--stack", STACK, "-w", trained, "--json")
    expected = run("query", WORDS, *options).json
    asked = {"query": WORDS, "categories": [category], "depth": 5}
    assert server.post("/v1/search", asked).json == expected
    hits = server.post("/v1/search", {**asked, "explain": False}).json["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in expected["hits"]]
    assert "signals" not in hits[0]


def test_search_takes_filters(server, trained, run, small):
    category = small.documents[0]["categories"][0]
    expected = run("query", WORDS, "--filter", f"categories={category}", "-w", trained, "--json").json
    assert 0 < expected["candidates"] < len(small.documents)
    asked = {"query": WORDS, "filter": [f"categories={category}"]}
    assert server.post("/v1/search", asked).json == expected
    assert (
        "no document has a field 'x'" in server.post("/v1/search", {**asked, "filter": ["x=1"]}).json["error"]
    )


# --------------------------------------------------------------------------------------------------- hook


def call(body: dict[str, Any]) -> bytes:
    """A hook's call as the plugin sends it: the JSON's length, JSON, and the features as raw bytes."""
    rows, features = b"", {}
    for key, column in body["features"].items():
        found = [None if text is None else b64decode(text) for text in column]
        features[key] = {
            "bytes": max((len(row) for row in found if row is not None), default=0),
            "missing": [i for i, row in enumerate(found) if row is None],
        }
        rows += b"".join(row for row in found if row is not None)
    head = json.dumps({**body, "features": features}).encode()
    return len(head).to_bytes(4, "big") + head + rows


def shuffled(body: dict[str, Any]) -> dict[str, Any]:
    """The same hits in another order."""
    order = np.random.default_rng(0).permutation(len(body["ids"])).tolist()
    lists = {name: [body[name][i] for i in order] for name in ("ids", "scores")}
    features = {name: [column[i] for i in order] for name, column in body["features"].items()}
    return {**body, **lists, "features": features}


def test_the_hook_gives_the_pipelines_order(server, candidates):
    _, body, expected = candidates
    answer = server.post("/v1/hook", call(body)).json
    assert list(answer) == ["ids", "scores", "wishes"]
    assert answer["ids"] == expected.ids
    assert answer["scores"] == expected.scores.tolist()
    assert sorted(answer["wishes"]["features"]) == sorted(body["features"])
    for _ in range(3):  # in a thread, and at once
        assert server.post("/v1/hook", call(shuffled(body))).json == answer


def test_a_searchs_clauses_are_signals(server, candidates):
    _, body, _ = candidates
    n = len(body["ids"])
    asked = {**body, "stack": "tfidf*0.1 + clause:recency*0.9", "features": {}}
    scores = [float(i % 7) for i in range(n)]
    answer = server.post("/v1/hook", call({**asked, "clauses": {"recency": scores, "other": [0.0] * n}})).json
    assert answer["wishes"]["clauses"]
    first = body["ids"].index(answer["ids"][0])
    assert scores[first] == 6.0
    nothing = {"features": [], "voters": 0, "clauses": True}
    said = {"passed": "the scores of clauses did not come", "wishes": nothing}
    assert server.post("/v1/hook", call(asked)).json == said
    said = {"passed": "no clause recency", "wishes": nothing}
    assert server.post("/v1/hook", call({**asked, "clauses": {}})).json == said
    named = {"bool": {"must": body["query"], "should": {"term": {"a": {"value": "b", "_name": "recency"}}}}}
    answer = server.post("/v1/hook", call({**asked, "query": named, "clauses": {}})).json
    assert answer["ids"][0] == body["ids"][int(np.argmax(body["scores"]))]
    few = server.post("/v1/hook", call({**asked, "clauses": {"recency": [1.0]}}))
    assert (few.status, "other scores of the clause" in few.json["error"]) == (422, True)


def test_searches_of_another_scale_are_counted(server, candidates):
    _, body, expected = candidates
    ready = server.get("/readyz").json
    before = ready["scales"].get(ready["stack"], {"same": 0, "other": 0})
    louder = {**body, "scores": [20 * score for score in body["scores"]]}
    for asked in (body, *[louder] * 10):
        assert len(server.post("/v1/hook", call(asked)).json["ids"]) == len(expected)
    after = server.get("/readyz").json["scales"][ready["stack"]]
    assert {name: after[name] - before[name] for name in after} == {"same": 1, "other": 10}
    server.wait_for("other scale")


def test_features_that_do_not_come_are_fetched_or_computed(server, candidates):
    _text, body, expected = candidates
    key = next(key for key in body["features"] if key.startswith("text@"))
    column = body["features"][key]
    nan = Column("<f2", 128, 0).encode(np.full((1, 128), np.nan, "<f2"))[0]
    assert len(nan) == len(column[0])
    for sent in (
        {},  # nothing: fetched
        {**body["features"], key: [None] + column[1:]},
        {**body["features"], key: [None] * len(column)},
        {**body["features"], key: ["AAAA"] * len(column)},
        {**body["features"], key: [text + "AAAA" for text in column]},
        {**body["features"], key: [nan] + column[1:]},
        {"text@older": column, "strange": column},
    ):
        before = server.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}')
        answer = server.post("/v1/hook", call({**body, "features": sent})).json
        assert answer["ids"] == expected.ids
        np.testing.assert_allclose(answer["scores"], expected.scores, atol=1e-3)  # computed in other batches
        assert server.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}') > before


def test_hits_that_the_engine_does_not_know(server, candidates):
    _text, body, _ = candidates
    ids = ["nobody's", *body["ids"][1:]]
    answer = server.post("/v1/hook", {**body, "ids": ids, "features": {}}).json
    assert sorted(answer["ids"]) == sorted(ids)
    other = {"query": body["query"], "ids": ["x", "y"], "scores": [2.0, 1.0]}
    reason = {"passed": "the engine knows none of the hits"}
    for stack in (STACK, "bm25*0.5 + tfidf*0.1 + text*0.4"):
        assert server.post("/v1/hook", {**other, "stack": stack}).json == reason
    answer = server.post("/v1/hook", {**other, "stack": "tfidf*0.9 + bm25*0.1"}).json
    assert answer["ids"] == ["x", "y"]


def test_the_first_stages_score_is_what_came(server, candidates):
    _text, body, _ = candidates
    scores = list(range(len(body["ids"])))
    for stack in ("tfidf", "bm25"):
        asked = {"query": body["query"], "ids": body["ids"], "scores": scores, "stack": stack}
        assert server.post("/v1/hook", asked).json["ids"] == body["ids"][::-1]


def test_both_lexical_signals(server, candidates, trained):
    text, body, _ = candidates
    stack = "tfidf*0.5 + bm25*0.5"
    workspace = Workspace.open(trained)
    expected = workspace.pipeline([]).answer(Query("q", text), replace(Stack.parse(stack), depth=100)).ranking
    answer = server.post("/v1/hook", {**body, "features": {}, "stack": stack}).json
    assert answer["ids"] == expected.ids


def test_what_the_user_says_wins(server, candidates):
    text, body, expected = candidates
    wishes = {"query": text, "stack": STACK, "explain": True}
    answer = server.post(
        "/v1/hook", call({**body, "query": {"match_all": {}}, "stack": "tfidf", "rerank": wishes})
    ).json
    assert answer["ids"] == expected.ids
    assert [list(signals) for signals in answer["signals"]] == [["tfidf", "text", "meta"]] * len(expected)
    hit = expected[0]
    assert answer["signals"][0]["text"]["weighted"] == hit.signals["text"].weighted


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query": {"match_all": {}}}, "the query has no text"),
        ({"query": None}, "the query has no text"),
        ({"rerank": {"query": " "}}, "the query has no text"),
        ({"ids": [], "scores": []}, "there are no hits"),
        ({"ids": ["a", "a"], "scores": [1, 2]}, "two hits have the same id"),
    ],
)
def test_hits_are_passed_through(server, change, reason):
    body = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [1, 2], **change}
    before = server.metric(f'rerank_passed_total{{reason="{reason}"}}')
    assert server.post("/v1/hook", body).json == {"passed": reason}
    assert server.metric(f'rerank_passed_total{{reason="{reason}"}}') == before + 1


# ------------------------------------------------------------------------------------------------- rerank


def test_rerank_by_a_real_client(server, small):
    cohere = pytest.importorskip("cohere")
    texts = [document["text"][:1500] for document in small.documents[:30]]
    wanted = 7
    client = cohere.ClientV2("any", base_url=server.url)
    answer = client.rerank(model="rerank-v3.5", query=texts[wanted][:200], documents=texts, top_n=5)
    assert len(answer.results) == 5
    assert answer.results[0].index == wanted
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    old = cohere.Client("any", base_url=server.url)
    again = old.rerank(
        model="rerank-english-v3.0", query=texts[wanted][:200], documents=texts, return_documents=True
    )
    assert [result.index for result in again.results][:5] == [result.index for result in answer.results]
    assert again.results[0].document.text == texts[wanted]
    assert again.meta.api_version.version == "1"


def test_rerank_documents_as_objects(server, small):
    documents = [
        {"id": d["_id"], "title": d["title"], "text": d["text"], "categories": d["categories"], "more": 1}
        for d in small.documents[:10]
    ]
    body = {
        "query": documents[3]["title"],
        "documents": documents,
        "return_documents": True,
        "stack": "tfidf",
    }
    answer = server.post("/v1/rerank", body).json
    assert answer["results"][0]["document"] == documents[3]
    assert sorted(result["index"] for result in answer["results"]) == list(range(10))
    assert answer["model"] == "tfidf*1.00"
    assert answer["usage"]["total_tokens"] > 100


def test_rerank_scores_documents_as_if_they_were_the_collection(
    server, trained, run, small, tmp_path, write_lines
):
    """The order of an engine that holds just these documents."""
    few = small.documents[:20]
    folder = tmp_path / "ws"
    assert run("ingest", write_lines(tmp_path / "few.jsonl", few), "--lang", "en", "-w", folder).code == 0
    shutil.copytree(trained / "rankers", folder / "rankers")
    assert run("encode", "-w", folder).code == 0
    stack = "tfidf*0.4 + text*0.6"
    query = few[4]["text"][:300]
    expected = run("query", query, "--stack", stack, "-k", 20, "-w", folder, "--json").json["hits"]
    documents = [{"title": d["title"], "text": d["text"]} for d in few]
    body = {"query": query, "documents": documents, "stack": stack}
    results = server.post("/v1/rerank", body).json["results"]
    scores = {few[result["index"]]["_id"]: result["relevance_score"] for result in results}
    assert len(expected) == 20
    np.testing.assert_allclose(
        [scores[hit["id"]] for hit in expected], [h["score"] for h in expected], atol=2e-3
    )


def test_rerank_ties_keep_the_requests_order(server):
    answer = server.post("/v1/rerank", {"query": "wolf", "documents": ["fox"] * 12, "stack": "bm25"}).json
    assert [result["index"] for result in answer["results"]] == list(range(12))
    assert server.post("/v1/rerank", {"query": "wolf", "documents": []}).json["results"] == []


def test_a_model_selects_a_stack_only_if_it_names_signals(server):
    body = {"query": "wolf", "documents": ["wolf", "fox"]}
    assert server.post("/v1/rerank", {**body, "model": "bm25"}).json["model"] == "bm25*1.00"
    assert "meta" in server.post("/v1/rerank", {**body, "model": "jina/reranker v2"}).json["model"]
    server.post("/v1/rerank", {**body, "model": "tfidf,txt"}).fails(422, "'txt' is not trained")


def test_marks_without_end(server):
    """Unicode orders runs of combining marks in quadratic time."""
    marks = "a" + "\u0301\u0327" * 100_000
    begin = time.monotonic()
    assert server.post("/v1/rerank", {"query": marks, "documents": [marks, "wolf"]}).status == 200
    hook = {"query": {"match": {"a": marks}}, "ids": ["a", "b"], "scores": [1, 2]}
    assert server.post("/v1/hook", json.dumps(hook, ensure_ascii=False).encode()).status == 200
    assert server.post("/v1/search", {"query": marks}).status == 200
    assert time.monotonic() - begin < 5


def test_a_query_of_100_000_characters(server, candidates):
    _, body, _ = candidates
    text = "bacteria resist " * 6250
    assert server.post("/v1/search", {"query": text}).status == 200
    assert server.post("/v1/hook", call({**body, "query": {"match": {"a": text}}})).json["ids"]
    assert server.post("/v1/rerank", {"query": text, "documents": [text, "b"]}).status == 200


# ----------------------------------------------------------------------------------------- what is refused

HOOK = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [2.0, 1.0]}


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/v1/rerank", b"", 400, "JSON"),
        ("/v1/rerank", b"{", 400, "JSON"),
        ("/v1/rerank", b'{"query": "\\ud800", "documents": []}', 400, "JSON"),
        ("/v1/rerank", b"\xff\xfe", 400, "JSON"),
        ("/v1/hook", b'{"query": ' + b"[" * 100_000, 400, "JSON"),
        ("/v1/rerank", [], 422, "object"),
        ("/v1/rerank", {"query": "wolf"}, 422, "documents"),
        ("/v1/rerank", {"query": " ", "documents": ["a"]}, 422, "empty"),
        ("/v1/rerank", {"query": "wolf", "documents": [1]}, 422, "documents.0"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"], "top_n": 0}, 422, "top_n"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"] * 1001}, 422, "1,001 documents"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"], "stack": "nope"}, 422, "'nope' is not trained"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"], "stack": "text,meta"}, 422, "not tuned"),
        ("/v1/search", {"query": "wolf", "stack": "/etc/passwd.json"}, 422, "command line|by its signals"),
        ("/v1/search", {"query": "wolf", "stack": "tfidf*"}, 422, "no signal with a weight"),
        ("/v1/search", {"query": "wolf", "depth": 10_000}, 422, "10,000 candidates"),
        ("/v1/search", {"query": "wolf", "k": 10_000}, 422, "10,000 candidates"),
        ("/v1/search", {"query": "wolf", "size": 10}, 422, "size"),
        ("/v1/hook", {**HOOK, "scores": [1]}, 422, "2 ids came with 1 scores"),
        ("/v1/hook", {**HOOK, "scores": [1, None]}, 422, "scores.1"),
        ("/v1/hook", b'{"ids": ["a"], "scores": [NaN]}', 422, "scores.0"),
        ("/v1/hook", b'{"ids": ["a"], "scores": [1e999]}', 422, "scores.0"),
        ("/v1/hook", {**HOOK, "features": {"text@1": {"bytes": 3}}}, 422, "other features"),
        ("/v1/hook", {**HOOK, "features": {"a": {"bytes": 0, "missing": [2]}}}, 422, "other features"),
        ("/v1/hook", b"\0\0\0\x09{}", 422, "9 bytes of JSON are announced"),
        ("/v1/hook", b"\0\0\0\x02{}", 422, "ids"),
        (
            "/v1/hook",
            b'\0\0\0\x19{"ids": [], "scores": []}' + b"AAAA",
            422,
            "4 bytes of features are too many",
        ),
        ("/v1/hook", b'{"ids": [' + b'"a",' * 300_000, 422, "1,048,576 are read"),
        ("/v1/hook", {**HOOK, "ids": ["a"] * 10_000, "scores": [1] * 10_000}, 422, "10,000 hits"),
        ("/v1/nothing", {}, 404, "Not Found"),
        ("/healthz", {}, 405, "Method"),
    ],
)
def test_malformed_requests(server, path, body, status, part):
    answer = server.post(path, body)
    answer.fails(status)
    assert re.search(part, answer.json["error"]), answer


def test_a_body_bomb(script, trained, tmp_path):
    with serving(script, trained, tmp_path, "--max-body", 100_000) as server:
        server.post("/v1/rerank", b" " * 150_000).fails(413, "100,000 bytes")
        assert server.post("/v1/rerank", b" " * 99_000).status == 400
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            head = b"POST /v1/hook HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = 0
            try:
                while sent < 400 * 2**20:
                    raw.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                    sent += 0x10000
            except OSError:
                pass
            assert sent < 300 * 2**20  # it hung up; what is on its way is many MB
        assert server.get("/healthz").status == 200


def test_too_many_at_once_and_too_slow(script, trained, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        folder = elsewhere(trained, tmp_path, hanging.getsockname()[1])
        options = ("--max-requests", 2, "--deadline", 3, "--stack", STACK)
        with serving(script, folder, tmp_path, *options) as server, ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(server.post, "/v1/search", {"query": "wolf"}) for _ in range(2)]
            while server.metric("rerank_requests_in_hand") < 2:
                assert not any(one.done() for one in asked)
            answer = server.post("/v1/search", {"query": "wolf"})
            answer.fails(503, "too many")
            assert answer.headers["Retry-After"] == "1"
            assert server.get("/readyz").json["ready"] is True
            assert {one.result().status for one in asked} <= {502, 504}
            while server.metric("rerank_requests_in_hand"):
                time.sleep(0.02)
    with serving(script, trained, tmp_path, "--deadline", "0.001") as server:
        server.post("/v1/search", {"query": "wolf"}).fails(504, "0.001 seconds")


def test_a_thousand_connections(script, trained, tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = ("--max-requests", 16, "--max-connections-by-address", 1100, "--max-connections", 1100)
    with serving(script, trained, tmp_path, *options) as server:
        body = json.dumps({"query": "wolf"}).encode()
        head = (
            "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        opened = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
        for raw in opened:
            raw.sendall(head.encode() + body)
        answers = Counter()
        for raw in opened:
            raw.settimeout(60)
            answers[raw.recv(12)[-3:]] += 1
            raw.close()
        assert set(answers) <= {b"200", b"503"}
        assert answers[b"200"] >= 16
        assert server.post("/v1/search", {"query": "wolf"}).status == 200


# ---------------------------------------------------------------------------------------------------- token


def test_a_token(script, trained, tmp_path):
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    for options, env in ((("--token-file", file), {}), ((), {"RERANK_SERVICE_TOKEN": "s3cret"})):
        with serving(script, trained, tmp_path, *options, **env) as server:
            for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
                assert server.get(path).status == 200
            assert server.get("/readyz").json == {
                "ready": True
            }  # stacks and versions are for those who know it
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
                answer = server.post("/v1/search", {"query": "wolf"}, **headers)
                answer.fails(401, "token")
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                server.get("/metrics", **headers).fails(401)
            assert "rankers" in server.get("/readyz", Authorization="bearer s3cret").json
            given = {"Authorization": "Bearer s3cret"}
            assert server.post("/v1/search", {"query": "wolf"}, **given).status == 200
            assert server.get("/metrics", **given).status == 200
        assert "s3cret" not in server.log_file.read_text()


def test_what_cannot_be_served(run, trained, plain, tmp_path):
    (tmp_path / "blank").write_text("\n")
    run("serve", "-w", trained, "--host", "0.0.0.0").fails(2, "can be reached from elsewhere", "--insecure")
    run("serve", "-w", trained, "--token-file", tmp_path / "blank").fails(1, "holds no token")
    run("serve", "-w", trained, "--token-file", tmp_path / "none").fails(1, "cannot be read")
    run("serve", "-w", tmp_path / "nowhere").fails(1, "no workspace here")
    run("serve", "-w", plain, "--stack", "tfidf,text").fails(2, "'text' is not trained")
    run("serve", "-w", trained, "--stack", "text,meta").fails(1, "not tuned")
    run("serve", "-w", trained, "--stack", tmp_path / "no.json").fails(1, "no such stack file")
    run("serve", "-w", trained, "--deadline", 0).fails(2, "--deadline")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run("serve", "-w", trained, "--port", port).fails(1, f"127.0.0.1:{port}", "choose another --port")


# ------------------------------------------------------------------------------------------ change and end


@contextmanager
def load(server: Server, clients: int = 4) -> Iterator[list[Answer]]:
    """Searches without a pause; the answers are complete when the block ends."""
    answers: list[Answer] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers.append(server.post("/v1/search", {"query": WORDS, "stack": STACK, "k": 3}))

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask) for _ in range(clients)]
        try:
            yield answers
        finally:
            over.set()
    for done in asking:
        done.result()


def test_changes_are_taken_up_under_load(script, workspace, tmp_path, spawn):
    opened = Workspace.open(workspace)
    path = opened.stack_path(STACK.split(","))
    old = replace(Stack.load(path), cases={})  # one stack for all queries, so that it can be told by its text
    old.save(path)
    new = replace(old, weights=tuple(w + 1 for w in old.weights))

    def use(stack: Stack) -> None:
        stack.save(tmp_path / "stack.json")
        opened.use_stack(str(tmp_path / "stack.json"))

    use(old)
    with serving(script, workspace, tmp_path, "--workers", 1) as server:
        with load(server) as answers:
            time.sleep(0.5)
            use(new)
            server.wait_for("reloaded")
            ranker = opened.ranker("text")
            before = ranker.version
            ranker.version = "another"
            opened.install(ranker)
            server.wait_for("reloaded", 2)  # the stack goes on with the version that it was tuned with
            assert server.get("/readyz").json["rankers"]["text"] == before
            use(replace(new, versions={**new.versions, "text": "another"}))
            server.wait_for("reload waits")  # nothing has its features yet
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
            time.sleep(0.2)
        assert {answer.status for answer in answers} == {200}
        seen = [answer.json["stack"] for answer in answers]
        assert set(seen) == {str(old), str(new)}
        assert seen[-1] == str(old)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded", 6)


@contextmanager
def mixed_load(
    server: Server, bodies: dict[str, bytes], clients: int = 16
) -> Iterator[list[tuple[str, Any]]]:
    """Requests of all kinds without a pause, over connections that stay open; every one must be answered."""
    answers: list[tuple[str, Any]] = []
    over = threading.Event()

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while not over.is_set():
            path = list(bodies)[number % len(bodies)]
            connection.request("POST", path, bodies[path], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            answers.append((path, json.loads(data)))
            number += 1
        connection.close()

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, number) for number in range(clients)]
        try:
            yield answers
        finally:
            over.set()
    for done in asking:
        done.result()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_ranker_is_swapped_whole(script, workspace, tmp_path, candidates, small, workers):
    """All scores of an answer are the old ranker's, or all are the new one's, and no request is lost."""
    text, body, _ = candidates
    (workspace / "serving.json").unlink()  # no stack is in use: what is trained is live at once
    opened = Workspace.open(workspace)
    old = opened.ranker("text")
    new = other_way_round(old, "other")
    documents = list(opened.engine.documents())
    expected = []
    for ranker in (old, new):
        scores = ranker.score(ranker.encode_query(Query("q", text)), ranker.encode_documents(documents))
        expected.append(dict(zip([document.id for document in documents], scores.tolist())))
    few = small.documents[:10]
    stack = "tfidf*0.3 + text*0.7"
    bodies: dict[str, Any] = {
        "/v1/search": {"query": text, "k": 100},
        "/v1/hook": {**body, "features": {}, "rerank": {"explain": True}},  # read from the engine
        "/v1/rerank": {"query": text, "documents": [{"title": d["title"], "text": d["text"]} for d in few]},
    }

    def which(path: str, answer: Any) -> str:
        if path == "/v1/search":
            scores = {hit["id"]: hit["signals"]["text"]["raw"] for hit in answer["hits"]}
        elif path == "/v1/hook":
            signals = [hit["text"]["raw"] for hit in answer["signals"]]
            scores = dict(zip(answer["ids"], signals, strict=True))
        else:
            order = [result["index"] for result in answer["results"]]
            return "old" if order == orders[0] else "new" if order == orders[1] else "half"
        assert max(map(abs, scores.values())) > 0.05  # else the two are much the same
        fits = [all(abs(score - one[id]) < 0.01 for id, score in scores.items()) for one in expected]
        return {(True, False): "old", (False, True): "new"}.get((fits[0], fits[1]), "half")

    def order() -> list[int]:
        return [result["index"] for result in server.post("/v1/rerank", bodies["/v1/rerank"]).json["results"]]

    with serving(script, workspace, tmp_path, "--stack", stack, "--workers", workers) as server:
        server.wait_for("started", workers)
        orders = [order()]
        opened.install(new)
        server.process.send_signal(signal.SIGHUP)  # its features are not stored: they are computed
        server.wait_for("reloaded", workers)
        orders.append(order())
        assert orders[0] != orders[1]
        sent = {path: json.dumps(body).encode() for path, body in bodies.items()}
        with mixed_load(server, sent) as answers:
            for count, ranker in enumerate((old, new, old, new), 2):
                wanted, until = len(answers) + 100, time.monotonic() + 120
                while len(answers) < wanted:
                    assert time.monotonic() < until, "requests fail"
                    time.sleep(0.02)
                opened.install(ranker)
                if ranker is new:
                    server.process.send_signal(signal.SIGHUP)
                server.wait_for("reloaded", count * workers)
            time.sleep(0.5)
    kinds = Counter((path, which(path, answer)) for path, answer in answers)
    assert set(kinds) == {(path, kind) for path in bodies for kind in ("old", "new")}, kinds


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_in_hand_is_finished_at_the_end(script, trained, tmp_path, small, workers):
    documents = [document["text"] for document in small.documents] * 5
    body = {"query": WORDS, "documents": documents, "stack": "tfidf*0.5 + text*0.5"}
    options = ("--threads", 2, "--workers", workers)
    with serving(script, trained, tmp_path, *options) as server, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.post, "/v1/rerank", body) for _ in range(4)]
        while server.metric("rerank_requests_in_hand") < 4:
            assert not any(answer.done() for answer in asked), "too fast to be interrupted"
        server.process.send_signal(signal.SIGTERM)
        assert [answer.result().status for answer in asked] == [200] * 4
        assert server.process.wait(20) == 0


def test_several_workers(script, workspace, tmp_path):
    with serving(script, workspace, tmp_path, "--workers", 2) as server:
        server.wait_for("started", 2)
        with load(server, 8) as answers:
            time.sleep(1)
        assert {answer.status for answer in answers} == {200}
        counted = server.metric('rerank_requests_total{endpoint="search",status="200"}')
        assert counted == len(answers)  # of both
        path = Workspace.open(workspace).stack_path(STACK.split(","))
        path.write_bytes(path.read_bytes() + b"\n")
        server.wait_for("reloaded", 2)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded", 4)
        workers = {line["pid"] for line in server.log() if line["event"] == "started"}
        assert len(workers) == 2
        os.kill(min(workers), signal.SIGKILL)
        server.wait_for("started", 3)
        assert server.post("/v1/search", {"query": WORDS}).status == 200
    pids = {line["pid"] for line in server.log() if line["event"] == "started"}
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_end_when_their_parent_is_killed(script, trained, tmp_path):
    with serving(script, trained, tmp_path, "--workers", 2) as server:
        server.wait_for("started", 2)
        server.process.kill()
        server.ends = -signal.SIGKILL
        server.wait_for("stopped", 2)


def test_the_log_holds_no_query_unless_asked(script, trained, tmp_path):
    for options, expected in (((), False), (("--log-queries",), True)):
        with serving(script, trained, tmp_path, *options) as server:
            server.post("/v1/search", {"query": "unmistakable wolves"})
            server.post("/v1/search", {"query": "unmistakable wolves", "stack": "nope"})
            server.post("/v1/hook", {**HOOK, "query": {"match": {"a": "unmistakable wolves"}}})
            server.post("/v1/rerank", {"query": "unmistakable wolves", "documents": ["a"]})
        requests = [line for line in server.log() if line["event"] == "request"]
        assert len(requests) == 4
        assert {"time", "level", "method", "path", "status", "ms"} <= requests[0].keys()
        assert [line.get("query") == "unmistakable wolves" for line in requests] == [expected] * 4
        assert ("unmistakable" in server.log_file.read_text()) == expected


# ----------------------------------------------------------------------------------------------- a cluster


@pytest.fixture(scope="module")
def cluster(node, small, trained, spawn, write_lines, tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """An index on the node, and a workspace of it with the rankers that were trained on the local engine."""
    index = f"serve-{secrets.token_hex(4)}"
    folder: Path = tmp_path_factory.mktemp("cluster") / "ws"
    few = write_lines(folder.parent / "few.jsonl", small.documents[:60])
    made = ("--url", node.url, "--index", index, "--replicas", 0)
    assert spawn("ingest", few, "-w", folder, *made).code == 0
    shutil.copytree(trained / "rankers", folder / "rankers")
    assert spawn("encode", "-w", folder).code == 0
    yield index, folder
    node.request("DELETE", f"/{index}-*")


def test_the_hook_on_a_cluster(script, node, cluster, run, tmp_path):
    index, folder = cluster
    stack = "bm25*0.4 + text*0.3 + meta*0.3"
    expected = run("query", WORDS, "--stack", stack, "-k", 60, "-w", folder, "--json").json["hits"]
    assert len(expected) > 10
    query = {"match": {"content": WORDS}}
    with serving(script, folder, tmp_path, "--stack", stack) as server:
        assert server.post("/v1/search", {"query": WORDS, "k": 60}).json["hits"] == expected

        def ask(fields: list[str]) -> Answer:
            """Search as the processor does, and send what came."""
            body = {"query": query, "size": 60, "docvalue_fields": [f"rerank_features.{f}" for f in fields]}
            hits = node.request("POST", f"/{index}/_search", {**body, "_source": False})["hits"]["hits"]
            columns = {f: [hit["fields"][f"rerank_features.{f}"][0] for hit in hits] for f in fields}
            sent = {"ids": [h["_id"] for h in hits], "scores": [h["_score"] for h in hits]}
            body = {"query": query, "index": [index], **sent, "features": columns}
            return server.post("/v1/hook", call(body))

        missing = 'rerank_features_missing_total{endpoint="hook",ranker="text"}'
        first = ask([]).json
        assert first["ids"] == [hit["id"] for hit in expected]
        assert server.metric(missing) == len(expected)
        again = ask(first["wishes"]["features"]).json
        assert again == first
        assert server.metric(missing) == len(expected)  # no more


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
@pytest.mark.parametrize("where", ["trained", "cluster"])
def test_what_is_replaced_is_closed(script, request, tmp_path, where):
    folder = request.getfixturevalue(where)
    folder = folder[1] if where == "cluster" else folder
    with serving(script, folder, tmp_path, "--stack", "bm25*0.4 + text*0.3 + meta*0.3") as server:
        opened = []
        for count in range(1, 14):
            assert server.post("/v1/search", {"query": WORDS}).status == 200
            opened.append(len(os.listdir(f"/proc/{server.process.pid}/fd")))
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("reloaded", count)
    assert opened[-1] <= opened[0] + 4, opened  # SQLite keeps some to open them again


def elsewhere(trained: Path, tmp_path: Path, port: int) -> Path:
    """A workspace whose documents are in a cluster at this port."""
    folder = Path(shutil.copytree(trained, tmp_path / "ws"))
    text = (folder / "rerank.toml").read_text().replace('engine = "local"', 'engine = "opensearch"')
    table = f'[opensearch]\nurl = "http://127.0.0.1:{port}"\nindex = "none"\n'
    (folder / "rerank.toml").write_text(f"{text}\n{table}")
    return folder


def test_a_cluster_that_is_away(script, trained, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with serving(script, elsewhere(trained, tmp_path, port), tmp_path, "--stack", STACK) as server:
        server.post("/v1/search", {"query": WORDS}).fails(502, "the engine cannot answer")
        server.post("/v1/hook", HOOK).fails(502)
        assert server.post("/v1/rerank", {"query": WORDS, "documents": ["a", "b"]}).status == 200
        assert server.metric('rerank_errors_total{endpoint="search",kind="engine"}') == 1
        assert sum(line["event"] == "engine failed" for line in server.log()) == 2


def test_a_cluster_that_hangs(script, trained, tmp_path):
    """Threads come free when the deadline is over, not after the cluster's own timeout of a minute."""
    options = ("--stack", STACK, "--deadline", 1, "--threads", 1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        folder = elsewhere(trained, tmp_path, hanging.getsockname()[1])
        with serving(script, folder, tmp_path, *options) as server:
            begin = time.monotonic()
            for _ in range(2):
                assert server.post("/v1/search", {"query": WORDS}).status in (502, 504)
            while server.post("/v1/rerank", {"query": WORDS, "documents": ["a", "b"]}).status != 200:
                assert time.monotonic() - begin < 30


# ------------------------------------------------------------------------------------------------ anything


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "s3cret"])
def test_no_request_makes_it_fail(script, trained, tmp_path, token):
    """Requests made from the service's own description: every endpoint, with right bodies and wrong ones."""
    pytest.importorskip("schemathesis")
    program = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program
    with serving(script, trained, tmp_path, "--stack", STACK, RERANK_SERVICE_TOKEN=token) as server:
        command = [
            program, "run", f"{server.url}/openapi.json", "--max-examples", "50",
            "--phases", "examples,coverage,fuzzing", "--seed", "1", "--request-timeout", "20",
            # What a description cannot say, such as that there are as many scores as ids, may be refused, and
            # 1 is taken for true.
            "--exclude-checks", "positive_data_acceptance,negative_data_rejection",
            *(("-H", f"Authorization: Bearer {token}") if token else ()),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-5000:]
        described = server.get("/openapi.json").json["paths"]
        assert f"Tested: {len(described)}" in done.stdout, done.stdout[-5000:]
        server.token = token
        assert server.get("/healthz").status == 200
        requests = [line for line in server.log() if line["event"] == "request"]
        for path in described:
            statuses = Counter(line["status"] for line in requests if line["path"] == path)
            assert not any(status >= 500 for status in statuses), (path, statuses)
            if path.startswith("/v"):
                assert {200, 422, *([401] if token else [])} <= statuses.keys(), (path, statuses)
