"""Features in files: corruption causes an error, missing features, or no change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rerank.engines.file_features import FeatureFiles
from rerank.errors import EngineError

COUNT = 40
ROWS = np.arange(COUNT)
VALUES = np.random.default_rng(3).normal(size=(COUNT, 21)).astype(np.float16)


@pytest.fixture
def files(tmp_path: Path) -> FeatureFiles:
    files = FeatureFiles(tmp_path / "features", 7)
    files.write("text", "v1", ROWS, VALUES)
    return files


def read(folder: Path) -> int:
    """Return the number of rows that have features. Each of these features must be correct."""
    values, missing = FeatureFiles(folder, 7).read("text", "v1", ROWS)
    if values.shape[1] == VALUES.shape[1] and values.dtype == VALUES.dtype:
        assert (values[~missing] == VALUES[~missing]).all()
    else:
        assert missing.all()
    return int((~missing).sum())


def test_corrupt_features_are_never_returned(files: FeatureFiles, tmp_path: Path) -> None:
    """Covers bit flips, zeros and truncated files."""
    folder, random = tmp_path / "features", np.random.default_rng(17)
    assert (read(folder), list(files.corruptions())) == (COUNT, [])
    outcomes = {"fewer": 0, "equal": 0}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        corrupt = [bytes(len(whole)), whole[: len(whole) // 2]]
        for position in random.integers(0, len(whole), 25).tolist():
            bit = 1 << int(random.integers(0, 8))
            corrupt.append(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        for data in corrupt:
            path.write_bytes(data)
            count = read(folder)
            outcomes["equal" if count == COUNT else "fewer"] += 1
            if len(data) == len(whole) and count < COUNT and any(data):
                assert list(FeatureFiles(folder, 7).corruptions())
        path.write_bytes(whole)
    assert outcomes["fewer"] > 20


def test_a_corrupt_feature_is_written_again(files: FeatureFiles, tmp_path: Path) -> None:
    path = tmp_path / "features/text/v1/float16x21"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    other = FeatureFiles(tmp_path / "features", 7)
    assert np.flatnonzero(other.read("text", "v1", ROWS)[1]).tolist() == [0]
    other.write("text", "v1", ROWS[:1], VALUES[:1])
    for _ in range(2):  # first compared with the checksum, then from memory
        values, missing = other.read("text", "v1", ROWS)
        assert not missing.any()
        assert (values == VALUES).all()
    assert other.read("text", "v1", np.array([0, -1, COUNT]))[1].tolist() == [False, True, True]


def test_rows_of_another_numbering_are_missing(files: FeatureFiles, tmp_path: Path) -> None:
    assert FeatureFiles(tmp_path / "features", 8).read("text", "v1", ROWS)[1].all()


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
