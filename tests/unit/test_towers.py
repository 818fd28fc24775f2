"""The NumPy tower against a plain loop over windows, and against its torch twin; vocabularies; Ragged."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.rankers.cnn import towers
from rerank.rankers.cnn.config import CnnConfig
from rerank.rankers.cnn.embeddings import Embedding
from rerank.rankers.cnn.fit import TorchTower
from rerank.rankers.cnn.towers import Ragged, Tower, Vocabulary
from rerank.records import Document, Query

KNOWN = 20
"""Tokens are 1 to KNOWN; 0 is the padding."""

SETTINGS = [
    (h, importance, mean) for h in (1, 2, 4) for importance in (False, True) for mean in (False, True)
]

texts = st.lists(st.lists(st.integers(1, KNOWN), max_size=9), max_size=7)


def make_tower(h=4, importance=False, mean=False, k=5, m=6, seed=0):
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(KNOWN + 1, k)).astype(np.float32)
    vectors[0] = 0
    weights = random.uniform(0.05, 1, KNOWN + 1).astype(np.float32)
    weights[0] = 0
    return Tower(
        Vocabulary("text", [f"w{i}" for i in range(1, KNOWN + 1)], 100),
        vectors,
        weights if importance else None,
        random.normal(size=(h, k, m)).astype(np.float32),
        random.normal(size=m).astype(np.float32),
        mean,
    )


def by_hand(tower, sequences):
    """The formulas, one window and one filter at a time, in Python's own floats."""
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


# ------------------------------------------------------------------------------- convolution and pooling


@pytest.mark.parametrize(("h", "importance", "mean"), SETTINGS)
def test_a_query_alone_is_pooled_as_it_is_among_others(h, importance, mean):
    tower = make_tower(h, importance, mean)
    for length in (0, 1, h, h + 1, 17):
        tokens = np.random.default_rng(length).integers(1, KNOWN + 1, length).tolist()
        alone = tower.encode([Query("q", " ".join(f"w{token}" for token in tokens))])
        assert (alone == tower.pool(Ragged.of([tokens]))).all()


@pytest.mark.parametrize(("h", "importance", "mean"), SETTINGS)
@settings(max_examples=15, deadline=None)
@given(texts)
def test_against_a_plain_loop(h, importance, mean, sequences):
    """Among the texts are empty ones and ones shorter than h."""
    tower = make_tower(h, importance, mean)
    pooled = tower.pool(Ragged.of(sequences))
    assert pooled.dtype == np.float32
    assert pooled.shape == (len(sequences), 6 + (5 if mean else 0))
    np.testing.assert_allclose(pooled, by_hand(tower, sequences), atol=2e-6)


@pytest.mark.parametrize(("h", "importance", "mean"), SETTINGS)
def test_texts_shorter_than_the_window_by_hand(h, importance, mean):
    sequences = [[], [3], [3, 4], [3, 4, 5], [3, 4, 5, 6], [7]]
    tower = make_tower(h, importance, mean)
    np.testing.assert_allclose(tower.pool(Ragged.of(sequences)), by_hand(tower, sequences), atol=2e-6)


def test_one_window_with_numbers_one_can_check():
    """k = 1, m = 1, h = 2: tanh(0.5 * x1 + 0.25 * x2 + 0.1), averaged over two windows."""
    tower = Tower(
        Vocabulary("text", ["a", "b", "c"], 10),
        np.array([[0], [1], [2], [4]], np.float32),
        None,
        np.array([[[0.5]], [[0.25]]], np.float32),
        np.array([0.1], np.float32),
        True,
    )
    c = (math.tanh(0.5 + 0.5 + 0.1) + math.tanh(1 + 1 + 0.1)) / 2
    assert tower.encode([Query("q", "A, b C!")])[0] == pytest.approx([c, 7 / 3], abs=1e-6)
    # One word is padded with a zero vector to one window; the mean is over the word alone.
    assert tower.encode([Query("q", "b")])[0] == pytest.approx([math.tanh(1 + 0.1), 2], abs=1e-6)
    assert tower.encode([Query("q", "unknown words")]).tolist() == [[0, 0]]


def test_fp16_vectors_are_convolved_in_fp32():
    tower = make_tower(importance=True, mean=True)
    sequences = [[1, 2, 3, 4, 5], [], [6]]
    tower.vectors = tower.vectors.astype(np.float16)
    np.testing.assert_allclose(tower.pool(Ragged.of(sequences)), by_hand(tower, sequences), atol=2e-6)


@pytest.mark.parametrize(("h", "importance", "mean"), SETTINGS)
@settings(max_examples=10, deadline=None)
@given(texts)
def test_the_torch_twin_gives_the_same(h, importance, mean, sequences):
    random = np.random.default_rng(3)
    vectors = random.normal(size=(KNOWN + 1, 5)).astype(np.float16).astype(np.float32)
    vectors[0] = 0
    names = [f"w{i}" for i in range(1, KNOWN + 1)]
    embedding = Embedding(names, vectors, random.integers(1, 100, KNOWN))
    torch.manual_seed(1)
    config = CnnConfig.of(width=h, filters=6, importance=importance, mean=mean)
    twin = TorchTower(embedding, config, "text")
    tower = twin.numpy(Vocabulary("text", names, 100))
    assert tower.width == twin.out
    with torch.no_grad():
        expected = twin(Ragged.of(sequences)).numpy()
    np.testing.assert_allclose(tower.pool(Ragged.of(sequences)), expected, atol=2e-6)
    np.testing.assert_allclose(expected, by_hand(tower, sequences), atol=2e-6)


# ---------------------------------------------------------------------------------------- batches, order


@settings(max_examples=25, deadline=None)
@given(texts, st.sampled_from(SETTINGS))
def test_a_batch_of_one_is_the_same_item_inside_a_batch(sequences, how):
    tower = make_tower(*how)
    together = tower.pool(Ragged.of(sequences))
    for row, sequence in zip(together, sequences):
        np.testing.assert_allclose(tower.pool(Ragged.of([sequence]))[0], row, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 2, 7, 30])
@pytest.mark.parametrize("how", SETTINGS)
def test_chunks_do_not_matter(monkeypatch, chunk, how):
    random = np.random.default_rng(0)
    sequences = [random.integers(1, KNOWN + 1, n).tolist() for n in (3, 0, 12, 1, 0, 0, 40, 5, 2, 4, 4, 0)]
    tower = make_tower(*how)
    whole = tower.pool(Ragged.of(sequences))
    monkeypatch.setattr(towers, "CHUNK", chunk)
    np.testing.assert_allclose(tower.pool(Ragged.of(sequences)), whole, atol=1e-6)


def test_nothing_and_only_empty_texts():
    tower = make_tower(mean=True)
    assert tower.pool(Ragged.of([])).shape == (0, 11)
    assert tower.pool(Ragged.of([[], []])).tolist() == [[0] * 11] * 2
    assert tower.encode([Document("d"), Document("e", text="?!")]).tolist() == [[0] * 11] * 2


# ------------------------------------------------------------------------------------------ vocabularies


def category_tower(names, longest=64):
    tower = make_tower(h=1, importance=False, mean=True)
    tower.vocabulary = Vocabulary("meta", list(names), longest)
    return tower


@given(st.permutations(["w3", "w7", "w7", "w1", "w20", "unknown", "w12"]))
def test_the_order_of_categories_changes_nothing(categories):
    tower = category_tower(f"w{i}" for i in range(1, KNOWN + 1))
    one = tower.encode([Document("d", categories=("w1", "w3", "w7", "w12", "w20"))])
    np.testing.assert_array_equal(tower.encode([Document("d", categories=tuple(categories))]), one)


@given(st.permutations([f"w{i}" for i in range(1, 9)]))
def test_the_order_changes_nothing_even_where_there_are_too_many(categories):
    tower = category_tower([f"w{i}" for i in range(1, KNOWN + 1)], longest=5)
    one = tower.encode([Document("d", categories=tuple(f"w{i}" for i in range(1, 9)))])
    np.testing.assert_array_equal(tower.encode([Document("d", categories=tuple(categories))]), one)


def test_an_unknown_category_counts_as_its_nearest_known_prefix():
    vocabulary = Vocabulary("meta", ["C", "C.2", "game", "game::strategy"], 64)

    def tokens(*categories):
        return sorted(vocabulary.tokens(Query("q", "", categories)))

    assert tokens("C.2") == tokens("C.2.4") == tokens("C.2.4.7") == [2]
    assert tokens("C.3.1") == [1]
    assert tokens("game::strategy::chess", "game::sport") == [3, 4]
    assert tokens("D.1", "gamer", "") == []
    # Two that are not known and have the same prefix are that prefix once: categories are a set.
    assert tokens("C.2.4", "C.2.9", "C.2") == [2]


def test_words_are_lower_case_without_punctuation_and_unknown_ones_are_skipped():
    vocabulary = Vocabulary("text", ["sorting", "lists", "été"], 7)
    document = Document("d", title="Sorting", text="LISTS: of lists, in the été (sorting) lists")
    assert vocabulary.tokens(document) == [1, 2, 2, 3]  # those known among the first seven
    assert vocabulary.tokens(Query("q", "sorting Sorting")) == [1, 1]
    assert vocabulary.tokens(Document("d")) == []


# ------------------------------------------------------------------------------------------------ Ragged


@given(texts, st.data())
def test_ragged_does_what_lists_do(sequences, data):
    ragged = Ragged.of(sequences)
    assert len(ragged) == len(sequences)
    assert as_lists(ragged) == sequences
    assert ragged.lengths.tolist() == [len(s) for s in sequences]
    if sequences:
        which = data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=10))
        taken = ragged.take(np.array(which, dtype=np.int64))
        assert as_lists(taken) == [sequences[i] for i in which]
    least = data.draw(st.integers(1, 5))
    padded = [s + [0] * (least - len(s)) if s else [] for s in sequences]
    assert as_lists(ragged.padded(least)) == padded


def as_lists(ragged):
    return [ragged.flat[a:b].tolist() for a, b in pairwise(ragged.offsets.tolist())]
