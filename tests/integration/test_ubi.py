"""`rerank judge clicks --ubi` reads the indices of a real node."""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.click_logs import page, write
from tests.support.opensearch import unavailable
from tools.opensearch_node import Node

UBI = Path(__file__).parents[3] / "shared" / "data" / "ubi" / "ubi_queries_events.ndjson.gz"

EVENTS = [
    {**record, "application": "shop"} for n in range(40) for record in page(str(n), f"q{n % 9}", "abc", "b")
]
QUERIES = [
    {"query_id": str(number), "user_query": f"q{number % 9}", "application": "shop"} for number in range(40)
]


def create(node: Node, name: str, shards: int) -> None:
    node.request("PUT", f"/{name}", {"settings": {"number_of_shards": shards, "number_of_replicas": 0}})


def bulk(node: Node, lines: bytes) -> None:
    """Index the lines of a bulk request."""
    headers = {"Content-Type": "application/x-ndjson"}
    request = urllib.request.Request(f"{node.url}/_bulk?refresh=true", lines, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert not json.load(answer)["errors"]


def as_bulk(name: str, records: list[dict[str, object]]) -> bytes:
    action = json.dumps({"index": {"_index": name}})
    return "".join(f"{action}\n{json.dumps(record)}\n" for record in records).encode()


@pytest.fixture
def empty(node: Node) -> Iterator[Node]:
    """A node with empty indices of UBI."""
    create(node, "ubi_events", 3)
    create(node, "ubi_queries", 1)
    yield node
    node.request("DELETE", "/ubi_events,ubi_queries")


def test_a_cluster_gives_the_files_of_an_export(run, empty, tmp_path, monkeypatch):
    """Half of the events have their text only in ubi_queries."""
    events = [dict(record) for record in EVENTS]
    for record in events[::2]:
        del record["user_query"]
    bulk(empty, as_bulk("ubi_events", events) + as_bulk("ubi_queries", QUERIES))
    monkeypatch.setattr("rerank.engines.opensearch.ubi._PAGE", 7)  # several pages of each shard
    monkeypatch.chdir(tmp_path)
    log = write(tmp_path / "log.ndjson", EVENTS)
    run("judge", "clicks", log, "--out", "files").ok()
    report = run("judge", "clicks", "--ubi", empty.url, "--out", "cluster", "--json").json
    assert (report["events"], report["searches"]) == (len(EVENTS), 40)
    check_equal_files()


def test_a_real_export_gives_the_same_files_from_a_cluster(run, empty, tmp_path, monkeypatch):
    if not UBI.exists():
        unavailable("../shared/data/ubi is missing")
    bulk(empty, gzip.decompress(UBI.read_bytes()))
    monkeypatch.chdir(tmp_path)
    files = run("judge", "clicks", UBI, "--out", "files", "--srw", "files.json", "--json").json
    cluster = run(
        "judge", "clicks", "--ubi", empty.url, "--out", "cluster", "--srw", "cluster.json", "--json"
    ).json
    check_equal_files()
    assert Path("cluster.json").read_bytes() == Path("files.json").read_bytes()
    for name in ("events", "searches", "page_views", "impressions", "clicks", "applications"):
        assert cluster[name] == files[name]
    counts = [{part["reason"]: part["count"] for part in report["dropped"]} for report in (files, cluster)]
    assert counts[0] == counts[1]


def check_equal_files():
    for name in ("queries.jsonl", "train.tsv", "dev.tsv"):
        assert Path("cluster", name).read_bytes() == Path("files", name).read_bytes()


def test_empty_indices_have_no_events(run, empty, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("judge", "clicks", "--ubi", empty.url, "--out", "x", "-q").fails(1, "the log has no events")


def test_missing_indices_are_named(run, node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("judge", "clicks", "--ubi", node.url, "--out", "x", "-q").fails(1, "has no index 'ubi_events'")
    run("judge", "clicks", "--ubi", "http://127.0.0.1:1", "--out", "x", "-q").fails(1, "cannot be reached")
    assert not Path("x").exists()


def test_auto_trains_on_the_clicks_of_a_cluster(run, empty, tmp_path, monkeypatch):
    monkeypatch.setattr("rerank.workflows.auto.plan.RULES", ())  # no ranker is trained
    words = [f"word{number}" for number in range(60)]
    write(
        tmp_path / "corpus.jsonl", [{"_id": f"d{n}", "text": f"{word} text"} for n, word in enumerate(words)]
    )
    events = []
    for number, word in enumerate(words):
        hits = [f"d{number}", f"d{number - 1}" if number else "d59"]
        events += page(str(number), word, hits, [hits[number % 2]])
    bulk(empty, as_bulk("ubi_events", events))
    workspace = tmp_path / "workspace"
    done = run("auto", tmp_path, "--ubi", empty.url, "-w", workspace).ok()
    assert "not active" in done.out
    assert (workspace / "pool.json").exists()
    assert (workspace / "clicks" / "train.tsv").exists()
