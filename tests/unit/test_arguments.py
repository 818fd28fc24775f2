"""The Python API accepts values in several forms and refuses invalid values in one line."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest

import rerank
from rerank import Document, Qrels, Query, Workspace
from rerank.common.config import build
from rerank.common.errors import InputError, RerankError, UsageError
from rerank.judging.log import ClickOptions
from rerank.judging.pool import make_pool
from rerank.rankers.cnn.config import CnnConfig

QUERIES, QRELS = [Query("q", "wolves")], Qrels([("q", "a", 1)])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    found = Workspace.create(tmp_path_factory.mktemp("ws") / "ws", lang="en")
    found.engine.write([Document("a", "Wolves", "hunt"), Document("b", "Foxes", "hunt")])
    return found


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda ws: ws.search("x", "y"), "'y'"),
        (lambda ws: ws.search("x", 0), "not 0"),
        (lambda ws: ws.search("x", 1.5), "1.5"),
        (lambda ws: ws.search(["x"]), r"\['x'\]"),
        (lambda ws: ws.search(None), "None"),
        (lambda ws: ws.search("x", filter=5), "filter 5"),
        (lambda ws: ws.search("x", filter={"year>1": 2, 3: 4}), "filter 3"),
        (lambda ws: rerank.read_queries(None), "None is not a path"),
        (
            lambda ws: rerank.evaluate(ws, "bm25", queries=QUERIES, qrels=QRELS, measures="INST"),
            "parameter max_rel",
        ),
        (lambda ws: ws.search("x", stack=["bm25"]), r"\['bm25'\]"),
        (lambda ws: rerank.evaluate(ws, "bm25", queries=["wolves"], qrels=QRELS), "'wolves'"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries={"q": 3}, qrels=QRELS), "3 is not a Query"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries=3, qrels=QRELS), "3 is not a Query"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries=QUERIES, qrels=3), "qrels: 3"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries=QUERIES, qrels={"q": ["a"]}), "qrels: .*'a'"),
        (lambda ws: rerank.train(ws, []), "no ranker"),
        (lambda ws: rerank.train(ws, "txt"), "txt"),
    ],
)
def test_an_invalid_value_is_refused_in_one_line(workspace, call, named):
    with pytest.raises(UsageError, match=named) as caught:
        call(workspace)
    assert "\n" not in str(caught.value)


def test_numpy_numbers_and_paths_are_accepted(workspace):
    actual = workspace.search(QUERIES[0], np.int64(1), filter=[])
    assert [hit["id"] for hit in actual.hits] == ["a"]
    assert Workspace.open(Path(workspace.folder)).folder == workspace.folder


class Timestamp(datetime.datetime):
    """A subclass of the library's class, as the one of pandas."""


def test_values_of_arrays_and_data_frames_are_accepted_in_documents(tmp_path):
    missing = float("nan")
    row = {
        "_id": np.int64(7),
        "title": missing,
        "text": np.str_("wolves"),
        "categories": np.array(["a", "b"]),
        "year": np.int64(2020),
        "share": np.float32(0.5),
        "new": np.bool_(True),
        "published": datetime.date(2024, 5, 1),
        "seen": np.datetime64("2024-05-01T12:00:00"),
        "checked": Timestamp(2024, 5, 1, 12),
        "price": missing,
    }
    rerank.ingest(tmp_path / "ws", [row])
    found = Workspace.open(tmp_path / "ws")
    filters = ["year=2020", "published=2024-05", "seen>2024-05-01T11:00", "categories=b"]
    filters += ["checked>2024-05-01T11:00", "checked<2024-05-01T13:00"]
    page = found.search("wolves", stack="bm25", filter=filters)
    assert [hit["id"] for hit in page.hits] == ["7"]
    with pytest.raises(InputError, match=r"sources\[0\]: a value is not JSON \(object\)"):
        rerank.ingest(found, [{"_id": "8", "text": "x", "more": object()}])


def test_queries_and_judgments_are_accepted_in_every_form(workspace, tmp_path):
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text('{"_id": "q", "text": "wolves"}\n')
    qrels.write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    expected = rerank.evaluate(workspace, ["bm25"], queries=QUERIES, qrels=QRELS).rows()
    for asked in (iter(QUERIES), {"q": "wolves"}, {"q": QUERIES[0]}, queries, str(queries)):
        assert rerank.evaluate(workspace, ["bm25"], queries=asked, qrels=QRELS).rows() == expected
    for judged in ({"q": {"a": 1}}, [("q", "a", 1)], qrels):
        assert rerank.evaluate(workspace, "bm25", queries=QUERIES, qrels=judged).rows() == expected


def test_one_value_is_accepted_like_a_list_of_one(workspace, tmp_path):
    """A text is never read as a list of its letters."""
    log = tmp_path / "log.csv"
    log.write_text("session,query,document,rank,clicked\ns1,wolf,a,1,1\n")
    assert rerank.judge_clicks(str(log), tmp_path / "judged").clicks == 1
    assert ClickOptions(impressions="seen", clicks="bought").clicks == ("bought",)
    assert len(make_pool(workspace, "bm25", QUERIES).pool.queries) == 1
    with pytest.raises(UsageError, match="'nothing'"):
        rerank.tune(workspace, "bm25,tfidf", queries=QUERIES, qrels=QRELS, retrieve="nothing")
    with pytest.raises(UsageError, match="'medium'"):
        rerank.tune(workspace, "bm25,tfidf", queries=QUERIES, qrels=QRELS, normalizations="medium")
    with pytest.raises(RerankError, match="nothing"):
        rerank.encode(workspace, retrieve="nothing")
    with pytest.raises(UsageError, match="a stack is a text"):
        rerank.tune(workspace, ["bm25", "tfidf"], queries=QUERIES, qrels=QRELS)
    (identifier,) = rerank.ingest(tmp_path / "ws", [{"_id": "d17", "text": "an elk"}]).workspace.engine.ids()
    assert rerank.ingest(tmp_path / "ws", [], delete=identifier).deleted == 1


def test_evaluate_accepts_a_stack_object(workspace):
    stack = workspace.stack("bm25*0.5 + tfidf*0.5")
    actual = rerank.evaluate(workspace, [stack, "tfidf"], queries={"q": "wolves"}, qrels=QRELS)
    assert [row.stack for row in actual.results] == ["bm25", str(stack), "tfidf"]
    assert rerank.evaluate(workspace, stack, queries=QUERIES, qrels=QRELS, baseline=stack).results


def test_workspaces_documents_and_dicts_are_accepted_in_every_form(tmp_path):
    folder = tmp_path / "ws"
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"_id": "c", "text": "an owl"}\n')
    records = [{"_id": "a", "text": "a wolf", "categories": "animals"}, Document("b", text="a fox"), file]
    assert rerank.ingest(folder, records, lang="en").documents == 3
    assert rerank.ingest(Workspace.open(folder), {"_id": 4, "title": "lynx"}).documents == 4
    for workspace in (folder, str(folder), Workspace.open(folder)):
        assert rerank.status(workspace).documents == 4
        assert rerank.encode(workspace).encoded == {}
        report = rerank.evaluate(workspace, "bm25", queries=[{"_id": "q", "text": "wolf"}], qrels=QRELS)
        assert report.queries == 1
    with pytest.raises(rerank.RerankError, match=r"sources\[1\]: missing field _id"):
        rerank.ingest(folder, [{"_id": "x"}, {"text": "y"}])
    with pytest.raises(rerank.RerankError, match="sources: 3 is neither"):
        rerank.ingest(folder, [3])
    with pytest.raises(rerank.RerankError, match="workspace: 3 is neither"):
        rerank.status(3)
    with pytest.raises(rerank.RerankError, match="no workspace here"):
        rerank.status(tmp_path / "other")


def test_one_category_or_link_is_a_list_of_one():
    assert Document("d", categories="Immunology", links="e").categories == ("Immunology",)
    assert Document("d", categories="Immunology", links="e").links == ("e",)
    assert Query("q", "x", categories="Cell biology ").categories == ("Cell biology",)
    assert Document("d", categories=["b", "a", "b", ""]).categories == ("b", "a")
    assert Query("q", "x", categories=np.array(["a", "b"])).categories == ("a", "b")
    assert Document(7, title=None, text=np.str_("x")) == Document("7", text="x")
    assert Query("q", "x", categories=None) == Query("q", "x")


@pytest.mark.parametrize("grade", [2, 2.0, np.int8(2), np.float32(2), np.uint64(2)])
def test_integral_grades_are_accepted(workspace, grade):
    assert Qrels([("q", "d", grade)]) == {"q": {"d": 2}}
    assert type(Qrels({"q": {"d": grade}})["q"]["d"]) is int
    qrels = [("q", "a", grade)]
    report = rerank.evaluate(workspace, "bm25", queries=QUERIES, qrels=qrels, measures=["nDCG"])
    assert report.results[0].measures == {"nDCG": 1.0}
    assert rerank.tune(workspace, "bm25,tfidf", queries=QUERIES, qrels=qrels).tuned.value == 1.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Qrels([("q", "d", 0.5)]), "qrels: the grade 0.5 of document 'd' for query 'q'"),
        (lambda: Qrels([("q", "d", float("nan"))]), "grade nan"),
        (lambda: Qrels([("q", "d", np.float64("inf"))]), "inf"),
        (lambda: Qrels([("q", "d", "2")]), "grade '2'"),
        (lambda: Qrels([("q", "d", None)]), "grade None"),
        (lambda: Qrels([("q", "d", 10**9)]), "above 1,000"),
        (lambda: Qrels([("q", "d", 1), ("q", "d", 2)]), "two grades"),
        (lambda: Qrels([("q", "0", "d", 1)]), "qrels: .* is not a query id, a document id and a grade"),
        (lambda: Qrels(["q d 1"]), "qrels: 'q d 1'"),
        (lambda: Qrels([(None, "d", 1)]), "qrels: a query id is None"),
        (lambda: Document(None), "id of a document is None"),
        (lambda: Document(" "), "id of a document is empty"),
        (lambda: Document(1.5), "id of a document is 1.5"),
        (lambda: Document("d", text=["x"]), "text of 'd'"),
        (lambda: Document("d", float("nan")), "title of 'd' is nan"),
        (lambda: Document("d", categories=[1.5]), "categories: 1.5"),
        (lambda: Document("d", categories={"a": 1}), "categories: {'a': 1}"),
        (lambda: Document("d", links=5.5), "links: 5.5"),
        (lambda: Document("d", lang=3), "lang of 'd'"),
        (lambda: Document("d", extra=["year"]), "extra: "),
        (lambda: Query("q", None), "text of query 'q' is None"),
        (lambda: Query("q", 3), "text of 'q' is 3"),
        (lambda: Query("q", "x", params=3), "params: 3"),
    ],
)
def test_records_of_wrong_types_are_refused_with_the_name_of_the_argument(make, message):
    with pytest.raises(rerank.RerankError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_repeated_query_ids_are_refused(workspace):
    with pytest.raises(UsageError, match="queries: the id 'q' occurs twice"):
        rerank.evaluate(workspace, "bm25", queries=QUERIES * 2, qrels=QRELS)


def test_a_list_setting_accepts_one_value():
    assert build(CnnConfig, {"head": "mlp", "hidden": 400}) == build(
        CnnConfig, {"head": "mlp", "hidden": [400]}
    )
    for wrong in (None, "many", [1.5]):
        with pytest.raises(UsageError, match="hidden"):
            build(CnnConfig, {"head": "mlp", "hidden": wrong})
