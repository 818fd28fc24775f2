"""The legs of a ``hybrid`` query, and other named clauses, as signals: in the workspace and in the hook."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank import Query, Workspace
from rerank.common.errors import InputError, UsageError
from rerank.documents.records import Candidates
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.formats import read_template
from tests.support.cli import run_here, write_json_lines
from tests.support.hook import Dummy, Hook, ids, scored
from tests.support.service import serving
from tools.opensearch_node import Node
from tools.opensearch_plugin import put_pipeline

INDEX = "legged"
WORDS = ("wolf", "fox", "owl", "bear", "hare")
LEGS = ("leg:lexical", "leg:1", "leg:2")
STACK = "search,leg:lexical,leg:1,leg:2"


def legs(text: str) -> list[dict[str, Any]]:
    """Return three clauses. Only the first has a name."""
    return [
        {"match": {"body": {"query": text, "_name": "lexical"}}},
        {"knn": {"v": {"vector": [0.9, 0.4], "k": 6}}},
        {"match": {"name": text}},
    ]


def hybrid(text: str) -> dict[str, Any]:
    return {"query": {"hybrid": {"queries": legs(text)}}}


@pytest.fixture(scope="module")
def workspace(ml_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    method = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct"}
    vector = {"type": "knn_vector", "dimension": 2, "method": method}
    properties = {"name": {"type": "text"}, "body": {"type": "text"}, "v": vector}
    settings = {"number_of_replicas": 0, "number_of_shards": 2, "index.knn": True}
    ml_node.request("PUT", f"/{INDEX}", {"settings": settings, "mappings": {"properties": properties}})
    for i in range(40):
        words = " ".join(WORDS[(i * k) % 5] for k in (1, 2, 3)) + " filler" * i
        source = {"name": WORDS[i % 3], "body": words, "v": [i / 40, 1 - i / 40]}
        ml_node.request("PUT", f"/{INDEX}/_doc/d{i}", source)
    ml_node.request("POST", f"/{INDEX}/_refresh")
    technique = {"normalization": {"technique": "min_max"}, "combination": {"technique": "arithmetic_mean"}}
    theirs = {"phase_results_processors": [{"normalization-processor": technique}]}
    ml_node.request("PUT", "/_search/pipeline/theirs", theirs)
    connection = {"url": [ml_node.url], "index": INDEX, "search_type": "dfs_query_then_fetch"}
    fields = {"title": ["name"], "text": ["body"]}
    folder = tmp_path_factory.mktemp("legs") / "ws"
    settings = {**connection, "fields": fields}
    yield Workspace.create(folder, lang="en", engine="opensearch", settings=settings, attach=True)
    ml_node.request("DELETE", f"/{INDEX}")
    ml_node.request("DELETE", "/_search/pipeline/*")


@pytest.fixture(scope="module")
def template(workspace: Workspace) -> Path:
    path = workspace.folder.parent / "hybrid.json"
    path.write_text(f"GET /{INDEX}/_search?search_pipeline=theirs\n{json.dumps(hybrid('{{text}}'))}")
    return path


def candidates(workspace: Workspace, template: Path, text: str, *names: str) -> Candidates:
    search = read_template(f"template:{template}")
    assert search is not None
    filled = FilledTemplate(search, Query("q", text))
    return workspace.engine.find(SearchRequest(text, "search", 40, template=filled, legs=names))


def alone(node: Node, clause: dict[str, Any]) -> dict[str, float]:
    """Return the scores of all documents that a clause finds."""
    answer = node.request("POST", f"/{INDEX}/_search", {"query": clause, "size": 100})
    return dict(scored(answer))


def test_candidates_have_the_scores_of_each_leg(workspace: Workspace, ml_node: Node, template: Path) -> None:
    for text in ("wolf", "fox hare"):
        actual = candidates(workspace, template, text, *LEGS)
        for name, clause in zip(LEGS, legs(text), strict=True):
            expected = alone(ml_node, clause)
            assert expected
            assert set(expected) <= set(actual.ids)
            assert actual.legs[name].tolist() == pytest.approx([expected.get(id, 0.0) for id in actual.ids])
        plain = candidates(workspace, template, text)
        assert (plain.ids, plain.scores.tolist()) == (actual.ids, actual.scores.tolist())


def test_clauses_that_a_query_lacks_are_refused(workspace: Workspace, template: Path) -> None:
    with pytest.raises(InputError, match='"_name": "other"'):
        candidates(workspace, template, "wolf", "leg:other")
    with pytest.raises(UsageError, match='"_name": "lexical"'):
        workspace.pipeline(["bm25"]).answer("wolf", workspace.stack("bm25*0.5 + leg:lexical*0.5"))


def test_the_hook_sends_the_scores_of_named_clauses(
    workspace: Workspace, ml_node: Node, dummy: Dummy
) -> None:
    hook = Hook(ml_node, dummy.url)
    hook.index = INDEX
    theirs = ml_node.request("GET", "/_search/pipeline/theirs")["theirs"]
    ours = {"request_processors": [{"rerank_stack": {"url": hook.url, "timeout": 20000}}]}
    ours["response_processors"] = [{"rerank_stack": {}}]
    ml_node.request("PUT", "/_search/pipeline/hook", {**theirs, **ours})
    dummy.reverse(requested_fields={"features": [*LEGS, "leg:other"], "ids": True})
    hook.search(hybrid("wolf"))
    assert set(dummy.last["features"]) == set(LEGS), "the first search of the node sends all clauses"
    answer = hook.search({**hybrid("wolf"), "size": 40})
    assert set(dummy.last["features"]) == set(LEGS)
    count = len(dummy.last["ids"])
    assert count > 12
    named = [hit.get("matched_queries") for hit in answer["hits"]["hits"]]
    plain = hook.plain({**hybrid("wolf"), "size": 40}, more="search_pipeline=theirs")
    assert named == [hit.get("matched_queries") for hit in plain["hits"]["hits"][::-1]]
    put_pipeline(ml_node, "hook", url=hook.url, timeout=20000)
    named_query = {"bool": {"should": [legs("wolf")[0], {"match": {"name": "fox"}}]}}
    for fields in (True, False):
        dummy.reverse(requested_fields={"features": ["leg:lexical"], "ids": fields})
        hook.search({"query": named_query})
        answer = hook.search({"query": named_query})
        assert list(dummy.last["features"]) == ["leg:lexical"]
        assert any(dummy.last["features"]["leg:lexical"])
        assert {tuple(hit.get("matched_queries", ())) for hit in answer["hits"]["hits"]} <= {(), ("lexical",)}


def test_a_stack_with_legs_ranks_in_the_hook_as_in_the_workspace(
    workspace: Workspace, ml_node: Node, template: Path, tmp_path: Path, script: list[str]
) -> None:
    folder = workspace.folder
    queries = write_json_lines(tmp_path / "queries.jsonl", [{"_id": word, "text": word} for word in WORDS])
    qrels = tmp_path / "qrels.tsv"
    rows = [f"{word}\td{i}\t1" for word in WORDS for i in range(0, 40, 4) if word in WORDS[i % 3]]
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")
    data = ("--queries", queries, "--qrels", qrels, "-w", folder)
    how = ("--first-stage", f"template:{template}", "--normalization", "min-max")
    run_here("tune", "--stack", "leg:lexical*0.5 + leg:2*0.5", *data).fails(2)
    tuned = run_here("tune", "--stack", STACK, *how, *data, "--json").ok().json
    assert "leg:" in json.dumps(tuned)
    stack = "search*0.2 + leg:lexical*0.3 + leg:1*0.3 + leg:2*0.2"
    run_here("evaluate", "--stack", stack, *how[:2], "--protocol", "retrieved:30", *data).ok()
    with serving(script, folder, tmp_path, RERANK_SERVICE_TOKEN="") as service:
        install = ("hook", "install", "-w", folder, "--service", service.url, "--stack", stack)
        run_here(*install, "--add-to", "theirs", "--timeout", 20).ok()
        answers = [
            ml_node.request("POST", f"/{INDEX}/_search?search_pipeline=rerank-{INDEX}", hybrid(word))
            for word in WORDS
        ]
        for word, answer in zip(WORDS, answers, strict=True):
            query = ("query", word, "--stack", stack, "--first-stage", f"template:{template}", "-k", 10)
            expected = run_here(*query, "-w", folder, "--json").ok().json["hits"]
            assert ids(answer) == [hit["id"] for hit in expected]
            scores = [hit["_score"] for hit in answer["hits"]["hits"]]
            assert scores == pytest.approx([hit["score"] for hit in expected], abs=1e-6)
