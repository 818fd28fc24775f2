"""The local engine after failures: killed processes, a full disk; and a limit on memory.

tests/end_to_end/test_interruptions.py tests full disks and concurrent processes by the command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rerank
from rerank.common.errors import EngineError
from rerank.documents.records import Document
from rerank.engines.local import LocalEngine, documents, engine, storage, text_index, tfidf
from rerank.engines.search_request import SearchRequest

# Processes are forked from one that has imported this module.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])

OLD = [Document("a", text="old apple"), Document("b", text="old pear"), Document("c", text="old plum")]
NEW = [Document("a", text="new apple"), Document("c", text="old plum"), Document("d", text="new fig")]


def kill_self(*args: object, **kwargs: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_before(owner: Any, name: str) -> None:
    setattr(owner, name, kill_self)


def kill_after(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def run(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        kill_self()

    setattr(owner, name, run)


def change(folder: Path) -> None:
    LocalEngine.open(folder).write([NEW[0], NEW[2]], delete=["b"])


def run_in_child(function: Callable[..., str | None], folder: Path, *args: object) -> int | str | None:
    """Call a function in another process; return its result, or the exit code."""
    results = PROCESSES.SimpleQueue()
    process = PROCESSES.Process(target=send, args=(results, function, folder, *args))
    process.start()
    process.join(300)
    return process.exitcode or results.get()


def send(results: Any, function: Callable[..., str | None], *args: object) -> None:
    results.put(function(*args))


def check(folder: Path, expected: list[Document]) -> None:
    """Assert that all parts of the engine contain exactly these documents."""
    engine = LocalEngine.open(folder)
    assert sorted(engine.documents(), key=lambda document: document.id) == expected
    assert len(engine) == len(expected)
    assert engine.ids() == [document.id for document in expected]
    for stage in ("bm25", "tfidf"):
        for word in ("old", "new", "apple", "pear", "plum", "fig"):
            actual = engine.find(SearchRequest(word, first_stage=stage, depth=100)).ids
            assert actual == sorted(document.id for document in expected if word in document.text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    engine = LocalEngine.create(tmp_path / "engine", lang="en")
    engine.write(OLD)
    engine.close()
    return engine.folder


MOMENTS = {  # before or after a function, and the documents that readers then find
    "at the start": (kill_before, documents.Documents, "write", OLD),
    "after SQLite has committed": (kill_after, documents.Documents, "write", OLD),
    "after terms were counted": (kill_after, tfidf.TfIdfWriter, "add", OLD),
    "after tf-idf": (kill_after, tfidf.TfIdfWriter, "write", OLD),
    "after tantivy has committed": (kill_after, text_index.TextIndex, "write", NEW),
    "before publishing": (kill_before, documents.Documents, "publish", NEW),
    "after publishing": (kill_after, documents.Documents, "publish", NEW),
    "before cleaning": (kill_before, tfidf, "remove_versions", NEW),
}


def killed_change(folder: Path, moment: str) -> None:
    when, owner, name, _ = MOMENTS[moment]
    when(owner, name)
    change(folder)


def killed_repair(folder: Path) -> None:
    kill_after(tfidf.TfIdfWriter, "write")
    LocalEngine.open(folder).write([])


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_write_keeps_a_consistent_state(folder: Path, moment: str) -> None:
    assert run_in_child(killed_change, folder, moment) == -signal.SIGKILL
    check(folder, MOMENTS[moment][3])
    # The next writer indexes the documents in SQLite, also if it is killed once more.
    assert run_in_child(killed_repair, folder) in (None, -signal.SIGKILL)
    engine = LocalEngine.open(folder)
    engine.write([])
    in_sqlite = list(MOMENTS).index(moment) > 0
    check(folder, NEW if in_sqlite else OLD)
    engine.write([NEW[0], NEW[2]], delete=["b"])
    check(folder, NEW)


def test_a_reader_updates_when_the_text_index_is_committed(folder: Path) -> None:
    reader = LocalEngine.open(folder)
    assert run_in_child(killed_change, folder, "after tf-idf") == -signal.SIGKILL
    for stage in ("bm25", "tfidf"):
        assert reader.find(SearchRequest("old", first_stage=stage, depth=10)).ids == ["a", "b", "c"]
    LocalEngine.open(folder).write([])
    for stage in ("bm25", "tfidf"):
        assert reader.find(SearchRequest("new", first_stage=stage, depth=10)).ids == ["a", "d"]


def killed_creation(folder: Path, moment: int) -> None:
    kill_before(
        *((documents.Documents, "create"), (tfidf.TfIdfWriter, "write"), (engine, "write_bytes"))[moment]
    )
    LocalEngine.create(folder)


def test_a_killed_creation_can_be_repeated(tmp_path: Path) -> None:
    for moment in range(3):
        assert run_in_child(killed_creation, tmp_path / "new", moment) == -signal.SIGKILL
    assert len(LocalEngine.create(tmp_path / "new")) == 0


def test_a_disk_full_after_the_sqlite_commit_can_be_repaired(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tfidf.TfIdfWriter, "write", full)
        with pytest.raises(EngineError, match="disk full while indexing; the documents are stored"):
            change(folder)
    check(folder, OLD)
    LocalEngine.open(folder).write([])
    check(folder, NEW)


def test_a_new_workspace_keeps_documents_that_are_not_indexed_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    documents = [Document("a", text="a grey wolf"), Document("b", text="a red fox")]
    with monkeypatch.context() as patch:
        patch.setattr(storage.Storage, "_index", full)
        with pytest.raises(EngineError, match="disk full while indexing; the documents are stored"):
            rerank.ingest(tmp_path / "ws", documents)
    report = rerank.ingest(tmp_path / "ws", documents)
    assert (report.added, report.unchanged, report.documents) == (0, 2, 2)
    assert report.workspace.search("wolf", stack="bm25")[0]["id"] == "a"


def peak_of_write(folder: Path, count: int) -> int:
    """Return the largest memory of Python objects while documents of 900 bytes are written, in bytes."""
    words = [f"word{i}" for i in range(5000)]
    documents = (
        Document(f"id{i}", title=words[i % 5000], text=" ".join(words[(i * 31) % 4900 :][:100]))
        for i in range(count)
    )
    tracemalloc.start()
    try:
        LocalEngine.create(folder).write(documents)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 more documents are 2.7 MB of text, which is not kept. tf-idf inverts its postings in memory."""
    monkeypatch.setattr(tfidf.TfIdfWriter, "_invert", lambda *arguments: None)
    few, many = (peak_of_write(tmp_path / str(count), count) for count in (1_500, 4_500))
    assert many - few < 1_000_000
