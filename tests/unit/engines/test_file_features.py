"""Features in files: lost ones are missing, and written again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rerank.common.errors import EngineError
from rerank.engines.file_features import FeatureFiles

COUNT = 40
ROWS = np.arange(COUNT)
VALUES = np.random.default_rng(3).normal(size=(COUNT, 21)).astype(np.float16)


@pytest.fixture
def files(tmp_path: Path) -> FeatureFiles:
    files = FeatureFiles(tmp_path / "features")
    files.write("text", "v1", ROWS, VALUES)
    return files


def stored_rows(folder: Path) -> list[int]:
    """Return the rows that have features. Each of these features must be correct."""
    values, missing = FeatureFiles(folder).read("text", "v1", ROWS)
    rows = np.flatnonzero(~missing)
    if len(rows):
        assert (values[rows] == VALUES[rows]).all()
    return rows.tolist()


def test_lost_features_are_missing(files: FeatureFiles, tmp_path: Path) -> None:
    """Of a shorter file, the rows at the end are missing; of a missing one, all of them."""
    folder = tmp_path / "features/text/v1"
    assert stored_rows(tmp_path / "features") == ROWS.tolist()
    for name, width in (("float16x21", 42), ("stored", 1)):
        whole = (folder / name).read_bytes()
        assert len(whole) == COUNT * width
        for rows in (0, 7, COUNT - 1):
            (folder / name).write_bytes(whole[: (rows + 1) * width - 1])
            assert stored_rows(tmp_path / "features") == list(range(rows))
        (folder / name).unlink()
        assert stored_rows(tmp_path / "features") == []
        (folder / name).write_bytes(whole)


def test_lost_features_are_written_again(files: FeatureFiles, tmp_path: Path) -> None:
    (tmp_path / "features/text/v1/stored").write_bytes(bytes([0]) + bytes([1]) * (COUNT - 1))
    other = FeatureFiles(tmp_path / "features")
    assert np.flatnonzero(other.read("text", "v1", ROWS)[1]).tolist() == [0]
    other.write("text", "v1", ROWS[:1], VALUES[:1])
    values, missing = other.read("text", "v1", ROWS)
    assert not missing.any()
    assert (values == VALUES).all()
    assert other.read("text", "v1", np.array([0, -1, COUNT]))[1].tolist() == [False, True, True]


def test_features_of_another_type_or_shape_are_refused(files: FeatureFiles) -> None:
    for values in (VALUES[:, :5], VALUES.astype(np.float32), VALUES[:3], VALUES[:, :0], VALUES[0]):
        with pytest.raises(EngineError, match="'text'"):
            files.write("text", "v1", ROWS, values)
    files.write("text", "v1", ROWS[:2], VALUES[:2, :5], replace=True)
    assert files.stored("text", "v1", COUNT).sum() == 2
    files.write("text", "v2", ROWS[:2], VALUES[:2])
    assert files.versions() == {"text": ["v1", "v2"]}
    files.remove("text", "v1")
    assert files.versions() == {"text": ["v2"]}


def test_a_version_that_another_process_removes_meanwhile_is_not_listed(files, tmp_path, monkeypatch):
    files.write("text", "v2", ROWS, VALUES)
    list_paths = Path.glob

    def glob_before_removal(folder: Path, pattern: str) -> list[Path]:
        paths = list(list_paths(folder, pattern))
        shutil.rmtree(tmp_path / "features/text/v1")
        return paths

    monkeypatch.setattr(Path, "glob", glob_before_removal)
    assert files.versions() == {"text": ["v2"]}
