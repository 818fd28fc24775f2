"""Rankers that retrieve, through the commands, and errors of --retrieve."""

from __future__ import annotations

import secrets
import shutil

import pytest

from rerank.formats import read_queries

SIGNALS = "tfidf,text,meta"


def test_query_shows_which_retriever_found_a_document(run, trained, text):
    arguments = ["query", text, "-w", trained, "--stack", "tfidf*0.5+text*0.5", "--depth", 30]
    alone = run(*arguments, "--json", "-k", 1000).json
    assert alone["found"] == {"tfidf": alone["candidates"]}
    assert all(hit["found_by"] == ["tfidf"] for hit in alone["hits"])
    union = run(*arguments, "--json", "-k", 1000, "--retrieve", "tfidf,text").json
    by = {name: {h["id"] for h in union["hits"] if name in h["found_by"]} for name in ("tfidf", "text")}
    assert by["tfidf"] == {hit["id"] for hit in alone["hits"]}
    assert by["tfidf"] | by["text"] == {hit["id"] for hit in union["hits"]}
    assert union["found"] == {name: len(ids) for name, ids in by.items()} == {"tfidf": 30, "text": 30}
    assert union["candidates"] == len(union["hits"]) > 30
    # A ranker has retrieved the documents to which it gives the highest scores.
    everything = run(*arguments[:4], "--stack", "text", "--depth", 1000, "--json", "-k", 30).json
    assert {hit["id"] for hit in everything["hits"] if hit["first_stage_rank"]} & by["text"]
    shown = run(*arguments, "--retrieve", "tfidf,text", "--explain").out
    only_by_text = [hit for hit in union["hits"][:10] if hit["found_by"] == ["text"]]
    assert shown.count("not retrieved by tfidf, found by text") == len(only_by_text)
    assert shown.count("raw -> normalized -> weighted") == 10
    assert f"{union['candidates']} candidates: 30 by tfidf, 30 by text" in shown
    assert f"found by {', '.join(union['hits'][0]['found_by'])}" in shown
    nothing = run("query", "zzzzqqq", "-w", trained, "--stack", "tfidf", "--retrieve", "tfidf").out
    assert "no document shares a word" in nothing


def test_a_stack_stores_its_retrievers(run, small, workspace, text):
    files = ["--queries", small.queries, "--qrels"]
    tune = ["tune", "--stack", SIGNALS, *files, small.dev, "-w", workspace, "--depth", 20]
    recall = {}
    for retrieve in ("tfidf,text", "tfidf,text:20", "tfidf,text:5"):
        tuned = run(*tune, "--retrieve", retrieve, "--json").json
        assert (tuned["retrieve"], tuned["first_stage"], tuned["depth"]) == (retrieve.split(","), "tfidf", 20)
        actual = recall[retrieve] = tuned["scoring"]["candidate_recall"]
        assert list(actual) == ["tfidf", "text", "together"]
        assert max(actual["tfidf"], actual["text"]) <= actual["together"] <= 1
        assert tuned["tuned"]["candidate_recall"] == pytest.approx(actual, abs=1e-6)
    assert recall["tfidf,text"] == recall["tfidf,text:20"]
    assert recall["tfidf,text:5"]["tfidf"] == recall["tfidf,text"]["tfidf"]
    assert recall["tfidf,text:5"]["text"] < recall["tfidf,text"]["text"]
    assert "candidate recall: tfidf" in run(*tune, "--retrieve", "tfidf,text:5").out

    assert run("stack", "use", SIGNALS, "-w", workspace).code == 0
    query = ["query", text, "--stack", SIGNALS, "-w", workspace]
    assert run(*query, "--json").json["found"] == {"tfidf": 20, "text": 5}
    assert "20 by tfidf, 5 by text" in run(*query, "--explain").out
    assert run(*query, "--retrieve", "text:3", "--json").json["found"] == {"text": 3}
    (stack,) = run("status", "-w", workspace, "--json").json["stacks"]
    assert (stack["retrieve"], stack["depth"]) == (["tfidf", "text:5"], 20)
    assert "20 candidates by tfidf and text:5" in run("status", "-w", workspace).out


def test_a_run_and_a_ranker_retrieve_together(run, trained, small, text, tmp_path):
    ids = [one["_id"] for one in small.documents[:3]]
    queries = [query.id for query in read_queries(small.queries)]
    lines = [f"{query} Q0 {id} {rank} {-rank} other" for query in queries for rank, id in enumerate(ids, 1)]
    (tmp_path / "other.run").write_text("\n".join(lines))
    files = ["--queries", small.queries, "--qrels", small.dev, "-w", trained]
    union = ("--first-stage", f"run:{tmp_path / 'other.run'}", "--retrieve", "search,text:20")
    report = run("evaluate", "--stack", "search*0.5 + text*0.5", *union, *files, "--json").json
    rows = {tuple(row["retrieve"]): row["recall"] for row in report["candidate_recall"]}
    assert rows["search", "text:20"]["search"] < rows["search", "text:20"]["together"]
    run("query", text, "--stack", "tfidf", "--retrieve", "search,text", "-w", trained).fails(
        2, "the first stage is tfidf", "--first-stage"
    )


@pytest.mark.parametrize(
    ("retrieve", "said"),
    [
        ("foo", "signal 'foo' is unknown"),
        ("tfidf,s2net", "signal 's2net' is not trained"),
        ("tfidf,tfidf", "tfidf is named twice"),
        ("tfidf,", "'' cannot be a retriever"),
        ("tfidf;text", "'tfidf;text' cannot be a retriever"),
        ("tfidf,text:0", "'text:0' cannot be a retriever"),
        ("tfidf,text:", "'text:' cannot be a retriever"),
        ("tfidf,text:many", "'text:many' cannot be a retriever"),
        ("tfidf,text,text:5", "text is named twice"),
        ("search:5,text", "the depth of search is --depth; only a ranker can have a separate depth"),
        ("tfidf:5,text", "the depth of tfidf is --depth; only a ranker can have a separate depth"),
    ],
)
def test_invalid_retrievers_are_refused(run, small, trained, retrieve, said):
    files = ["--queries", small.queries, "--qrels", small.dev]
    for arguments in (
        ["query", "words", "--stack", "tfidf"],
        ["tune", "--stack", SIGNALS, *files],
        ["encode"],
    ):
        result = run(*arguments, "-w", trained, "--retrieve", retrieve)
        result.fails(result.code, said.split(" is ")[0] if arguments == ["encode"] else said)


def test_documents_without_features_are_not_retrieved(run, small, workspace, write_lines, text, tmp_path):
    more = write_lines(tmp_path / "more.jsonl", [{"_id": "new", "title": text, "text": text}])
    assert run("ingest", more, "-w", workspace, "--no-encode").code == 0
    query = ["query", text, "--stack", "tfidf*0.5+text*0.5", "--retrieve", "text", "-w", workspace]
    result = run(*query)
    assert "1 document without features of text" in result.err
    assert run("encode", "--retrieve", "text", "-w", workspace, "--json").json["encoded"]["text"] == 1
    assert "without features" not in run(*query).ok().err
    tune = ["tune", "--stack", "tfidf,text", "--retrieve", "tfidf,text", "-w", workspace]
    tuned = run(*tune, "--queries", small.queries, "--qrels", small.dev).ok()
    assert "without features" not in tuned.out + tuned.err


def test_retrieval_on_a_cluster_without_the_knn_plugin_is_refused(
    run, node, small, trained, write_lines, tmp_path
):
    index = f"retrieve-{secrets.token_hex(4)}"
    few = write_lines(tmp_path / "few.jsonl", small.documents[:5])
    folder = tmp_path / "ws"
    run("ingest", few, "-w", folder, "--url", node.url, "--index", index, "--replicas", 0).ok()
    try:
        shutil.copytree(trained / "rankers", folder / "rankers")
        assert run("encode", "-w", folder).code == 0
        query = ["query", "words", "--stack", "bm25*0.5+text*0.5", "-w", folder]
        run(*query, "--retrieve", "bm25,text").fails(2, "cannot retrieve", "rerank encode --retrieve text")
        run("encode", "--retrieve", "text", "-w", folder).fails(1, "has no k-NN plugin", "opensearch-knn")
        assert run(*query).code == 0
    finally:
        node.request("DELETE", f"/{index}-*")
