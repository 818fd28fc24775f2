"""``rerank serve``: a real server in a separate process, called by real clients."""

from __future__ import annotations

import gzip
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank.documents.records import Query
from rerank.engines.opensearch.columns import Column
from rerank.stack.stack import Stack
from rerank.workspace.workspace import Workspace
from tests.support.hook import query_hits, texts
from tests.support.service import (
    HOOK,
    STACK,
    WORDS,
    call,
    call_hook,
    candidates,
    move_to_cluster,
    read_answer,
    server,
    serving,
    wait_until,
)

__all__ = ["candidates", "server"]


def test_search_returns_the_hits_of_rerank_query(server, trained, run, small):
    category = small.documents[0]["categories"][0]
    for body, stack, options in (
        ({"k": 7}, STACK, ("-k", 7)),  # the server's default
        ({"stack": "tfidf"}, "tfidf", ()),
        ({"stack": "bm25*0.5 + text*0.5"}, "bm25*0.5 + text*0.5", ()),
        ({"lexical_text": "gene cell"}, STACK, ("--lexical-text", "gene cell")),
        ({"categories": [category], "depth": 5}, STACK, ("--category", category, "--depth", 5)),
        ({"filter": [f"categories={category}"]}, STACK, ("--filter", f"categories={category}")),
    ):
        expected = run("query", WORDS, "--stack", stack, *options, "-w", trained, "--json").json
        assert expected["hits"]
        assert server.post("/v1/search", {"query": WORDS, **body}).json == expected
    bare = server.post("/v1/search", {"query": WORDS, **body, "explain": False}).json["hits"]
    assert [hit["id"] for hit in bare] == [hit["id"] for hit in expected["hits"]]
    assert "signals" not in bare[0]


def test_unknown_categories_are_ignored_and_reported(server, small):
    category, unknown = small.documents[0]["categories"][0], {"categories": ["Qqqqq"]}

    def search(**fields):
        return server.post("/v1/search", {"query": WORDS, **fields}).json

    answer = search(categories=["Qqqqq", category.upper()])
    assert (answer["categories"], answer["unknown_categories"]) == ([category], ["Qqqqq"])
    assert answer["hits"] == search(categories=[category])["hits"]
    bare, nothing = search(), search(**unknown)
    assert (nothing["case"], nothing["hits"]) == (bare["case"], bare["hits"])
    asked = {"query": WORDS, "documents": [document["title"] for document in small.documents[:5]]}
    bare, nothing = (server.post("/v1/rerank", {**asked, **more}).json for more in ({}, unknown))
    assert [one["unknown_categories"] for one in (bare, nothing)] == [[], ["Qqqqq"]]
    assert bare["results"] == nothing["results"]
    hits = {"ids": [document["_id"] for document in small.documents[:3]], "scores": [3.0, 2.0, 1.0]}
    search = {"query": {"match": {"text": WORDS}}, **hits}
    bare, nothing = (call_hook(server, {**search, "rerank": more}) for more in ({}, unknown))
    assert bare["scores"] == nothing["scores"]
    assert "unknown_categories" not in nothing  # a user could test which hidden categories exist
    answer = call_hook(server, {**search, "rerank": unknown, "raw_values": True})
    assert answer["unknown_categories"] == ["Qqqqq"]


def shuffle(body: dict[str, Any]) -> dict[str, Any]:
    """Return the same hits in another order."""
    order = np.random.default_rng(0).permutation(len(body["ids"])).tolist()
    lists = {name: [body[name][i] for i in order] for name in ("ids", "scores")}
    features = {name: [column[i] for i in order] for name, column in body["features"].items()}
    return {**body, **lists, "features": features}


def test_the_hook_endpoint_returns_the_order_of_the_pipeline(server, candidates):
    _, body, expected = candidates
    answer = call_hook(server, body)
    assert list(answer) == ["ids", "scores", "requested_fields"]
    assert answer["ids"] == expected.ids
    assert answer["scores"] == expected.scores.astype("f4").tolist()
    assert sorted(answer["requested_fields"]["features"]) == sorted(body["features"])
    for _ in range(3):  # in a thread and on the event loop
        assert call_hook(server, shuffle(body)) == answer


def test_only_a_limited_number_of_hits_is_encoded(script, trained, tmp_path, candidates):
    _, body, _ = candidates
    n, most = len(body["ids"]), 3
    key = next(key for key in body["features"] if key.startswith("text@"))
    sent = {**body["features"], key: [None] * n}
    counter = "rerank_searches_without_features_total"
    with serving(script, trained, tmp_path, "--stack", STACK, "--max-encoded", most) as server:
        answer = call_hook(server, {**body, "features": sent})
        assert answer["without_features"] == {"encoded": most, "unscored": n - most}
        assert answer["ids"][most:] == body["ids"][most:]  # these keep their places
        assert sorted(answer["ids"][:most]) == sorted(body["ids"][:most])
        assert server.metric('rerank_unscored_total{reason="missing"}') == n - most
        assert "without_features" not in call_hook(server, body)
        assert server.metric(counter) == 1


def test_missing_features_are_fetched_or_computed(server, candidates):
    _text, body, expected = candidates
    key = next(key for key in body["features"] if key.startswith("text@"))
    column = body["features"][key]
    nan = Column("<f2", 128, 0).encode(np.full((1, 128), np.nan, "<f2"))[0]
    assert len(nan) == len(column[0])
    for sent in (
        {},  # nothing is sent, so features are fetched
        {**body["features"], key: [None] + column[1:]},
        {**body["features"], key: [None] * len(column)},
        {**body["features"], key: ["AAAA"] * len(column)},
        {**body["features"], key: [text + "AAAA" for text in column]},
        {**body["features"], key: [nan] + column[1:]},
        {"text@older": column, "strange": column},
    ):
        before = server.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}')
        answer = call_hook(server, {**body, "features": sent})
        assert answer["ids"] == expected.ids
        np.testing.assert_allclose(answer["scores"], expected.scores, atol=1e-3)  # computed in other batches
        assert server.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}') > before


def test_hits_that_the_engine_does_not_have_are_returned(server, candidates):
    _text, body, _ = candidates
    ids = ["nobody's", *body["ids"][1:]]
    answer = call_hook(server, {**body, "ids": ids, "features": {}})
    assert sorted(answer["ids"]) == sorted(ids)
    other = {"query": body["query"], "ids": ["x", "y"], "scores": [2.0, 1.0]}
    reason = {"passed": "the engine knows none of the hits"}
    for stack in (STACK, "bm25*0.5 + tfidf*0.1 + text*0.4"):
        assert call_hook(server, {**other, "stack": stack}) == reason
    answer = call_hook(server, {**other, "stack": "tfidf*0.9 + bm25*0.1"})
    assert answer["ids"] == ["x", "y"]


def test_lexical_signals_in_calls_of_the_hook(server, candidates, trained):
    """The call contains the first-stage score. The engine computes the other lexical score."""
    text, body, _ = candidates
    asked = {"query": body["query"], "ids": body["ids"], "scores": list(range(len(body["ids"])))}
    for stack in ("tfidf", "bm25"):
        assert call_hook(server, {**asked, "stack": stack})["ids"] == body["ids"][::-1]
    stack = replace(Stack.parse("tfidf*0.5 + bm25*0.5"), depth=100)
    expected = Workspace.open(trained).pipeline([]).answer(Query("q", text), stack).ranking
    asked["scores"] = body["scores"]
    assert call_hook(server, {**asked, "stack": str(stack)})["ids"] == expected.ids


def test_options_of_the_user_override_the_pipeline(server, candidates):
    text, body, expected = candidates
    requested_fields = {"query": text, "stack": STACK, "explain": True}
    answer = call_hook(
        server, {**body, "query": {"match_all": {}}, "stack": "tfidf", "rerank": requested_fields}
    )
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
        ({"ids": [], "scores": []}, "the search has no hits"),
        ({"ids": ["a", "a"], "scores": [1, 2]}, "two hits have the same id"),
    ],
)
def test_searches_that_cannot_be_scored_are_passed_through(server, change, reason):
    body = {"query": {"match": {"a": "wolf"}}, "ids": ["a", "b"], "scores": [1, 2], **change}
    before = server.metric(f'rerank_passed_total{{reason="{reason}"}}')
    assert call_hook(server, body) == {"passed": reason}
    assert server.metric(f'rerank_passed_total{{reason="{reason}"}}') == before + 1


def test_the_service_describes_itself(server):
    home = server.get("/").json
    assert home["name"] == "rerank"
    assert "/v1/rerank" in home["post"]
    models = server.get("/v1/models").json["data"]
    assert "meta,text,tfidf" in [model["id"] for model in models]


@pytest.mark.parametrize("text", ["bacteria resist " * 6250, "a" + "\u0301\u0327" * 100_000], ids=len)
def test_long_queries_are_answered(server, text):
    """Unicode sorts sequences of combining marks in quadratic time, which takes hours for these texts."""
    hook = {"query": {"match": {"a": text}}, "ids": ["a", "b"], "scores": [1, 2]}
    assert call_hook(server, hook) == {"passed": "the engine knows none of the hits"}
    for path, body in (("/v1/search", {}), ("/v1/rerank", {"documents": [text, "wolf"]})):
        assert server.post(path, {"query": text, **body}).status == 200


def scores_by_id(server, ids: list[str], **body) -> dict[str, float]:
    """Return id -> score, in the order of the answer."""
    results = server.post("/v1/rerank_ids", {"ids": ids, **body}).json["results"]
    return {ids[one["index"]]: one["relevance_score"] for one in results}


@pytest.mark.parametrize("stack", ["text", "bm25", None])
def test_rerank_ids_returns_the_order_of_rerank_query(server, trained, small, run, stack):
    for query in texts(small, 2):
        hits = query_hits(run, trained, query, "--stack", stack or STACK, "--depth", 60, count=60)
        ids = sorted(id for id, _ in hits)
        actual = scores_by_id(server, ids, query=query, **({"stack": stack} if stack else {}))
        assert list(actual) == [id for id, _ in hits]
        assert actual == pytest.approx(dict(hits), rel=1e-6, abs=1e-6)


def test_scores_are_numbers_that_ml_commons_can_read(server, small):
    """ML Commons fails on ``1``, and on numbers of more than 18 characters."""
    ids = [document["_id"] for document in small.documents[:100]] + ["none-such"]
    text = server.post("/v1/rerank_ids", {"query": "wolf cell dna", "ids": ids}).body.decode()
    scores = [part.split("}")[0] for part in text.split('"relevance_score":')[1:]]
    assert len(scores) == 101
    assert all(len(score) <= 18 and set(score) & set(".e") for score in scores), scores
    assert scores_by_id(server, [], query="wolf") == {}


def frame(json: bytes) -> bytes:
    """Return a call of the hook with this JSON, without numbers."""
    return len(json).to_bytes(4, "big") + json


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/v1/rerank", b"", 400, "JSON"),
        ("/v1/rerank", b"{", 400, "JSON"),
        ("/v1/rerank", b'{"query": "\\ud800", "documents": []}', 400, "JSON"),
        ("/v1/rerank", b"\xff\xfe", 400, "JSON"),
        ("/v1/rerank", [], 422, "object"),
        ("/v1/rerank", {"query": "wolf"}, 422, "documents"),
        ("/v1/rerank", {"query": " ", "documents": ["a"]}, 422, "empty"),
        ("/v1/rerank", {"query": "wolf", "documents": [1]}, 422, "documents.0"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"], "top_n": 0}, 422, "top_n"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"] * 1001}, 422, "1,001 documents"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"], "stack": "nope"}, 422, "'nope' is not trained"),
        ("/v1/rerank", {"query": "wolf", "documents": ["a"], "stack": "text,meta"}, 422, "not tuned"),
        ("/v1/search", {"query": "wolf", "stack": "/etc/passwd.json"}, 422, "command line|by its signals"),
        ("/v1/search", {"query": "wolf", "stack": "tfidf*"}, 422, "not a signal with a weight"),
        ("/v1/search", {"query": "wolf", "depth": 10_000}, 422, "10,000 candidates"),
        ("/v1/search", {"query": "wolf", "k": 10_000}, 422, "10,000 candidates"),
        (
            "/v1/search",
            {"query": "wolf", "size": 10},
            422,
            "size.*; the fields are query, lexical_text, .*k,",
        ),
        ("/v1/rerank_ids", {"query": "wolf", "ids": [], "k": 1}, 422, "the fields are query, ids, stack"),
        (
            "/v1/rerank",
            {"query": "wolf", "documents": ["a", {"content": "a", "x": 1}]},
            422,
            "1 has 'content', 'x'",
        ),
        ("/v1/rerank", {"query": "wolf", "documents": [{}]}, 422, "documents.0 has no field, but no 'text'"),
        (
            "/v1/rerank",
            {"query": "wolf", "documents": [{"Text": "a"}]},
            422,
            "'Text', but no 'text' or 'title'",
        ),
        (
            "/v1/rerank",
            {"query": "a", "documents": [{"text": "a"}], "rank_fields": ["b"]},
            422,
            "none of the rank_fields b",
        ),
        ("/v1/rerank", '{"query": "wolf"}'.encode("utf-16"), 400, "not JSON: it is UTF-16"),
        ("/v1/rerank", gzip.compress(b'{"query": "wolf"}', mtime=0), 400, "send Content-Encoding: gzip"),
        ("/v1/search", {"query": "wolf", "lang": "klingon"}, 422, "'klingon' is not a language code"),
        ("/v1/search", {"query": "wolf", "filter": ["x=1"]}, 422, "no document has a field 'x'"),
        ("/v1/hook", frame(b'{"query": ' + b"[" * 100_000), 422, "object"),
        ("/v1/hook", frame(b'{"hits": NaN}'), 400, "JSON"),
        ("/v1/hook", frame(b'{"hits": 1, "ids": ["\xff"]}'), 400, "UTF-8"),
        ("/v1/hook", frame(b'{"hits": 0, "query": ' + b'{"a":' * 100_000), 400, "nested too deep"),
        ("/v1/hook", frame(b'{"hits": 1, "features": {"text@1": 3}}'), 422, "features"),
        ("/v1/hook", frame(b'{"hits": 1, "ids": [' + b'"a",' * 300_000), 422, "1,048,576 are read"),
        ("/v1/hook", frame(b'{"hits": 10000}') + bytes(280_000), 422, "10,000 hits"),
        ("/v1/hook", b'\0\0\0\x1d{"hits": 1,"features": ["a"]}' + bytes(30), 422, "another length"),
        ("/v1/hook", b'\0\0\0\x1d{"hits": 1,"features": ["a"]}' + b"\xff" * 32, 422, "not a number"),
        ("/v1/hook", b'\0\0\0\x1d{"hits": 1,"features": ["a"]}' + bytes(31) + b"a", 422, "another length"),
        ("/v1/hook", b"{}", 422, "bytes of JSON are announced"),
        ("/v1/hook", b"\0\0\0\x09{}", 422, "9 bytes of JSON are announced"),
        ("/v1/hook", b"\0\0\0\x02{}", 422, "hits"),
        ("/v1/hook", b'\0\0\0\x0b{"hits": 2}' + bytes(15), 422, "2 hits came with 2 ids and 15 bytes"),
        ("/v1/hook", b'\0\0\0\x0b{"hits": 1}' + b"\x7f\xff" * 14, 422, "not a number"),
        ("/v1/hook", b'\0\0\0\x18{"hits": 2,"ids": ["a"]}' + bytes(16), 422, "1 ids and 16 bytes"),
        ("/v1/hook", b'\0\0\0\x0b{"hits": 0}AAAA', 422, "4 bytes are too many"),
        ("/v1/rerank_ids", {"query": "wolf", "ids": ["none-such", ""]}, 422, "knows none of the ids"),
        ("/v1/rerank_ids", {"query": "wolf", "ids": ["", ""]}, 422, "twice"),
        ("/v1/rerank_ids", {"query": "wolf", "ids": ["none"], "stack": "tfidf"}, 422, "none of the ids"),
        ("/v1/rerank_ids", {"query": " ", "ids": ["a"]}, 422, "the query is empty"),
        ("/v1/rerank_ids", {"query": "wolf", "ids": ["a"], "other": 1}, 422, "other"),
        ("/v1/rerank_ids", {"query": "wolf", "ids": [str(i) for i in range(1001)]}, 422, "1,001 ids"),
        ("/v1/nothing", {}, 404, "Not Found"),
        ("/healthz", {}, 405, "Method"),
    ],
)
def test_malformed_requests_are_refused(server, path, body, status, part):
    answer = server.post(path, body)
    answer.fails(status)
    assert re.search(part, answer.json["error"]), answer


def test_compressed_bodies_and_byte_order_marks_are_read(script, trained, tmp_path):
    body = {"query": "wolf", "documents": ["fox", "wolf"], "stack": "bm25"}
    data = json.dumps(body).encode()
    gzipped = {"Content-Encoding": "gzip"}
    with serving(script, trained, tmp_path, "--max-body", 100_000) as server:
        answers = [
            server.post("/v1/rerank", data),
            server.post("/v1/rerank", b"\xef\xbb\xbf" + data),
            server.post("/v1/rerank", gzip.compress(data), **gzipped),
            server.post("/v1/rerank", data, **{"Content-Encoding": "identity"}),
        ]
        results = [answer.json["results"] for answer in answers]
        assert [result["index"] for result in results[0]] == [1, 0]
        assert results == results[:1] * 4
        hits = call({**HOOK, "stack": "bm25"})
        answer = server.post("/v1/hook", gzip.compress(hits), **gzipped)
        assert read_answer(answer.body, HOOK["ids"]) == call_hook(server, {**HOOK, "stack": "bm25"})
        server.post("/v1/rerank", gzip.compress(data)[:-9], **gzipped).fails(400, "gzip")
        server.post("/v1/rerank", data, **gzipped).fails(400, "gzip")
        server.post("/v1/rerank", gzip.compress(b" " * 200_000), **gzipped).fails(413, "100,000 bytes")
        answer = server.post("/v1/rerank", data, **{"Content-Encoding": "br"})
        answer.fails(415, "'br'", "gzip")
        assert answer.headers["Accept-Encoding"] == "gzip"


def test_a_body_above_the_limit_is_refused(script, trained, tmp_path):
    with serving(script, trained, tmp_path, "--max-body", 100_000) as server:
        server.post("/v1/rerank", b" " * 150_000).fails(413, "100,000 bytes")
        assert server.post("/v1/rerank", b" " * 99_000).status == 400
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            head = b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = 0
            try:
                while sent < 400 * 2**20:
                    raw.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                    sent += 0x10000
            except OSError:
                pass
            assert sent < 300 * 2**20  # the server closed the connection; many MB are in transit
        assert server.get("/healthz").status == 200


def test_the_limits_of_concurrent_requests_and_time(script, trained, tmp_path):
    """Threads must not wait for the cluster's timeout of ten minutes."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        folder = move_to_cluster(trained, tmp_path, hanging.getsockname()[1], timeout=600)
        options = ("--max-requests", 2, "--deadline", 3, "--threads", 1, "--stack", STACK)
        with serving(script, folder, tmp_path, *options) as server, ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(server.post, "/v1/search", {"query": "wolf"}) for _ in range(2)]
            wait_until(lambda: server.metric("rerank_requests_in_hand") == 2)
            answer = server.post("/v1/search", {"query": "wolf"})
            answer.fails(503, "too many")
            assert answer.headers["Retry-After"] == "1"
            assert server.get("/readyz").json["ready"] is True
            assert {one.result().status for one in asked} <= {502, 504}
            wait_until(lambda: not server.metric("rerank_requests_in_hand"))
            asked = {"query": WORDS, "documents": ["a"], "stack": "text"}
            wait_until(lambda: server.post("/v1/rerank", asked).status == 200)  # in at most five minutes


def test_requests_need_the_token(script, trained, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    with serving(script, trained, tmp_path, "--token-file", tmp_path / "token") as server:
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert server.get(path).status == 200
        assert server.get("/readyz").json == {"ready": True}  # only clients with the token see the stacks
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            answer = server.post("/v1/search", {"query": "wolf"}, **headers)
            answer.fails(401, "token")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            server.get("/metrics", **headers).fails(401)
        assert "rankers" in server.get("/readyz", Authorization="bearer s3cret").json
        server.token = "s3cret"
        assert server.post("/v1/search", {"query": "wolf"}).status == 200
        assert server.get("/metrics").status == 200
    assert "s3cret" not in server.log_file.read_text()


def test_invalid_serve_commands_are_refused(run, trained, plain, tmp_path):
    (tmp_path / "blank").write_text("\n")
    run("serve", "-w", trained, "--host", "0.0.0.0").fails(2, "0.0.0.0", "--insecure")
    run("serve", "-w", trained, "--token-file", tmp_path / "blank").fails(1, str(tmp_path / "blank"))
    (tmp_path / "latin").write_bytes(b"s\xe9same")
    for name, reason in (("none", "No such file or directory"), ("latin", "not UTF-8 text")):
        refusal = run("serve", "-w", trained, "--token-file", tmp_path / name)
        refusal.fails(1, f"{tmp_path / name}: the token cannot be read ({reason});")
    run("serve", "-w", tmp_path / "nowhere").fails(1, "no workspace here")
    run("serve", "-w", plain, "--stack", "tfidf,text").fails(2, "'text' is not trained")
    run("serve", "-w", trained, "--stack", "text,meta").fails(1, "not tuned")
    run("serve", "-w", trained, "--stack", tmp_path / "no.json").fails(1, "no such stack file")
    run("serve", "-w", trained, "--deadline", 0).fails(2, "--deadline")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run("serve", "-w", trained, "--port", port).fails(1, f"127.0.0.1:{port}", "--port")
