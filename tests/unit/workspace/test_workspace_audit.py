"""A workspace under difficult conditions: read-only, incomplete, damaged, or compacted while it is read."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import inspect
import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from rerank.common.errors import BusyError, WorkspaceError
from rerank.common.files import folder_lock
from rerank.documents.records import Document, Query
from rerank.engines.base import Encoder
from rerank.engines.file_features import FeatureFiles
from rerank.engines.local import LocalEngine, engine, storage
from rerank.engines.local import documents as store
from rerank.engines.search_request import SearchRequest
from rerank.workflows.ingest import ingest
from rerank.workspace.workspace import Workspace
from tests.support.data import folder, fruit, fruit_documents, make_fruit
from tests.support.rankers import cnn
from tests.unit.engines.test_local_engine_crash import PROCESSES, kill_after, run_in_child

PROCESSES.set_forkserver_preload([__name__])
__all__ = ["folder", "fruit"]


def answers(folder, stacks=("tfidf,text", "bm25", "tfidf*0.5 + text*0.5")):
    """Return the answers of a workspace in full precision."""
    workspace = Workspace.open(folder)
    found = []
    for text in stacks:
        stack = workspace.stack(text)
        answer = workspace.pipeline(stack.signals).answer(Query("q", "apple pear"), stack)
        hits = workspace.engine.get(answer.ranking.ids)
        found.append((answer.ranking.ids, answer.ranking.scores.tolist(), hits))
    workspace.engine.close()
    return found


def without_bm25(folder):
    """Return answers without BM25, which counts deleted documents until they are compacted."""
    return answers(folder, ("tfidf,text", "tfidf*0.5 + text*0.5"))


READER_CODE = f"""
import json, sys
from pathlib import Path
from rerank import Document, Query, Workspace
from rerank.cli import main
from rerank.common.errors import RerankError
{inspect.getsource(answers)}
folder = Path(sys.argv[1])
"""
ROOT = os.geteuid() == 0


def drop_root_rights():
    """Remove root's additional rights on files, so that the process has the rights of an ordinary user."""
    if ROOT:
        libc = ctypes.CDLL(None)
        for right in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
            assert libc.prctl(24, right, 0, 0, 0) == 0  # PR_CAPBSET_DROP


def start(code, folder):
    """Run code in a process that may read the folder but not write to it."""
    for path in (folder, *folder.rglob("*")):
        if ROOT:
            os.chown(path, 65534, 65534)
        else:
            path.chmod(path.stat().st_mode & ~0o222)
    return subprocess.Popen(
        [sys.executable, "-c", READER_CODE + code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=drop_root_rights,
    )


@pytest.fixture
def writable_again(folder):
    yield
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


@pytest.mark.usefixtures("writable_again")
def test_a_read_only_workspace_answers_queries(folder):
    """Covers another user and a read-only mount. Queries and status work, and a write reports the reason."""
    expected = answers(folder)
    code = (
        "print(json.dumps([[ids, scores] for ids, scores, _ in answers(folder)]))\n"
        "try:\n    Workspace.open(folder).engine.write([Document('x')])\n"
        "except RerankError as error:\n    print(error)\n"
        "sys.argv = ['rerank', 'status', '-w', str(folder)]\nmain()"
    )
    with start(code, folder) as reader:
        out, err = reader.communicate(timeout=120)
    assert (reader.returncode, err) == (0, "")
    first, refused, *status = out.splitlines()
    assert json.loads(first) == [[ids, scores] for ids, scores, _ in expected]
    assert refused.endswith("/engine cannot be written to; check its rights")
    assert status[0].startswith("60 documents (en)")
    assert "features stored" in status[1]


@pytest.mark.skipif(not ROOT, reason="needs two users")
def test_an_unreadable_file_is_named_and_not_reported_as_damaged(folder, tmp_path):
    files = ("rerank.toml", "engine/data-0/documents.db", "rankers/text.json")
    for number, file in enumerate(files):
        copy = shutil.copytree(folder, tmp_path / "all" / str(number))
        (copy / file).chmod(0)
    code = "for one in sorted(folder.iterdir()):\n    try:\n        answers(one)\n"
    code += "    except RerankError as error:\n        print(error)"
    with start(code, tmp_path / "all") as reader:
        out, err = reader.communicate(timeout=120)
    assert (reader.returncode, err) == (0, "")
    for file, line in zip(files, out.splitlines(), strict=True):
        assert file in line
        assert "permission denied to user root; give this user access" in line


def test_documents_can_be_ingested_again_after_their_folder_is_lost(folder, tmp_path):
    """The ranker is kept, and no old score is used."""
    workspace = Workspace.open(folder)
    workspace.engine.close()
    shutil.rmtree(folder / "engine")
    with pytest.raises(WorkspaceError, match="holds no collection; ingest one first"):
        _ = Workspace.open(folder).engine
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": f"d{i}", "text": "pear fig"}) for i in range(60)]
    corpus.write_text("\n".join(lines) + "\n")
    report = ingest(folder, [corpus])
    assert (report.added, report.encoded, report.lang) == (60, {"text": 60}, "en")
    again = Workspace.open(folder)
    assert (again.trained(), again.engine.missing_features("text", "v1")) == (["text"], 0)
    assert again.search("pear", stack="tfidf*1 + text*1").answer.recomputed == {}


def test_documents_without_engine_settings_are_kept(folder, tmp_path):
    (folder / "engine" / "engine.json").unlink()
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": "b"}\n')
    with pytest.raises(WorkspaceError, match=r"holds documents, but no engine\.json; restore that file"):
        ingest(folder, [corpus])
    assert (folder / "engine" / "data-0" / "documents.db").exists()


def compact_rows(engine):
    """Return the number of removed rows."""
    with engine.lock():
        return engine.compact()


def test_compaction_changes_no_answer_and_frees_space(folder):
    workspace = Workspace.open(folder)
    workspace.engine.write([], delete=[f"d{i}" for i in range(0, 60, 3)])
    expected = without_bm25(folder)
    reader = Workspace.open(folder).engine
    before = reader.find(SearchRequest("apple pear", first_stage="tfidf", depth=100, features={"text": "v1"}))
    assert compact_rows(workspace.engine) == 20
    assert without_bm25(folder) == expected
    names = {path.name for path in (folder / "engine").iterdir()}
    assert "data-1" in names
    # Candidates from before the compaction can still be scored. New candidates have other rows.
    scores = reader.score("apple pear", "tfidf", before)
    assert scores.tolist() == before.scores.tolist()
    after = reader.find(SearchRequest("apple pear", first_stage="tfidf", depth=100, features={"text": "v1"}))
    assert after.ids == before.ids
    assert after.scores.tolist() == before.scores.tolist()
    assert after.features["text"].tolist() == before.features["text"].tolist()
    assert after.rows.tolist() != before.rows.tolist()
    assert not after.missing["text"].any()
    assert reader.score("apple pear", "tfidf", after).tolist() == after.scores.tolist()
    assert len(reader) == 40
    workspace.engine.write([Document("new", text="medlar")])
    assert not (folder / "engine" / "data-0" / "documents.db").exists()
    assert (
        Workspace.open(folder).engine.find(SearchRequest("medlar", first_stage="bm25", depth=50)).ids[0]
        == "new"
    )
    assert compact_rows(workspace.engine) == 0


def test_an_ingest_succeeds_if_the_compaction_after_it_fails(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    engine = LocalEngine.create(tmp_path / "engine", lang="en")
    engine.write(fruit_documents(600))
    engine.write_features([Encoder("length", "v1", lambda some: np.ones((len(some), 4), np.float32))])
    with monkeypatch.context() as patch:
        patch.setattr("rerank.engines.local.engine.Storage.create", full)
        with pytest.warns(UserWarning, match="disk full"):
            done = engine.write([Document("new", text="medlar")], delete=[f"d{i}" for i in range(600)])
    assert (done.added, done.deleted) == (1, 600)
    assert LocalEngine.open(tmp_path / "engine").ids() == ["new"]
    engine.write([Document("newest", text="medlar")])
    assert engine.find(SearchRequest("medlar", first_stage="bm25", depth=5)).ids == ["new", "newest"]


def test_without_file_locks_no_file_is_written(folder, tmp_path, monkeypatch):
    def refused(*given):
        raise OSError(errno.ENOLCK, "No locks available")

    expected = answers(folder)
    monkeypatch.setattr("fcntl.flock", refused)
    assert answers(folder) == expected
    workspace = Workspace.open(folder)
    for change in (
        lambda: workspace.engine.write([Document("new", text="medlar")]),
        lambda: compact_rows(workspace.engine),
        lambda: workspace.install(cnn(version="v2")),
        lambda: Workspace.create(tmp_path / "fresh"),
    ):
        with pytest.raises(WorkspaceError, match="cannot lock files"):
            change()
    monkeypatch.undo()
    assert answers(folder) == expected


def test_if_a_folder_cannot_be_locked_a_lock_file_is_used(tmp_path, monkeypatch):
    plain = fcntl.flock

    def flock_on_nfs(file, operation):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        plain(file, operation)

    monkeypatch.setattr("fcntl.flock", flock_on_nfs)
    workspace = make_fruit(tmp_path / "ws", 20)
    lock = partial(folder_lock, workspace.folder / "rankers", "installing a ranker")
    with lock(), pytest.raises(BusyError), lock():
        pass
    assert answers(workspace.folder)


MOMENTS = [  # after a function; number of rows that the compaction has removed by then
    (storage.Storage, "create", 0),
    (store.Documents, "write", 0),
    (FeatureFiles, "copy", 0),
    (engine, "_write_description", 20),
    (engine, "remove_unused", 20),
]


def killed_compaction(folder, moment):
    kill_after(*MOMENTS[moment][:2])
    compact_rows(Workspace.open(folder).engine)


def test_a_compaction_can_be_killed_at_any_moment(folder):
    Workspace.open(folder).engine.write([], delete=[f"d{i}" for i in range(20)])
    expected = without_bm25(folder)
    for moment, (_, name, removed) in enumerate(MOMENTS):
        copy = folder.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        assert run_in_child(killed_compaction, copy, moment) == -9
        assert without_bm25(copy) == expected, name
        assert compact_rows(Workspace.open(copy).engine) == 20 - removed
        assert without_bm25(copy) == expected, name


@pytest.fixture
def small_disk(tmp_path):
    """An own file system of 4 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", mount], capture_output=True)
    if done.returncode:
        pytest.skip("needs the right to mount a file system")
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=True)


def fill_disk(path):
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_stops_no_search_and_is_named_by_commands_that_write(folder, small_disk, tmp_path, run):
    expected = answers(folder)
    copy = shutil.copytree(folder, small_disk / "ws")
    fill_disk(small_disk / "other")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "apple pear"}\n')
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td3\t1\n")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "new", "text": "apple"}\n')
    judged = ["--queries", tmp_path / "queries.jsonl", "--qrels", tmp_path / "qrels.tsv", "-w", copy]
    assert answers(copy) == expected
    assert run("status", "-w", copy).code == run("query", "apple", "-w", copy).code == 0
    assert run("evaluate", "--stack", "tfidf,text", *judged).code == 0
    for command in (
        ["ingest", tmp_path / "corpus.jsonl", "-w", copy],
        ["encode", "--force", "-w", copy],
        ["tune", "--stack", "tfidf,text", *judged],
        ["stack", "use", "bm25", "-w", copy],
    ):
        done = run(*command)
        assert (done.code, done.err.count("\n")) == (1, 1)
        assert "disk full" in done.err or "the disk is full" in done.err
        assert answers(copy) == expected
    (small_disk / "other").unlink()
    assert run("ingest", tmp_path / "corpus.jsonl", "-w", copy).code == 0


def stop_after(documents):
    """Return an encoder that is interrupted by Ctrl-C after so many documents."""
    left = [documents]

    def encode(texts):
        left[0] -= len(texts)
        if left[0] < 0:
            raise KeyboardInterrupt
        return np.full((len(texts), 2), 5, np.float32)

    return Encoder("number", "v1", encode)


def test_features_stay_until_an_interrupted_encoding_replaces_them(tmp_path):
    engine = LocalEngine.create(tmp_path / "engine", lang="en")
    engine.write(fruit_documents(600))
    engine.write_features([Encoder("number", "v1", lambda texts: np.ones((len(texts), 2), np.float32))])
    reader = LocalEngine.open(tmp_path / "engine")
    request = SearchRequest("fruit", first_stage="tfidf", depth=600, features={"number": "v1"})
    assert set(reader.find(request).features["number"].ravel()) == {1}
    with pytest.raises(KeyboardInterrupt):
        engine.write_features([stop_after(300)], force=True)
    actual = reader.find(request)
    assert not actual.missing["number"].any()
    assert sorted(np.unique(actual.features["number"], return_counts=True)[1]) == [2 * 256, 2 * (600 - 256)]
    assert engine.write_features([stop_after(600)], force=True) == {"number": 600}
    assert set(reader.find(request).features["number"].ravel()) == {5}  # without opening the files again
