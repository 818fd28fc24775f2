"""The feature rows of an attached index: a changed document never gets an old feature."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from rerank.common.errors import WorkspaceError
from rerank.documents.records import Document
from rerank.engines.opensearch import text_rows
from rerank.engines.opensearch.text_rows import TextRows

COUNT = 40
DOCUMENTS = [
    Document(f"d{i}", text=f"wolf {i}", categories=(f"animals {i % 3}", "wölfe")) for i in range(COUNT)
]
VALUES = np.random.default_rng(3).normal(size=(COUNT, 21)).astype(np.float16)
SHARDS, SEQ_NOS = np.arange(COUNT) % 2, np.arange(COUNT) + 7
TERMS, IDS = np.ones(COUNT, np.int64), [f"d{i}" for i in range(COUNT)]


@pytest.fixture
def rows(tmp_path: Path) -> TextRows:
    rows = TextRows(tmp_path / "features")
    store(rows)
    return rows


def store(rows: TextRows) -> None:
    numbers = rows.add(DOCUMENTS)
    rows.features.write("text", "v1", numbers, VALUES)
    rows.locate("uuid", SHARDS, SEQ_NOS, TERMS, IDS, numbers)
    rows.set_encoded("text", "v1", "uuid", 0, 7 + COUNT)


def read(rows: TextRows, shards: np.ndarray | None = SHARDS) -> int:
    """Return the number of documents with features. Each of these features must be correct."""
    numbers, ids = rows.find("uuid", shards, SEQ_NOS, TERMS, IDS)
    values, missing = rows.features.read("text", "v1", numbers)
    assert missing.all() or (values[~missing] == VALUES[~missing]).all()
    known = np.flatnonzero(numbers >= 0)
    assert ids == [id if number >= 0 else "" for id, number in zip(IDS, numbers)]
    assert rows.categories(numbers[known]) == [DOCUMENTS[i].categories for i in known.tolist()]
    return int((~missing).sum())


def test_a_new_version_replaces_the_location_of_the_old_one(rows: TextRows, tmp_path: Path) -> None:
    """Fifty updates of each document leave one location each, also of the id in the other shard."""
    numbers = rows.of_texts(DOCUMENTS)
    for update in range(1, 51):
        rows.locate("uuid", SHARDS, SEQ_NOS + update * COUNT, TERMS, IDS, numbers)
    rows.locate("uuid", 1 - SHARDS, SEQ_NOS + 51 * COUNT, TERMS, IDS, numbers)
    with sqlite3.connect(tmp_path / "features" / "texts.db") as db:
        (count,) = db.execute("SELECT count(*) FROM locations").fetchone()
    assert count == 2 * COUNT
    assert (rows.find("uuid", SHARDS, SEQ_NOS + 50 * COUNT, TERMS)[0] == numbers).all()
    assert (rows.find("uuid", SHARDS, SEQ_NOS, TERMS)[0] == -1).all()


def test_searches_do_not_wait_for_a_writer(rows: TextRows, tmp_path: Path) -> None:
    """A writer holds its transaction open during the search."""
    writer = sqlite3.connect(tmp_path / "features" / "texts.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("DELETE FROM locations")
    assert read(rows) == read(TextRows(tmp_path / "features")) == COUNT
    writer.execute("COMMIT")
    assert read(rows) == 0
    writer.close()


@pytest.mark.parametrize(("most_entries", "reads"), [(3 * COUNT, 0), (COUNT, 2)])
def test_repeated_hits_are_read_once(
    rows: TextRows, monkeypatch: pytest.MonkeyPatch, most_entries: int, reads: int
) -> None:
    """Locations and categories stay in memory, up to a limit."""
    monkeypatch.setattr(text_rows, "_MOST_ENTRIES", most_entries)
    assert read(rows) == COUNT
    statements: list[str] = []
    with rows._database() as db:
        db.set_trace_callback(statements.append)
    assert read(rows) == COUNT
    assert sum("SELECT" in statement for statement in statements) == reads


def test_documents_are_found_by_shard_or_by_id(rows: TextRows, tmp_path: Path) -> None:
    for other in (rows, TextRows(tmp_path / "features")):
        assert read(other) == read(other, None) == COUNT
        assert other.encoded("text", "v1", "uuid", 0) == 7 + COUNT
        for wrong in (
            ("uuid", SHARDS, SEQ_NOS, TERMS + 1, IDS),
            ("uuid", SHARDS + 2, SEQ_NOS, TERMS, IDS),
            ("uuid", None, SEQ_NOS, TERMS, IDS[::-1]),
            ("other", SHARDS, SEQ_NOS, TERMS, IDS),
        ):
            assert (other.find(*wrong)[0] == -1).all()


def test_a_document_that_is_written_again_keeps_its_row(rows: TextRows) -> None:
    """Documents with equal text share a row, even if their ids differ. Another text has another row."""
    again = [Document(f"other{i}", text=d.text, categories=d.categories) for i, d in enumerate(DOCUMENTS)]
    assert rows.of_texts(again).tolist() == rows.add(DOCUMENTS).tolist() == rows.add(again).tolist()
    assert rows.of_texts([Document("d0", text="fox")]).tolist() == [-1]


def test_other_fields_make_other_documents(rows: TextRows, tmp_path: Path) -> None:
    """Locations and coverage of the previous fields do not count. Equal texts keep their features."""
    other = TextRows(tmp_path / "features", "other")
    assert read(other) == 0
    assert other.encoded("text", "v1", "uuid", 0) == -1
    assert not other.features.read("text", "v1", other.add(DOCUMENTS))[1].any()


def test_reading_creates_no_files(tmp_path: Path) -> None:
    rows = TextRows(tmp_path / "features")
    assert read(rows) == 0
    assert rows.features.versions() == {}
    assert not (tmp_path / "features").exists()
    other = TextRows(tmp_path / "features")
    store(other)
    assert read(rows) == COUNT  # another process has made the files


def test_corrupt_rows_can_be_replaced(rows: TextRows, tmp_path: Path) -> None:
    """Readers with the old files open never mix them with the new files."""
    path = tmp_path / "features/texts.db"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(b"?" * len(data))
    corrupt = TextRows(tmp_path / "features")
    with pytest.raises(WorkspaceError, match=r"texts\.db.* remove the folder"):
        read(corrupt)
    shutil.rmtree(tmp_path / "features")  # as the error message advises
    new = TextRows(tmp_path / "features")
    numbers = new.add(DOCUMENTS[::-1])
    new.features.write("text", "v1", numbers, VALUES[::-1])
    new.locate("uuid", SHARDS[::-1], SEQ_NOS[::-1], TERMS, IDS[::-1], numbers)
    assert read(new) == COUNT
    read(rows)  # rows of the removed file
    assert read(rows.current()) == COUNT


def test_previous_indices_and_versions_are_removed(rows: TextRows) -> None:
    rows.locate("former", SHARDS, SEQ_NOS, TERMS, IDS, rows.of_texts(DOCUMENTS))
    rows.keep_indices(["uuid"])
    assert read(rows) == COUNT
    assert (rows.find("former", SHARDS, SEQ_NOS, TERMS)[0] == -1).all()
    rows.set_encoded("text", "v1", "uuid", 0, 3)  # a slower process
    assert rows.encoded("text", "v1", "uuid", 0) == 7 + COUNT
    rows.remove("text", "v1")
    assert (rows.features.versions(), rows.encoded("text", "v1", "uuid", 0)) == ({}, -1)
