"""LSI, CL-LSI, OPCA and CCA by eigenvectors, and their term vectors.

Expected numbers are computed by hand or by SciPy, not recorded from the code.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from scipy.sparse import csr_matrix

from rerank.documents.records import Document, Query
from rerank.rankers.projection.ranker import fit_terms, term_matrix
from rerank.rankers.projection.spectral import cca, lsi, opca
from rerank.rankers.training.data import Corpus
from tests.support.rankers import separate_columns, texts, unit


def largest_angle(a, b):
    """Return the largest angle between two column spaces."""
    return float(scipy.linalg.subspace_angles(a, b).max())


def test_lsi_is_a_truncated_svd():
    rng = np.random.default_rng(28)
    D = csr_matrix(rng.normal(size=(60, 10)) * 0.7 ** np.arange(10) @ rng.normal(size=(10, 50)))
    A = lsi(D, 5)
    _, values, rows = np.linalg.svd(D.toarray())
    values, rows = values[:5], rows[:5]
    assert largest_angle(A, rows.T) < 1e-6
    assert np.linalg.norm(D @ A, axis=0) == pytest.approx(values, rel=1e-6)
    assert (A[np.abs(A).argmax(axis=0), np.arange(5)] > 0).all()
    assert lsi(D, 30).shape == (50, 10)  # limited by the rank


def test_cllsi_brings_translations_together():
    """The terms are cat, linux and gatto. The pairs are cat - gatto and linux - linux."""
    X = csr_matrix(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    Y = csr_matrix(np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    A = lsi(X + Y, 2)
    assert np.linalg.svd((X + Y).toarray())[1] == pytest.approx([2.0, 2**0.5])
    assert unit(X @ A) @ unit(Y @ A).T == pytest.approx(np.eye(2), abs=1e-12)


def test_opca_matches_values_by_hand():
    """S = diag(2, 0.5), B = diag(0.5, 1): lambda 4 with (sqrt 2, 0), then 0.5 with (0, 1)."""
    X, Y = csr_matrix(np.array([[2.0, 1.0], [0.0, 1.0]])), csr_matrix(np.array([[2.0, -1.0], [0.0, 1.0]]))
    # The noise of the pairs is (0, 1) and (0, 0). Its mean variance per column is 1/4, so eta = 1/2 gives a
    # ridge of 2.
    A = opca(X, Y, 2, ridge=2.0)
    # The second vector, (0, 1) with lambda 0.5, is dropped, because its two sides are not positively
    # correlated.
    assert pytest.approx(np.array([[2**0.5], [0.0]]), abs=1e-9) == A


def test_opca_agrees_with_a_dense_solver():
    X = texts(150, 100, 30, 0.1)
    Y = csr_matrix(X.toarray() + 0.3 * texts(150, 100, 31, 0.1).toarray())
    A = opca(X, Y, 5)
    E, M = ((X - Y) / 2).toarray(), ((X + Y) / 2).toarray()
    B = E.T @ E / 150 + 0.5 * (E**2).sum() / 150 / 100 * np.eye(100)
    values, vectors = scipy.linalg.eigh(M.T @ M / 150, B)
    assert largest_angle(A, vectors[:, -5:]) < 1e-2
    assert np.diag(A.T @ B @ A) == pytest.approx(np.ones(5), rel=1e-6)
    assert np.square(M @ A).sum(axis=0) / 150 == pytest.approx(values[::-1][:5], rel=1e-6)


@pytest.mark.parametrize("method", [opca, cca])
@pytest.mark.parametrize("few", [100, 6000], ids=["sample", "all"])
def test_solvers_do_not_build_a_matrix_of_terms_by_terms(monkeypatch, method, few):
    """A matrix of 12,000 x 12,000 numbers needs 1,152 MB."""
    monkeypatch.setattr("rerank.rankers.projection.spectral.MAX_PAIRS", few)
    rng = np.random.default_rng(45)

    def some_texts():
        rows, columns = np.repeat(np.arange(200), 20), rng.integers(6_000, size=4_000)
        return csr_matrix((np.full(4_000, 20**-0.5), (rows, columns)), (200, 6_000))

    left = some_texts()
    sides = left, left + 0.5 * some_texts()
    sides = separate_columns(*sides) if method is opca else sides
    lsi(sides[0] + sides[1], 1)  # imports its dependencies, which must not be traced
    tracemalloc.start()
    try:
        A = method(*sides, 4, ridge=0.5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert A.shape == (12_000, 4)
    assert peak < 100e6


@pytest.mark.parametrize("method", [opca, cca])
def test_large_collections_are_sampled(monkeypatch, method):
    """Of 400 pairs in four hidden dimensions, 200 show the same directions."""
    rng = np.random.default_rng(47)
    hidden = rng.normal(size=(400, 4)) * [4, 3, 2, 1.5]
    sides = [csr_matrix(hidden @ rng.normal(size=(4, 30)) + rng.normal(size=(400, 30))) for _ in range(2)]
    X, Y = separate_columns(*sides)
    sides = (X, Y) if method is opca else sides
    every = method(*sides, 3)
    monkeypatch.setattr("rerank.rankers.projection.spectral.MAX_PAIRS", 200)
    some, again, other = (method(*sides, 3, seed=seed) for seed in (0, 0, 1))
    assert some.tolist() == again.tolist() != other.tolist()
    projected = (X + Y) @ every, (X + Y) @ some
    assert largest_angle(*projected) < 0.6  # random directions: about 1.5


@pytest.mark.parametrize("pairs", [300, 30], ids=["all", "with equal texts"])
def test_cca_agrees_with_a_dense_solver(pairs):
    rng = np.random.default_rng(34)
    hidden = rng.normal(size=(pairs, 4)) * [4, 3, 2, 1.5]
    sides = [csr_matrix(hidden @ rng.normal(size=(4, 30)) + rng.normal(size=(pairs, 30))) for _ in range(2)]
    rows = np.arange(300) % pairs
    sides = [side[rows] for side in sides]
    X, Y = separate_columns(*sides)
    crossed, within = (X.T @ Y).toarray() / 300, (X.T @ X + Y.T @ Y).toarray() / 300
    rho, vectors = scipy.linalg.eigh(crossed + crossed.T, within + 0.1 * np.eye(60))
    A = cca(*sides, 3, ridge=0.1)
    assert np.abs(A) == pytest.approx(np.abs(vectors[:, :-4:-1]) * 2**0.5, abs=1e-6)
    assert ((X @ A) * (Y @ A)).sum(axis=0) / 300 == pytest.approx(rho[:-4:-1])


def test_cca_finds_the_largest_of_many_similar_correlations():
    rng = np.random.default_rng(35)
    X = rng.normal(size=(200, 150))
    sides = [csr_matrix(side) for side in (X, X + 0.3 * rng.normal(size=X.shape))]
    spans = [np.linalg.qr(side.toarray())[0] for side in sides]
    rho = np.linalg.svd(spans[0].T @ spans[1], compute_uv=False)
    A, B = np.split(cca(*sides, 3, ridge=1e-12), 2)
    actual = np.sum((sides[0] @ A) * (sides[1] @ B), axis=0) / 200
    assert actual == pytest.approx(rho[:3], abs=1e-4)


def test_term_matrix_equals_the_vectors_of_the_ranker():
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


@pytest.mark.parametrize(
    ("texts", "letters", "most", "names"),
    [
        (["a b", "a b", "a c", "a d"], 0, 9, ["b"]),  # a is in all texts, c and d in one
        (["a b", "c"], 0, 9, ["a", "b", "c"]),
        (["cats", "cats x", "y"], 4, 2, ["<cat", "ats>"]),
    ],
)
def test_terms_are_selected_by_frequency(texts, letters, most, names):
    actual = fit_terms([Corpus.read([Query("q", text) for text in texts])], letters, most)
    assert actual.names == names
    if names == ["b"]:
        assert actual.idf == pytest.approx([np.log(4 / 2)])
