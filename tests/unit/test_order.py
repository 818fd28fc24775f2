"""The one order: score descending, then id ascending by code point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.order import rank


def test_ties_go_to_the_smaller_id_by_code_point():
    ids = ["b", "B", "é", "a10", "a9", "z"]
    assert [ids[i] for i in rank(ids, [1, 1, 1, 1, 1, 2])] == ["z", "B", "a10", "a9", "b", "é"]


def test_characters_beyond_the_basic_plane_sort_by_code_point_not_by_utf16():
    ids = ["\U0001f600", "\uffee"]
    assert rank(ids, [0.0, 0.0]).tolist() == [1, 0]


def test_infinities_and_both_zeros():
    assert rank(["d", "c", "b", "a"], [-np.inf, 0.0, -0.0, np.inf]).tolist() == [3, 2, 1, 0]


def test_arrays_are_taken_too():
    assert rank(np.array(["b", "a"]), np.array([1.0, 1.0])).tolist() == [1, 0]


def test_nothing_and_one():
    assert rank([], []).tolist() == []
    assert rank(["a"], [3.0]).tolist() == [0]


def test_nan_and_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        rank(["a", "b"], [1.0, float("nan")])
    with pytest.raises(ValueError, match="2 ids"):
        rank(["a", "b"], [1.0])


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0, -1.0, 1e300])))
def test_equals_sorting_by_the_pair(scores):
    ids = list(scores)
    order = rank(ids, list(scores.values()))
    assert [ids[i] for i in order] == sorted(ids, key=lambda id: (-scores[id], id))
