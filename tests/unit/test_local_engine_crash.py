"""The local engine when things go wrong: killed at any moment, disk full, memory that must not grow."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rerank.engines.base import SearchRequest
from rerank.engines.local import LocalEngine
from rerank.errors import BusyError
from rerank.records import Document

OLD = [Document("a", text="old apple"), Document("b", text="old pear"), Document("c", text="old plum")]
NEW = [Document("a", text="new apple"), Document("c", text="old plum"), Document("d", text="new fig")]

PRELUDE = """
import os, resource, signal, sys
from pathlib import Path
from rerank.engines.local import LocalEngine, bm25, data, engine, store, tfidf_build
from rerank.engines.local.strings import StringWriter
from rerank.errors import RerankError
from rerank.records import Document

folder = Path(sys.argv[1])

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def before(owner, name):
    setattr(owner, name, die)

def after(owner, name):
    original = getattr(owner, name)
    def run(*args, **kwargs):
        original(*args, **kwargs)
        die()
    setattr(owner, name, run)

def change(local):
    return local.write([Document("a", text="new apple"), Document("d", text="new fig")], delete=["b"])
"""


def child(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    script = PRELUDE + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=300, check=False
    )


def check(folder: Path, expected: list[Document]) -> None:
    """The engine holds exactly these documents in all of its parts."""
    engine = LocalEngine.open(folder)
    assert sorted(engine.documents(), key=lambda document: document.id) == expected
    assert len(engine) == len(expected)
    assert engine.ids() == [document.id for document in expected]
    for stage in ("bm25", "tfidf"):
        for word in ("old", "new", "apple", "pear", "plum", "fig"):
            found = engine.find(SearchRequest(word, first_stage=stage, depth=100)).ids
            assert found == sorted(document.id for document in expected if word in document.text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    engine = LocalEngine.create(tmp_path / "engine", lang="en")
    engine.write(OLD)
    engine.close()
    return engine.folder


MOMENTS = {
    "at the start": ("before(store.Store, 'begin')", OLD),
    "after a chunk": ("after(store.Store, 'add')", OLD),
    "after the ids": ("after(StringWriter, 'extend')", OLD),
    "after the text index got it": ("after(bm25.IndexWriter, 'add')", OLD),
    "after the deletes": ("after(bm25.IndexWriter, 'delete')", OLD),
    "while counting terms": ("before(tfidf_build, '_invert')", OLD),
    "while inverting": ("after(tfidf_build, '_invert')", OLD),
    "after the tf-idf snapshot": ("after(data.Data, 'build')", OLD),
    "before SQLite commits": ("before(store.Store, 'commit_pending')", OLD),
    "after SQLite has committed": ("after(store.Store, 'commit_pending')", OLD),
    "before tantivy commits": ("before(bm25.IndexWriter, 'commit')", OLD),
    "after tantivy has committed": ("after(bm25.IndexWriter, 'commit')", NEW),
    "before publishing": ("before(store.Store, 'publish')", NEW),
    "after publishing": ("after(store.Store, 'publish')", NEW),
    "while merging": ("before(bm25.IndexWriter, 'close')", NEW),
    "before the checkpoint": ("before(store.Store, 'checkpoint')", NEW),
    "before cleaning": ("before(tfidf_build, 'clean')", NEW),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed(folder: Path, moment: str) -> None:
    code, expected = MOMENTS[moment]
    result = child(folder, f"local = LocalEngine.open(folder)\n{code}\nchange(local)")
    assert result.returncode == -9, result.stderr
    check(folder, expected)
    # And it goes on from there.
    engine = LocalEngine.open(folder)
    engine.write([NEW[0], NEW[2]], delete=["b"])
    check(folder, NEW)


def test_a_reader_keeps_the_old_state_until_somebody_has_recovered(folder: Path) -> None:
    reader = LocalEngine.open(folder)
    result = child(folder, "before(store.Store, 'publish')\nchange(LocalEngine.open(folder))")
    assert result.returncode == -9
    for stage in ("bm25", "tfidf"):
        assert reader.find(SearchRequest("old", first_stage=stage, depth=10)).ids == ["a", "b", "c"]
    LocalEngine.open(folder)
    for stage in ("bm25", "tfidf"):
        assert reader.find(SearchRequest("new", first_stage=stage, depth=10)).ids == ["a", "d"]


def test_killed_while_recovering(folder: Path) -> None:
    child(folder, "after(store.Store, 'commit_pending')\nchange(LocalEngine.open(folder))")
    for code in ("before(store.Store, 'undo')", "after(store.Store, 'undo')"):
        result = child(folder, f"{code}\nLocalEngine.open(folder).write([])")
        assert result.returncode == -9
    check(folder, OLD)


def test_killed_while_creating(tmp_path: Path) -> None:
    for code in (
        "before(store.Store, 'create')",
        "after(bm25.TextIndex, 'create')",
        "before(engine, 'write_text')",
    ):
        result = child(tmp_path / "new", f"{code}\nLocalEngine.create(folder)")
        assert result.returncode == -9
    assert len(LocalEngine.create(tmp_path / "new")) == 0


@pytest.mark.parametrize("limit", [20_000, 60_000, 150_000, 400_000, 700_000, 1_000_000, 2_000_000])
def test_disk_full(folder: Path, limit: int) -> None:
    # A limit on the size of files fails as a full disk does: at another file for every limit.
    result = child(
        folder,
        f"""
        local = LocalEngine.open(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        words = [f"{{i * 7919 % 99991:x}}" for i in range(50_000)]
        stream = (
            Document(f"n{{i}}", text="new " + " ".join(words[(i * 61) % 49_000 :][:200])) for i in range(6000)
        )
        try:
            local.write(stream, delete=["a"])
        except RerankError as error:
            print(type(error).__name__, error)
        """,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("EngineError"), result.stdout + result.stderr
    assert "nothing was ingested; free space and run again" in result.stdout
    assert result.stdout.count("\n") == 1
    check(folder, OLD)
    LocalEngine.open(folder).write([NEW[0], NEW[2]], delete=["b"])
    check(folder, NEW)


def test_disk_full_at_the_last_step(folder: Path) -> None:
    # tantivy has committed, so there is no way back: the new state shows once it can be published.
    result = child(
        folder,
        """
        import sqlite3
        def full(*args):
            raise sqlite3.OperationalError("database or disk is full")
        store.Store.publish = full
        try:
            change(LocalEngine.open(folder))
        except RerankError as error:
            print(type(error).__name__, error)
        """,
    )
    assert result.stdout.startswith("EngineError disk full while publishing what was ingested; it will show")
    check(folder, NEW)


def test_two_processes(folder: Path) -> None:
    code = """
    def stream():
        yield Document("z", text="apple")
        print("ingesting", flush=True)
        sys.stdin.readline()

    LocalEngine.open(folder).write(stream())
    """
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ingesting\n"
        engine = LocalEngine.open(folder)
        for stage in ("bm25", "tfidf"):
            assert engine.find(SearchRequest("apple", first_stage=stage, depth=5)).ids == ["a"]
        with pytest.raises(BusyError, match="another process is writing to"):
            engine.write([Document("y")])
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait(60) == 0
    for stage in ("bm25", "tfidf"):
        assert engine.find(SearchRequest("apple", first_stage=stage, depth=5)).ids == ["z", "a"]


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path) -> None:
    def peak(documents: int) -> int:
        result = child(
            tmp_path / str(documents),
            f"""
            data.Data.build = lambda *given: None  # its mapped files would be counted, too
            local = LocalEngine.create(folder)
            words = [f"word{{i}}" for i in range(5000)]
            local.write(
                (
                    Document(f"id{{i}}", title=words[i % 5000], text=" ".join(words[(i * 31) % 4900 :][:100]))
                    for i in range({documents})
                )
            )
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            """,
        )
        assert result.returncode == 0, result.stderr
        return int(result.stdout) * 1024

    # 60,000 documents more are 55 MB of text, kept nowhere; what grows is the buffers of tantivy and SQLite.
    assert peak(90_000) - peak(30_000) < 45_000_000
