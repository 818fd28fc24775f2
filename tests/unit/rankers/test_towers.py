"""The NumPy tower agrees with a simple loop and with torch. Also tests vocabularies and Ragged."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerank.common.arrays import Ragged
from rerank.documents.records import Document, Query
from rerank.rankers.cnn import towers
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding
from rerank.rankers.cnn.network import TorchTower
from rerank.rankers.cnn.towers import Tower, Vocabulary

NAMES = [f"w{i}" for i in range(1, 21)]
"""Tokens are numbered 1 to 20. The padding is 0."""
SETTINGS = [
    (h, importance, mean) for h in (1, 2, 4) for importance in (False, True) for mean in (False, True)
]
SHORT = [[], [3], [3, 4], [3, 4, 5], [3, 4, 5, 6], [7]]
texts = st.lists(st.lists(st.integers(1, len(NAMES)), max_size=9), max_size=7)


def twins(h=4, importance=True, mean=True, part="text", longest=100):
    """Return a torch tower and its NumPy conversion. Their vectors are fp16."""
    random = np.random.default_rng(3)
    vectors = random.normal(size=(len(NAMES) + 1, 5)).astype(np.float16).astype(np.float32)
    vectors[0] = 0
    torch.manual_seed(1)
    config = CnnConfig.of(width=h, filters=6, importance=importance, mean=mean)
    vocabulary, counts = Vocabulary(part, NAMES, longest), random.integers(1, 100, len(NAMES))
    twin = TorchTower(Embedding(vocabulary, vectors, counts), config)
    return twin, twin.numpy()


def by_hand(tower, sequences):
    """Return the result of the formulas, computed for one window and filter at a time with Python floats."""
    h, k, m = tower.filters.shape
    rows = []
    for sequence in sequences:
        if not sequence:
            rows.append([0.0] * tower.width)
            continue
        padded = list(sequence) + [0] * (h - len(sequence))
        of_token = [1.0 if tower.importance is None else float(tower.importance[t]) for t in padded]
        pooled, total = [0.0] * m, 0.0
        for i in range(len(padded) - h + 1):
            weight = 1.0 if tower.importance is None else sum(of_token[i : i + h])
            total += weight
            for f in range(m):
                inside = float(tower.bias[f])
                for j in range(h):
                    for x in range(k):
                        inside += float(tower.vectors[padded[i + j], x]) * float(tower.filters[j, x, f])
                pooled[f] += weight * math.tanh(inside)
        row = [value / total for value in pooled]
        if tower.mean:
            whole = sum(of_token[: len(sequence)])
            for x in range(k):
                row.append(sum(w * float(tower.vectors[t, x]) for w, t in zip(of_token, sequence)) / whole)
        rows.append(row)
    return np.array(rows).reshape(len(sequences), tower.width)


@pytest.mark.parametrize("how", SETTINGS)
@settings(max_examples=5, deadline=None)
@example(SHORT)
@given(texts)
def test_numpy_torch_and_a_simple_loop_give_equal_results(how, sequences):
    """Includes empty texts and texts shorter than the window, as single texts and in chunks."""
    twin, tower = twins(*how)
    pooled = tower.pool(Ragged.from_lists(sequences))
    assert (pooled.dtype, pooled.shape) == (np.float32, (len(sequences), twin.pooled_width))
    with torch.no_grad():
        np.testing.assert_allclose(pooled, twin(Ragged.from_lists(sequences)).numpy(), atol=2e-6)
    np.testing.assert_allclose(pooled, by_hand(tower, sequences), atol=2e-6)
    for row, sequence in zip(pooled, sequences):
        np.testing.assert_allclose(tower.pool(Ragged.from_lists([sequence]))[0], row, atol=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(towers, "CHUNK", 2)
        np.testing.assert_allclose(tower.pool(Ragged.from_lists(sequences)), pooled, atol=1e-6)


def test_all_weights_of_a_torch_tower_have_gradients():
    twin, _ = twins()
    twin(Ragged.from_lists(SHORT)).square().sum().backward()
    assert all(parameter.grad.to_dense().any() for parameter in twin.parameters())


def test_one_window_matches_values_by_hand():
    """k = 1, m = 1, h = 2: tanh(0.5 * x1 + 0.25 * x2 + 0.1), averaged over two windows."""
    vectors = np.array([[0], [1], [2], [4]], np.float32)
    filters, bias = np.array([[[0.5]], [[0.25]]], np.float32), np.array([0.1], np.float32)
    tower = Tower(Vocabulary("text", ["a", "b", "c"], 10), vectors, None, filters, bias, True)
    c = (math.tanh(0.5 + 0.5 + 0.1) + math.tanh(1 + 1 + 0.1)) / 2
    assert tower.encode([Query("q", "A, b C!")])[0] == pytest.approx([c, 7 / 3], abs=1e-6)
    # One word is padded with a zero vector to fill one window. The mean includes only the word.
    assert tower.encode([Query("q", "b")])[0] == pytest.approx([math.tanh(1 + 0.1), 2], abs=1e-6)
    for nothing in (Query("q", "unknown words"), Document("d"), Document("e", text="?!")):
        assert tower.encode([nothing]).tolist() == [[0, 0]]
    assert tower.encode([]).shape == (0, 2)


@pytest.mark.parametrize("longest", [64, 5])
@settings(max_examples=20)
@given(st.permutations(["w3", "w7", "w7", "w1", "w20", "unknown", "w12", "w13"]))
def test_the_order_of_categories_has_no_effect(longest, categories):
    """This also holds if there are more categories than the limit."""
    vocabulary = Vocabulary("meta", NAMES, longest)
    expected = [1, 3, 7, 12, 13, 20][:longest]
    assert vocabulary.tokens(Document("d", categories=tuple(categories))) == expected


def test_an_unknown_category_is_replaced_by_its_nearest_prefix():
    vocabulary = Vocabulary("meta", ["C", "C.2", "game", "game::strategy"], 64)
    for categories, expected in (
        (("C.2",), [2]),
        (("C.2.4",), [2]),
        (("C.2.4.7", "C.2.9", "C.2"), [2]),  # the prefix is used once, because categories are a set
        (("C.3.1",), [1]),
        (("game::strategy::chess", "game::sport"), [3, 4]),
        (("D.1", "gamer", ""), []),
    ):
        assert sorted(vocabulary.tokens(Query("q", "", categories))) == expected


def test_words_are_lower_case_and_unknown_words_are_skipped():
    vocabulary = Vocabulary("text", ["sorting", "lists", "été"], 7)
    document = Document("d", title="Sorting", text="LISTS: of lists, in the été (sorting) lists")
    assert vocabulary.tokens(document) == [1, 2, 2, 3]  # the known words among the first seven
    assert vocabulary.tokens(Query("q", "sorting Sorting")) == [1, 1]
    assert vocabulary.tokens(Document("d")) == []


@settings(max_examples=40)
@given(texts, st.data())
def test_ragged_arrays_behave_like_lists(sequences, data):
    def as_lists(ragged):
        return [ragged.flat[a:b].tolist() for a, b in pairwise(ragged.offsets.tolist())]

    ragged = Ragged.from_lists(sequences)
    assert as_lists(ragged) == sequences
    assert ragged.lengths.tolist() == [len(s) for s in sequences]
    if sequences:
        which = data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=10))
        taken = ragged.take(np.array(which, dtype=np.int64))
        assert as_lists(taken) == [sequences[i] for i in which]
    least = data.draw(st.integers(1, 5))
    assert as_lists(ragged.padded(least)) == [s + [0] * (least - len(s)) if s else [] for s in sequences]
