"""``relevance_score``: from 0 to 1 whatever the stack, and in the stack's order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.combiners.linear import Linear


def linear(normalization: str) -> Linear:
    return Linear(("tfidf", "text"), (2, 3), normalization)


@pytest.mark.parametrize("normalization", ["min-max", "z-score", "none"])
@given(rows=st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=9))
def test_from_0_to_1_in_the_same_order(normalization, rows):
    final = linear(normalization).combine(np.array(rows)).final
    scores = linear(normalization).relevance(final)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (np.diff(scores[np.argsort(final)]) >= 0).all()


def test_by_hand():
    np.testing.assert_allclose(linear("min-max").relevance(np.array([5.0, 2.0])), [1.0, 0.4])
    np.testing.assert_allclose(linear("z-score").relevance(np.log([3.0, 1 / 3])), [0.75, 0.25])
    np.testing.assert_allclose(linear("none").relevance(np.array([3.0, -1 / 3])), [0.875, 0.375])
    bm25 = Linear(("bm25",), (1,), normalization="none").relevance(np.array([41.5, 41.25]))
    assert 1 > bm25[0] > bm25[1]
    assert linear("none").relevance(np.array([1e308, -1e308])).tolist() == [1.0, 0.0]
