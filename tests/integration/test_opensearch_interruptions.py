"""Full disks, ingests that are cut off, nodes that die meanwhile, and other versions of OpenSearch."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank import Workspace
from tests.node import CannotRunError, Node, running
from tests.opensearch_faults import (
    MANY,
    at,
    documents,
    edit,
    fails_again,
    few,
    indices,
    limited,
    lines,
    many,
    name,
    no_credentials,
    started,
    texts,
    wait_for,
)
from tests.proxy import (
    Gate,
    Proxy,
    answering,
    first,
    only_bulks,
)
from tests.unavailable import unavailable

__all__ = ["few", "many", "name", "no_credentials"]


@pytest.mark.parametrize("size", [0, 300, 100_000])
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_full_disk_here(spawn, run, few, many, node, name, tmp_path, size, there):
    folder = tmp_path / "ws"
    if there:
        assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    before = indices(node, name), documents(node, name)
    done = spawn("ingest", many, "-w", folder, *at(node.url, name), preexec_fn=limited(size))
    done.fails(1, "cannot be ")
    assert "free space and run again" in done.err or "check the folder and the disk" in done.err, done
    assert (indices(node, name), documents(node, name)) == before
    assert folder.exists() == there
    done = run("ingest", many, "-w", folder, *at(node.url, name), "--json")
    assert done.json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def test_the_log_of_what_was_sent_cannot_be_written(run, many, node, name, tmp_path):
    """The chunk that is under way then is sent again, and no other."""
    folder, gate = tmp_path / "ws", Gate(2)
    with Proxy(node.port, rule=gate) as proxy:
        process = started("ingest", many, "-w", folder, *at(proxy.url, name))
        assert gate.reached.wait(60)
        log = folder / "engine" / "unfinished" / "done"
        wait_for(lambda: log.exists() and log.read_bytes().count(b"chunk") == 2)
        process.kill()
        process.wait()
    log.write_bytes(log.read_bytes()[:-30])  # as a power cut leaves it
    for _ in range(2):
        with Proxy(node.port) as proxy:
            proxy.rule = only_bulks(first(1, answering(status=401)))
            edit(folder, url=proxy.url)
            done = run("ingest", many, "-w", folder)
            fails_again(done, "(401)")
            assert proxy.bulks() <= 5
    edit(folder, url=node.url)
    assert run("ingest", many, "-w", folder, "--json").json["added"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


@contextlib.contextmanager
def interrupted(
    node: Node, command: list[object], folder: Path, name: str, number: int, through: int = 2
) -> Iterator[None]:
    """End an ingest by a signal while it sends: so many chunks are in, the others are on their way."""
    gate = Gate(through)
    with Proxy(node.port, rule=gate) as proxy:
        if Workspace.exists(folder):
            edit(folder, url=proxy.url)
            process = started(*command, "-w", folder)
        else:
            process = started(*command, "-w", folder, *at(proxy.url, name))
        assert gate.reached.wait(60)
        wait_for(lambda: (folder / "engine" / "unfinished" / "done").read_bytes().count(b"chunk") >= through)
        process.send_signal(number)
        if number == signal.SIGINT:
            time.sleep(0.3)
            gate.open()
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err.strip()) == (130, "", "rerank: interrupted")
        else:
            assert process.wait(60) == -number
            process.communicate()
        yield
        gate.open()
    edit(folder, url=node.url)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-C"])
def test_a_first_ingest_cut_off(run, many, node, name, tmp_path, number):
    folder = tmp_path / "ws"
    with interrupted(node, ["ingest", many], folder, name, number):
        assert documents(node, name) == {}  # nothing shows before all of it does
        assert run("query", "gene", "-w", folder, "--json").json["hits"] == []
        status = run("status", "-w", folder)
        assert "0 documents" in status.out
        assert "an ingest was interrupted: run the same command again" in status.out
    with Proxy(node.port) as proxy:
        edit(folder, url=proxy.url)
        done = run("ingest", many, "-w", folder)
        assert "finishing the ingest that was interrupted" in done.err
        assert f"{MANY:,} added, 0 updated, 0 deleted: {MANY:,} documents" in done.out
        assert proxy.bulks() <= 3  # what was in is not sent again
    assert documents(node, name) == texts(MANY, "gene")
    (only,) = indices(node, name)
    assert list(indices(node, name)[only]["aliases"]) == [name]
    assert not (folder / "engine" / "unfinished").exists()


def test_another_command_after_one_that_was_cut_off(run, few, many, node, name, tmp_path):
    folder = tmp_path / "ws"
    (tmp_path / "first.jsonl").write_bytes(lines(50, 0, "old") + b'{"_id": "kept", "text": "old"}\n')
    assert run("ingest", tmp_path / "first.jsonl", "-w", folder, *at(node.url, name)).code == 0
    with interrupted(node, ["ingest", many, "--delete", "kept"], folder, name, signal.SIGKILL):
        pass
    done = run("ingest", few, "-w", folder)
    assert "finishing the ingest that was interrupted" in done.err
    assert f"0 added, 20 updated, 0 deleted: {MANY:,} documents" in done.out
    assert documents(node, name) == {**texts(MANY, "gene"), **texts(20, "cell")}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-C"])
def test_replacing_cut_off(run, few, many, node, name, tmp_path, number):
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (old,) = indices(node, name)
    with interrupted(node, ["ingest", many, "--replace"], folder, name, number):
        assert documents(node, name) == texts(20, "cell")
        assert len(run("query", "cell", "-w", folder, "-k", 50, "--json").json["hits"]) == 20
        assert len(indices(node, name)) == 2
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")
    (new,) = indices(node, name)
    assert new != old


def test_what_is_left_of_an_abandoned_ingest_goes(run, few, many, node, name, tmp_path):
    """The workspace was put back to what it was before; the half index is nobody's."""
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    with interrupted(node, ["ingest", many, "--replace"], folder, name, signal.SIGKILL):
        pass
    shutil.rmtree(folder / "engine" / "unfinished")
    assert len(indices(node, name)) == 2
    (tmp_path / "new.jsonl").write_bytes(lines(30, 0, "new"))
    assert run("ingest", tmp_path / "new.jsonl", "--replace", "-w", folder, "--json").json["documents"] == 30
    assert documents(node, name) == texts(30, "new")
    assert len(indices(node, name)) == 1


def test_the_half_index_is_deleted_meanwhile(run, few, many, node, name, tmp_path):
    """What was sent into it is sent again."""
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (old,) = indices(node, name)
    with interrupted(node, ["ingest", many, "--replace"], folder, name, signal.SIGKILL):
        pass
    time.sleep(0.5)  # for what was on its way
    (half,) = indices(node, name).keys() - {old}
    node.request("DELETE", f"/{half}")
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


def test_the_half_index_is_deleted_while_documents_come_in(run, few, many, node, name, tmp_path):
    """The cluster makes it anew by itself, and wrong: the alias must not move there."""
    folder = tmp_path / "ws"
    assert run("ingest", few, "-w", folder, *at(node.url, name)).code == 0
    (old,) = indices(node, name)

    def delete(request: Any) -> None:
        if request.bulk and proxy.bulks() == 2:
            (half,) = indices(node, name).keys() - {old}
            node.request("DELETE", f"/{half}")

    with Proxy(node.port, rule=delete) as proxy:
        edit(folder, url=proxy.url)
        done = run("ingest", many, "--replace", "-w", folder)
        done.fails(1)  # the first says whoever notices first
        assert "nothing was replaced: remove it, and run again" in done.err or "no such index" in done.err, (
            done
        )
    edit(folder, url=node.url)
    assert documents(node, name) == texts(20, "cell")
    for half in indices(node, name).keys() - {old}:
        fails_again(
            run("ingest", many, "--replace", "-w", folder), f"'{half}'", "by others", "remove it, and run"
        )
        assert documents(node, name) == texts(20, "cell")
        node.request("DELETE", f"/{half}")
    assert run("ingest", many, "--replace", "-w", folder, "--json").json["documents"] == MANY
    assert documents(node, name) == texts(MANY, "gene")


@pytest.mark.slow
def test_a_node_killed_while_documents_come_in(run, few, many, tmp_path):
    """Killed at any moment, and started again on the same data."""
    folder, name = tmp_path / "ws", "killed"
    with running(heap="512m") as own:
        assert run("ingest", few, "-w", folder, *at(own.url, name)).code == 0
        gate = Gate(2)
        with Proxy(own.port, rule=gate) as proxy:
            edit(folder, url=proxy.url)
            process = started("ingest", many, "--replace", "-w", folder)
            assert gate.reached.wait(60)
            own.kill()
            gate.open()
            time.sleep(2)
            own.start().wait()
            # The very process that was sending goes on when the node is back.
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err
            assert f"{MANY:,} documents" in out
        edit(folder, url=own.url)
        assert documents(own, name) == texts(MANY, "gene")
        assert len(indices(own, name)) == 1


@contextlib.contextmanager
def version(number: str) -> Iterator[Node]:
    try:
        with running(version=number, heap="512m") as other:
            yield other
    except CannotRunError as error:
        unavailable(error)


@pytest.mark.slow
def test_a_version_that_is_too_old(run, few, tmp_path):
    with version("2.18.0") as old:
        for command in (["ingest", few], ["attach", "text=text"]):
            run(*command, "-w", tmp_path / "ws", "--url", old.url, "--index", "x").fails(
                1, f"{old.url} is OpenSearch 2.18.0; rerank needs 2.19 or later"
            )
        assert not (tmp_path / "ws").exists()
        assert indices(old, "x") == {}


@pytest.mark.slow
def test_the_oldest_version_that_is_supported(run, small, tmp_path):
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
        assert run("encode", "--slice", "1/2", "-w", folder, "--json").json["encoded"] == {"meta": 0}
        attached = ("attach", "--field", "text=text", "-w", tmp_path / "b", "--url", old.url, "--index", name)
        assert run(*attached).code == 0
        assert len(run("query", "cells", "-w", tmp_path / "b", "--json").json["hits"]) == 10
        run("query", "cells", "--depth", 10_001, "-w", folder).fails(
            1, "raise its setting index.max_result_window"
        )
