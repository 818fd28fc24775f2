"""The two heads agree with their formulas: the split first layer, the cosine, and their arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rerank.rankers.cnn.heads import HEADS, CosineHead, MlpHead

QUERY, DOCUMENT, SIZE, COUNT = 7, 5, 9, 13
"""Sizes of c_q, c_d and the first layer, and the number of documents."""


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mlp(layers):
    sides, bias = (normal(1, QUERY, SIZE), normal(2, DOCUMENT, SIZE)), normal(3, SIZE)
    hidden = [(normal(10 + i, SIZE, SIZE), normal(20 + i, SIZE)) for i in range(layers)]
    return MlpHead(*sides, bias, hidden, normal(4, SIZE) / 100, normal(5, 1))  # not where tanh is flat


COSINE = CosineHead(normal(1, QUERY, SIZE), normal(2, SIZE), normal(3, DOCUMENT, SIZE), normal(4, SIZE))


def formula(head, query, document):
    """Return the score in double precision."""
    c_q, c_d = query.astype(np.float64), document.astype(np.float64)
    if isinstance(head, CosineHead):
        z_q, z_d = c_q @ head.query + head.query_bias, c_d @ head.document + head.document_bias
        return z_q @ z_d / math.sqrt((z_q @ z_q) * (z_d @ z_d))
    layer = np.maximum(
        0, np.concatenate((c_q, c_d)) @ np.concatenate((head.query, head.document)) + head.bias
    )
    for weight, bias in head.hidden:
        layer = np.maximum(0, layer @ weight + bias)
    return math.tanh(layer @ head.output + float(head.output_bias[0]))


@pytest.mark.parametrize(
    "head", [mlp(0), mlp(1), mlp(3), mlp(12), COSINE], ids=["0", "1", "3", "12", "cosine"]
)
def test_scores_match_the_formula_also_after_loading_the_head(head):
    query, documents = normal(6, QUERY), normal(7, COUNT, DOCUMENT)
    again = HEADS[head.name].from_arrays(dict(sorted(head.arrays().items())))
    scores, same = (
        one.score(one.encode_query(query[None])[0], one.encode_documents(documents)) for one in (head, again)
    )
    assert scores.dtype == np.float64
    assert same.tolist() == scores.tolist()
    expected = [formula(head, query, document) for document in documents]
    assert min(expected) < max(expected)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_the_mlp_score_matches_values_by_hand():
    """U_q = 1, U_d = -2, b = 0.5; O = 3, output bias -1; c_q = 2, c_d = 0.25 and 5."""
    one = np.ones((1, 1), np.float32)
    head = MlpHead(one, -2 * one, np.array([0.5], np.float32), [], np.array([3], np.float32), -one[0])
    query = head.encode_query(np.array([[2]], np.float32))[0]
    assert query.tolist() == [2.5]
    features = head.encode_documents(np.array([[0.25], [5]], np.float32))
    for stored in (features, features.astype(np.float16)):
        assert head.score(query, stored).tolist() == pytest.approx([math.tanh(3 * 2 - 1), math.tanh(-1)])
        assert stored.tolist() == [[-0.5], [-10]]  # scoring works on a copy


def test_an_empty_input_has_the_learned_cosine_vector_and_is_not_nan():
    nothing, bias = np.zeros((1, DOCUMENT), np.float32), COSINE.document_bias
    assert COSINE.encode_documents(nothing)[0] == pytest.approx(bias / np.linalg.norm(bias), abs=1e-6)
    head = CosineHead(COSINE.query, COSINE.query_bias, COSINE.document, np.zeros_like(bias))
    query = head.encode_query(normal(6, 1, QUERY))[0]
    assert head.score(query, head.encode_documents(nothing)).tolist() == [0]
