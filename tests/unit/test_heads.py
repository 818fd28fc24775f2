"""The two heads against their formulas: the split first layer, the cosine, and their arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rerank.rankers.cnn.heads import HEADS, CosineHead, MlpHead

QUERY, DOCUMENT, SIZE, COUNT = 7, 5, 9, 13
"""Numbers in c_q, c_d and the first layer; documents."""


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mlp(layers=2):
    hidden = [(normal(10 + i, SIZE, SIZE), normal(20 + i, SIZE)) for i in range(layers)]
    return MlpHead(
        normal(1, QUERY, SIZE),
        normal(2, DOCUMENT, SIZE),
        normal(3, SIZE),
        hidden,
        normal(4, SIZE),
        normal(5, 1),
    )


def cosine():
    return CosineHead(normal(1, QUERY, SIZE), normal(2, SIZE), normal(3, DOCUMENT, SIZE), normal(4, SIZE))


def unsplit(head, query, document):
    """S = tanh(O relu(... relu(U [c_q; c_d] + b))), with U as one matrix, in Python's own floats."""
    u = np.concatenate((head.query, head.document)).astype(np.float64)  # (q + d, s)
    layer = np.concatenate((query, document)).astype(np.float64)
    for weight, bias in [(u, head.bias), *head.hidden]:
        layer = np.array(
            [
                max(0.0, math.fsum(x * w for x, w in zip(layer, column)) + b)
                for column, b in zip(weight.T, bias)
            ]
        )
    return math.tanh(math.fsum(x * w for x, w in zip(layer, head.output)) + float(head.output_bias[0]))


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_the_split_first_layer_is_the_unsplit_one(layers):
    head = mlp(layers)
    head.output = head.output / 100  # away from where tanh is flat
    query, documents = normal(6, QUERY), normal(7, COUNT, DOCUMENT)
    scores = head.score(head.encode_query(query[None])[0], head.encode_documents(documents))
    assert scores.dtype == np.float64
    expected = [unsplit(head, query, document) for document in documents]
    assert min(expected) < max(expected)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_the_mlp_by_hand():
    """U_q = 1, U_d = -2, b = 0.5; O = 3, output bias -1; c_q = 2, c_d = 0.25 and 5."""
    one = np.ones((1, 1), np.float32)
    head = MlpHead(one, -2 * one, np.array([0.5], np.float32), [], np.array([3], np.float32), -one[0])
    query = head.encode_query(np.array([[2]], np.float32))[0]
    assert query.tolist() == [2.5]
    features = head.encode_documents(np.array([[0.25], [5]], np.float32))
    assert features.tolist() == [[-0.5], [-10]]
    assert head.score(query, features).tolist() == pytest.approx([math.tanh(3 * 2 - 1), math.tanh(-1)])
    # The features as they are stored.
    stored = features.astype(np.float16)
    assert head.score(query, stored).tolist() == pytest.approx([math.tanh(5), math.tanh(-1)])
    assert stored.tolist() == [[-0.5], [-10]]  # scoring works on a copy


def test_the_cosine_against_its_formula():
    head = cosine()
    query, documents = normal(6, QUERY), normal(7, COUNT, DOCUMENT)
    features = head.encode_documents(documents)
    assert np.linalg.norm(features, axis=1) == pytest.approx(np.ones(COUNT), abs=1e-6)
    scores = head.score(head.encode_query(query[None])[0], features)
    assert scores.dtype == np.float64
    z_q = query.astype(np.float64) @ head.query + head.query_bias
    for score, document in zip(scores.tolist(), documents):
        z_d = document.astype(np.float64) @ head.document + head.document_bias
        assert score == pytest.approx(z_q @ z_d / math.sqrt((z_q @ z_q) * (z_d @ z_d)), abs=1e-6)


def test_the_cosine_of_nothing_is_the_learned_absent_vector_and_never_nan():
    head = cosine()
    nothing = np.zeros((1, DOCUMENT), np.float32)
    bias = head.document_bias
    assert head.encode_documents(nothing)[0] == pytest.approx(bias / np.linalg.norm(bias), abs=1e-6)
    head.document_bias = np.zeros_like(bias)
    assert head.encode_documents(nothing).tolist() == [[0] * SIZE]
    query = head.encode_query(normal(6, 1, QUERY))[0]
    assert head.score(query, head.encode_documents(nothing)).tolist() == [0]


@pytest.mark.parametrize("head", [mlp(), mlp(0), mlp(12), cosine()], ids=["2", "0", "12", "cosine"])
def test_the_arrays_make_the_head_again(head):
    again = HEADS[head.name].from_arrays(dict(sorted(head.arrays().items())))
    query, documents = normal(6, 1, QUERY), normal(7, COUNT, DOCUMENT)
    scores, same = (
        one.score(one.encode_query(query)[0], one.encode_documents(documents)) for one in (head, again)
    )
    assert same.tolist() == scores.tolist()
    assert -1 <= scores.min() <= scores.max() <= 1 + 1e-6
