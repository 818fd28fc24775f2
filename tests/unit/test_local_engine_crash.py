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
from rerank.engines.local import LocalEngine, documents, engine, storage, text_index, tfidf
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
    "at the start": ("before(documents.Documents, 'write')", OLD),
    "after a chunk": ("after(documents.Documents, '_add')", OLD),
    "after SQLite has committed": ("after(documents.Documents, 'write')", OLD),
    "after the text index got it": ("after(text_index.IndexWriter, 'add')", OLD),
    "after the ids": ("after(StringWriter, 'extend')", OLD),
    "while counting terms": ("after(tfidf.TfIdfWriter, 'add')", OLD),
    "while inverting": ("after(tfidf.TfIdfWriter, '_invert')", OLD),
    "after tf-idf": ("after(tfidf.TfIdfWriter, 'write')", OLD),
    "after the deletes": ("after(text_index.IndexWriter, 'delete')", OLD),
    "after tantivy has committed": ("after(text_index.IndexWriter, 'commit')", NEW),
    "while merging": ("before(text_index.IndexWriter, 'close')", NEW),
    "before publishing": ("before(documents.Documents, 'publish')", NEW),
    "after publishing": ("after(documents.Documents, 'publish')", NEW),
    "before the checkpoint": ("before(documents.Documents, 'checkpoint')", NEW),
    "before cleaning": ("before(tfidf, 'remove_versions')", NEW),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed(folder: Path, moment: str) -> None:
    code, expected = MOMENTS[moment]
    result = child(folder, f"local = LocalEngine.open(folder)\n{code}\nchange(local)")
    assert result.returncode == -9, result.stderr
    check(folder, expected)
    engine = LocalEngine.open(folder)
    assert engine.verify() == {}
    # The next writer indexes what SQLite has, also if it is killed once more.
    stored = child(folder, "after(tfidf.TfIdfWriter, 'write')\nLocalEngine.open(folder).write([])")
    assert stored.returncode in (0, -9)
    engine.write([])
    in_sqlite = list(MOMENTS).index(moment) > 1
    check(folder, NEW if in_sqlite else OLD)
    engine.write([NEW[0], NEW[2]], delete=["b"])
    check(folder, NEW)
    assert engine.verify() == {}


def test_a_reader_follows_when_the_text_index_is_committed(folder: Path) -> None:
    reader = LocalEngine.open(folder)
    result = child(folder, "before(text_index.IndexWriter, 'commit')\nchange(LocalEngine.open(folder))")
    assert result.returncode == -9
    for stage in ("bm25", "tfidf"):
        assert reader.find(SearchRequest("old", first_stage=stage, depth=10)).ids == ["a", "b", "c"]
    LocalEngine.open(folder).write([])
    for stage in ("bm25", "tfidf"):
        assert reader.find(SearchRequest("new", first_stage=stage, depth=10)).ids == ["a", "d"]


def test_killed_while_creating(tmp_path: Path) -> None:
    for code in (
        "before(documents.Documents, 'create')",
        "after(text_index.TextIndex, 'create')",
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


def test_disk_full_after_sqlite_has_committed(folder: Path) -> None:
    result = child(
        folder,
        """
        def full(*args):
            raise OSError(28, "No space left on device")
        tfidf.TfIdfWriter.write = full
        try:
            change(LocalEngine.open(folder))
        except RerankError as error:
            print(type(error).__name__, error)
        """,
    )
    assert result.stdout.startswith("EngineError disk full while indexing; the documents are stored")
    check(folder, OLD)
    LocalEngine.open(folder).write([])
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
            local = LocalEngine.create(folder)
            tfidf.TfIdfWriter._invert = lambda *given: None  # its mapped files would be counted
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
