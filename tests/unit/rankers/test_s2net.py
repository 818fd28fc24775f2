"""The loss and gradient of S2Net, and L-BFGS.

Expected numbers are computed by hand, SciPy or torch, not recorded from the code.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

from rerank.rankers.projection.s2net import S2Net, anchored, minimize, pairwise_logistic
from tests.support.rankers import comparisons, identity, separate_columns, texts, unit


@pytest.mark.parametrize("beta", [0.0, 0.01])
def test_the_gradient_matches_finite_differences(beta):
    X, Y = texts(9, 8, 1), texts(7, 8, 2)
    target = np.array([0, 1, 2, 3, 4, 5, 6, 2, 0])  # two documents belong to two queries each
    left_out = [[3], [], [], [1, 5], [], [], [], [0], [3]]
    worse = [[1], [], [4, 5], [0], [], [6], [], [], [2]]
    compared = comparisons(target, left_out, np.arange(1.0, 10.0), worse, columns=7)
    objective = s2net = S2Net(X, Y, compared, block=4)
    if beta:
        objective = anchored(s2net, np.random.default_rng(4).normal(size=(X.shape[1], 4)), beta)
    for parts in ([], [np.array([0, 3, 4, 7]), np.array([1, 2, 5, 6, 8])]):
        if parts:
            s2net.compare_within(parts)
        matrix = np.random.default_rng(3).normal(size=(X.shape[1], 4))
        _, gradient = objective(matrix)
        expected = np.zeros_like(matrix)
        for place in np.ndindex(matrix.shape):
            step = np.zeros_like(matrix)
            step[place] = 1e-5
            expected[place] = (objective(matrix + step)[0] - objective(matrix - step)[0]) / 2e-5
        assert np.linalg.norm(gradient - expected) < 1e-7 * np.linalg.norm(expected)


def test_the_loss_does_not_depend_on_scale_or_rotation():
    """With separate terms, it does not depend on the length of either half."""
    X, Y = texts(8, 10, 7), texts(8, 10, 8)
    objective = S2Net(X, Y, identity(8), epsilon=0)
    A = np.random.default_rng(9).normal(size=(10, 4))
    loss, gradient = objective(A)
    assert abs(np.vdot(A, gradient)) < 1e-12
    rotation = scipy.linalg.qr(np.random.default_rng(10).normal(size=(4, 4)))[0]
    scaled = S2Net(X.multiply(np.arange(1, 9)[:, None]).tocsr(), Y, identity(8), epsilon=0)
    for other in (objective(A @ rotation), objective(3 * A), scaled(A)):
        assert other[0] == pytest.approx(loss, rel=1e-12)
    assert objective(3 * A)[1] == pytest.approx(gradient / 3, abs=1e-12)
    two = np.random.default_rng(11).normal(size=(20, 4))
    _, gradient = S2Net(*separate_columns(X, Y), identity(8), epsilon=0)(two)
    assert abs(np.vdot(two[:10], gradient[:10])) + abs(np.vdot(two[10:], gradient[10:])) < 1e-12
    _, gradient = anchored(objective, np.ones_like(A), 0.1)(A)
    assert abs(np.vdot(A, gradient)) > 1e-4  # this does depend on the scale


def test_blocks_and_precision_do_not_change_the_loss():
    X, Y = texts(30, 40, 12), texts(30, 40, 13)
    A = np.random.default_rng(14).normal(size=(40, 6))
    actual = [S2Net(X, Y, identity(30), block=size)(A) for size in (1, 3, 30, 2048)]
    for loss, gradient in actual[1:]:
        assert loss == pytest.approx(actual[0][0], rel=1e-12)
        assert gradient == pytest.approx(actual[0][1], abs=1e-13)
    single = S2Net(X.astype(np.float32), Y.astype(np.float32), identity(30))(A.astype(np.float32))
    assert single[1].dtype == np.float32
    assert np.linalg.norm(single[1] - actual[0][1]) < 1e-4 * np.linalg.norm(actual[0][1])


def test_without_comparisons_there_is_no_loss():
    queries, documents = (unit(np.random.default_rng(seed).normal(size=(3, 4))) for seed in (16, 17))
    nothing = comparisons(range(3), [[1, 2], [0, 2], [0, 1]])
    loss, to_queries, to_documents = pairwise_logistic(queries, documents, nothing, 10.0)
    assert (loss, np.abs(to_queries).max(), np.abs(to_documents).max()) == (0.0, 0.0, 0.0)


def test_a_row_with_documents_judged_worse_is_compared_only_with_them():
    """The expected loss comes from a simple loop. A row without such documents is unchanged."""
    rng = np.random.default_rng(5)
    queries, documents = unit(rng.normal(size=(3, 4))), unit(rng.normal(size=(5, 4)))
    worse, left_out = [[3, 4], [], [1]], [[2], [], []]
    judged = comparisons(range(3), left_out, worse=worse, columns=5)
    expected = 0.0
    for i in range(3):
        S = documents @ queries[i]
        compared = [j for j in range(5) if j != i and j not in left_out[i]]
        each = np.log1p(np.exp(-10 * (S[i] - S)))
        expected += each[worse[i] or compared].mean() / 3
    assert pairwise_logistic(queries, documents, judged, 10.0)[0] == pytest.approx(expected, rel=1e-12)


def test_random_parts_give_the_full_gradient_on_average():
    X, Y = texts(24, 30, 18), texts(24, 30, 19)
    A = np.random.default_rng(20).normal(size=(30, 5))
    objective = S2Net(X, Y, identity(24))
    _, full = objective(A)
    rng = np.random.default_rng(21)
    objective.compare_within(
        [rng.permutation(24)]
    )  # one part of all rows gives the same gradient, in another order
    assert objective(A)[1] == pytest.approx(full, abs=1e-13)
    mean, one = np.zeros_like(full), None
    for _ in range(100):
        objective.compare_within(np.array_split(rng.permutation(24), 4))
        one = objective(A)[1]
        mean += one / 100
    assert np.linalg.norm(mean - full) < 0.1 * np.linalg.norm(full)
    assert np.linalg.norm(one - full) > 0.1 * np.linalg.norm(full)


def test_the_anchor_pulls_the_matrix_to_its_start():
    objective = S2Net(texts(5, 6, 22), texts(5, 6, 23), identity(5))
    start, there = np.random.default_rng(24).normal(size=(2, 6, 3))
    loss, gradient = anchored(objective, start, 0.5)(there)
    plain = objective(there)
    assert loss == pytest.approx(plain[0] + 0.25 * ((there - start) ** 2).sum())
    assert gradient == pytest.approx(plain[1] + 0.5 * (there - start))
    assert anchored(objective, there, 9.0)(there)[0] == plain[0]


def test_lbfgs_on_s2net_is_as_good_as_scipy():
    X, Y = texts(20, 15, 25), texts(20, 15, 26)
    objective = S2Net(X, Y, identity(20))
    start = np.random.default_rng(27).normal(size=(15, 3))
    evaluated = []

    def counted(x):
        evaluated.append(x)
        return objective(x)

    losses = [loss for _, loss in islice(minimize(counted, start), 60)]

    def flat(x):
        loss, gradient = objective(x.reshape(15, 3))
        return loss, gradient.ravel()

    reference = scipy.optimize.minimize(
        flat, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 60}
    )
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < reference.fun * 1.05
    assert losses[-1] < 0.5 * objective(start)[0]
    assert len(evaluated) < 200


def test_lbfgs_stops_without_a_gain():
    assert list(minimize(lambda x: (1.0, np.zeros_like(x)), np.ones(3))) == []
    assert list(minimize(lambda x: (float("nan"), np.ones_like(x)), np.ones(3))) == []
