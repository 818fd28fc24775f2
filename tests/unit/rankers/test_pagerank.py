"""Personalized PageRank and levels agree with graphs computed by hand and with the dense inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse

from rerank.documents.records import Document
from rerank.rankers.dense.neighbors import level_size, levels
from rerank.rankers.graphs.links import LinkGraph
from rerank.rankers.graphs.pagerank import top_pagerank
from tests.support.data import pagerank_matrix

EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
G1 = np.array(
    [
        [0.3222, 0.2169, 0.1882, 0.1253, 0.1065],
        [0.2169, 0.3222, 0.1882, 0.1253, 0.1065],
        [0.2824, 0.2824, 0.3820, 0.2542, 0.2161],
        [0.1253, 0.1253, 0.1695, 0.3476, 0.2954],
        [0.0532, 0.0532, 0.0720, 0.1477, 0.2756],
    ]
)


def undirected(edges, size):
    rows, columns = zip(*edges)
    one = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    return one + one.T


def test_pagerank_of_a_small_graph_matches_values_by_hand():
    ids, scores = top_pagerank(undirected(EDGES, 7), 6)
    expected = np.zeros((7, 7))
    for document, row in enumerate(ids[:5]):
        assert row.tolist()[4:] == [-1, -1]
        expected[document, row[:4]] = scores[document, :4]
    np.testing.assert_allclose(expected[:5, :5], G1 * (1 - np.eye(5)), atol=5e-5)
    assert ids[0].tolist()[:4] == [1, 2, 3, 4]
    assert set(ids[2].tolist()[:2]) == {0, 1}
    assert ids[3].tolist()[:2] == [4, 2]
    assert (ids[5:] == -1).all()


def sparse_graph(size, density, seed):
    one = random_sparse(size, size, density, random_state=seed, format="csr")
    one.setdiag(0)
    one.eliminate_zeros()
    return (one + one.T).tocsr()


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.floats(0.01, 0.3), st.integers(0, 1000))
def test_pagerank_matches_the_dense_inverse(size, density, seed):
    """The graphs have weights and documents without links."""
    adjacency = sparse_graph(size, density, seed)
    dense = pagerank_matrix(adjacency)
    np.fill_diagonal(dense, 0)
    ids, scores = top_pagerank(adjacency, 10)
    true = -np.sort(-dense, axis=1)[:, :10]
    np.testing.assert_allclose(scores[:, : true.shape[1]], true, atol=1e-5, rtol=2e-5)
    for i in range(size):
        listed = ids[i][ids[i] >= 0]
        assert i not in listed
        assert len(set(listed.tolist())) == len(listed)
        np.testing.assert_allclose(scores[i, : len(listed)], dense[i, listed], atol=1e-5)


def test_ties_depend_on_the_seed_not_on_the_order_of_documents():
    star = undirected([(0, j) for j in range(1, 30)], 30)
    orders = {tuple(top_pagerank(star, 29, seed=seed)[0][0].tolist()) for seed in range(4)}
    assert len(orders) == 4
    assert tuple(range(1, 30)) not in orders


@pytest.mark.parametrize(
    ("related", "sizes"),
    [(0, []), (1, [1]), (2, [2, 1]), (3, [3, 2, 1]), (5, [5, 3, 2, 1]), (6, [6, 3, 2, 1]), (7, [7, 4, 2, 1])],
)
def test_level_sizes_match_values_by_hand(related, sizes):
    assert [level_size(related, level) for level in range(1, levels(related) + 1)] == sizes


def test_links_form_a_graph_and_held_out_links_are_removed():
    whole = LinkGraph.from_documents(
        [
            Document("a", links=("b", "c", "b", "a", "gone")),
            Document("b", links=("a", "later")),
            Document("c"),
            Document("later", links=("c",)),
            Document("alone"),
        ]
    )
    assert whole.ids == ["a", "b", "c", "later", "alone"]
    assert (whole.matrix.nnz, whole.unknown) == (8, 1)
    assert whole.pairs().tolist() == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert whole.matrix.toarray()[0].tolist() == [0, 2, 1, 0, 0]  # the link to b is repeated
    rest, held = whole.hold_out(0.5, seed=1)
    assert len(held) == 2
    kept = {tuple(pair) for pair in rest.pairs().tolist()}
    gone = {tuple(pair) for pair in held.tolist()}
    assert not kept & gone
    assert kept | gone == {tuple(pair) for pair in whole.pairs().tolist()}
    assert whole.hold_out(0.5, seed=1)[1].tolist() == held.tolist()
    assert LinkGraph.from_documents([]).pairs().shape == (0, 2)


def test_shared_categories_form_a_graph_with_weights(monkeypatch):
    """By hand: a and b share two categories, b and c one. Three documents are too many for `all`."""
    monkeypatch.setattr("rerank.rankers.graphs.links.MAX_SHARED", 2)
    names = {"a": ("x", "y", "all", "x"), "b": ("y", "x", "z", "all"), "c": ("z", "all"), "d": ()}
    graph = LinkGraph.from_categories(Document(id, categories=of) for id, of in names.items())
    assert graph.matrix.toarray().tolist() == [[0, 2, 0, 0], [2, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    rest, held_out = graph.hold_out(0.5, seed=1)
    first, second = held_out[0].tolist()
    assert (rest.matrix[first, second], rest.matrix[second, first]) == (0, 0)
    assert rest.matrix.sum() + 2 * graph.matrix[first, second] == graph.matrix.sum()
