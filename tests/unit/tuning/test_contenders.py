"""The candidates that can reach the measured ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.tuning.contenders import contenders


def first_rows(scores, weights, depth, rows, dtype):
    """Return the first rows by the sum of weighted scores; equal sums keep their order."""
    sums = scores[rows].astype(dtype) @ weights.astype(dtype)
    return rows[np.argsort(-sums, kind="stable")[:depth]].tolist()


@given(
    st.integers(0, 999),
    st.integers(1, 400),
    st.integers(1, 5),
    st.integers(1, 12),
    st.sampled_from([2, 5, 1000]),
    st.sampled_from([np.float64, np.float32]),
)
def test_the_first_ranks_do_not_depend_on_the_other_candidates(seed, n, n_signals, depth, levels, dtype):
    """Signals have ties, different scales, and sometimes no score at all."""
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.integers(-3, 4, n_signals) * (random.random(n_signals) < 0.8)
    quality = random.random(n)[:, None]  # signals agree in part
    scores = np.round((quality + random.random((n, n_signals))) * levels) / levels * scales
    rows = contenders(scores, depth)
    assert (np.diff(rows) > 0).all()
    for _ in range(20):
        weights = random.integers(0, 5, n_signals) * 10.0 ** random.integers(-2, 3, n_signals)
        weights[random.integers(n_signals)] += 1  # not all are 0
        everything = first_rows(scores, weights, depth, np.arange(n), dtype)
        assert first_rows(scores, weights, depth, rows, dtype) == everything


@pytest.mark.parametrize("depth", [None, 50, 60])
def test_all_candidates_remain_if_all_ranks_are_measured(depth):
    scores = np.random.default_rng(0).random((50, 3))
    assert contenders(scores, depth).tolist() == list(range(50))


def test_most_candidates_leave_if_the_signals_agree():
    random = np.random.default_rng(0)
    scores = random.random(1000)[:, None] + 0.1 * random.random((1000, 4))
    assert len(contenders(scores, 10)) < 100
