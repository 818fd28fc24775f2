"""The Python API accepts values in several forms and refuses invalid values in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rerank
from rerank import Document, Qrels, Query, Workspace
from rerank.config import build
from rerank.errors import UsageError
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
        (lambda ws: ws.search("x", stack=["bm25"]), r"\['bm25'\]"),
        (lambda ws: rerank.evaluate(ws, "bm25", queries=["wolves"], qrels=QRELS), "'wolves'"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries={"q": 3}, qrels=QRELS), "3 is not a Query"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries=3, qrels=QRELS), "3 is not a Query"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries=QUERIES, qrels=3), "qrels: 3"),
        (lambda ws: rerank.tune(ws, "bm25,tfidf", queries=QUERIES, qrels={"q": ["a"]}), "qrels: .*'a'"),
        (lambda ws: rerank.train(ws, []), "no ranker"),
        (lambda ws: rerank.train(ws, "txt"), "txt"),
        (lambda ws: rerank.compare({"a": {"q": ["a"]}}, QRELS), "two or more"),
        (lambda ws: rerank.compare(["a.run", "b.run"], QRELS), "mapping"),
        (lambda ws: rerank.compare({"a": {"q": "a"}, "b": {"q": ["a"]}}, QRELS), "run 'a'"),
        (lambda ws: rerank.compare({"a": {"q": [3]}, "b": {"q": ["a"]}}, QRELS), "run 'a'"),
    ],
)
def test_an_invalid_value_is_refused_in_one_line(workspace, call, named):
    with pytest.raises(UsageError, match=named) as caught:
        call(workspace)
    assert "\n" not in str(caught.value)


def test_numpy_numbers_and_paths_are_accepted(workspace):
    found = workspace.search(QUERIES[0], np.int64(1), filter=[])
    assert [hit["id"] for hit in found.hits] == ["a"]
    assert Workspace.open(Path(workspace.folder)).folder == workspace.folder


def test_queries_and_judgments_are_accepted_in_every_form(workspace, tmp_path):
    queries, qrels = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text('{"_id": "q", "text": "wolves"}\n')
    qrels.write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    expected = rerank.evaluate(workspace, ["bm25"], queries=QUERIES, qrels=QRELS).rows()
    for asked in (iter(QUERIES), {"q": "wolves"}, {"q": QUERIES[0]}, queries, str(queries)):
        assert rerank.evaluate(workspace, ["bm25"], queries=asked, qrels=QRELS).rows() == expected
    for judged in ({"q": {"a": 1}}, [("q", "a", 1)], qrels):
        assert rerank.evaluate(workspace, "bm25", queries=QUERIES, qrels=judged).rows() == expected


def test_evaluate_accepts_a_stack_object(workspace):
    stack = workspace.stack("bm25*0.5 + tfidf*0.5")
    found = rerank.evaluate(workspace, [stack, "tfidf"], queries={"q": "wolves"}, qrels=QRELS)
    assert [row.stack for row in found.results] == ["bm25", str(stack), "tfidf"]
    assert rerank.evaluate(workspace, stack, queries=QUERIES, qrels=QRELS, baseline=stack).results


def test_compare_accepts_runs_in_every_form(tmp_path):
    file = tmp_path / "old.run"
    file.write_text("q Q0 b 1 2.5 old\nq Q0 a 2 1.5 old\n")
    runs = {
        "file": file,
        "read": rerank.read_run(file),
        "pairs": {"q": [("a", 1.5), ("b", np.float32(2.5))]},
        "ids": {"q": ("b", "a")},
        "scores": {"q": {"a": 1.5, "b": 2.5}},
    }
    found = rerank.compare(runs, {"q": {"a": 1}}, measures="RR")
    assert [row.measures["RR"] for row in found.results] == [0.5] * 5


def test_a_list_setting_accepts_one_value():
    assert build(CnnConfig, {"head": "mlp", "hidden": 400}) == build(
        CnnConfig, {"head": "mlp", "hidden": [400]}
    )
    for wrong in (None, "many", [1.5]):
        with pytest.raises(UsageError, match="hidden"):
            build(CnnConfig, {"head": "mlp", "hidden": wrong})
