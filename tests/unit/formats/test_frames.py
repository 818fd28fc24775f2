"""Documents, queries and judgments as records, frames of pandas and data sets of ir_datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rerank
from rerank.common.errors import NotInstalledError, UsageError
from rerank.documents.records import Query
from rerank.formats.inputs import as_qrels, as_queries

DOCUMENTS = [
    {"docno": "wolf", "title": "Wolves", "text": "a grey wolf hunts at night", "year": 1990},
    {"docno": "owl", "title": "Owls", "text": "an owl hunts mice at night", "year": 2001},
    {"docno": "fox", "title": "Foxes", "text": "a red fox sleeps", "year": None},
]
QUERIES = [{"qid": "q1", "query": "grey wolf"}, {"qid": "q2", "query": "owl"}]
QRELS = [{"qid": "q1", "docno": "wolf", "label": 2}, {"qid": "q2", "docno": "owl", "label": 1}]
GRADES = {"q1": {"wolf": 2}, "q2": {"owl": 1}}


class Document(NamedTuple):
    doc_id: str
    title: str
    body: str


class Topic(NamedTuple):
    query_id: str
    title: str

    def default_text(self) -> str:
        return self.title


class Judgment(NamedTuple):
    query_id: str
    doc_id: str
    relevance: int
    iteration: str


class DataSet:
    """The interface of a data set of ir_datasets. It counts how many documents were read."""

    read = 0

    def docs_iter(self) -> Iterator[Document]:
        for row in DOCUMENTS:
            self.read += 1
            yield Document(str(row["docno"]), str(row["title"]), str(row["text"]))

    def queries_iter(self) -> Iterator[Topic]:
        return (Topic(row["qid"], row["query"]) for row in QUERIES)

    def qrels_iter(self) -> Iterator[Judgment]:
        return (Judgment(row["qid"], row["docno"], row["label"], "0") for row in QRELS)


class OnlyQueries:
    queries_iter = DataSet.queries_iter


def check_workspace(folder: Path, documents: Any, queries: Any, qrels: Any) -> Any:
    """Ingest, tune, evaluate and query; return the evaluation."""
    report = rerank.ingest(folder / "ws", documents, lang="en")
    assert report.added == 3
    workspace = report.workspace
    assert workspace.engine.get(["wolf"])[0].content == "Wolves\na grey wolf hunts at night"
    assert workspace.search("grey wolf", stack="bm25")[0]["id"] == "wolf"
    rerank.tune(workspace, "bm25,tfidf", queries=queries, qrels=qrels)
    return rerank.evaluate(workspace, ["bm25", "tfidf"], queries=queries, qrels=qrels, measures=["RR"])


def test_a_data_set_is_ingested_tuned_and_evaluated(tmp_path):
    data_set = DataSet()
    report = check_workspace(tmp_path, data_set, data_set, data_set)
    assert data_set.read == 3
    assert {row["RR"] for row in report.rows()} == {1.0}


def test_records_with_the_names_of_files(tmp_path):
    documents = [{"_id": row["docno"], "title": row["title"], "text": row["text"]} for row in DOCUMENTS]
    queries = [{"_id": row["qid"], "text": row["query"]} for row in QUERIES]
    check_workspace(tmp_path, documents, queries, QRELS)


@pytest.mark.parametrize("names", [("qid", "docno", "label"), ("query_id", "doc_id", "relevance")])
def test_judgments_as_records(names):
    rows = [dict(zip(names, row.values())) for row in QRELS]
    assert as_qrels(rows) == GRADES
    assert as_qrels(row for row in rows) == GRADES


def test_missing_fields_and_lists_are_named():
    with pytest.raises(UsageError, match="has no grade"):
        as_qrels([{"qid": "q1", "docno": "a"}])
    with pytest.raises(UsageError, match="no docs_iter"):
        rerank.ingest("unused", OnlyQueries())
    with pytest.raises(UsageError, match="no qrels_iter"):
        as_qrels(OnlyQueries())


def test_frames_need_pandas_only_if_used(run, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    ranking = rerank.Stack.parse("bm25").rank(["a"], [[1.0]])
    assert ranking.ids == ["a"]
    with pytest.raises(NotInstalledError, match="a frame needs pandas"):
        ranking.to_frame()


def test_frames_are_ingested_tuned_and_evaluated(tmp_path):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frames = [pandas.DataFrame(rows) for rows in (DOCUMENTS, QUERIES, QRELS)]
    report = check_workspace(tmp_path, *frames)
    frame = report.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["RR"].tolist() == [1.0, 1.0]
    workspace = rerank.Workspace.open(tmp_path / "ws")
    documents = workspace.engine.get(["wolf", "fox"])
    assert [document.extra for document in documents] == [{"year": 1990}, {"year": None}]
    hits = workspace.search("night", stack="bm25").to_frame()
    assert hits["id"].tolist() == ["owl", "wolf"] or hits["id"].tolist() == ["wolf", "owl"]
    ranked = rerank.rank(workspace, frames[1], stack="bm25").to_frame()
    assert ranked[ranked["rank"] == 1]["id"].tolist() == ["wolf", "owl"]


def test_a_frame_without_an_id_names_its_columns():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(UsageError, match="no column _id, id, query-id, queryid; the columns are words"):
        as_queries(pandas.DataFrame({"words": ["wolf"]}))
    numbers = pandas.DataFrame({"qid": [1, 2], "query": ["wolf", "owl"]})
    assert as_queries(numbers) == [Query("1", "wolf"), Query("2", "owl")]


def test_the_name_of_a_field_comes_before_other_names_of_its_column():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    (query,) = as_queries(pandas.DataFrame({"id": ["row 1"], "_id": ["q1"], "text": ["wolf"]}))
    assert (query.id, query.params) == ("q1", {"id": "row 1"})


def test_a_data_set_of_ir_datasets(tmp_path):
    ir_datasets = pytest.importorskip("ir_datasets", reason="ir_datasets is not installed")
    docs, queries, qrels = (tmp_path / name for name in ("docs.tsv", "queries.tsv", "qrels.txt"))
    docs.write_text("".join(f"{row['docno']}\t{row['title']}\n" for row in DOCUMENTS))
    queries.write_text("".join(f"{row['qid']}\t{row['query']}\n" for row in QUERIES))
    qrels.write_text("".join(f"{row['qid']} 0 {row['docno']} {row['label']}\n" for row in QRELS))
    data_set = ir_datasets.create_dataset(docs_tsv=docs, queries_tsv=queries, qrels_trec=qrels)
    assert as_queries(data_set) == [Query("q1", "grey wolf"), Query("q2", "owl")]
    assert as_qrels(data_set) == GRADES
    report = rerank.ingest(tmp_path / "ws", data_set, lang="en")
    assert report.workspace.engine.get(["wolf"])[0].text == "Wolves"
