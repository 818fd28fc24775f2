"""The local engine's search for the nearest vectors agrees with NumPy's product over all vectors."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.engines.nearest import SingleSearch, nearest, positive_rows

NONE = np.empty(0, np.int64)


def names(rows):
    return [f"{(row * 7919) % 100_003:06}" for row in rows.tolist()]


def ranked(products, dead=()):
    """Return the rows with a product above zero, the best first."""
    ids = names(np.arange(len(products)))
    numbers = enumerate(products.astype(np.float32).tolist())
    return [row for *_, row in sorted((-p, ids[i], i) for i, p in numbers if p > 0 and i not in dead)]


def ranked_of_one(matrix, query, dead=()):
    return ranked(matrix.astype(np.float64) @ query.astype(np.float64), dead)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("together", [1, 20])
def test_the_best_products_above_zero_are_found(dtype, together):
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(2500, 24)) * rng.gamma(2, size=(2500, 1))
    matrix[::9] = 0
    matrix[100:140] = matrix[100]
    check_top(0, matrix.astype(dtype), together, ranked_of_one)


def check_top(passages, matrix, together, ranked_of):
    """Compare with the ranking by a simple loop, for a query that equals a row, and a query of zeros."""
    queries = np.random.default_rng(5).normal(size=(20, 24)).astype(np.float32)
    queries[3] = matrix[100, :24].astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    queries[4] = 0
    dead = np.array([100, 7, len(matrix) - 1])
    expected = [ranked_of(matrix, query, set(dead.tolist())) for query in queries]
    for depth in (1, 30, 1000, 10_000):
        actual = [
            rows.tolist()
            for begin in range(0, 20, together)
            for rows in nearest(matrix, queries[begin : begin + together], depth, passages, dead, names)
        ]
        assert actual == [sorted(rows[:depth]) for rows in expected]


def test_added_rows_are_found():
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(3000, 16)).astype(np.float16)
    query = rng.normal(size=(1, 16)).astype(np.float32)
    for count in (0, 1, 1000, 1000, 3000):
        (rows,) = nearest(matrix[:count], query, 50, 0, NONE, names)
        assert rows.tolist() == sorted(ranked_of_one(matrix[:count], query[0])[:50])


def random_passages(count, most, width, dtype):
    """Return up to ``most`` vectors per row, and their count. Every ninth row has none."""
    rng = np.random.default_rng(4)
    matrix = np.zeros((count, most, width))
    counts = rng.integers(1, most + 1, count)
    counts[::9] = 0
    there = np.arange(most) < counts[:, None]
    matrix[there] = rng.normal(size=(there.sum(), width))
    matrix[100:140], counts[100:140] = matrix[100], counts[100]
    matrix *= 100 / np.abs(matrix).max(axis=2, keepdims=True, initial=1e-9)
    return np.concatenate([np.rint(matrix).reshape(count, -1), counts[:, None]], axis=1).astype(dtype)


def ranked_of_three(matrix, query, dead):
    """Return the rows, the best first, computed in float64 over the existing vectors."""
    products = np.zeros(len(matrix))
    for row, numbers in enumerate(matrix.astype(np.float64)):
        some = numbers[:-1].reshape(3, -1)[: int(numbers[-1])]
        if len(some):
            products[row] = (some @ query.astype(np.float64) / np.linalg.norm(some, axis=1)).max()
    return ranked(products, dead)


@pytest.mark.parametrize("dtype", [np.int8, np.float16])
@pytest.mark.parametrize("together", [1, 20])
def test_the_largest_of_several_cosines_is_used(dtype, together):
    check_top(3, random_passages(500, 3, 24, dtype), together, ranked_of_three)


@pytest.mark.parametrize("rows", [0, 1, 40, 2500])
def test_the_rows_nearest_to_one_query_are_the_same(rows):
    """With equal rows, rows of zeros, rows of no document, and fewer rows than the depth."""
    rng = np.random.default_rng(3)
    matrix = (rng.normal(size=(rows, 24)) * rng.gamma(2, size=(rows, 1))).astype(np.float16)
    matrix[::9] = 0
    matrix[10:30] = matrix[10:11]
    dead = np.arange(5, rows, 7)
    search = SingleSearch(matrix)
    queries = rng.normal(size=(30, 24)).astype(np.float32)
    queries[3] = 0
    if rows > 10:
        queries[4] = matrix[10]
    for depth in (1, 5, 100, 5000):
        for query, together in zip(queries, nearest(matrix, queries, depth, 0, dead, names)):
            assert search.nearest(query, depth, dead, names).tolist() == together.tolist()


@pytest.mark.parametrize("distinct_scores", [2, 50, 1_000_000])
@pytest.mark.parametrize("depth", [1, 7, 100, 3000])
def test_positive_rows_have_the_best_scores_and_their_ties(depth, distinct_scores):
    rng = np.random.default_rng(depth)
    scores = rng.integers(0, distinct_scores, 20_011) / distinct_scores
    scores[rng.random(len(scores)) < 0.6] = 0
    rows = positive_rows(scores, depth)
    positive = np.sort(scores[scores > 0])
    cut = positive[-depth] if len(positive) >= depth else 0
    assert set(np.flatnonzero((scores >= cut) & (scores > 0))) <= set(rows.tolist())
    assert (scores[rows] > 0).all()
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize("depth", [0, 1, 100])
@pytest.mark.parametrize("count", [0, 1, 40, 20_011])
def test_positive_rows_of_zeros_are_none(count, depth):
    assert len(positive_rows(np.zeros(count), depth)) == 0


def test_positive_rows_of_a_large_collection_are_few():
    scores = np.random.default_rng(3).random(200_000)
    assert len(positive_rows(scores, 100)) < 300
