"""Arrays of rankers are memory-mapped, so that processes share them."""

from __future__ import annotations

import gc
import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from rerank.common.arrays import are_finite, map_arrays, single_precision
from rerank.rankers.registry import load_ranker
from tests.conformance.ranker_rules import DOCUMENTS, QUERIES
from tests.support.rankers import cnn, projection

ARRAYS = {
    "matrix": np.arange(12, dtype=np.float16).reshape(4, 3),
    "bias": np.array([1.5, -2.5], dtype=np.float32),
    "wide": np.array([1e300]),
    "numbers": np.array([[-(2**40)]], dtype=np.int64),
    "flags": np.array([True, False, True]),
    "bytes": np.array([255, 0], dtype=np.uint8),
    "none": np.zeros((0, 7), dtype=np.float32),
    "scalar": np.array(3.0, dtype=np.float32),
}


def is_mapped(array: np.ndarray) -> bool:
    """Return whether the array's data is memory-mapped, through any number of views."""
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def test_map_arrays_reads_the_same_arrays_as_safetensors(tmp_path):
    save_file(ARRAYS, tmp_path / "a.safetensors", {"made": "by a test"})
    actual = map_arrays(tmp_path / "a.safetensors")
    expected = load_file(tmp_path / "a.safetensors")
    assert set(actual) == set(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape)
        assert actual[name].tobytes() == array.tobytes()
        assert is_mapped(actual[name])
        assert type(actual[name]) is np.ndarray
        assert actual[name].flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            actual[name][...] = 0


def test_unaligned_arrays_of_other_programs_are_read(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}).encode()
    header += b" " * (-len(header) % 8)
    numbers = np.array([1.0, 2.0], dtype=np.float32)
    data = len(header).to_bytes(8, "little") + header + b"x" + numbers.tobytes()
    (tmp_path / "a").write_bytes(data)
    actual = map_arrays(tmp_path / "a")["a"]
    assert actual.tolist() == [1.0, 2.0]
    assert actual.flags.aligned
    assert not actual.flags.writeable


@given(data=st.data())
def test_a_damaged_array_file_raises_value_error(tmp_path_factory, data):
    path: Path = tmp_path_factory.getbasetemp() / "damaged"
    good = save(ARRAYS)
    kind = data.draw(st.sampled_from(["cut", "header", "offsets", "anything"]))
    if kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "header":
        place = data.draw(st.integers(0, 7))
        bad = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    elif kind == "offsets":
        offsets = data.draw(st.lists(st.integers(-99, 99)).filter(lambda pair: pair != [8, 16]))
        about = {"dtype": "F32", "shape": [2], "data_offsets": offsets}
        header = json.dumps({"a": about}).encode()
        bad = len(header).to_bytes(8, "little") + header + bytes(16)
    else:
        bad = data.draw(st.binary(max_size=200))
    path.write_bytes(bad)
    with pytest.raises(ValueError, match=r"."):
        map_arrays(path)


def arrays_of(thing: object) -> list[np.ndarray]:
    """Return every array in a ranker, at any depth."""
    if isinstance(thing, np.ndarray):
        return [thing]
    if isinstance(thing, (list, tuple)):
        return [array for one in thing for array in arrays_of(one)]
    if isinstance(thing, dict):
        return arrays_of([*thing.values()])
    if is_dataclass(thing):
        return [array for field in fields(thing) for array in arrays_of(getattr(thing, field.name))]
    return []


RANKERS = {
    "cosine": lambda: cnn("joint"),
    "mlp": lambda: cnn("joint", head="mlp"),
    "projection": lambda: projection("cca"),
}


@pytest.mark.parametrize("made", RANKERS)
def test_rankers_do_not_copy_their_arrays(tmp_path, made):
    ranker = RANKERS[made]()
    ranker.save(tmp_path / "r")
    loaded = load_ranker(tmp_path / "r")
    stored = load_file(tmp_path / "r" / "model.safetensors")
    actual = arrays_of(loaded)
    assert sum(array.nbytes for array in actual) >= sum(array.nbytes for array in stored.values())
    assert all(is_mapped(array) and not array.flags.writeable for array in actual)
    scores = [
        one.score(one.encode_query(QUERIES[0]), one.encode_documents(DOCUMENTS)).tolist()
        for one in (ranker, loaded)
    ]
    assert scores[0] == scores[1]
    assert all(is_mapped(array) for array in arrays_of(loaded))  # using the ranker has copied none


def test_a_loaded_ranker_works_after_its_files_are_deleted(tmp_path):
    """`train` deletes the previous version. Processes that have loaded it continue to use it."""
    projection().save(tmp_path / "r")
    loaded = load_ranker(tmp_path / "r")
    before = loaded.encode_query(QUERIES[0]).tolist()
    for path in (tmp_path / "r").iterdir():
        path.unlink()
    gc.collect(1)  # the loaded objects are young
    assert loaded.encode_query(QUERIES[0]).tolist() == before


ALL_HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


def test_each_float16_becomes_the_same_float32():
    converted = single_precision(ALL_HALVES)
    is_number = ~np.isnan(ALL_HALVES)
    assert converted.dtype == np.float32
    assert (np.isnan(converted) == ~is_number).all()
    numbers = ALL_HALVES[np.isfinite(ALL_HALVES)]
    for values, singles in (
        (ALL_HALVES[is_number], converted[is_number]),
        (numbers, single_precision(numbers)),  # without infinities, by their bits
        (numbers[::3], single_precision(numbers[::3])),
    ):
        expected = np.array([*map(float, values)], np.float32)
        assert singles.view(np.uint32).tolist() == expected.view(np.uint32).tolist()  # also -0.0


def test_float32_is_not_copied_and_other_numbers_are_rounded():
    singles = np.array([1.5, -2.5], np.float32)
    assert np.shares_memory(single_precision(singles), singles)
    assert single_precision(np.array([0.1, 3.0])).tolist() == np.array([0.1, 3.0], np.float32).tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_with_infinity_or_nan_are_not_finite(dtype):
    rows = np.array([[1, -2], [np.inf, 0], [0, -np.inf], [np.nan, 1], [65504, -65504]], dtype)
    assert are_finite(rows).tolist() == [True, False, False, False, True]
    assert are_finite(rows[:0]).tolist() == []
    assert are_finite(rows[:, :0]).all()


def test_integers_are_finite():
    assert are_finite(np.array([[127, -128]], np.int8)).tolist() == [True]
