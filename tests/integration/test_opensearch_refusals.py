"""Refusals of a cluster: blocks, documents, missing shards, and failed bulk requests.

The tests use real nodes and a proxy (``tests/support/opensearch.py``).
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.support.opensearch import (
    BUSY,
    MANY,
    Answer,
    Proxy,
    answering,
    at,
    documents,
    edit,
    first,
    indices,
    lines,
    only_bulks,
    slow,
    texts,
)


@pytest.mark.parametrize(
    ("block", "what"),
    [
        ("write", "remove the block"),
        ("read_only", "remove the block"),
        (
            "read_only_allow_delete",
            "read-only-allow-delete",
        ),
    ],
)
def test_a_read_only_index_refuses_documents_and_can_be_repaired(
    run, folder, node, name, tmp_path, block, what
):
    (tmp_path / "new.jsonl").write_bytes(lines(30, 10, "gene"))
    with node.changed({f"index.blocks.{block}": True}, name):
        begun = time.monotonic()
        run("ingest", tmp_path / "new.jsonl", "-w", folder).fails(1, what, "run the same command again")
        assert time.monotonic() - begun < 100  # without retries for two minutes
        run("ingest", "--delete", "n1", "-w", folder).fails(1, what)
        assert len(run("query", "cell", "-w", folder, "-k", 50, "--json").json["hits"]) == 20
    report = run("ingest", tmp_path / "new.jsonl", "-w", folder, "--json").json
    assert (report["added"], report["updated"], report["documents"]) == (10, 10, 30)
    expected = {f"n{i}": f"{'cell' if i < 10 else 'gene'} number {i}" for i in range(30)}
    assert documents(node, name) == expected


def test_a_cluster_that_blocks_new_indices_is_reported(run, few, node, name, tmp_path):
    with node.changed({"cluster.blocks.create_index": True}):
        run("ingest", few, "-w", tmp_path / "ws", *at(node.url, name)).fails(
            1, "create-index blocked", "freeing disk space"
        )
        assert not (tmp_path / "ws").exists()


def test_documents_that_the_cluster_refuses_are_reported(run, few, node, name, tmp_path, write_lines):
    folder = tmp_path / "ws"
    bad = [
        {"_id": "bad-1", "text": "cell", "": 1},
        {"_id": "bad-2", "text": "x", "y" * 60_000: 1},
    ]
    good = [{"_id": f"n{i}", "text": f"gene number {i}"} for i in range(30)]
    file = write_lines(tmp_path / "bad.jsonl", [*good[:10], *bad, *good[10:]])

    # New collection: it is removed.
    command = ("ingest", file, "-w", folder, *at(node.url, name))
    refused = "OpenSearch refuses 2 of 32 documents: 'bad-1': "
    run(*command).fails(1, refused, "'bad-2': ", "--skip-invalid")
    assert not folder.exists()
    assert indices(node, name) == {}
    # Replacement: the old index is kept.
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    there = indices(node, name)
    run("ingest", file, "--replace", "-w", folder).fails(1, refused)
    assert documents(node, name) == texts(20, "cell")
    assert indices(node, name) == there
    # Ingest in place: the other documents are written.
    run("ingest", file, "-w", folder).fails(1, refused)
    assert documents(node, name) == texts(30, "gene")
    # With --skip-invalid: refused documents are skipped and listed by id.
    for more in ([], ["--replace"]):
        done = run("ingest", file, "--skip-invalid", *more, "-w", folder).ok()
        assert re.search(r"^skipped document 'bad-1': .+$", done.err, re.M), done.err
        assert re.search(r"^skipped document 'bad-2': .+$", done.err, re.M), done.err
        assert "2 invalid lines skipped" in done.err
        assert "30 documents" in done.out
        assert documents(node, name) == texts(30, "gene")


def test_ids_that_are_too_long_are_refused(run, few, node, name, tmp_path, write_lines):
    folder = tmp_path / "ws"
    for id, size in (("x" * 513, 513), ("ü" * 257, 514)):
        file = write_lines(tmp_path / "long.jsonl", [{"_id": "ok", "text": "x"}, {"_id": id, "text": "x"}])
        run("ingest", file, "-w", folder, *at(node.url, name)).fails(
            1, f"document 2: its id has {size} bytes, OpenSearch accepts 512: '{id[:40]}'"
        )
        assert not folder.exists()
    assert indices(node, name) == {}
    file = write_lines(
        tmp_path / "long.jsonl", [{"_id": "x" * 512, "text": "x"}, {"_id": "ü" * 256, "text": "x"}]
    )
    assert run("ingest", file, "-w", folder, *at(node.url, name), "--json").json["added"] == 2


def test_a_depth_above_the_result_window_is_refused(run, folder, node, name, tmp_path):
    assert run("attach", "text=text", "-w", tmp_path / "b", "--url", node.url, "--index", name).code == 0
    for workspace in (folder, tmp_path / "b"):
        assert run("query", "cell", "--depth", 10_000, "-w", workspace).code == 0
        run("query", "cell", "--depth", 10_001, "-w", workspace).fails(
            1, f"a depth of 10001 is more than the 10000 that index '{name}' returns at once; choose a",
            "or raise its setting index.max_result_window",
        )  # fmt: skip
    node.request("PUT", f"/{name}/_settings", {"index.max_result_window": 50_000})
    for workspace in (folder, tmp_path / "b"):
        assert (
            len(run("query", "cell", "--depth", 20_000, "-k", 30, "-w", workspace, "--json").json["hits"])
            == 20
        )
    node.request("PUT", f"/{name}/_settings", {"index.max_result_window": 15})
    assert (
        len(run("query", "cell", "--depth", 15, "-k", 30, "-w", tmp_path / "b", "--json").json["hits"]) == 15
    )
    run("query", "cell", "--depth", 16, "-w", folder).fails(1, "a depth of 16 is more than the 15 that index")


def test_missing_shards_are_reported(run, folder, node, name):
    """Partial answers are refused, so that no count or result is wrong."""
    nowhere = {"index.routing.allocation.require._name": "nobody", "number_of_replicas": 0}
    path = f"/{name}-away?wait_for_active_shards=0"
    node.request("PUT", path, {"settings": nowhere, "aliases": {name: {}}})
    for command in (["status"], ["query", "gene"]):
        run(*command, "-w", folder).fails(1, f"not all shards of '{name}' answer", "_cluster/health")


BROKEN = {
    "too busy": only_bulks(BUSY),
    "a gateway without a node": only_bulks(answering(status=503, body=b"<b>x</b>", kind="text/html")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_failed_bulk_requests_are_repeated(run, many, node, name, tmp_path, kind):
    with Proxy(node.port, rule=first(4, BROKEN[kind])) as proxy:
        done = run("ingest", many, "-w", tmp_path / "ws", *at(proxy.url, name), "--json")
        assert (done.json["added"], done.json["updated"]) == (MANY, 0)
        assert proxy.bulks() == 9
    assert documents(node, name) == texts(MANY, "gene")


def test_items_rejected_by_a_full_queue_are_sent_again(run, few, node, name, tmp_path):
    """The cluster accepts some documents of a bulk request. The others are sent again."""

    def rule(request: Any) -> Any:
        if not request.bulk or proxy.bulks() > 2:
            return None
        answer = proxy.forward(request)
        found = json.loads(answer.body)
        found["errors"] = True
        for item in found["items"][5:]:
            item["index"] = {
                "_id": item["index"]["_id"],
                "status": 429,
                "error": {"type": "rejected_execution_exception", "reason": "rejected execution of task"},
            }
        return replace(answer, body=json.dumps(found).encode())

    with Proxy(node.port, rule=rule) as proxy:
        done = run("ingest", few, "-w", tmp_path / "ws", *at(proxy.url, name), "--json")
        assert done.json["added"] == 20
        assert [request.body.count(b'{"index"') for request in proxy.requests if request.bulk] == [20, 15, 10]
    assert documents(node, name) == texts(20, "cell")


def test_bulk_requests_whose_answers_are_cut_are_repeated(run, many, node, name, tmp_path):
    """The client does not know that the documents are written. It sends them again without duplicates."""

    def cut(request: Any) -> Any:
        return replace(proxy.forward(request), cut=True)

    with Proxy(node.port) as proxy:
        proxy.rule = first(3, only_bulks(cut))
        folder = tmp_path / "ws"
        done = run("ingest", many, "-w", folder, *at(proxy.url, name), "--json")
        assert (done.json["added"], done.json["updated"], done.json["documents"]) == (MANY, 0, MANY)
        assert proxy.bulks() == 8
    assert documents(node, name) == texts(MANY, "gene")


def test_a_bulk_request_that_times_out_is_reported(run, many, node, name, tmp_path, impatient):
    folder = tmp_path / "ws"
    (tmp_path / "few.jsonl").write_bytes(lines(2))
    assert run("ingest", tmp_path / "few.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with Proxy(node.port, rule=only_bulks(slow(30))) as proxy:
        edit(folder, url=proxy.url, timeout=6)
        run("ingest", many, "-w", folder).fails(
            1, f"writing documents: no answer from {proxy.url} within 6 s", "run the same command again"
        )
        proxy.rule = lambda request: None
        edit(folder, timeout=60)
        assert run("ingest", many, "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def test_requests_that_are_too_large_are_reported(run, node, name, tmp_path, write_lines):
    def limit(request: Any) -> Any:
        return (
            Answer(413, b"too large", "text/plain") if request.bulk and len(request.body) > 20_000 else None
        )

    records = [{"_id": f"n{i}", "text": f"gene number {i}"} for i in range(1000)]
    file = write_lines(tmp_path / "large.jsonl", [*records, {"_id": "large", "text": "y" * 30_000}])
    with Proxy(node.port, rule=limit) as proxy:
        command = ("ingest", file, "-w", tmp_path / "ws", *at(proxy.url, name))
        run(*command).fails(1, "refuses 1 of 1,001 documents: 'large': 30,", "(413)")
        done = run(*command, "--skip-invalid")
        assert "1,000 added" in done.out
        assert "skipped document 'large': 30," in done.err
    assert documents(node, name) == texts(1000, "gene")
