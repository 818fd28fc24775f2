"""The files beside an attached index: damage ends in an error, in the same answer, or in "there is none"."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rerank.engines.opensearch.sidecar import Place, Sidecar
from rerank.errors import WorkspaceError
from rerank.records import Document

COUNT = 40
DOCUMENTS = [
    Document(f"d{i}", text=f"wolf {i}", categories=(f"animals {i % 3}", "wölfe")) for i in range(COUNT)
]
VALUES = np.random.default_rng(3).normal(size=(COUNT, 21)).astype(np.float16)
BY_SHARD = [Place("uuid", i % 2, 7 + i, 1, f"d{i}") for i in range(COUNT)]
BY_ID = [place._replace(shard=-1) for place in BY_SHARD]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sidecar") / "files"
    sidecar = Sidecar(folder)
    rows = sidecar.rows_for(DOCUMENTS)
    sidecar.store("text", "v1", rows, VALUES)
    for shard in (0, 1):
        of = [i for i, place in enumerate(BY_SHARD) if place.shard == shard]
        sidecar.place("uuid", shard, [BY_SHARD[i] for i in of], rows[of])
        sidecar.cover("text", "v1", "uuid", shard, 0, 7 + COUNT)
    return folder


def read(folder: Path) -> tuple[int, int]:
    """How many documents have features, and rows; each of them must be the right one."""
    sidecar = Sidecar(folder)
    found = 0
    for places in (BY_SHARD, BY_ID):
        rows = sidecar.find(places)
        values, missing = sidecar.gather("text", "v1", rows)
        assert len(missing) == COUNT
        if values.shape[1] == VALUES.shape[1] and values.dtype == VALUES.dtype:
            assert (values[~missing] == VALUES[~missing]).all()
        else:
            assert missing.all()
        found += int((~missing).sum())
        known = np.flatnonzero(rows >= 0)
        categories = sidecar.categories(rows[known]) if len(known) else []
        assert categories == [DOCUMENTS[i].categories for i in known.tolist()]
    return found, len(known)


def test_flips_over_all_files(made: Path, tmp_path: Path) -> None:
    """No document gets another one's features or categories."""
    assert read(made) == (2 * COUNT, COUNT)
    random = np.random.default_rng(17)
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    outcomes = {"error": 0, "fewer": 0, "equal": 0}
    for path in sorted(path for path in made.rglob("*") if path.is_file()):
        whole, target = path.read_bytes(), copy / path.relative_to(made)
        damages = [bytes(len(whole)), whole[: len(whole) // 2]]
        for position in random.integers(0, max(len(whole), 1), 25 if whole else 0).tolist():
            bit = 1 << int(random.integers(0, 8))
            damages.append(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        for damaged in damages:
            target.write_bytes(damaged)
            try:
                found = read(copy)
            except WorkspaceError:  # one of ours, with a line for whoever reads it
                outcomes["error"] += 1
            else:
                outcomes["equal" if found == (2 * COUNT, COUNT) else "fewer"] += 1
        target.write_bytes(whole)
    assert min(outcomes.values()) > 20, outcomes
    assert read(copy) == (2 * COUNT, COUNT)


def test_what_was_damaged_is_made_anew(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    (matrix,) = copy.rglob("matrix")
    data = bytearray(matrix.read_bytes())
    data[3] ^= 1
    matrix.write_bytes(data)
    sidecar = Sidecar(copy)
    rows = sidecar.rows_for(DOCUMENTS)
    assert np.flatnonzero(sidecar.gather("text", "v1", rows)[1]).tolist() == [0]
    assert sidecar.gather("text", "v1", np.array([-1, -1]))[1].all()
    sidecar.store("text", "v1", rows[:1], VALUES[:1])
    for _ in range(2):  # compared, and remembered
        values, missing = sidecar.gather("text", "v1", rows)
        assert not missing.any()
        assert (values == VALUES).all()
    assert sidecar.gather("text", "v1", np.array([0, -1, COUNT]))[1].tolist() == [False, True, True]
    assert read(copy) == (2 * COUNT, COUNT)


def test_features_that_come_again_are_compared_again(tmp_path: Path) -> None:
    """A version that was removed and is installed once more has another file, with fewer rows at first."""
    sidecar, rows = Sidecar(tmp_path / "sidecar"), np.arange(3)
    sidecar.store("text", "v1", rows, np.ones((3, 2), np.float32))
    assert not sidecar.gather("text", "v1", rows)[1].any()
    (found,) = (tmp_path / "sidecar").glob("*/rankers/text/v1")
    shutil.rmtree(found)
    Sidecar(tmp_path / "sidecar").store("text", "v1", np.array([3]), np.ones((1, 2), np.float32))
    for _ in range(2):
        assert sidecar.gather("text", "v1", np.array([0, 3]))[1].tolist() == [True, False]


def test_files_of_another_format_are_left_alone(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    (copy / "current").write_text("0\n")
    assert read(copy) == (2 * COUNT, COUNT)


def corrupt(folder: Path) -> None:
    (path,) = folder.rglob("categories")
    path.write_bytes(bytes(path.stat().st_size))


def test_repair_keeps_what_is_sound(made: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    sidecar = Sidecar(copy)
    assert sidecar.repair([("text", "v1"), ("meta", "v1")]) is sidecar
    assert read(copy) == (2 * COUNT, COUNT)
    (path,) = copy.rglob("about.json")
    path.write_text("{")
    assert Sidecar(copy).repair([("text", "v1")]).about("text", "v1") is None
    corrupt(copy)
    assert Sidecar(copy).repair([]).versions() == {}


def test_rows_are_read_from_the_generation_that_they_are_of(made: Path, tmp_path: Path) -> None:
    """Another process replaces the files between the two reads of a search."""
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    old = Sidecar(copy)
    rows = old.find(BY_ID)
    corrupt(copy)
    new = Sidecar(copy).repair([])
    new.store("text", "v1", new.rows_for(DOCUMENTS[::-1]), VALUES[::-1])
    values, missing = old.gather("text", "v1", rows)
    assert missing.all() or (values[~missing] == VALUES[~missing]).all()
    assert old.current().rows_for(DOCUMENTS).tolist() == list(range(COUNT))[::-1]
    assert (old.find(BY_ID) == rows).all() or (old.find(BY_ID) == -1).all()


def test_other_fields_are_other_documents(made: Path, tmp_path: Path) -> None:
    """Cells and coverage of the former fields do not count; equal texts keep their features."""
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    sidecar = Sidecar(copy, "other")
    assert (sidecar.find(BY_SHARD) == -1).all()
    assert sidecar.covered("text", "v1", "uuid", 0) == []
    assert not sidecar.gather("text", "v1", sidecar.rows_for(DOCUMENTS))[1].any()


def test_others_files_are_left_alone(made: Path, tmp_path: Path) -> None:
    """Whoever has led the folder to the top of a disk keeps what is there."""
    copy = Path(shutil.copytree(made, tmp_path / "files"))
    (copy / "photos").mkdir()
    (copy / "1-7").mkdir()
    (next(copy.glob("*/cells/uuid")) / ".nfs0001").touch()
    assert read(copy) == (2 * COUNT, COUNT)
    corrupt(copy)
    Sidecar(copy).repair([])
    assert {"photos", "current"} <= {path.name for path in copy.iterdir()}
    assert not any(copy.rglob("categories"))
