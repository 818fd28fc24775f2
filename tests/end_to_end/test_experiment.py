"""Two stacks interleaved by a real service: ``/v1/search``, ``/v1/hook`` and the file of ``--ubi-log``."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank.evaluation.interleaving import draw_coins
from tests.support.click_logs import event, write
from tests.support.hook import query_hits
from tests.support.service import WORDS, Server, call_hook, serving, wait_until

STACK = "bm25*0.5 + text*0.5"
EXPERIMENT = f'\n[experiment]\nname = "new"\na = "first stage"\nb = "{STACK}"\n'

pytestmark = pytest.mark.slow


def workspace_with(trained: Path, folder: Path, experiment: str = EXPERIMENT) -> Path:
    shutil.copytree(trained, folder)
    with open(folder / "rerank.toml", "a", encoding="utf-8") as settings:
        settings.write(experiment)
    return folder


@pytest.fixture(scope="module")
def served(script, trained, tmp_path_factory) -> Iterator[tuple[Server, Path, Path]]:
    """A service with an experiment, its workspace, and its log of searches."""
    folder = tmp_path_factory.mktemp("experiment")
    workspace = workspace_with(trained, folder / "ws")
    log = folder / "searches.ndjson"
    with serving(script, workspace, folder, "--ubi-log", log) as server:
        yield server, workspace, log


def expected_page(a: list[str], b: list[str], client: str, text: str) -> tuple[list[str], str]:
    """Return the documents and the teams of a draft, by a plain loop over turns."""
    documents: list[str] = []
    teams = ""
    for coin in draw_coins("new", client, text):
        for team in "BA" if coin & 1 else "AB":
            remaining = [one for one in (a if team == "A" else b) if one not in documents]
            if not remaining:
                return documents, teams
            documents.append(remaining[0])
            teams += team
    return documents, teams


def records(log: Path, query_id: str) -> list[dict[str, Any]]:
    """Wait for the records of a search."""

    def read() -> list[dict[str, Any]]:
        text = log.read_text("utf-8") if log.exists() else ""
        lines = map(json.loads, text.splitlines())
        return [line for line in lines if line["query_id"] == query_id]

    wait_until(read)
    return read()


def test_search_interleaves_both_stacks(served, run):
    server, workspace, _ = served
    a, b = (query_hits(run, workspace, WORDS, "--stack", stack, count=50) for stack in ("bm25", STACK))
    scores_of_a = [score for _, score in a]
    for client in ("c1", "c2", "c3"):
        answer = server.post("/v1/search", {"query": WORDS, "client_id": client, "k": 20}).json
        documents, teams = expected_page([id for id, _ in a], [id for id, _ in b], client, WORDS)
        hits = answer["hits"]
        assert [hit["id"] for hit in hits] == documents[:20]
        assert [hit["team"] for hit in hits] == [*teams[:20]]
        assert answer["experiment"]["name"] == "new"
        assert answer["experiment"]["teams"].startswith(teams[:20])
        assert [hit["score"] for hit in hits] == pytest.approx(scores_of_a[:20], abs=1e-4)
        for hit in hits:  # a hit has the explanation of its stack
            assert [*hit["signals"]] == (["bm25"] if hit["team"] == "A" else ["bm25", "text"])


def test_pages_and_reloads_agree_and_clients_differ(served):
    server, _, _ = served

    def page(client: str, k: int, text: str = WORDS) -> list[tuple[str, str]]:
        answer = server.post("/v1/search", {"query": text, "client_id": client, "k": k}).json
        return [(hit["id"], hit["team"]) for hit in answer["hits"]]

    assert page("c1", 10) == page("c1", 30)[:10] == page("c1", 10, WORDS.upper())
    assert len({tuple(page(f"client {i}", 10)) for i in range(8)}) > 1


def test_a_search_with_its_own_stack_or_a_minimum_is_not_in_the_experiment(served):
    server, _, _ = served
    answer = server.post("/v1/search", {"query": WORDS, "stack": "bm25"}).json
    assert "experiment" not in answer
    assert "team" not in answer["hits"][0]


def test_each_search_is_logged(served):
    server, _, log = served
    body = {"query": WORDS, "client_id": "c1", "query_id": "search 1"}
    answer = server.post("/v1/search", body).json
    (record,) = records(log, "search 1")
    assert record["client_id"] == "c1"
    assert record["user_query"] == WORDS
    assert record["query_response_hit_ids"][:10] == [hit["id"] for hit in answer["hits"]]
    assert len(record["query_response_hit_ids"]) == 20
    assert record["query_attributes"] == {"experiment": "new", "teams": answer["experiment"]["teams"][:20]}
    assert record["timestamp"].endswith("Z")
    assert os.stat(log).st_mode & 0o077 == 0  # it has words of users
    drawn = server.post("/v1/search", {"query": WORDS, "stack": "bm25"}).json["query_id"]
    (record,) = records(log, drawn)
    assert record["query_attributes"] == {}


def test_clicks_of_logged_searches_decide(served, run, tmp_path):
    """Users who click the first hit of B decide for B."""
    server, _, log = served
    clicks = []
    for number in range(12):
        body = {"query": WORDS, "client_id": f"user {number}", "query_id": f"user {number}"}
        hits = server.post("/v1/search", body).json["hits"]
        first = next(hit["id"] for hit in hits if hit["team"] == "B")
        clicks.append(event("click", f"user {number}", first))
        assert records(log, f"user {number}")
    report = run("judge", "interleaving", log, "--ubi", write(tmp_path / "events", clicks), "--json").json
    assert (report["wins"], report["losses"]) == (12, 0)
    assert report["p"] < 0.06


def hook_call(client: str | None, query_id: str | None, **more: Any) -> dict[str, Any]:
    options = {"client_id": client, "query_id": query_id, **more.pop("options", {})}
    return {"query": {"match": {"content": WORDS}}, "rerank": options, **more}


def test_the_hook_interleaves_all_hits(served, run):
    server, workspace, log = served
    a = query_hits(run, workspace, WORDS, "--stack", "bm25", count=1000)
    ids, scores = [id for id, _ in a], [score for _, score in a]
    hits = {"ids": ids, "scores": scores}
    b = call_hook(server, hook_call("c1", None, options={"stack": STACK}, stack_allowed=True, **hits))
    assert "experiment" not in b
    answer = call_hook(server, hook_call("c1", "hook 1", options={"explain": True}, **hits))
    documents, teams = expected_page(ids, b["ids"], "c1", WORDS)
    assert answer["ids"][: len(documents)] == documents
    assert sorted(answer["ids"]) == sorted(ids)
    assert answer["experiment"]["name"] == "new"
    assert answer["experiment"]["teams"] == teams.ljust(len(ids), "-")
    assert answer["scores"] == sorted(set(answer["scores"]), reverse=True)
    assert answer["scores"] == pytest.approx(scores, abs=1e-3)
    for team, signals in zip(teams, answer["signals"]):
        assert [*signals] == (["bm25"] if team == "A" else ["bm25", "text"])
    (record,) = records(log, "hook 1")
    assert record["query_response_hit_ids"] == documents[:20]
    assert record["query_attributes"]["teams"] == teams[:20]


@pytest.mark.parametrize("change", [{"shadow": True}, {"min_score": 0.1}])
def test_searches_that_keep_or_lose_hits_are_not_interleaved(served, change):
    server, _, _ = served
    answer = call_hook(server, hook_call("c1", None, ids=["a", "b"], scores=[2.0, 1.0], **change))
    assert "experiment" not in answer


def test_searches_without_a_query_id_are_counted_and_reported_once(served, small):
    server, _, _ = served
    counter = 'rerank_interleaved_total{joinable="no"}'
    ids = [document["_id"] for document in small.documents[:3]]
    before = server.metric(counter)
    for _ in range(2):
        call_hook(server, hook_call("c1", None, ids=ids, scores=[3.0, 2.0, 1.0]))
    wait_until(lambda: server.metric(counter) == before + 2)
    assert sum(line["event"] == "no query_id" for line in server.log()) == 1


def test_an_experiment_begins_changes_and_ends_while_the_service_runs(script, trained, tmp_path):
    workspace = workspace_with(trained, tmp_path / "ws", "")
    settings = (workspace / "rerank.toml").read_text("utf-8")

    def change(experiment: str, event: str) -> dict[str, Any]:
        count = sum(line["event"] == event for line in server.log())
        (workspace / "rerank.toml").write_text(settings + experiment, "utf-8")
        server.wait_for(event, count + 1)
        return server.post("/v1/search", {"query": WORDS, "client_id": "c1"}).json

    with serving(script, workspace, tmp_path) as server:
        assert "experiment" not in server.post("/v1/search", {"query": WORDS}).json
        assert "experiment" in change(EXPERIMENT, "reloaded")
        assert "experiment" in change(EXPERIMENT.replace("text", "missing"), "reload failed")
        assert "experiment" not in change(EXPERIMENT + "share = 0.0\n", "reloaded")
        assert "experiment" not in change("", "reloaded")


@pytest.mark.parametrize(
    ("experiment", "parts"),
    [
        (EXPERIMENT.replace("first stage", STACK), ["a and b are both"]),
        (EXPERIMENT.replace("first stage", "tfidf"), ["first stage of a is tfidf, and of b bm25"]),
        (EXPERIMENT.replace("first stage", "missing"), ["missing"]),
        ('\n[experiment]\nname = "new"\na = "bm25"\n', ["rerank.toml", "missing required field `b`"]),
        (EXPERIMENT + "share = 2.0\n", ["rerank.toml", "<= 1"]),
    ],
)
def test_a_wrong_experiment_stops_the_start_with_one_line(run, trained, tmp_path, experiment, parts):
    workspace = workspace_with(trained, tmp_path / "ws", experiment)
    done = run("serve", "-w", workspace, "--port", 0)
    assert done.code != 0
    done.fails(done.code, *parts)


def test_a_log_that_cannot_be_opened_stops_the_start(run, trained, tmp_path):
    run("serve", "-w", trained, "--port", 0, "--ubi-log", tmp_path / "no" / "log").fails(2, "--ubi-log")


def test_searches_go_on_while_the_disk_is_full(script, trained, tmp_path):
    workspace = workspace_with(trained, tmp_path / "ws")
    with serving(script, workspace, tmp_path, "--ubi-log", "/dev/full") as server:
        for _ in range(3):
            answer = server.post("/v1/search", {"query": WORDS})
            assert (answer.status, answer.json["experiment"]["name"]) == (200, "new")
        wait_until(lambda: server.metric('rerank_ubi_records_total{result="lost"}') == 3)
        assert sum(line["event"] == "ubi log failed" for line in server.log()) == 1
        assert server.metric('rerank_ubi_records_total{result="written"}') == 0


def test_searches_go_on_while_the_disk_hangs(script, trained, tmp_path):
    """The pipe has space for about 100 records."""
    workspace = workspace_with(trained, tmp_path / "ws")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with serving(script, workspace, tmp_path, "--ubi-log", tmp_path / "pipe") as server:
            for _ in range(200):
                assert server.post("/v1/search", {"query": WORDS, "k": 1}).status == 200
            assert server.metric('rerank_ubi_records_total{result="written"}') < 200
            # The service ends although the pipe has no reader that empties it.
    finally:
        os.close(reader)


def test_a_rotated_log_is_created_again(script, trained, tmp_path):
    log = tmp_path / "log"
    with serving(script, trained, tmp_path, "--ubi-log", log) as server:
        for name in ("first", "second"):
            server.post("/v1/search", {"query": WORDS, "query_id": name})
            assert len(records(log, name)) == 1
            if name == "first":
                log.rename(tmp_path / "log.1")
    assert len(log.read_text("utf-8").splitlines()) == 1
    assert json.loads((tmp_path / "log.1").read_text("utf-8"))["query_id"] == "first"


def test_the_records_of_several_processes_are_whole_lines(script, trained, tmp_path):
    workspace = workspace_with(trained, tmp_path / "ws")
    log = tmp_path / "log"
    with serving(script, workspace, tmp_path, "--ubi-log", log, "--workers", 2) as server:
        for i in range(40):
            server.post("/v1/search", {"query": WORDS, "query_id": f"search {i}"})
        wait_until(lambda: len(log.read_text("utf-8").splitlines()) == 40)
    found = {json.loads(line)["query_id"] for line in log.read_text("utf-8").splitlines()}
    assert found == {f"search {i}" for i in range(40)}
