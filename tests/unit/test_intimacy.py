"""Intimacy and levels against graphs worked by hand, the dense inverse, and scikit-network."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse

from rerank.errors import UsageError
from rerank.rankers.dense.neighbors import level_size, levels
from rerank.rankers.graphs import pagerank
from rerank.rankers.graphs.links import LinkGraph, hold_out, judged_together
from rerank.rankers.graphs.pagerank import dense_intimacy, top_intimacy
from rerank.records import Document

EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
DIRECTED = [(0, 1), (0, 2), (1, 2), (3, 2), (4, 3)]
G1 = np.array(
    [
        [0.3222, 0.2169, 0.1882, 0.1253, 0.1065],
        [0.2169, 0.3222, 0.1882, 0.1253, 0.1065],
        [0.2824, 0.2824, 0.3820, 0.2542, 0.2161],
        [0.1253, 0.1253, 0.1695, 0.3476, 0.2954],
        [0.0532, 0.0532, 0.0720, 0.1477, 0.2756],
    ]
)


def graph(edges, size):
    rows, columns = zip(*edges)
    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(size, size))


def undirected(edges, size):
    one = graph(edges, size)
    return one + one.T


def order(row):
    """Others by decreasing score; equal ones as a set."""
    found = {}
    for j, score in enumerate(row.tolist()):
        if score > 0:
            found.setdefault(round(score, 9), set()).add(j)
    return [found[score] for score in sorted(found, reverse=True)]


def test_a_small_graph_by_hand():
    dense = dense_intimacy(undirected(EDGES, 5))
    np.testing.assert_allclose(dense, G1, atol=5e-5)
    np.testing.assert_allclose(dense.sum(axis=0), 1)
    np.testing.assert_allclose(dense.sum(axis=1), [0.9591, 0.9591, 1.4170, 1.0630, 0.6018], atol=5e-5)


@pytest.mark.parametrize("exact", [100, 1])
def test_the_order_of_a_small_graph(exact):
    """``exact=1`` pushes; the tolerance is so small that the order is the true one."""
    rank = top_intimacy(undirected(EDGES, 5), 4, exact=exact, tolerance=1e-7).ids.tolist()
    assert rank[0] == [1, 2, 3, 4]
    assert rank[1] == [0, 2, 3, 4]
    assert set(rank[2][:2]) == {0, 1}
    assert rank[3][:2] == [4, 2]
    assert rank[4][:2] == [3, 2]


def test_isolated_documents_have_nobody():
    found = top_intimacy(undirected(EDGES, 7), 6)
    assert found.reached.tolist() == [4, 4, 4, 4, 4, 0, 0]
    assert found.related(5).tolist() == []
    assert found.ids[5].tolist() == [-1] * 6
    np.testing.assert_allclose(dense_intimacy(undirected(EDGES, 7))[5], [0] * 5 + [0.15, 0])
    assert found.related(3).tolist()[:2] == [4, 2]


def test_alpha_one_never_leaves():
    np.testing.assert_allclose(dense_intimacy(undirected(EDGES, 5), 1.0), np.eye(5))
    assert top_intimacy(undirected(EDGES, 5), 3, alpha=1.0).reached.tolist() == [0] * 5
    with pytest.raises(UsageError, match="restart probability 0"):
        top_intimacy(undirected(EDGES, 5), 3, alpha=0)
    with pytest.raises(UsageError, match="too large"):
        dense_intimacy(csr_matrix((30_000, 30_000)))


def sparse_graph(size, density, seed):
    one = random_sparse(size, size, density, random_state=seed, format="csr")
    one.data[:] = 1
    one.setdiag(0)
    one.eliminate_zeros()
    return ((one + one.T) > 0).astype(float).tocsr()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 60),
    st.floats(0.01, 0.3),
    st.integers(0, 1000),
    st.sampled_from([1, 100]),
)
def test_against_the_dense_inverse(size, density, seed, exact):
    adjacency = sparse_graph(size, density, seed)
    dense = dense_intimacy(adjacency)
    np.fill_diagonal(dense, 0)
    found = top_intimacy(adjacency, 10, exact=exact, tolerance=1e-4)
    true = -np.sort(-dense, axis=1)[:, :10]
    slack = found.error + 1e-6
    np.testing.assert_allclose(found.scores[:, : true.shape[1]], true, atol=slack)
    for i in range(size):
        at = found.related(i)
        assert i not in at
        assert len(set(at.tolist())) == len(at)
        np.testing.assert_allclose(found.scores[i, : len(at)], dense[i, at], atol=slack)
    if exact == 100:
        assert found.reached.tolist() == (dense > 1e-15).sum(axis=1).tolist()


def test_float32_is_good_to_six_digits_and_pushing_keeps_its_word():
    adjacency = sparse_graph(1100, 0.01, 3)  # in float32
    dense = dense_intimacy(adjacency)
    np.fill_diagonal(dense, 0)
    true = -np.sort(-dense, axis=1)[:, :20]
    found = top_intimacy(adjacency, 20)
    assert 0 < np.abs(found.scores - true).max() < found.error == 1e-6
    for tolerance in (1e-2, 1e-3, 1e-4):
        pushed = top_intimacy(adjacency, 20, exact=1, tolerance=tolerance)
        assert pushed.error <= tolerance * (1 + 1e-6)
        errors = dense[np.arange(1100)[:, None], pushed.ids] - pushed.scores
        assert errors.min() >= -1e-7
        assert 0 < errors.max() <= tolerance
    capped = top_intimacy(adjacency, 20, exact=1, tolerance=1e-6, max_pushes=500)
    assert capped.capped == 1100


@pytest.mark.parametrize("size", [900, 1100])  # in float64 and float32
def test_documents_with_few_links_are_eliminated_first(monkeypatch, size):
    """Links go to few documents, so that several rounds can be eliminated; weighted, to miss no factor."""
    rng = np.random.default_rng(size)
    sources, targets = np.repeat(np.arange(size), 3), (size * rng.random(3 * size) ** 3).astype(int)
    one = csr_matrix((rng.random(3 * size) + 0.5, (sources, targets)), shape=(size, size))
    adjacency = (one + one.T).tolil()
    adjacency.setdiag(0)
    adjacency = adjacency.tocsr()
    adjacency.eliminate_zeros()
    sizes, inverted = [], pagerank._cholesky_inverse
    monkeypatch.setattr(
        pagerank, "_cholesky_inverse", lambda system, into: sizes.append(len(into)) or inverted(system, into)
    )
    found = top_intimacy(adjacency, 50)
    assert 0 < max(sizes) < size / 2
    dense = dense_intimacy(adjacency)
    np.fill_diagonal(dense, 0)
    limit = 1e-6 if size > pagerank.DOUBLE else 1e-7
    best = -np.sort(-found.scores, axis=1)  # those that count as ties come in any order
    np.testing.assert_allclose(best, -np.sort(-dense, axis=1)[:, :50], atol=limit)
    np.testing.assert_allclose(np.take_along_axis(dense, found.ids.clip(0), 1), found.scores, atol=limit)
    monkeypatch.setattr(pagerank, "DIRECT", size)
    again = top_intimacy(adjacency, 50)
    np.testing.assert_allclose(-np.sort(-again.scores, axis=1), best, atol=limit)
    assert again.reached.tolist() == found.reached.tolist()


def test_against_scikit_network():
    """A row is ordinary personalized PageRank times the degree of the document over that of the target."""
    ranking = pytest.importorskip("sknetwork.ranking", reason="scikit-network is not installed")
    adjacency = sparse_graph(80, 0.1, 5)
    found = top_intimacy(adjacency, 79)
    degree = np.asarray(adjacency.sum(axis=0)).ravel()
    for i in np.flatnonzero(degree)[:10].tolist():
        theirs = ranking.PageRank(damping_factor=0.85, solver="bicgstab", tol=1e-12).fit_predict(
            adjacency, weights={i: 1}
        )
        at = found.related(i)
        np.testing.assert_allclose(found.scores[i, : len(at)], theirs[at] * degree[i] / degree[at], atol=1e-6)


def test_ties_follow_the_seed_and_not_the_order_of_the_files():
    star = undirected([(0, j) for j in range(1, 30)], 30)
    orders = {tuple(top_intimacy(star, 29, seed=seed).ids[0].tolist()) for seed in range(4)}
    assert len(orders) == 4
    assert tuple(range(1, 30)) not in orders


@pytest.mark.parametrize(
    ("related", "sizes"),
    [(0, []), (1, [1]), (2, [2, 1]), (3, [3, 2, 1]), (5, [5, 3, 2, 1]), (6, [6, 3, 2, 1]), (7, [7, 4, 2, 1])],
)
def test_halving_by_hand(related, sizes):
    assert [level_size(related, level) for level in range(1, levels(related) + 1)] == sizes


def test_halving_of_long_lists():
    assert [levels(n) for n in (10, 64, 1325, 4588)] == [5, 7, 12, 14]
    for related in range(2, 300):
        assert level_size(related, levels(related)) == 1
        assert level_size(related, levels(related) - 1) == 2


# ------------------------------------------------------------------------------------------------- links


def documents():
    return [
        Document("a", links=("b", "c", "b", "a", "gone")),
        Document("b", links=("a", "later")),
        Document("c"),
        Document("later", links=("c",)),
        Document("alone"),
    ]


def test_links_become_a_graph_and_the_rest_is_counted():
    found = LinkGraph.of(documents())
    assert found.ids == ["a", "b", "c", "later", "alone"]
    assert vars(found.counts) == {"links": 5, "self_links": 1, "duplicates": 1, "unknown": 1, "judged": 0}
    assert found.pairs().tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert found.matrix().toarray()[0].tolist() == [0, 1, 1, 0, 0]


def test_what_is_held_out_is_gone_in_both_directions():
    whole = LinkGraph.of(documents())
    rest, held = hold_out(whole, 0.5, seed=1)
    assert len(held) == 2
    kept = {tuple(pair) for pair in rest.pairs().tolist()}
    gone = {tuple(pair) for pair in held.tolist()}
    assert not kept & gone
    assert kept | gone == {tuple(pair) for pair in whole.pairs().tolist()}
    assert hold_out(whole, 0.5, seed=1)[1].tolist() == held.tolist()
    assert LinkGraph.of([]).pairs().shape == (0, 2)


def test_pairs_judged_together_are_those_that_share_a_relevant_query():
    documents = [
        Document("a", links=("b", "c", "d")),
        Document("b", links=("a", "c")),
        Document("c"),
        Document("d", links=("c",)),
    ]
    graph = LinkGraph.of(documents)
    test = {"q1": {"a": 2, "b": 1, "d": 0}, "q2": {"c": 1}, "q3": {"nowhere": 1, "a": 1}}
    other = {"q1": {"c": 1, "d": 1}}  # another file's q1 is another query
    assert judged_together(graph, [test, other]).tolist() == [[0, 1], [2, 3]]
    left = graph.without(judged_together(graph, [test, other]))
    assert left.pairs().tolist() == [[0, 2], [0, 3], [1, 2]]
    assert not len(judged_together(left, [test, other]))
    assert not len(judged_together(graph, []))
