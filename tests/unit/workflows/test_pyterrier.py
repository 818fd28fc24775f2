"""A workspace in pipelines of PyTerrier. Without PyTerrier, the tests are skipped."""

from __future__ import annotations

import pytest

import rerank
from rerank.documents.records import Document
from rerank.workflows.pyterrier import transformer

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pyterrier = pytest.importorskip("pyterrier", reason="PyTerrier is not installed")

TEXTS = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "owl": "owls hunt at night, too"}
TOPICS = pandas.DataFrame({"qid": ["1", "2"], "query": ["hunts at night", "mice"]})


@pytest.fixture
def workspace(tmp_path):
    workspace = rerank.Workspace.create(tmp_path / "ws", lang="en")
    workspace.engine.write([Document(id, text=text) for id, text in TEXTS.items()])
    return workspace


def ranked(frame):
    return [(row.qid, row.docno, row.rank) for row in frame.itertuples()]


def test_it_retrieves_the_documents_of_rerank_rank(workspace):
    frame = transformer(workspace, "bm25*0.5 + tfidf*0.5").transform(TOPICS)
    expected = rerank.rank(workspace, {"1": "hunts at night", "2": "mice"}, stack="bm25*0.5 + tfidf*0.5")
    assert ranked(frame) == [(row["query"], row["id"], row["rank"] - 1) for row in expected.rows()]
    assert frame["score"].tolist() == pytest.approx([row["score"] for row in expected.rows()])
    limited = (transformer(workspace, "bm25", count=5) % 1).transform(TOPICS)
    assert len(limited) == 2


def test_it_reranks_the_documents_of_another_transformer(workspace):
    reranker = transformer(workspace, "bm25")
    first = pyterrier.Transformer.from_df(
        pandas.DataFrame(
            {"qid": ["1"] * 3, "query": "hunts at night", "docno": ["fox", "elsewhere", "wolf"], "score": 1.0}
        )
    )
    frame = (first >> reranker).transform(TOPICS[:1])
    assert ranked(frame) == [("1", "wolf", 0), ("1", "fox", 1)]
    assert ranked(reranker.transform(first.transform(TOPICS[:1]).query("docno == 'elsewhere'"))) == []
