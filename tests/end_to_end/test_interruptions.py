"""Full disks, kills, ctrl-C, and two processes on one workspace."""

from __future__ import annotations

import signal
import subprocess

import pytest

from rerank import Workspace
from rerank.engines.local.engine import LocalEngine
from tests.support.cli import limit_file_size
from tests.support.data import STACK, document_lines, state


@pytest.mark.parametrize(
    ("size", "there"), [(0, True), (1_000, False), (30_000, True), (100_000, False), (300_000, True)]
)
def test_a_full_disk_during_ingest_is_reported_and_recoverable(
    run, spawn, small, plain, tmp_path, size, there
):
    folder = plain if there else tmp_path / "new"
    old = state(run, folder)
    done = spawn("ingest", small.corpus, "-w", folder, preexec_fn=limit_file_size(size))
    done.fails(1)
    assert "free space and run again" in done.err or "File too large" in done.err, done
    if "stored and indexed" in done.err:
        assert len(state(run, folder)[1]) == len(small.documents)
    else:
        assert state(run, folder) == old
    assert run("ingest", small.corpus, "-w", folder).code == 0
    assert len(state(run, folder)[1]) == len(small.documents)


def test_a_full_disk_after_the_database_was_closed(run, spawn, small, plain):
    """Opening the database needs a new write-ahead log. Lack of space for it is not damage."""
    LocalEngine.open(plain / "engine").close()
    spawn("ingest", small.corpus, "-w", plain, preexec_fn=limit_file_size(0)).fails(
        1, "free space and run again"
    )
    assert run("ingest", small.corpus, "-w", plain).code == 0


def test_a_full_disk_during_tuning_changes_nothing(spawn, run, small, workspace):
    old = state(run, workspace)
    done = spawn(
        "tune", "--stack", "tfidf,meta", "--queries", small.queries, "--qrels", small.dev, "-w", workspace,
        preexec_fn=limit_file_size(500),
    )  # fmt: skip
    done.fails(1, "cannot be written")
    assert state(run, workspace)[:3] == old[:3]


def start_ingest(script, folder, lines):
    """Start an ingest that has read most of these lines and waits for more."""
    process = subprocess.Popen(
        [*script, "ingest", "-", "-w", str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    # These lines do not fit into a pipe. After the write, the command has read most of them.
    process.stdin.write(b"".join(lines))
    process.stdin.flush()
    return process


MANY = document_lines(5000)


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_killed_ingest_changes_nothing(run, script, small, plain, tmp_path, there):
    folder = plain if there else tmp_path / "new"
    old = state(run, folder)
    with start_ingest(script, folder, MANY) as process:
        process.send_signal(signal.SIGKILL)
        assert process.wait(180) == -9
    if there:
        assert state(run, folder) == old
    elif Workspace.exists(folder):
        assert len(Workspace.open(folder).engine) == 0
    report = run("ingest", small.corpus, "-w", folder, "--json").json
    assert report["documents"] == len(small.documents)
    assert len(state(run, folder)[1]) == len(small.documents)


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_ctrl_c_during_ingest_changes_nothing(run, script, plain, tmp_path, there):
    folder = plain if there else tmp_path / "new"
    old = state(run, folder)
    with start_ingest(script, folder, MANY) as process:
        process.send_signal(signal.SIGINT)
        err = process.stderr.readline()
        process.send_signal(signal.SIGINT)  # while it ends
        out, err = process.stdout.read(), err + process.stderr.read()
        assert process.wait(180) == 130
    assert out == b""
    assert err.strip() == b"rerank: interrupted"
    assert state(run, folder) == old


def test_one_process_writes_and_others_read_a_workspace(run, script, small, workspace):
    old = state(run, workspace)
    files = ("--queries", small.queries, "--qrels", small.dev, "-w", workspace)
    with start_ingest(script, workspace, MANY) as process:
        run("ingest", small.corpus, "-w", workspace).fails(1, "another process is writing to")
        run("ingest", "--delete", "x", "-w", workspace).fails(1, "another process is writing to")
        run("encode", "-w", workspace).fails(1, "another process is writing to")
        # Reading continues on the old state.
        assert state(run, workspace) == old
        assert run("query", "cells", "--stack", STACK, "-w", workspace, "--json").json["recomputed"] == {}
        for command in (["tune", "--stack", "tfidf,meta"], ["evaluate", "--stack", STACK]):
            run(*command, *files).ok()
        process.stdin.close()
        assert process.wait(180) == 0, process.stderr.read()
    assert run("status", "-w", workspace, "--json").json["documents"] == len(small.documents) + len(MANY)


def test_two_processes_create_one_workspace(run, script, small, tmp_path):
    for attempt in range(2):
        folder = tmp_path / f"ws{attempt}"
        command = [*script, "ingest", small.corpus, "-w", str(folder)]
        both = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        ends = [(*process.communicate(timeout=300), process.returncode) for process in both]
        assert min(code for _, _, code in ends) == 0, ends
        for _, err, code in ends:
            if code:
                assert (code, err.count("\n")) == (1, 1)
                assert "another process" in err
        assert len(state(run, folder)[1]) == len(small.documents)


@pytest.mark.slow
def test_training_succeeds_while_another_process_writes(run, script, small, workspace):
    with start_ingest(script, workspace, MANY) as process:
        done = run(
            "train", "meta", "--queries", small.queries, "--qrels", small.train, "--dev-qrels", small.dev,
            "--epochs", 1, "--seed", 5, "-w", workspace,
        ).ok()  # fmt: skip
        assert "another process is writing to" in done.err
        assert f"`rerank encode -w {workspace}`" in done.err
        process.stdin.close()
        assert process.wait(180) == 0
    # The other process has encoded its documents and these.
    assert run("encode", "-w", workspace, "--json").json["encoded"] == {"meta": 0, "text": 0}
