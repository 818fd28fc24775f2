"""The order of results: score descending, then id ascending by code point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.order import rank


@pytest.mark.parametrize(
    ("ids", "scores", "ordered"),
    [
        (["b", "B", "é", "a10", "a9", "z"], [1, 1, 1, 1, 1, 2], ["z", "B", "a10", "a9", "b", "é"]),
        (["\U0001f600", "\uffee"], [0.0, 0.0], ["\uffee", "\U0001f600"]),  # not in the order of UTF-16
        (["d", "c", "b", "a"], [-np.inf, 0.0, -0.0, np.inf], ["a", "b", "c", "d"]),
        (np.array(["b", "a"]), np.array([1.0, 1.0]), ["a", "b"]),
        (["a"], [3.0], ["a"]),
        ([], [], []),
    ],
)
def test_ties_go_to_the_smaller_id_by_code_point(ids, scores, ordered):
    assert [ids[i] for i in rank(ids, scores)] == ordered


def test_nan_and_wrong_lengths_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        rank(["a", "b"], [1.0, float("nan")])
    with pytest.raises(ValueError, match="2 ids"):
        rank(["a", "b"], [1.0])


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0, -1.0, 1e300])))
def test_rank_equals_sorting_by_score_and_id(scores):
    ids = list(scores)
    order = rank(ids, list(scores.values()))
    assert [ids[i] for i in order] == sorted(ids, key=lambda id: (-scores[id], id))
