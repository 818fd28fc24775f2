"""Projections: S2Net's loss and gradient, L-BFGS, eigenvectors, the ranker, training and its refusals.

Expected numbers are worked out by hand, or come from SciPy; none is a recording of what the code gave.
"""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from rerank.actions.ingest import encode
from rerank.actions.status import status
from rerank.actions.train import TrainReport, prepare, train
from rerank.errors import InputError, TrainingError, UsageError, WorkspaceError
from rerank.formats import read_pairs, read_qrels
from rerank.progress import Progress
from rerank.rankers.projection.ranker import Projection, Side
from rerank.rankers.projection.terms import Terms, terms_of
from rerank.rankers.registry import load_ranker
from rerank.records import Document, Qrels, Query
from rerank.settings import build
from rerank.stack.stack import Stack
from rerank.training.data import Corpus
from rerank.training.projection.config import INITS, ProjectionConfig
from rerank.training.projection.fit import ProjectionTrainer, anchored, apart, reciprocal_rank
from rerank.training.projection.lbfgs import minimise
from rerank.training.projection.s2net import (
    LOSSES,
    MOST_GAMMA,
    Comparisons,
    S2Net,
    pairwise_logistic,
    squared_error,
)
from rerank.training.projection.spectral import cca, cllsi, lsi, opca
from rerank.training.projection.term_matrix import fit_terms, term_matrix
from rerank.workspace import Workspace


def texts(rows, columns, seed, density=0.4, dtype=np.float64):
    rng = np.random.default_rng(seed)
    values = rng.random((rows, columns)) * (rng.random((rows, columns)) < density)
    values[np.arange(rows), rng.integers(columns, size=rows)] = 1.0  # no empty row
    return csr_matrix(values.astype(dtype))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def identity(count):
    return Comparisons.of(np.arange(count))


# ------------------------------------------------------------------------------------- S2Net: the loss


def test_a_case_worked_out_by_hand():
    """S = [[1, r], [0, r]] with r = sqrt(1/2), and A the identity."""
    X, Y = csr_matrix(np.eye(2)), csr_matrix(np.array([[1.0, 0.0], [1.0, 1.0]]))
    r = 0.5**0.5
    first, second = np.log1p(np.exp(-10 * (1 - r))), np.log1p(np.exp(-10 * r))
    loss, gradient = S2Net(X, Y, identity(2), epsilon=0)(np.eye(2))
    assert loss == pytest.approx((first + second) / 2, rel=1e-12)
    assert loss == pytest.approx(0.02646167, abs=1e-8)
    assert gradient == pytest.approx(np.array([[0.0911997, 0.09244245], [0.09244245, -0.0911997]]), abs=1e-7)
    turned, *_ = pairwise_logistic(Y.toarray() / [[1.0], [2**0.5]], X.toarray(), identity(2).reversed(), 10.0)
    assert turned == pytest.approx(0.34659629, abs=1e-8)
    assert turned == pytest.approx((np.log(2) + np.log1p(np.exp(-10))) / 2, rel=1e-12)
    both, gradient = S2Net(X, Y, identity(2), epsilon=0, both=True)(np.eye(2))
    assert both / 2 == pytest.approx(0.18652898, abs=1e-8)
    assert gradient / 2 == pytest.approx(
        np.array([[0.92948332, 0.04633472], [0.04633472, -0.92948332]]), abs=1e-7
    )


@pytest.mark.parametrize("tanh", [False, True], ids=["linear", "tanh"])
@pytest.mark.parametrize("both", [False, True], ids=["row", "both"])
@pytest.mark.parametrize("two", [False, True], ids=["shared", "two"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("beta", [0.0, 0.01])
def test_the_gradient_is_that_of_finite_differences(tanh, both, two, loss, beta):
    X, Y = texts(9, 12, 1), texts(7, 12, 2)
    if two:
        X, Y = apart(X, Y)
    target = np.array([0, 1, 2, 3, 4, 5, 6, 2, 0])  # two documents belong to two queries each
    left_out = [np.array(rest, dtype=np.int64) for rest in ([3], [], [], [1, 5], [], [], [], [0], [3])]
    weight, label = np.arange(1.0, 10.0), np.linspace(0.2, 1.0, 9)
    worse = [np.array(some, dtype=np.int64) for some in ([1], [], [4, 5], [0], [], [6], [], [], [2])]
    comparisons = Comparisons.of(target, left_out, weight, label, worse, 0.3)
    objective = s2net = S2Net(X, Y, comparisons, loss=loss, tanh=tanh, both=both, block=4)
    if beta:
        objective = anchored(s2net, np.random.default_rng(4).normal(size=(X.shape[1], 4)), beta)
    for parts in (None, [np.array([0, 3, 4, 7]), np.array([1, 2, 5, 6, 8])]):
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


def test_the_gradient_is_that_of_each_pair_of_texts():
    """The paper's appendix: bc(fp gq' + fq gp') - a b^3 c fp gp' - a b c^3 fq gq' for each cosine."""
    X, Y = texts(5, 8, 4), texts(5, 8, 5)
    A = np.random.default_rng(6).normal(size=(8, 3))

    def cosine(p, q):
        fp, fq = X[p].toarray()[0], Y[q].toarray()[0]
        gp, gq = fp @ A, fq @ A
        a, b, c = gp @ gq, 1 / np.linalg.norm(gp), 1 / np.linalg.norm(gq)
        gradient = b * c * (np.outer(fp, gq) + np.outer(fq, gp))
        gradient -= a * b**3 * c * np.outer(fp, gp) + a * b * c**3 * np.outer(fq, gq)
        return a * b * c, gradient

    loss, expected = 0.0, np.zeros_like(A)
    for i in range(5):
        for j in set(range(5)) - {i}:
            (better, to_better), (worse, to_worse) = cosine(i, i), cosine(i, j)
            loss += np.log1p(np.exp(-10 * (better - worse))) / 20
            share = -10 / (1 + np.exp(10 * (better - worse))) / 20
            expected += share * (to_better - to_worse)
    found, gradient = S2Net(X, Y, identity(5), epsilon=0)(A)
    assert found == pytest.approx(loss, rel=1e-12)
    assert gradient == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tanh", [False, True], ids=["linear", "tanh"])
def test_the_gradient_is_that_of_torch(loss, tanh):
    """Another differentiation, of the loss written down anew, pair by pair."""
    X, Y = texts(8, 12, 40), texts(8, 12, 41)
    A = np.random.default_rng(42).normal(size=(12, 4))
    matrix = torch.tensor(A, requires_grad=True)
    P, Q = (torch.tensor(side.toarray()) @ matrix for side in (X, Y))
    if tanh:
        P, Q = torch.tanh(P), torch.tanh(Q)
    S = torch.nn.functional.normalize(P) @ torch.nn.functional.normalize(Q).T
    own = torch.diagonal(S)
    others = ~torch.eye(8, dtype=torch.bool)
    if loss == "logistic":
        compared = torch.nn.functional.softplus(-10 * (own[:, None] - S))[others].mean()
    else:
        compared = ((1 - own) ** 2).mean() / 2 + (S[others] ** 2).mean() / 2
    compared.backward()
    found, gradient = S2Net(X, Y, identity(8), loss=loss, tanh=tanh, epsilon=0)(A)
    assert found == pytest.approx(float(compared.detach()), rel=1e-12)
    assert gradient == pytest.approx(matrix.grad.numpy(), rel=1e-9, abs=1e-15)


def test_what_the_loss_does_not_depend_on():
    X, Y = texts(8, 10, 7), texts(8, 10, 8)
    objective = S2Net(X, Y, identity(8), epsilon=0)
    A = np.random.default_rng(9).normal(size=(10, 4))
    loss, gradient = objective(A)
    assert abs(np.vdot(A, gradient)) < 1e-12
    assert A.T @ gradient == pytest.approx((A.T @ gradient).T, abs=1e-12)
    rotation = scipy.linalg.qr(np.random.default_rng(10).normal(size=(4, 4)))[0]
    turned, turned_gradient = objective(A @ rotation)
    assert turned == pytest.approx(loss, rel=1e-12)
    assert turned_gradient == pytest.approx(gradient @ rotation, abs=1e-12)
    assert objective(3 * A)[1] == pytest.approx(gradient / 3, abs=1e-12)
    scaled = S2Net(X.multiply(np.arange(1, 9)[:, None]).tocsr(), Y, identity(8), epsilon=0)
    assert scaled(A)[0] == pytest.approx(loss, rel=1e-12)
    sides = S2Net(*apart(X, Y), identity(8), epsilon=0)
    two = np.random.default_rng(11).normal(size=(20, 4))
    _, gradient = sides(two)
    assert abs(np.vdot(two[:10], gradient[:10])) < 1e-12
    assert abs(np.vdot(two[10:], gradient[10:])) < 1e-12
    half = two[:10].T @ gradient[:10]
    assert np.abs(half - half.T).max() > 1e-6
    whole = two.T @ gradient
    assert whole == pytest.approx(whole.T, abs=1e-12)
    for bent in (S2Net(X, Y, identity(8), tanh=True), anchored(objective, np.ones_like(A), 0.1)):
        assert abs(np.vdot(A, bent(A)[1])) > 1e-4  # these do depend on the scale


def test_blocks_and_precision_do_not_matter():
    X, Y = texts(30, 40, 12), texts(30, 40, 13)
    A = np.random.default_rng(14).normal(size=(40, 6))
    found = [S2Net(X, Y, identity(30), block=size)(A) for size in (1, 3, 30, 2048)]
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-12)
        assert gradient == pytest.approx(found[0][1], abs=1e-13)
    single = S2Net(X.astype(np.float32), Y.astype(np.float32), identity(30))(A.astype(np.float32))
    assert single[1].dtype == np.float32
    assert np.linalg.norm(single[1] - found[0][1]) < 1e-4 * np.linalg.norm(found[0][1])


def test_documents_that_are_alike_cost_ln_2_and_move_nothing():
    same = csr_matrix(np.ones((3, 5)))
    loss, gradient = S2Net(texts(3, 5, 15), same, identity(3))(np.random.default_rng(0).normal(size=(5, 2)))
    assert loss == pytest.approx(np.log(2), rel=1e-9)
    assert np.abs(gradient).max() < 1e-12


def test_what_is_left_out_is_not_compared():
    queries, documents = unit(np.random.default_rng(16).normal(size=(2, 3, 4)).reshape(6, 4))[:3], None
    documents = unit(np.random.default_rng(17).normal(size=(3, 4)))
    everything = [np.array([1, 2]), np.array([0, 2]), np.array([0, 1])]
    loss, to_queries, to_documents = pairwise_logistic(
        queries, documents, Comparisons.of(np.arange(3), everything), 10.0
    )
    assert (loss, np.abs(to_queries).max(), np.abs(to_documents).max()) == (0.0, 0.0, 0.0)
    some = Comparisons.of(np.arange(3), [np.array([1]), np.array([0, 2]), np.array([0, 1])])
    S = queries @ documents.T
    loss, *_ = pairwise_logistic(queries, documents, some, 10.0)
    assert loss == pytest.approx(np.log1p(np.exp(10 * (S[0, 2] - S[0, 0]))) / 3, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_judged_worse_has_a_weight_of_its_own(loss):
    """Against a plain loop; a row without any is as it was."""
    rng = np.random.default_rng(5)
    queries, documents = unit(rng.normal(size=(3, 4))), unit(rng.normal(size=(5, 4)))
    worse = [np.array(some, dtype=np.int64) for some in ([3, 4], [], [1])]
    left_out = [np.array(some, dtype=np.int64) for some in ([2], [], [])]
    comparisons = Comparisons.of(np.arange(3), left_out, worse=worse, judged=0.4)
    function = {"logistic": lambda q, d, c: pairwise_logistic(q, d, c, 10.0), "squared": squared_error}[loss]
    expected = 0.0
    for i in range(3):
        S = documents @ queries[i]
        compared = [j for j in range(5) if j != i and j not in left_out[i]]
        each = np.log1p(np.exp(-10 * (S[i] - S))) if loss == "logistic" else np.square(S) / 2
        mean = each[compared].mean()
        expected += (0.6 * mean + 0.4 * each[worse[i]].mean() if len(worse[i]) else mean) / 3
        expected += (1 - S[i]) ** 2 / 6 if loss == "squared" else 0
    assert function(queries, documents, comparisons)[0] == pytest.approx(expected, rel=1e-12)
    plain = Comparisons.of(np.arange(3), left_out)
    without = Comparisons.of(np.arange(3), left_out, worse=worse, judged=0.0)
    assert function(queries, documents, without)[0] == function(queries, documents, plain)[0]


@pytest.mark.parametrize("before", [False, True])
def test_the_nearest_wrong_columns_weigh_as_judged_worse(before):
    """Against a plain loop, in blocks of two rows; what was judged stays, what is left out is never taken."""
    rng = np.random.default_rng(6)
    queries, documents = unit(rng.normal(size=(5, 4))), unit(rng.normal(size=(7, 4)))
    left_out = [np.array(some, dtype=np.int64) for some in ([2], [], [5, 6], [0, 1, 2, 4, 5, 6], [])]
    worse = [np.array(some, dtype=np.int64) for some in ([3, 4], [], [1], [], [0])] if before else None
    given = Comparisons.of(np.arange(5), left_out, worse=worse, judged=0.4)
    found = given.with_nearest(queries, documents, 2, block=2)
    for i in range(5):
        allowed = [j for j in range(7) if j != i and j not in left_out[i]]
        nearest = sorted(allowed, key=lambda j: -(documents[j] @ queries[i]))[:2]
        expected = sorted({*nearest, *(worse[i].tolist() if worse else ())})
        assert found.worse[found.worse_offsets[i] : found.worse_offsets[i + 1]].tolist() == expected
    objective = S2Net(texts(5, 9, 1), texts(7, 9, 2), given, both=True)
    matrix = rng.normal(size=(9, 3))
    plain = objective(matrix)[0]
    objective.weigh_nearest(matrix, 2)
    assert objective(matrix)[0] > plain
    gradient = objective(matrix)[1]
    step = rng.normal(size=matrix.shape) * 1e-6
    ahead, behind = objective(matrix + step)[0], objective(matrix - step)[0]
    assert (ahead - behind) / 2 == pytest.approx(float((gradient * step).sum()), rel=1e-5)


def test_parts_drawn_at_random_are_right_on_average():
    X, Y = texts(24, 30, 18), texts(24, 30, 19)
    A = np.random.default_rng(20).normal(size=(30, 5))
    objective = S2Net(X, Y, identity(24))
    _, full = objective(A)
    rng = np.random.default_rng(21)
    objective.compare_within([rng.permutation(24)])  # one part of all rows: the same, in another order
    assert objective(A)[1] == pytest.approx(full, abs=1e-13)
    mean, one = np.zeros_like(full), None
    for _ in range(400):
        objective.compare_within(np.array_split(rng.permutation(24), 4))
        one = objective(A)[1]
        mean += one / 400
    assert np.linalg.norm(mean - full) < 0.06 * np.linalg.norm(full)
    assert np.linalg.norm(one - full) > 0.06 * np.linalg.norm(full)


def test_the_anchor_pulls_back():
    objective = S2Net(texts(5, 6, 22), texts(5, 6, 23), identity(5))
    start, there = np.random.default_rng(24).normal(size=(2, 6, 3))
    loss, gradient = anchored(objective, start, 0.5)(there)
    plain = objective(there)
    assert loss == pytest.approx(plain[0] + 0.25 * ((there - start) ** 2).sum())
    assert gradient == pytest.approx(plain[1] + 0.5 * (there - start))
    assert anchored(objective, there, 9.0)(there)[0] == plain[0]


# -------------------------------------------------------------------------------------------- L-BFGS


def test_lbfgs_arrives_where_scipy_does():
    def rosenbrock(x):
        return float(scipy.optimize.rosen(x)), scipy.optimize.rosen_der(x)

    steps = list(minimise(rosenbrock, np.array([-1.2, 1.0])))
    assert steps[-1].point == pytest.approx(np.ones(2), abs=1e-4)
    losses = [step.loss for step in steps]
    assert losses == sorted(losses, reverse=True)
    assert len(steps) < 100
    assert steps[-1].evaluations < 200


def test_lbfgs_on_s2net_is_as_good_as_scipy():
    X, Y = texts(20, 15, 25), texts(20, 15, 26)
    objective = S2Net(X, Y, identity(20))
    start = np.random.default_rng(27).normal(size=(15, 3))
    steps = []
    for step in minimise(objective, start):
        steps.append(step)
        if len(steps) == 60:
            break

    def flat(x):
        loss, gradient = objective(x.reshape(15, 3))
        return loss, gradient.ravel()

    reference = scipy.optimize.minimize(
        flat, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 60}
    )
    assert steps[-1].loss < reference.fun * 1.05
    assert steps[-1].loss < 0.5 * objective(start)[0]


def test_lbfgs_stops_where_there_is_nothing_to_gain():
    assert list(minimise(lambda x: (1.0, np.zeros_like(x)), np.ones(3))) == []
    assert list(minimise(lambda x: (float("nan"), np.ones_like(x)), np.ones(3))) == []


# --------------------------------------------------------------------------------------- eigenvectors


def spans(a, b):
    """The largest angle between two column spaces."""
    return float(scipy.linalg.subspace_angles(a, b).max())


@pytest.mark.parametrize("small", [True, False])
def test_lsi_is_a_truncated_svd(monkeypatch, small):
    if not small:
        monkeypatch.setattr("rerank.training.projection.spectral.SMALL", 0)
    rng = np.random.default_rng(28)
    D = csr_matrix(rng.normal(size=(60, 10)) * 0.7 ** np.arange(10) @ rng.normal(size=(10, 50)))
    A = lsi(D, 5)
    _, values, rows = svds(D, 5)
    assert spans(A, rows.T) < 1e-6
    assert np.linalg.norm(D @ A, axis=0) == pytest.approx(np.sort(values)[::-1], rel=1e-6)
    assert (A[np.abs(A).argmax(axis=0), np.arange(5)] > 0).all()
    assert lsi(D, 30).shape == (50, 10)  # no more than the rank


def test_cllsi_of_texts_with_themselves_is_lsi():
    X = texts(20, 12, 29)
    assert spans(cllsi(X, X, 4), lsi(X, 4)) < 1e-7
    double = cllsi(*apart(X, X), 4)
    assert double[:12] == pytest.approx(double[12:], abs=1e-10)
    assert np.abs(double[:12] * 2**0.5) == pytest.approx(np.abs(lsi(X, 4)), abs=1e-7)
    values = [np.linalg.norm(D @ A, axis=0) for D, A in ((X, lsi(X, 4)), (X + X, cllsi(X, X, 4)))]
    assert values[1] == pytest.approx(2 * values[0])
    left, right = apart(X, X)
    assert np.linalg.norm((left + right) @ double, axis=0) == pytest.approx(2**0.5 * values[0])
    cosines = [unit(D @ A) @ unit(D @ A).T for D, A in ((X, lsi(X, 4)), (left, double))]
    assert cosines[1] == pytest.approx(cosines[0], abs=1e-12)


def test_cllsi_brings_translations_together():
    """Terms cat, linux, gatto; pairs cat - gatto, linux - linux."""
    X = csr_matrix(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    Y = csr_matrix(np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    A = cllsi(X, Y, 2)
    assert np.linalg.svd((X + Y).toarray())[1] == pytest.approx([2.0, 2**0.5])
    assert unit(X @ A) @ unit(Y @ A).T == pytest.approx(np.eye(2), abs=1e-12)


def test_opca_worked_out_by_hand():
    """S = diag(2, 0.5), B = diag(0.5, 1): lambda 4 with (sqrt 2, 0), then 0.5 with (0, 1)."""
    X, Y = csr_matrix(np.array([[2.0, 1.0], [0.0, 1.0]])), csr_matrix(np.array([[2.0, -1.0], [0.0, 1.0]]))
    # Each pair's noise: (0, 1), (0, 0); its mean variance a column is 1/4, so the ridge is 2 for eta = 1/2.
    A = opca(X, Y, 2, ridge=2.0)
    # The second, (0, 1) with lambda 0.5, is dropped: there the two sides are not positively correlated.
    assert pytest.approx(np.array([[2**0.5], [0.0]]), abs=1e-9) == A
    means, differences = ((X + Y) / 2).toarray(), ((X - Y) / 2).toarray()
    variance = np.square(means @ A).sum() / 2
    noise = np.square(differences @ A).sum() / 2 + 0.5 * np.square(A).sum()
    assert (variance, noise) == pytest.approx((4.0, 1.0))


@pytest.mark.parametrize("solver", ["dual", "lobpcg"])
def test_opca_solvers_agree_with_the_dense_one(monkeypatch, solver):
    X = texts(150, 100, 30, 0.1)
    Y = csr_matrix(X.toarray() + 0.3 * texts(150, 100, 31, 0.1).toarray())
    dense = opca(X, Y, 5)
    monkeypatch.setattr("rerank.training.projection.spectral.SMALL", 0)
    if solver == "lobpcg":
        monkeypatch.setattr("rerank.training.projection.spectral.FEW_PAIRS", 0)
        monkeypatch.setattr("rerank.training.projection.spectral.ITERATIONS", 200)
    other = opca(X, Y, 5)
    assert spans(dense, other) < 1e-3

    E, M = ((X - Y) / 2).toarray(), ((X + Y) / 2).toarray()
    B = E.T @ E / 150 + 0.5 * (E**2).sum() / 150 / 100 * np.eye(100)
    expected = scipy.linalg.eigh(M.T @ M / 150, B, eigvals_only=True)[::-1][:5]
    for A in (dense, other):
        assert np.diag(A.T @ B @ A) == pytest.approx(np.ones(5), rel=1e-6)
        assert np.square(M @ A).sum(axis=0) / 150 == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", [opca, cca])
@pytest.mark.parametrize("few", [0, 6000], ids=["lobpcg", "dual"])
def test_no_matrix_of_terms_by_terms(monkeypatch, method, few):
    """12,000 x 12,000 numbers would be 1,152 MB."""
    monkeypatch.setattr("rerank.training.projection.spectral.FEW_PAIRS", few)
    rng = np.random.default_rng(45)

    def some_texts():
        rows, columns = np.repeat(np.arange(200), 20), rng.integers(6_000, size=4_000)
        return csr_matrix((np.full(4_000, 20**-0.5), (rows, columns)), (200, 6_000))

    left = some_texts()
    X, Y = apart(left, left + 0.5 * some_texts())
    cllsi(X, Y, 1)  # imports what it needs: not to be traced
    tracemalloc.start()
    try:
        A = method(X, Y, 4, ridge=0.5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert A.shape == (12_000, 4)
    assert peak < 100e6


def test_a_ridge_that_is_almost_none(monkeypatch):
    """Exact solvers still give the largest lambda; the iteration fails, and says so."""
    X = texts(150, 300, 43, 0.03)
    Y = csr_matrix(X.toarray() + 0.3 * texts(150, 300, 44, 0.03).toarray())

    def largest(ridge):
        A = opca(X, Y, 3, ridge=ridge)
        return float((np.square((X + Y) / 2 @ A).sum(axis=0) / 150).max())  # A is scaled to noise 1

    for small, few in ((2000, 0), (0, 6000)):
        monkeypatch.setattr("rerank.training.projection.spectral.SMALL", small)
        monkeypatch.setattr("rerank.training.projection.spectral.FEW_PAIRS", few)
        found = [largest(ridge) for ridge in (5.0, 0.5, 0.05, 1e-4, 1e-7)]
        assert found == sorted(found)
    monkeypatch.setattr("rerank.training.projection.spectral.FEW_PAIRS", 0)
    assert largest(5.0) == pytest.approx(found[0], rel=1e-6)
    with pytest.raises(TrainingError, match="not found after 100 iterations; a larger ridge helps"):
        opca(X, Y, 3, ridge=1e-7)


@pytest.mark.parametrize("method", [opca, cca])
def test_many_pairs_of_few_texts_agree_with_the_dense_solver(monkeypatch, method):
    """12 queries and 15 documents make 120 pairs, of different weight: some texts are in many, one twice."""
    rng = np.random.default_rng(46)
    hidden = rng.normal(size=(12, 4))
    asked = csr_matrix(hidden @ rng.normal(size=(4, 40)) + 0.3 * rng.normal(size=(12, 40)))
    answers = csr_matrix(rng.normal(size=(15, 12)) @ hidden @ rng.normal(size=(4, 40)))
    left, right = rng.integers(0, 12, 120), np.minimum(rng.integers(0, 20, 120), 14)
    X, Y = asked[left], answers[right]
    if method is cca:
        X, Y = apart(X, Y)
    dense = method(X, Y, 3)
    monkeypatch.setattr("rerank.training.projection.spectral.SMALL", 0)
    monkeypatch.setattr("rerank.training.projection.spectral.FEW_PAIRS", 30)
    monkeypatch.setattr("rerank.training.projection.spectral._generalised", None)  # is not asked
    found = method(X, Y, 3)
    assert np.abs(found) == pytest.approx(np.abs(dense), rel=1e-4, abs=1e-6)


def test_opca_without_noise_is_lsi():
    X = texts(40, 12, 32)
    A, right = opca(X, X, 3), lsi(X, 3)
    assert spans(A, right) < 1e-6
    # lambda * eta = sigma^2 / n, and with v^T eta v = 1 that is |Xv|^2 eta / n
    values = np.linalg.norm(X @ right, axis=0) ** 2
    assert np.square(X @ A).sum(axis=0) / np.square(A).sum(axis=0) == pytest.approx(values)


def one_column(x, y):
    return apart(csr_matrix(np.array(x, dtype=float)[:, None]), csr_matrix(np.array(y, dtype=float)[:, None]))


@pytest.mark.parametrize(("ridge", "expected"), [(0.0, 8 / 9), (1.0, 2 / 3)])
def test_cca_of_one_column_a_side(ridge, expected):
    """x = (1, 2, 2), y = (2, 1, 2): x.y / sqrt(x.x y.y) = 8/9; with a ridge of 1 (3 rows): 8 / (9 + 3)."""
    X, Y = one_column((1, 2, 2), (2, 1, 2))
    A = cca(X, Y, 1, ridge=ridge)
    x, y = (X @ A)[:, 0], (Y @ A)[:, 0]
    within = [(v @ v) / 3 + ridge * float(a**2) for v, a in ((x, A[0, 0]), (y, A[1, 0]))]
    assert within == pytest.approx([1.0, 1.0])
    assert (x @ y) / 3 == pytest.approx(expected)


def test_cca_is_opca_on_separate_columns():
    """With no ridge: lambda = (1 + rho) / (1 - rho), OPCA's columns are CCA's times sqrt(2 / (1 - rho))."""
    rng = np.random.default_rng(33)
    hidden = rng.normal(size=(200, 3))
    left = csr_matrix(hidden @ rng.normal(size=(3, 5)) + rng.normal(size=(200, 5)))
    right = csr_matrix(hidden @ rng.normal(size=(3, 5)) + rng.normal(size=(200, 5)))
    X, Y = apart(left, right)
    C, P = cca(X, Y, 3, ridge=0.0), opca(X, Y, 3, ridge=0.0)
    rho = np.einsum("ij,ij->j", X @ C, Y @ C) / 200
    assert pytest.approx(C * np.sqrt(2 / (1 - rho)), rel=1e-5) == P
    lam = np.square((X + Y) @ P).sum(axis=0) / np.square((X - Y) @ P).sum(axis=0)
    assert lam == pytest.approx((1 + rho) / (1 - rho), rel=1e-6)


@pytest.mark.parametrize("solver", ["dual", "lobpcg"])
def test_cca_solvers_agree_with_the_dense_one(monkeypatch, solver):
    rng = np.random.default_rng(34)
    hidden = rng.normal(size=(300, 4)) * [4, 3, 2, 1.5]
    sides = [csr_matrix(hidden @ rng.normal(size=(4, 30)) + rng.normal(size=(300, 30))) for _ in range(2)]
    X, Y = apart(*sides)
    dense = cca(X, Y, 3)
    monkeypatch.setattr("rerank.training.projection.spectral.SMALL", 0)
    if solver == "lobpcg":
        monkeypatch.setattr("rerank.training.projection.spectral.FEW_PAIRS", 0)
        monkeypatch.setattr("rerank.training.projection.spectral.ITERATIONS", 200)
    found = cca(X, Y, 3)
    assert spans(dense, found) < 1e-3
    assert found == pytest.approx(dense, rel=1e-2, abs=1e-3 * np.abs(dense).max())


# -------------------------------------------------------------------------------------- term vectors


def test_a_corpus_becomes_what_the_ranker_makes_of_each_text():
    contents = ["Red apples, red pears", "the Äpfel", "", "zzz qqq", "apple pie and the pear " * 200]
    corpus = Corpus.read(Document(str(i), text=text) for i, text in enumerate(contents))
    for letters in (0, 3, 4):
        terms = fit_terms([corpus, Corpus.read([Query("q", "red the apples pear")])], letters, 40)
        rows = term_matrix(terms, corpus)
        assert rows.shape == (5, len(terms.names))
        assert rows.dtype == np.float32
        for i, text in enumerate(contents):
            columns, weights = terms.vector(text)
            expected = np.zeros(len(terms.names), dtype=np.float32)
            expected[columns] = weights
            assert rows[i].toarray()[0] == pytest.approx(expected, abs=1e-6)
        assert np.diff(rows.indptr)[2] == 0


def test_counts_as_they_are():
    """tf ln(N / df), by hand: 3 x 1 and 1 x 2, divided by the length."""
    terms = Terms(["cat", "dog"], np.array([1.0, 2.0], dtype=np.float32), 0, 400, "raw")
    assert terms.vector("cat cat dog cat")[1] == pytest.approx(np.array([3, 2]) / 13**0.5)
    matrix = term_matrix(terms, Corpus.read([Query("q", "cat cat dog cat"), Query("p", "dog")])).toarray()
    assert matrix == pytest.approx(np.array([[3 / 13**0.5, 2 / 13**0.5], [0, 1]]))


def test_which_terms_are_taken():
    read = [Corpus.read([Query("", text) for text in ("a b", "a b", "a c", "a d")])]
    assert fit_terms(read, 0, 9, "raw").tf == "raw"
    assert fit_terms(read, 0, 9).names == ["b"]  # a is in all, c and d in one
    assert fit_terms(read, 0, 9).idf == pytest.approx([np.log(4 / 2)])
    assert fit_terms([Corpus.read([Query("", "a b"), Query("", "c")])], 0, 9).names == ["a", "b", "c"]
    assert fit_terms([Corpus.read([Query("", "cats"), Query("", "cats x"), Query("", "y")])], 4, 2).names == [
        "<cat",
        "ats>",
    ]
    assert list(terms_of("東", 4)) == ["東"]


# -------------------------------------------------------------------------------------------- ranker


def ranker(two=False, tanh=False):
    rng = np.random.default_rng(35)
    terms = Terms(["katze", "cat", "dog", "hund"], np.array([1, 1, 2, 2], dtype=np.float32), 0, 400)
    query = Side(terms, rng.normal(size=(4, 3)).astype(np.float16), tanh)
    document = Side(terms, rng.normal(size=(4, 3)).astype(np.float16), tanh) if two else query
    return Projection("s2net", query, document, {"init": "random"})


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("tanh", [False, True])
def test_a_ranker_is_found_again(tmp_path, two, tanh):
    one = ranker(two, tanh)
    one.save(tmp_path / "r")
    found = load_ranker(tmp_path / "r")
    assert isinstance(found, Projection)
    assert (found.name, found.version, found.trained) == ("s2net", one.version, {"init": "random"})
    assert found.version == found._hash()
    query, documents = Query("q", "Katze dog dog"), [Document("1", text="hund"), Document("2", text="none")]
    assert found.encode_query(query).tolist() == one.encode_query(query).tolist()
    assert found.encode_documents(documents).tolist() == one.encode_documents(documents).tolist()
    one.query.terms.tf = one.document.terms.tf = "raw"
    raw = Projection("s2net", one.query, one.document)
    raw.save(tmp_path / "raw")
    again = load_ranker(tmp_path / "raw")
    assert again.version == raw.version != one.version
    assert again.query.terms.tf == again.document.terms.tf == "raw"
    assert ranker(not two, tanh).version != one.version
    assert ranker(two, not tanh).version != one.version


def test_a_score_is_the_cosine_of_the_projections():
    one = ranker(two=True)
    features = one.encode_documents([Document("1", "hund", "dog"), Document("2", text="unheard of")])
    assert (features.dtype, features.shape) == (np.float16, (2, 3))
    f = np.array([0, 0, 2, 2]) / 8**0.5
    expected = f @ one.document.matrix.astype(float)
    q = np.array([1.0, 0, 0, 0]) @ one.query.matrix.astype(float)
    cosine = q @ expected / np.linalg.norm(q) / np.linalg.norm(expected)
    scores = one.score(one.encode_query(Query("q", "Katze")), features)
    assert scores.tolist() == pytest.approx([cosine, 0.0], abs=2e-3)
    assert one.score(one.encode_query(Query("q", "")), features).tolist() == [0.0, 0.0]
    same = ranker().score(
        one.encode_query(Query("q", "cat")), ranker().encode_documents([Document("", "cat")])
    )
    assert -1.0 <= same[0] <= 1.0
    with pytest.raises(
        WorkspaceError, match="stored s2net features have 5 numbers, not 3; train s2net again"
    ):
        one.score(one.encode_query(Query("q", "cat")), np.zeros((2, 5), dtype=np.float16))


@pytest.mark.parametrize("file", ["ranker.json", "vocabularies.json", "model.safetensors"])
def test_a_damaged_ranker(tmp_path, file):
    ranker().save(tmp_path / "r")
    for damage in (b"", b"{}", b"\xff" * 40):
        (tmp_path / "r" / file).write_bytes(damage)
        with pytest.raises(WorkspaceError, match="train it again") as caught:
            load_ranker(tmp_path / "r")
        assert "\n" not in str(caught.value)


def test_a_vocabulary_that_does_not_fit_its_matrix(tmp_path):
    ranker().save(tmp_path / "r")
    (tmp_path / "r" / "vocabularies.json").write_text(json.dumps({"query": ["cat"]}))
    with pytest.raises(WorkspaceError, match=r"a matrix of \(4, 3\) is not of 1 term"):
        load_ranker(tmp_path / "r")


# ------------------------------------------------------------------------------------------ training

GERMAN = ["apfel", "birne", "feige", "pflaume", "kirsche", "traube", "zitrone", "melone"]
ENGLISH = ["apple", "pear", "fig", "plum", "cherry", "grape", "lemon", "melon"]
COLOURS = [("red", "rot"), ("green", "gruen"), ("blue", "blau"), ("black", "schwarz"), ("white", "weiss")]


def collection():
    """Queries name a fruit and a colour in English, documents in German; each combination once."""
    queries, documents = [], []
    for i, (fruit, frucht) in enumerate(zip(ENGLISH, GERMAN)):
        for j, (colour, farbe) in enumerate(COLOURS):
            queries.append(Query(f"q{i}{j}", f"{colour} {fruit} kw{i % 3}", lang="en"))
            documents.append(Document(f"d{i}{j}", text=f"{farbe} {frucht} kw{i % 3}", lang="de"))
    return queries, documents


QUERIES, DOCUMENTS = collection()
SPLIT = np.random.default_rng(36).permutation(40)
TRAIN = Qrels((QUERIES[i].id, DOCUMENTS[i].id, 2) for i in SPLIT[:30])
DEV = Qrels((QUERIES[i].id, DOCUMENTS[i].id, 2) for i in SPLIT[30:])
PAIRS = [(q.text, d.text) for q, d in zip(QUERIES, DOCUMENTS)]
CONFIG = ProjectionConfig(dim=8, init="random", letters=0, epochs=40, seed=1)


@pytest.fixture
def workspace(tmp_path):
    workspace = Workspace.create(tmp_path / "ws", lang="de")
    workspace.engine.ingest(DOCUMENTS)
    return workspace


def fit(workspace, names=("s2net",), queries=QUERIES, qrels=TRAIN, dev=DEV, **options):
    settings = options.pop("config", CONFIG)
    return train(workspace, names, queries=queries, qrels=qrels, dev_qrels=dev, config=settings, **options)


def rank_of_own(workspace, name):
    """Mean reciprocal rank of the dev queries' documents among all."""
    found = workspace.ranker(name)
    features = found.encode_documents(DOCUMENTS)
    ranks = []
    for i in SPLIT[30:].tolist():
        scores = found.score(found.encode_query(QUERIES[i]), features)
        ranks.append(1 / (1 + (scores > scores[i]).sum()))
    return float(np.mean(ranks))


def test_s2net_learns_what_words_mean(workspace):
    report = fit(workspace, ("s2net", "lsi", "cllsi", "opca", "cca"))
    assert [fitted.name for fitted in report.rankers] == ["s2net", "lsi", "cllsi", "opca", "cca"]
    assert report.encoded == dict.fromkeys(sorted(["s2net", "lsi", "cllsi", "opca", "cca"]), 40)
    assert rank_of_own(workspace, "s2net") > 0.9
    assert rank_of_own(workspace, "s2net") > rank_of_own(workspace, "lsi")
    assert all(fitted.dev >= fitted.baseline for fitted in report.rankers)
    assert encode(workspace).encoded == dict.fromkeys(report.encoded, 0)
    stack = Stack.parse("tfidf*0.5+s2net*0.5")
    answer = workspace.pipeline(stack.signals).answer(QUERIES[0], stack)
    assert (answer.recomputed, answer.ranking.ids[0]) == ({}, "d00")


@pytest.mark.parametrize(
    "changes",
    [
        {"two_matrices": True},
        {"tanh": True},
        {"both_sides": True},
        {"negatives": 8},
        {"beta": 1e-4},
        {"init": "cllsi"},
        {"loss": "squared"},
        {"graded": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_variants_learn_too(workspace, changes):
    report = fit(workspace, config=replace(CONFIG, **changes))
    assert rank_of_own(workspace, "s2net") > 0.8
    found = workspace.ranker("s2net")
    assert (found.document is not found.query) == changes.get("two_matrices", False)
    assert found.query.tanh == changes.get("tanh", False)
    assert report.rankers[0].epoch <= report.rankers[0].epochs <= 40


def test_the_same_seed_gives_the_same_ranker(workspace):
    one = fit(workspace).rankers[0].version
    assert fit(workspace, queries=QUERIES[::-1]).rankers[0].version == one
    assert fit(workspace, config=replace(CONFIG, seed=2)).rankers[0].version != one


class Listen(Progress):
    def __init__(self, interrupt=None):
        self.said, self.interrupt, self.steps = [], interrupt, 0

    def say(self, line):
        self.said.append(line)

    def advance(self, count=1):
        self.steps += count
        if self.interrupt is not None and self.steps > self.interrupt:
            self.interrupt = None
            raise KeyboardInterrupt


def test_auto_takes_the_start_that_is_best_on_dev(workspace):
    listen = Listen()
    fit(workspace, config=replace(CONFIG, init="auto"), progress=listen)
    trained = workspace.ranker("s2net").trained
    (line,) = (line for line in listen.said if line.startswith("s2net starts from"))
    tried = dict(part.split() for part in line.split("(dev after a trial: ")[1].rstrip(")").split(", "))
    assert list(tried) == ["random", "cllsi", "opca", "lsi"]
    assert tried[trained["init"]] == max(tried.values())


def test_an_interruption_keeps_the_best_so_far(workspace):
    listen = Listen(interrupt=40 + 40 + 12)  # documents and queries are read, then iterations
    report = fit(workspace, config=replace(CONFIG, epochs=100), progress=listen)
    assert report.rankers[0].interrupted
    assert workspace.trained() == ["s2net"]
    assert report.rankers[0].epochs <= 13


def test_what_was_interrupted_goes_on(workspace):
    config = replace(CONFIG, epochs=40, init="auto")
    read = 40 + 40  # documents and queries, each time
    with pytest.raises(
        KeyboardInterrupt, match=r"[1-3] of 4 are done, and the same again goes on; lsi was not"
    ):
        fit(workspace, ["s2net", "lsi"], config=config, progress=Listen(interrupt=read + 45))
    (left,) = status(workspace).unfinished
    assert (left.name, left.done, left.of, left.unit) == ("s2net", 0, 40, "iteration")
    second = Listen(interrupt=read + 70)
    report = fit(workspace, config=config, progress=second)
    assert report.rankers[0].interrupted
    tried = [line for line in second.said if "dev after a trial" in line]
    assert len(tried) == 1
    assert all(f"{init} " in tried[0].split("trial: ")[1] for init in INITS[1:])
    (left,) = status(workspace).unfinished
    assert 0 < left.done < 40
    # Other settings are refused before anything is read, other documents when they have been.
    silent = Listen()
    refused = r"other settings was interrupted here \(gamma \d+.0, now 9.0\).*restart"
    with pytest.raises(TrainingError, match=refused):
        fit(workspace, config=replace(config, gamma=9.0), progress=silent)
    assert silent.steps == 0
    with pytest.raises(TrainingError, match="other settings, queries or documents"):
        fit(workspace, queries=QUERIES, qrels=DEV, dev=TRAIN, config=config)
    third = Listen()
    done = fit(workspace, config=config, progress=third).rankers[0]
    assert f"s2net goes on at iteration {left.done} of 40" in third.said
    assert not any("trial" in line for line in third.said)
    assert left.done < done.epochs <= 40
    assert not done.interrupted
    assert [step for step, *_ in workspace.ranker("s2net").trained["history"]][:2] == [0, 5]
    assert status(workspace).unfinished == []
    with pytest.raises(UsageError, match="restart has no effect with lsi"):
        fit(workspace, ["lsi"], config={"dim": 4}, restart=True)


def test_what_was_interrupted_is_dropped(workspace):
    config = replace(CONFIG, epochs=40)
    fit(workspace, config=config, progress=Listen(interrupt=40 + 40 + 8))
    state = workspace.folder / "training" / "s2net" / "state.json"
    state.write_text(state.read_text()[:-20])
    with pytest.raises(TrainingError, match=r"cannot be read.*restart"):
        fit(workspace, config=config)
    again = Listen()
    fit(workspace, config=config, restart=True, progress=again)
    assert not any("goes on" in line for line in again.said)
    assert not state.exists()


def test_pairs_take_the_place_of_judgements(workspace):
    report = fit(workspace, ("s2net", "cllsi"), (), None, None, pairs=PAIRS)
    assert (report.train_pairs, report.dev_pairs, report.train_queries) == (36, 4, 0)
    assert rank_of_own(workspace, "s2net") > 0.9
    assert report.rankers[0].dev > report.rankers[0].baseline
    assert report.encoded == {"cllsi": 40, "s2net": 40}
    with pytest.raises(UsageError, match="text is trained on judged queries; give queries and qrels"):
        fit(workspace, ("text",), (), None, None, pairs=PAIRS)
    with pytest.raises(
        UsageError, match="s2net is trained on judged queries or pairs; give queries and qrels, or pairs"
    ):
        fit(workspace, ("s2net",), (), None, None)


def test_pairs_beside_judgements(workspace):
    few = Qrels((q, d, 2) for q in list(TRAIN)[:3] for d in TRAIN[q])
    fit(workspace, qrels=few)
    alone = rank_of_own(workspace, "s2net")
    report = fit(workspace, qrels=few, pairs=[PAIRS[i] for i in SPLIT[:30]])
    assert report.train_pairs == 30
    assert rank_of_own(workspace, "s2net") > alone


def test_a_dimension_above_the_rank_is_said(workspace):
    listen = Listen()
    fit(workspace, ("cllsi", "s2net"), config=replace(CONFIG, dim=28, init="cllsi"), progress=listen)
    assert any("of the 28 asked for; it keeps those" in line for line in listen.said)
    assert workspace.ranker("cllsi").query.matrix.shape[1] < 28
    assert workspace.ranker("s2net").query.matrix.shape == (29, 28)
    assert np.linalg.norm(workspace.ranker("s2net").query.matrix.astype(float), axis=0).min() > 0
    fit(workspace, config=replace(CONFIG, dim=50), progress=listen)
    assert "s2net: 50 dimensions are more than there are terms; it keeps 29" in listen.said
    assert workspace.ranker("s2net").query.matrix.shape == (29, 29)


def test_the_largest_gamma_is_a_number_in_single_precision():
    rows = np.eye(2, dtype=np.float32)
    worst = Comparisons.of(np.array([1, 0]))  # cosines of -1 with the partner, of 1 with the other
    loss, *gradients = pairwise_logistic(rows, np.stack([rows[0], -rows[0]]), worst, MOST_GAMMA)
    assert loss == pytest.approx((2 * MOST_GAMMA + np.log(2)) / 2, abs=1e-3)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_what_cannot_be_trained(workspace):
    with pytest.raises(UsageError, match="init 'best' is none of auto, random"):
        replace(CONFIG, init="best")
    for wrong, what in (
        ({"dim": 0}, "dim takes a whole number, 1 or more, not 0"),
        ({"gamma": 0.0}, "gamma takes a number, above 0, at most 40"),
        ({"gamma": 41.0}, "gamma takes a number"),
        ({"gamma": float("nan")}, "gamma takes a number"),
        ({"loss": "hinge"}, "loss takes logistic, squared, not 'hinge'"),
    ):
        with pytest.raises(UsageError, match=what):
            fit(workspace, config=replace(CONFIG, **wrong))
        with pytest.raises(UsageError, match=what):
            fit(workspace, config=wrong)
    fit(workspace)
    given = workspace.ranker("s2net")
    version = given.version
    terms = Terms(["nothing"], np.ones(1, dtype=np.float32), 0, 400)
    apart_side = replace(given.query)
    for start, what in (
        (with_matrix(given, given.query.matrix * np.float16(np.nan)), "not finite"),
        (with_matrix(given, given.query.matrix[:, :3]), "has dimension 3, not 8; ask for 3"),
        (Projection("s2net", apart_side, given.query), "has a matrix for each side"),
        (with_matrix(given, np.ones((1, 8), dtype=np.float16), terms), "knows none of 29 terms"),
    ):
        with pytest.raises(UsageError, match=what):
            fit(workspace, config=replace(CONFIG, start=start))
    with pytest.raises(TrainingError, match="vocabulary has no term of the queries to train on"):
        fit(workspace, queries=[replace(q, text=f"only{q.id}") for q in QUERIES])
    with pytest.raises(TrainingError, match="vocabulary has no term of the queries to train on"):
        fit(workspace, queries=[replace(q, text="!") for q in QUERIES])
    one = Qrels([("q00", "d00", 1), ("q01", "d00", 1)])
    with pytest.raises(TrainingError, match="all training pairs have the same document"):
        fit(workspace, qrels=one)
    assert workspace.ranker("s2net").version == version


def with_matrix(given, matrix, terms=None):
    side = Side(terms or given.query.terms, matrix)
    return Projection(given.name, side, side)


def test_a_start_that_is_given_is_used(workspace):
    fit(workspace)
    given = workspace.ranker("s2net")
    known = given.query.terms
    order = np.random.default_rng(5).permutation(len(known.names))[1:]  # in another order, and one is missing
    terms = Terms([known.names[i] for i in order], known.idf[order], 0, 400)
    start = with_matrix(given, given.query.matrix[order], terms)
    fit(workspace, config=replace(CONFIG, start=start, epochs=1))
    again = workspace.ranker("s2net")
    assert again.trained["init"] == "given"
    assert again.trained["config"]["start"] == start.version
    assert again.trained["history"][0][2] == pytest.approx(
        max(measure for _, _, measure in given.trained["history"]), abs=0.05
    )
    assert again.query.terms.names == known.names
    cosines = (unit(again.query.matrix.astype(float)) * unit(given.query.matrix.astype(float))).sum(axis=1)
    assert np.delete(cosines, np.setdiff1d(np.arange(len(cosines)), order)).min() > 0.8


def test_grades_are_an_order(workspace):
    """A query's document of grade 1 is a pair too, but is to stay below the one of grade 2."""
    from rerank.training.projection.fit import _Vectors

    qrels = {q: {**TRAIN[q], DOCUMENTS[(int(q[1]) * 5 + int(q[2]) + 7) % 40].id: 1} for q in TRAIN}
    rows = Qrels((q, d, g) for q, found in qrels.items() for d, g in found.items())
    report = TrainReport()
    data = prepare(
        workspace,
        QUERIES,
        rows,
        DEV,
        report,
        first_stage="tfidf",
        query_text=None,
        query_category_edges=None,
        infer=False,
        seed=0,
        progress=Progress(),
    )
    for loss in LOSSES:
        pairs = _Vectors(data, replace(CONFIG, graded=True, loss=loss)).pairs
        assert len(pairs.target) == 60
        for i, (target, left_out) in enumerate(zip(pairs.target.tolist(), pairs.left_out)):
            assert target in left_out
            wanted = pairs.label[i] == 1.0
            assert pairs.label[i] in (0.5, 1.0)
            assert len(left_out) == (1 if wanted and loss == "logistic" else 2)
        assert pairs.weight == pytest.approx(np.full(60, 0.5))
    plain = _Vectors(data, CONFIG).pairs
    assert (len(plain.target), set(plain.label)) == (30, {1.0})
    assert max(map(len, plain.left_out)) <= 2


def test_documents_judged_0_or_less_are_compared_with(workspace):
    """They are no pairs, stay below the query's partner, and below nobody else's beyond what all are."""
    from rerank.training.projection.fit import _Vectors

    bad = {q: DOCUMENTS[(int(q[1]) * 5 + int(q[2]) + 7) % 40].id for q in TRAIN}
    rows = [(q, d, g) for q, found in TRAIN.items() for d, g in found.items()]
    rows += [(q, d, -(i % 2)) for i, (q, d) in enumerate(bad.items()) if d not in TRAIN[q]]
    read = {
        "query_text": None,
        "query_category_edges": None,
        "infer": False,
        "seed": 0,
        "progress": Progress(),
    }
    data = prepare(workspace, QUERIES, Qrels(rows), DEV, TrainReport(), first_stage="tfidf", **read)
    pairs = _Vectors(data, CONFIG).pairs
    assert (len(pairs.target), sum(map(len, pairs.worse))) == (30, len(rows) - 30)
    for target, left_out, worse in zip(pairs.target.tolist(), pairs.left_out, pairs.worse):
        assert target not in worse
        assert not {*left_out.tolist()} & {*worse.tolist()}
    some = pairs.some(10, 0)
    assert all(worse.max() < some.documents.shape[0] for worse in some.worse)
    off = _Vectors(data, replace(CONFIG, judged=0.0)).pairs
    assert not any(len(one) for one in off.worse)
    graded = [(q, d, 1) for q, d in bad.items() if d not in TRAIN[q]]
    graded += [(q, d, 2) for q, found in TRAIN.items() for d in found]
    data = prepare(workspace, QUERIES, Qrels(graded), DEV, TrainReport(), first_stage="tfidf", **read)
    ordered = _Vectors(data, replace(CONFIG, graded=True)).pairs
    assert [len(one) for one in ordered.worse] == [int(label == 1.0) for label in ordered.label]

    def above(judged):
        """How far above the documents that were judged as bad the partners are, after training."""
        data = prepare(workspace, QUERIES, Qrels(rows), DEV, TrainReport(), first_stage="tfidf", **read)
        ranker = ProjectionTrainer(data, replace(CONFIG, judged=judged)).fit("s2net").ranker
        by_id = {d.id: d for d in DOCUMENTS}
        found = []
        for query in QUERIES:
            if query.id in TRAIN:
                pair = [by_id[next(iter(TRAIN[query.id]))], by_id[bad[query.id]]]
                best, worst = ranker.score(ranker.encode_query(query), ranker.encode_documents(pair))
                found.append(best - worst)
        return float(np.mean(found))

    assert above(0.9) > above(0.0)
    plain, hard, in_parts = (
        ProjectionTrainer(data, replace(CONFIG, epochs=35, **changes)).fit("s2net")
        for changes in ({}, {"hard": 3}, {"hard": 3, "negatives": 10})
    )
    assert plain.ranker.version != hard.ranker.version != in_parts.ranker.version
    assert min(plain.epochs, hard.epochs, in_parts.epochs) >= 20  # found anew after 15
    with pytest.raises(UsageError, match="hard has no effect with judged 0"):
        build(ProjectionConfig, {"judged": 0.0, "hard": 5})


def test_texts_that_are_alike_are_one(workspace):
    """A document with the same words as the wanted one is no wrong answer."""
    twin = [*DOCUMENTS, Document("twin", text=DOCUMENTS[0].text)]
    workspace.engine.ingest([twin[-1]])
    qrels = Qrels([*((q, d, 2) for q in TRAIN for d in TRAIN[q]), ("q00", "d00", 2), ("q70", "twin", 2)])
    dev = Qrels((q, d, 2) for q in DEV if q not in ("q00", "q70") for d in DEV[q])
    queries = [*QUERIES]
    fit(workspace, queries=queries, qrels=qrels, dev=dev)
    found = workspace.ranker("s2net")
    features = found.encode_documents([DOCUMENTS[0], twin[-1]])
    assert features[0].tolist() == features[1].tolist()


def test_reciprocal_ranks_share_ties():
    assert reciprocal_rank(np.ones((2, 2))) == pytest.approx(1 / 1.5)
    assert reciprocal_rank(np.eye(3)) == 1.0


# ------------------------------------------------------------------------------------------ the file


def test_pairs_are_read(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "a", "document": "b", "id": 3}\n\n{"query": "c", "document": "d"}\n')
    assert read_pairs(path) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"query": "a"}', "'document' is missing"),
        ('{"query": 3, "document": "b"}', "'query' is missing or not a text"),
        ('{"query": " ", "document": "b"}', "'query' is empty; give both texts or leave the pair out"),
    ],
)
def test_pairs_that_are_none(tmp_path, line, what):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"query": "a", "document": "b"}\n' + line + "\n")
    with pytest.raises(InputError, match=rf"pairs\.jsonl:2: {what}") as caught:
        read_pairs(path)
    assert "\n" not in str(caught.value)
    path.write_text("\n")
    with pytest.raises(InputError, match="no pairs"):
        read_pairs(path)


def test_labels_that_contradict_each_other(tmp_path):
    path = tmp_path / "qrels.tsv"
    path.write_text("q1\td1\t2\nq1\td1\t0\n")
    with pytest.raises(InputError, match=r"qrels\.tsv:2: document 'd1' was already judged 2"):
        read_qrels(path)
