"""What is of the wrong type, or empty, is refused in one line, wherever the Python API takes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rerank
from rerank import Document, Qrels, Query, Workspace
from rerank.errors import InputError, UsageError
from rerank.progress import Progress

QUERIES, QRELS = [Query("q", "wolves")], Qrels([("q", "a", 1)])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    found = Workspace.create(tmp_path_factory.mktemp("ws") / "ws", lang="en")
    found.engine.ingest([Document("a", "Wolves", "hunt"), Document("b", "Foxes", "hunt")])
    return found


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda ws: ws.search("x", "y"), "k takes a whole number, not 'y'"),
        (lambda ws: ws.search("x", True), "k takes a whole number, not True"),
        (lambda ws: ws.search("x", 0), "k takes 1 or more, not 0"),
        (lambda ws: ws.search(["x"]), r"query takes a query or a text, not \['x'\]"),
        (lambda ws: ws.search(None), "query takes a query or a text, not None"),
        (lambda ws: ws.search("x", stack=["bm25"]), r"stack takes a text or a stack, not \['bm25'\]"),
        (lambda ws: Workspace.open(3), "folder takes a path, not 3"),
        (lambda ws: rerank.read_qrels(["a"]), r"source takes a path, not \['a'\]"),
        (lambda ws: rerank.status("ws"), r"workspace takes a workspace, as Workspace\.open\(FOLDER\) gives"),
        (lambda ws: rerank.ingest(ws, "corpus.jsonl"), r"a list of paths, not .*; write \['corpus.jsonl'\]"),
        (lambda ws: rerank.ingest(ws, [3]), r"sources takes a list of paths, not \[3\]"),
        (lambda ws: rerank.train(ws, "lsi"), r"names takes a list of texts, not 'lsi'; write \['lsi'\]"),
        (
            lambda ws: rerank.evaluate(ws, ["bm25"], queries="queries.jsonl", qrels=QRELS),
            r"queries takes a list of queries, as read_queries\(FILE\) gives them, not 'queries.jsonl'",
        ),
        (
            lambda ws: rerank.tune(ws, "bm25,tfidf", queries=["wolves"], qrels=QRELS),
            r"queries takes a list of queries, .*, not \['wolves'\]",
        ),
        (
            lambda ws: rerank.tune(ws, "bm25,tfidf", queries=QUERIES, qrels="dev.tsv"),
            r"qrels takes judgements, as read_qrels\(FILE\) gives them, not 'dev.tsv'",
        ),
        (lambda ws: rerank.train(ws, []), "no ranker is named; choose from text, meta, joint"),
        (lambda ws: rerank.compare(["a.run"], QRELS), "runs takes a mapping, not"),
        (lambda ws: rerank.auto("folder", minutes="ten"), "minutes takes a number, not 'ten'"),
    ],
)
def test_what_is_of_another_type(workspace, call, told):
    with pytest.raises(UsageError, match=told):
        call(workspace)


def test_what_is_as_good(workspace):
    found = workspace.search(QUERIES[0], np.int64(1), filter=[])
    assert [hit["id"] for hit in found.hits] == ["a"]
    as_mapping = rerank.evaluate(workspace, ("bm25",), queries=iter(QUERIES), qrels={"q": {"a": 1}})
    assert as_mapping.rows() == rerank.evaluate(workspace, ["bm25"], queries=QUERIES, qrels=QRELS).rows()
    assert Workspace.open(Path(workspace.folder)).folder == workspace.folder


def test_files_without_anything_in_them(workspace, tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n\n")
    for read, what in (
        (rerank.read_queries, "no queries"),
        (rerank.read_qrels, "no judgements"),
        (rerank.read_run, "the run is empty; write: query Q0 document rank score tag"),
    ):
        with pytest.raises(InputError, match=f"empty: {what}"):
            read(empty)
    with pytest.raises(InputError, match="empty: no documents, and all of the workspace would go"):
        rerank.ingest(workspace, [empty], replace=True)
    assert len(workspace.engine) == 2

    class Listen(Progress):
        def say(self, line):
            said.append(line)

    said: list[str] = []
    assert rerank.ingest(workspace, [empty], progress=Listen()).documents == 2
    assert said == [
        f'{empty}: no documents; write {{"_id": "1", "title": "...", "text": "..."}}, a line each'
    ]
