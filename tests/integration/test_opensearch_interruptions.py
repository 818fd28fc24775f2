"""Full disks, interrupted ingests, killed processes, and other versions of OpenSearch."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank import Workspace
from tests.support.cli import limit_file_size
from tests.support.opensearch import (
    MANY,
    Gate,
    Proxy,
    at,
    count,
    documents,
    edit,
    indices,
    lines,
    start_command,
    texts,
    unavailable,
)
from tests.support.service import wait_until
from tools.opensearch_node import CannotRunError, Node, running


@pytest.mark.parametrize("size", [0, 100_000])
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_full_local_disk_changes_nothing(spawn, run, few, many, node, name, tmp_path, size, there):
    folder = tmp_path / "ws"
    if there:
        assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    before = indices(node, name), documents(node, name)
    done = spawn("ingest", many, "-w", folder, *at(node.url, name), preexec_fn=limit_file_size(size))
    done.fails(1)
    assert "free space and run again" in done.err or "check the folder and the disk" in done.err, done
    assert (indices(node, name), documents(node, name)) == before
    assert folder.exists() == there
    done = run("ingest", many, "-w", folder, *at(node.url, name), "--json")
    assert done.json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


@contextlib.contextmanager
def interrupted_ingest(
    node: Node, command: list[object], folder: Path, name: str, number: int
) -> Iterator[None]:
    """End an ingest with a signal while it sends. Two requests have passed, and the others are waiting."""
    gate = Gate(2)
    with Proxy(node.port, rule=gate) as proxy:
        if Workspace.exists(folder):
            edit(folder, url=proxy.url)
            process = start_command(*command, "-w", folder)
        else:
            process = start_command(*command, "-w", folder, *at(proxy.url, name))
        assert gate.reached.wait(180)
        process.send_signal(number)
        if number == signal.SIGINT:
            gate.open()
            out, err = process.communicate(timeout=180)
            assert (process.returncode, out, err.strip()) == (130, "", "rerank: interrupted")
        else:
            assert process.wait(180) == -number
            process.communicate()
        yield
        gate.open()
    if Workspace.exists(folder):
        edit(folder, url=node.url)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-C"])
def test_an_interrupted_first_ingest_can_be_repeated(run, many, node, name, tmp_path, number):
    folder = tmp_path / "ws"
    with interrupted_ingest(node, ["ingest", many], folder, name, number):
        assert documents(node, name) == {}  # documents are visible only after a complete ingest
        assert folder.exists() == (number == signal.SIGKILL)
    done = run("ingest", many, "-w", folder, *at(node.url, name), "--json")
    assert (done.json["added"], done.json["documents"]) == (MANY, MANY)
    assert documents(node, name) == texts(MANY, "gene")
    (only,) = indices(node, name)
    assert list(indices(node, name)[only]["aliases"]) == [name]


def test_an_interrupted_ingest_in_place_can_be_repeated(run, many, node, name, tmp_path):
    """The same command sends the missing documents."""
    folder = tmp_path / "ws"
    (tmp_path / "first.jsonl").write_bytes(lines(50, 0, "old") + b'{"_id": "kept", "text": "old"}\n')
    assert run("ingest", tmp_path / "first.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with interrupted_ingest(node, ["ingest", many, "--delete", "kept"], folder, name, signal.SIGKILL):
        pass
    # The node may still be writing documents of requests that it has received.
    wait_until(lambda: count(node, name) > 1000)
    done = run("ingest", many, "--delete", "kept", "-w", folder, "--json").json
    assert done["unchanged"] >= 1000
    assert (done["unchanged"] + done["added"] + done["updated"], done["deleted"]) == (MANY, 1)
    assert documents(node, name) == texts(MANY, "gene")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-C"])
def test_an_interrupted_replacement_keeps_the_old_documents(run, folder, many, node, name, number):
    (old,) = indices(node, name)
    with interrupted_ingest(node, ["ingest", many, "--replace"], folder, name, number):
        assert documents(node, name) == texts(20, "cell")
        assert len(run("query", "cell", "-w", folder, "-k", 50, "--json").json["hits"]) == 20
        assert len(indices(node, name)) == (2 if number == signal.SIGKILL else 1)
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")
    (new,) = indices(node, name)
    assert new != old


def test_an_incomplete_index_that_is_deleted_during_an_ingest(run, folder, many, node, name):
    """The cluster recreates the index automatically with a wrong mapping. The alias must not move to it."""
    (old,) = indices(node, name)

    def delete(request: Any) -> None:
        if request.bulk and proxy.bulks() == 2:
            (half,) = indices(node, name).keys() - {old}
            node.request("DELETE", f"/{half}")

    with Proxy(node.port, rule=delete) as proxy:
        edit(folder, url=proxy.url)
        done = run("ingest", many, "--replace", "-w", folder)
        done.fails(1)  # the message depends on the request that fails first
        assert "nothing was replaced" in done.err or "no such index" in done.err, done
    edit(folder, url=node.url)
    assert documents(node, name) == texts(20, "cell")
    for half in indices(node, name).keys() - {old}:
        run("ingest", many, "--replace", "-w", folder).fails(1, f"'{half}'", "in use")
        assert documents(node, name) == texts(20, "cell")
        node.request("DELETE", f"/{half}")
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


@contextlib.contextmanager
def version(number: str) -> Iterator[Node]:
    try:
        with running(version=number, heap="512m") as other:
            yield other
    except CannotRunError as error:
        unavailable(error)


@pytest.mark.slow
def test_the_oldest_supported_version_works(run, small, tmp_path):
    folder, name = tmp_path / "ws", "oldest"
    with version("2.19.5") as old:
        files = ("--queries", small.queries, "--qrels", small.train, "-w", folder)
        command = ("ingest", small.corpus, "--categories", small.categories, "-w", folder)
        assert run(*command, *at(old.url, name), "--shards", 2, "--json").json["added"] == 200
        done = run("train", "meta", *files, "--dev-qrels", small.dev, "--epochs", 1, "--json")
        assert done.json["encoded"] == {"meta": 200}
        assert run("tune", "--stack", "tfidf,meta", *files).code == 0
        for stack in ("bm25", "tfidf", "tfidf,meta"):
            answer = run("query", "gene expression in cells", "--stack", stack, "-w", folder, "--json").json
            assert len(answer["hits"]) == 10
            assert answer["recomputed"] == {}
        assert run("evaluate", "--stack", "tfidf,meta", *files).code == 0
        before = indices(old, name)
        report = run(*command, "--replace", "--json").json
        assert (report["documents"], report["encoded"]) == (200, {"meta": 200})
        assert run("query", "cells", "--stack", "tfidf,meta", "-w", folder, "--json").json["recomputed"] == {}
        assert len(indices(old, name)) == 1
        assert indices(old, name).keys() != before.keys()
        assert (
            run("ingest", "--delete", small.documents[0]["_id"], "-w", folder, "--json").json["deleted"] == 1
        )
        assert run("encode", "-w", folder, "--json").json["encoded"] == {"meta": 0}
        attached = ("attach", "text=text", "-w", tmp_path / "b", "--url", old.url, "--index", name)
        assert run(*attached).code == 0
        assert len(run("query", "cells", "-w", tmp_path / "b", "--json").json["hits"]) == 10
        run("query", "cells", "--depth", 10_001, "-w", folder).fails(
            1, "raise its setting index.max_result_window"
        )
