"""The two heads agree with their formulas: the split first layer and the cosine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rerank.rankers.cnn.towers import Head

QUERY, DOCUMENT, SIZE, COUNT = 7, 5, 9, 13
"""Sizes of c_q, c_d and the first layer, and the number of documents."""


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


SIDES = {"query": normal(1, QUERY, SIZE), "document": normal(2, DOCUMENT, SIZE)}


def mlp(layers):
    hidden = {f"hidden.{i}": normal(10 + i, SIZE, SIZE) for i in range(layers)}
    biases = {f"hidden.{i}_bias": normal(20 + i, SIZE) for i in range(layers)}
    output = {"output": normal(4, SIZE, 1) / 100, "output_bias": normal(5, 1)}  # not where tanh is flat
    return Head({**SIDES, "query_bias": normal(3, SIZE), **hidden, **biases, **output})


COSINE = Head({**SIDES, "query_bias": normal(3, SIZE), "document_bias": normal(4, SIZE)})


def formula(head, query, document):
    """Return the score in double precision."""
    of, c_q, c_d = head.arrays, query.astype(np.float64), document.astype(np.float64)
    if "output" not in of:
        z_q, z_d = c_q @ of["query"] + of["query_bias"], c_d @ of["document"] + of["document_bias"]
        return z_q @ z_d / math.sqrt((z_q @ z_q) * (z_d @ z_d))
    first = np.concatenate((of["query"], of["document"]))
    layer = np.maximum(0, np.concatenate((c_q, c_d)) @ first + of["query_bias"])
    for i in range((len(of) - 5) // 2):
        layer = np.maximum(0, layer @ of[f"hidden.{i}"] + of[f"hidden.{i}_bias"])
    return math.tanh(layer @ of["output"][:, 0] + float(of["output_bias"][0]))


@pytest.mark.parametrize(
    "head", [mlp(0), mlp(1), mlp(3), mlp(12), COSINE], ids=["0", "1", "3", "12", "cosine"]
)
def test_scores_match_the_formula(head):
    query, documents = normal(6, QUERY), normal(7, COUNT, DOCUMENT)
    scores = head.score(head.encode("query", query[None])[0], head.encode("document", documents))
    assert scores.dtype == np.float64
    expected = [formula(head, query, document) for document in documents]
    assert min(expected) < max(expected)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_the_mlp_score_matches_values_by_hand():
    """U_q = 1, U_d = -2, b = 0.5; O = 3, output bias -1; c_q = 2, c_d = 0.25 and 5."""
    sides = {"query": [[1]], "query_bias": [0.5], "document": [[-2]]}
    arrays = {**sides, "output": [[3]], "output_bias": [-1]}
    head = Head({name: np.array(values, np.float32) for name, values in arrays.items()})
    query = head.encode("query", np.array([[2]], np.float32))[0]
    assert query.tolist() == [2.5]
    features = head.encode("document", np.array([[0.25], [5]], np.float32))
    for stored in (features, features.astype(np.float16)):
        assert head.score(query, stored).tolist() == pytest.approx([math.tanh(3 * 2 - 1), math.tanh(-1)])
        assert stored.tolist() == [[-0.5], [-10]]  # scoring works on a copy


def test_an_empty_input_has_the_learned_cosine_vector_and_is_not_nan():
    nothing, bias = np.zeros((1, DOCUMENT), np.float32), COSINE.arrays["document_bias"]
    assert COSINE.encode("document", nothing)[0] == pytest.approx(bias / np.linalg.norm(bias), abs=1e-6)
    head = Head({**COSINE.arrays, "document_bias": np.zeros_like(bias)})
    query = head.encode("query", normal(6, 1, QUERY))[0]
    assert head.score(query, head.encode("document", nothing)).tolist() == [0]
