"""``adapter``: a linear map on the vectors of a frozen encoder."""

from __future__ import annotations

import pytest

from rerank import Document, Qrels, Query, train
from rerank.common.errors import UsageError
from rerank.rankers.registry import load_ranker
from tests.support.data import QUERIES, qrels, topical

EASY = [Query(f"easy{i}", f"w{i}") for i in (37, 38, 39)]
"""Queries with one candidate each, which is relevant. No ranker can improve them."""


@pytest.fixture
def workspace(tmp_path):
    made = topical(tmp_path / "ws")
    made.engine.write(Document(query.id, text=query.text) for query in EASY)
    return made


def fit(workspace, tiny, judged, dev, **config):
    settings = {"model": tiny, "passage_tokens": 16, **config}
    report = train(workspace, "adapter", queries=QUERIES + EASY, qrels=judged, dev_qrels=dev, config=settings)
    return report.rankers[0]


def test_the_map_improves_dev_and_encodes_queries_without_torch(workspace, tiny):
    fitted = fit(workspace, tiny, qrels(0, 24), qrels(24, 36))
    assert fitted.dev > fitted.baseline_value + 0.1
    assert (fitted.ranker.family, fitted.epoch > 0) == ("adapter", True)
    (folder,) = workspace.folder.glob("rankers/adapter-*")
    ranker = load_ranker(folder)
    assert ranker.version == fitted.ranker.version
    vector = ranker.encode_query(QUERIES[0])
    assert "encoder" not in vars(ranker)
    assert vector @ ranker.vectors([QUERIES[0].text])[0] > 0.999  # torch may use bfloat16
    again = fit(workspace, str(folder / "model"), qrels(0, 24), qrels(24, 36))  # the model already has a map
    assert again.baseline_value > fitted.baseline_value + 0.1


def test_without_a_gain_on_dev_the_ranker_equals_the_encoder(workspace, tiny):
    easy = Qrels((query.id, query.id, 1) for query in EASY)
    fitted = fit(workspace, tiny, qrels(0, 24), easy)
    assert (fitted.epoch, fitted.dev) == (0, 1)
    untrained = train(
        workspace, "dense", config={"untrained": True, "model": tiny, "passage_tokens": 16}
    ).rankers
    assert fitted.ranker.version == untrained[0].ranker.version


def test_a_rate_and_missing_judgments_are_refused(workspace, tiny):
    with pytest.raises(UsageError, match="rate"):
        fit(workspace, tiny, qrels(0, 24), qrels(24, 36), rate=0.1)
    with pytest.raises(UsageError, match="judgments"):
        train(workspace, "adapter")
