"""The candidates that can reach the measured ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.documents.records import Qrels
from rerank.evaluation.ranks import RankMeasure
from rerank.stack.normalize import Moments
from rerank.tuning import measure as measuring
from rerank.tuning.contenders import contenders
from rerank.tuning.grid import Grid, compositions
from rerank.tuning.score_table import ScoreTable


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


@given(
    st.integers(0, 999),
    st.integers(1, 4),
    st.sampled_from(["nDCG@10", "RR@5", "AP@3"]),
    st.sampled_from(["min-max", "z-score", "rank", "none", "fitted"]),
    st.sampled_from([1.0, 1e-170, 1e101]),
)
def test_pruning_changes_no_value_of_a_grid(seed, n_signals, measure, normalization, scale):
    """Scores have ties, noise, constant signals, signs, and other sizes than those of the second query."""
    random = np.random.default_rng(seed)
    signals = ("bm25", "field:views", "text", "meta")[:n_signals]
    rows = []
    for query, factor in (("q1", scale), ("q2", 10.0 ** random.integers(0, 16))):
        scores = random.integers(0, random.integers(1, 300), (250, n_signals)) - random.integers(0, 5)
        noise = random.integers(0, 2) * 1e-8 * random.random(scores.shape)
        rows.append((query, [f"d{row:03}" for row in range(250)], (scores + noise) * factor))
    table = ScoreTable.build(signals, rows)
    qrels = Qrels([(query, f"d{row:03}", 1) for query in ("q1", "q2") for row in random.integers(0, 250, 4)])
    by = RankMeasure.parse(measure)
    moments = []
    if normalization == "fitted":
        pooled = np.concatenate([row.scores for row in table.rows])
        moments = [Moments.from_scores(column) for column in pooled.T]
    grid = Grid(normalization, compositions(n_signals, 5) / 5, moments=moments)
    pruned, _ = measuring.judge(table, qrels, by)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "contenders", lambda scores, *_: np.arange(len(scores)))
        complete, _ = measuring.judge(table, qrels, by)
    for few, everything in zip(pruned, complete):
        expected = measuring.query_values(everything, grid, by)
        np.testing.assert_allclose(measuring.query_values(few, grid, by), expected, atol=1e-12)


def test_most_candidates_leave_if_the_signals_agree():
    random = np.random.default_rng(0)
    scores = random.random(1000)[:, None] + 0.1 * random.random((1000, 4))
    assert len(contenders(scores, 10)) < 100
