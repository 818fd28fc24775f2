"""Rankers with the same pretrained encoder share its work."""

from __future__ import annotations

import numpy as np
import pytest

from rerank import evaluate, train
from rerank.rankers.encoder import stored
from rerank.rankers.encoder.bert import Bert
from rerank.rankers.encoder.shared import SharedVectors
from rerank.rankers.encoder.transformer import TextEncoder
from rerank.rankers.registry import load_ranker
from tests.support.data import QUERIES, qrels, topical


@pytest.fixture
def shared(monkeypatch):
    """New vectors of this process."""
    for name in ("PASSAGE_VECTORS", "QUERY_VECTORS"):
        monkeypatch.setattr(stored, name, SharedVectors(1 << 20))


@pytest.fixture
def encoded(monkeypatch):
    """The token sequences that a transformer has encoded, documents and queries."""
    sequences: list[list[int]] = []
    encode = TextEncoder.encode

    def counted(encoder, batch, forward=None):
        sequences.extend(map(list, batch))
        return encode(encoder, batch, forward)

    monkeypatch.setattr(TextEncoder, "encode", counted)
    return sequences


def train_both(workspace, model):
    config = {"model": model, "passage_tokens": 16, "passages": 2}
    train(workspace, "dense", config={**config, "untrained": True})
    train(workspace, "adapter", queries=QUERIES, qrels=qrels(0, 24), dev_qrels=qrels(24, 36), config=config)
    return workspace.ranker("dense"), workspace.ranker("adapter")


def test_a_passage_is_encoded_once(tmp_path, tiny, shared, encoded):
    workspace = topical(tmp_path / "ws")
    dense, adapter = train_both(workspace, tiny)
    assert dense.pretrained_version == adapter.pretrained_version
    assert dense.version != adapter.version
    assert len(set(map(tuple, encoded))) == len(encoded)
    documents = list(workspace.engine.documents())
    for ranker in (dense, adapter):
        alone = load_ranker(ranker.source)
        alone.pretrained_version = ""
        expected = alone.encode_documents(documents).astype(int)
        assert np.abs(ranker.encode_documents(documents).astype(int) - expected).max() <= 1


def test_a_query_is_encoded_once(tmp_path, tiny, shared, monkeypatch):
    rankers = train_both(topical(tmp_path / "ws"), tiny)
    ids: list[list[int]] = []
    for bert in (Bert, *Bert.__subclasses__()):
        states = bert.states
        monkeypatch.setattr(
            bert,
            "states",
            lambda self, tokens, *types, states=states: ids.append(tokens) or states(self, tokens),
        )
    first, second = (ranker.encode_query(QUERIES[0]) for ranker in rankers)
    assert len(ids) == 1
    assert np.abs(first - second).max() > 0.01
    for ranker, vector in zip(rankers, (first, second)):
        alone = load_ranker(ranker.source)
        alone.pretrained_version = ""
        np.testing.assert_allclose(alone.encode_query(QUERIES[0]), vector, atol=1e-6)


def test_a_trained_encoder_shares_nothing(tmp_path, tiny, shared):
    config = {"model": tiny, "passage_tokens": 16, "steps": 1, "batch": 4, "train_layers": 1}
    workspace = topical(tmp_path / "ws")
    train(workspace, "dense", queries=QUERIES, qrels=qrels(0, 24), dev_qrels=qrels(24, 36), config=config)
    assert workspace.ranker("dense").pretrained_version == ""


def test_a_full_memory_begins_again():
    shared = SharedVectors(limit=4 * (4 + 300))
    computed: list[int] = []

    def vectors(texts):
        def compute(positions):
            computed.extend(positions)
            return np.float32([[len(texts[position])] for position in positions])

        return shared.get("encoder", texts, compute)[:, 0].tolist()

    assert vectors([b"a", b"bb", b"ccc"]) == vectors([b"a", b"bb", b"ccc"]) == [1, 2, 3]
    assert (computed, shared.has_forgotten) == ([0, 1, 2], False)
    assert vectors([b"dddd", b"eeeee", b"a"]) == [4, 5, 1]
    assert (computed, shared.has_forgotten) == ([0, 1, 2, 0, 1], True)
    assert vectors([b"a", b"dddd"]) == [1, 4]
    assert computed == [0, 1, 2, 0, 1, 0]
    assert vectors([b"x" * size for size in range(1, 7)]) == [1, 2, 3, 4, 5, 6]


def test_measurements_share_the_vectors_of_queries(tmp_path, monkeypatch):
    workspace = topical(tmp_path / "ws")
    train(
        workspace,
        "lsi",
        queries=QUERIES,
        qrels=qrels(0, 24),
        dev_qrels=qrels(24, 36),
        config={"dim": 8, "letters": 0},
    )
    ranker = workspace.ranker("lsi")
    encoded: list[str] = []
    encode_query = type(ranker).encode_query

    def counted(self, query):
        encoded.append(query.id)
        return encode_query(self, query)

    monkeypatch.setattr(type(ranker), "encode_query", counted)
    for measure in ("nDCG@10", "RR"):
        evaluate(workspace, "bm25*0.5 + lsi*0.5", queries=QUERIES, qrels=qrels(0, 24), measures=[measure])
    assert len(encoded) == len(set(encoded)) > 10
