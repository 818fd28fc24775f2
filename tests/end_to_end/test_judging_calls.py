"""The calls of `rerank serve --judge` on a real service, and its start."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import rerank
from rerank.judging.judgments import read_judgments
from rerank.judging.pool import Pool, judged_file
from tests.support.judging import (
    folder,
    grades,
    make_pool,
    pool,
    serve,
)
from tests.support.service import serving

__all__ = ["folder", "pool", "serve"]


def test_several_processes_save_all_grades(serve, tmp_path):
    """Each connection may reach another process. All of them see all grades."""
    pool = tmp_path / "pool.json"
    make_pool({f"q{n}": 10 for n in range(1, 11)}).save(pool)
    bodies = [
        {"query_id": f"q{q}", "id": f"q{q}-d{d}", "grade": d % 4, "by": by}
        for q in range(1, 11) for d in range(10) for by in ("ann", "ben")
    ]  # fmt: skip
    with serve(pool, "--workers", 2) as server:
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda body: server.post("/judge", body), bodies))
        assert {answer.status for answer in answers} == {200}
        for _ in range(8):
            assert server.get("/judge/next?by=ann").json["done"] == 100
    assert Counter(by for by, _, _ in grades(pool)) == {"ann": 100, "ben": 100}


def test_wrong_calls_are_refused_and_change_nothing(serve, pool):
    body = {"query_id": "q1", "id": "q1-d1", "grade": 1, "by": "ann"}
    with serve(pool, "--only", "hook") as server:
        for wrong, part in (
            ({**body, "id": "q2-d1"}, "no hit"),
            ({**body, "query_id": "q9"}, "no hit"),
            ({**body, "grade": 4}, "grade"),
            ({**body, "grade": 1.5}, "grade"),
            ({**body, "by": "  "}, "name of the judge"),
            ({**body, "by": "a\x1b[31m"}, "name of the judge"),
            ({**body, "by": "a" * 101}, "by"),
            ({**body, "note": "n" * 1001}, "note"),
            ({**body, "more": 1}, "more"),
        ):
            server.post("/judge", wrong).fails(422, part)
        server.post("/judge", body, **{"Content-Type": "text/plain"}).fails(415, "application/json")
        server.post("/judge", body, Origin="http://other.example").fails(421, "other origins")
        server.get("/judge/next").fails(422, "name of the judge")
        server.get("/judge/next?by=ann&query=q9").fails(422, "no query")
        server.post("/judge/next", {}).fails(404, "Not Found")
        server.post("/v1/search", {"query": "wolf"}).fails(404, "without search")
        assert not judged_file(pool).read_text()
        assert server.post("/judge", {**body, "by": " ann  b "}).json == {
            "saved": True, "done": 1, "total": 9, "queries": 3,
        }  # fmt: skip
        described = server.get("/openapi.json").json["paths"]
        assert set(described["/judge"]) == {"get", "post"}
        assert "/judge" in server.get("/").json["post"]
    assert [one.by for one in read_judgments(judged_file(pool))] == ["ann b"]


def test_the_page_is_off_unless_a_pool_is_named(script, folder, tmp_path):
    with serving(script, folder / "ws", tmp_path) as server:
        server.get("/judge").fails(404)
        server.post("/judge", {}).fails(404)
        assert "/judge" not in server.get("/openapi.json").json["paths"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda pool: pool.write_text("{}"), "not a pool"),
        (lambda pool: pool.unlink(), "no such file"),
        (lambda pool: judged_file(pool).write_text("no JSON\n"), "pool.judged.jsonl:1: not a judgment"),
        (lambda pool: judged_file(pool).mkdir(), "not saved"),
    ],
)
def test_a_wrong_pool_stops_the_start(spawn, folder, pool, change, problem):
    change(pool)
    spawn("serve", "-w", folder / "ws", "--judge", pool, "--port", 0).fails(1, problem)


def test_an_edited_or_replaced_file_is_read_again(serve, pool):
    body = {"query_id": "q1", "id": "q1-d1", "grade": 1, "by": "ann"}
    with serve(pool) as server:
        assert server.post("/judge", body).json["done"] == 1
        with judged_file(pool).open("a") as file:
            file.write(json.dumps({**body, "id": "q1-d2"}))  # by an editor, without a newline
        assert server.post("/judge", {**body, "id": "q1-d3"}).json["done"] == 3
        judged_file(pool).write_text("")
        assert server.get("/judge/next?by=ann").json["done"] == 0


def test_judgments_by_hand_tune_a_stack(run, script, workspace, small, tmp_path):
    """From a pool over HTTP to a tuned stack. The judge knows the true judgments of the small collection."""
    pool, qrels = tmp_path / "pool.json", tmp_path / "hand.tsv"
    stacks = ("--stack", "tfidf", "--stack", "tfidf*0.4 + text*0.3 + meta*0.3", "-w", workspace)
    run("judge", "pool", *stacks, "--queries", small.queries, "--count", 30, "--out", pool).ok()
    truth = {}
    for split in ("train", "dev", "test"):
        truth.update(rerank.read_qrels(getattr(small, split)))
    with serving(script, workspace, tmp_path, "--judge", pool) as server:
        while True:
            view = server.get("/judge/next?by=ann").json
            if view["query"] is None:
                break
            assert all(set(hit) == {"id", "title", "text", "grade", "note"} for hit in view["hits"])
            query = view["query"]["id"]
            for hit in view["hits"]:
                grade = truth.get(query, {}).get(hit["id"], 0)
                body = {"query_id": query, "id": hit["id"], "grade": grade, "by": "ann"}
                assert server.post("/judge", body).status == 200
        assert view["done"] == view["total"] == Pool.load(pool).hits
    files = ("--queries", small.queries)
    run("judge", "convert", judged_file(pool), qrels, "--to", "trec", *files).ok()
    tuning = (
        "tune",
        "--stack",
        "tfidf,text,meta",
        "--queries",
        small.queries,
        "--qrels",
        qrels,
        "-w",
        workspace,
    )
    tuned = run(*tuning, "--out", tmp_path / "stack.json", "--json").json
    assert tuned["judged_at_10"]["tfidf"]["share"] > 0.9
    assert tuned["tuned"]["value"] >= tuned["tuned"]["first_stage_value"]
