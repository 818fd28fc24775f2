"""An attached index with the hook as its default: its searches are answered despite all changes.

The tests use the real plugin and the real service. The index is only read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rerank import Stack, Workspace
from rerank.documents.records import SearchTemplate
from tests.support.hook import TOKEN, Hits, assert_equal_hits, flat, hook_status, query_hits, scored
from tests.support.hook import ids as found
from tests.support.hook import texts as query_texts
from tests.support.service import Server, serving, wait_until
from tools.opensearch_node import Node, free_port
from tools.opensearch_plugin import put_pipeline

STACK = "bm25*0.3 + text*0.4 + meta*0.3"
MAPPING = {
    "dynamic": "strict",
    "properties": {
        "head": {"type": "text"},
        "body": {"type": "text"},
        "tags": {"type": "keyword"},
        "seen": {"type": "integer"},
    },
}
SIZE = 60
PARTS = [Stack.parse(f"bm25*0.{i} + meta*0.{10 - i}") for i in range(1, 5)]
CASES = replace(
    PARTS[0],
    combiner=replace(PARTS[0].combiner, cases={"inferred": PARTS[1].combiner, "given": PARTS[3].combiner}),
)
"""A stack with weights for each case of queries."""
TEMPLATE = '{"query": {"bool": {"should": [{"match": {"body": "{{q}}"}}, {"match": {"head": "{{q}}"}}]}}}'
OWN = replace(Stack.parse("search*0.4 + text*0.6"), search=SearchTemplate("template", "own.json", TEMPLATE))
"""A stack on a custom search."""
DEFAULT = "index.search.default_pipeline"

pytestmark = pytest.mark.slow


def make(node: Node, index: str, **more: Any) -> None:
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    node.request("PUT", f"/{index}", {"settings": settings, "mappings": MAPPING, **more})


@pytest.fixture(scope="module")
def library(plugged, small, trained, run, tmp_path_factory) -> Path:
    """A workspace with rankers, attached to an alias of an index of two shards."""
    make(plugged, "library-1", aliases={"library": {}})
    for i, document in enumerate(small.documents[:SIZE]):
        source = {"head": document["title"], "body": document["text"], "tags": document["categories"]}
        plugged.request("PUT", f"/library-1/_doc/{i}", {**source, "seen": i * i % 23})
    plugged.request("POST", "/library-1/_refresh")
    folder: Path = tmp_path_factory.mktemp("attached") / "ws"
    where = ("--url", plugged.url, "--index", "library", "-w", folder, "--lang", "en")
    fields = ("title=head", "text=body", "categories=tags")
    run("attach", *fields, *where, "--categories", small.categories).ok()
    assert (folder / "categories.tsv").exists()
    shutil.copytree(trained / "rankers", folder / "rankers")
    assert run("encode", "-w", folder, "--json").json["encoded"] == {"text": SIZE, "meta": SIZE}
    (folder / "stacks").mkdir()
    for stack in (CASES, OWN):
        stack.save(Workspace.open(folder).stack_path(stack.signals))
    return folder


@pytest.fixture(scope="module")
def service(library, script, tmp_path_factory) -> Iterator[Server]:
    folder, options = tmp_path_factory.mktemp("serve"), ("--max-encoded", SIZE)
    with serving(script, library, folder, *options, RERANK_SERVICE_TOKEN=TOKEN) as started:
        started.token = TOKEN
        yield started


@pytest.fixture(scope="module")
def texts(small) -> list[str]:
    return [" ".join(text.split()[:12]) for text in query_texts(small, 4)]


@pytest.fixture(scope="module")
def installed(library, service, run, plugged, texts) -> None:
    options = ("--service", service.url, "--stack", STACK, "--depth", 40, "--timeout", 20)
    run("hook", "install", "-w", library, *options, "--default").ok()
    search(plugged, texts[0])  # the node learns which fields the service requests


def search(node: Node, text: str, index: str = "library", pipeline: str = "", **more: Any) -> dict[str, Any]:
    query = {"multi_match": {"query": text, "fields": ["body", "head"], "type": "most_fields"}}
    path = f"/{index}/_search" + (f"?search_pipeline={pipeline}" if pipeline else "")
    found: dict[str, Any] = node.request("POST", path, {"query": query, "size": 10, **more})
    assert found["_shards"]["failed"] == 0
    return found


def expected(run: Any, folder: Path, text: str) -> Hits:
    return query_hits(run, folder, text, "--stack", STACK, "--depth", 40)


def assert_same_as_query(node: Node, run: Any, folder: Path, texts: list[str]) -> None:
    """Assert that searches have the order of ``rerank query``, only with stored features."""
    before = flat(node.request("GET", "/_plugins/_rerank_stack/stats"))
    for text in texts:
        answer = search(node, text)
        assert_equal_hits(scored(answer), expected(run, folder, text))
        assert all(set(hit["_source"]) <= set(MAPPING["properties"]) for hit in answer["hits"]["hits"])
    assert flat(node.request("GET", "/_plugins/_rerank_stack/stats")) - before == {"reranked": len(texts)}


def missing_features(server: Server) -> float:
    return server.metric('rerank_features_missing_total{endpoint="hook",ranker="text"}')


def test_searches_are_reranked_with_local_features(installed, plugged, run, library, service, texts):
    before = missing_features(service)
    assert_same_as_query(plugged, run, library, texts)
    assert missing_features(service) == before
    body = {"highlight": {"fields": {"body": {}}}, "aggs": {"tags": {"terms": {"field": "tags"}}}}
    answer = search(plugged, texts[0], **body)
    plain = search(plugged, texts[0], pipeline="_none", **body, **{"size": SIZE})
    marked = {hit["_id"]: hit.get("highlight") for hit in plain["hits"]["hits"]}
    assert [hit.get("highlight") for hit in answer["hits"]["hits"]] == [marked[id] for id in found(answer)]
    assert answer["aggregations"] == plain["aggregations"]
    assert run("hook", "test", texts[0], "-w", library).code == 0
    status = hook_status(run, library)
    assert (status["problems"], status["default_of"]) == ([], ["library-1"])
    # The token of the nodes gives access only to the hook. Other endpoints must be requested with --only.
    asked = service.post("/v1/search", {"query": texts[0]})
    asked.fails(404, "started without search")


def test_fields_can_be_signals_of_a_search(installed, plugged, service, texts):
    """Values of the documents' field have a weight like other signals. Names of clauses stay."""
    stack = "bm25*0.6 + field:seen*0.4"
    named = {"match": {"head": {"query": texts[0], "_name": "head"}}}
    body = {"query": {"bool": {"should": [{"match": {"body": {"query": texts[0]}}}, named]}}, "size": 40}
    plain = plugged.request("POST", "/library/_search?search_pipeline=_none", body)["hits"]["hits"]
    columns = ([hit["_score"] for hit in plain], [hit["_source"]["seen"] for hit in plain])
    expected = {hit["_id"]: 0.0 for hit in plain}
    for weight, column in zip((0.6, 0.4), columns):
        low, high = min(column), max(column)
        assert low < high
        for hit, value in zip(plain, column):
            expected[hit["_id"]] += weight * (value - low) / (high - low)
    settings = {"depth": 40, "timeout": 20_000, "stack": "bm25", "stacks": [stack]}
    put_pipeline(plugged, "fields", url=service.url, **settings)
    path = "/library/_search?search_pipeline=fields"
    for _ in range(2):  # before and after the node has learned which fields the service requests
        answer = plugged.request("POST", path, {**body, "ext": {"rerank_stack": {"stack": stack}}})
        scores = {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}
        assert scores == pytest.approx(expected, abs=1e-6)
        assert found(answer) == sorted(expected, key=lambda id: -scores[id])
        assert all(hit.get("matched_queries", ["head"]) == ["head"] for hit in answer["hits"]["hits"])


def test_explain_and_status_show_the_weights_of_the_case(installed, plugged, run, library, service):
    weighed = {"stack": "bm25,meta", "explain": True}
    rows = (
        ("human cell", {}, PARTS[1], "inferred"),
        ("cell of a human", {"categories": ["Cell Biology"]}, PARTS[3], "given"),
    )
    for text, more, stack, case in rows:
        answer = search(plugged, text, ext={"rerank_stack": {**weighed, **more}})
        told = {"stack": str(stack), "normalization": "min-max", "case": case}
        assert answer["ext"]["rerank_stack"]["weights"] == told
        for hit in answer["hits"]["hits"]:
            (about,) = hit["fields"]["_rerank"]
            assert hit["_score"] == pytest.approx(sum(s["weighted"] for s in about["signals"].values()))
            for name, weight in stack.combiner.weights_by_signal().items():
                assert about["signals"][name]["weighted"] == pytest.approx(
                    weight * about["signals"][name]["normalized"]
                )
    assert f"inferred: {STACK}" not in run("hook", "test", rows[0][0], "-w", library).out
    # The status has one line per case.
    where = ("-w", library, "--name", "cases")
    assert run("hook", "install", *where, "--service", service.url, "--stack", "bm25,meta").code == 0
    shown = hook_status(run, library, "--name", "cases")["weights"]
    assert shown["stack"] == str(PARTS[0])
    assert {case: row["stack"] for case, row in shown["cases"].items()} == {
        "given": str(PARTS[3]),
        "inferred": str(PARTS[1]),
    }
    assert f"queries with categories: {PARTS[3]}   (min-max)" in run("hook", "status", *where).out
    assert run("hook", "remove", *where).code == 0


def test_hook_test_uses_the_template_of_the_stack(installed, run, library, service, texts):
    where = ("-w", library, "--name", "own")
    options = ("--service", service.url, "--stack", "search,text", "--depth", 30, "--timeout", 20)
    assert run("hook", "install", *where, *options).code == 0
    for text in texts:
        trial = run("hook", "test", text, *where, "--json").json
        assert (trial["outcome"], trial["same"]) == ("reranked", True)
        assert list(trial["query"]) == ["bool"]
    assert run("hook", "remove", *where).code == 0


def test_status_reports_a_node_that_does_not_answer(installed, run, library, plugged, tmp_path):
    folder = shutil.copytree(library, tmp_path / "ws")
    config = folder / "rerank.toml"
    down = f"http://127.0.0.1:{free_port()}"
    both = config.read_text("utf-8").replace(f'"{plugged.url}"', f'["{plugged.url}", "{down}"]')
    config.write_text(both, "utf-8")
    assert [problem for problem in hook_status(run, folder)["problems"] if down in problem]
    assert hook_status(run, library)["problems"] == []


def test_status_reports_a_template_that_names_a_pipeline(installed, plugged, run, library):
    source = {"query": {"match": {"body": "{{q}}"}}, "search_pipeline": "rerank-library"}
    plugged.request("PUT", "/_scripts/shop", {"script": {"lang": "mustache", "source": source}})
    try:
        (problem,) = hook_status(run, library)["problems"]
        assert "search_pipeline in the stored template 'shop'" in problem
    finally:
        plugged.request("DELETE", "/_scripts/shop")
    assert hook_status(run, library)["problems"] == []


def test_a_field_that_is_not_numeric_is_reported(installed, plugged, run, library, service):
    where = ("-w", library, "--name", "numbers", "--service", service.url, "--timeout", 20)
    run("hook", "install", *where, "--stack", "bm25*0.5 + field:tags*0.5").fails(
        2, "field 'tags' of index 'library' is not a number: it is of type keyword"
    )
    make(plugged, "seldom", mappings={"properties": {"seen": {"type": "keyword"}}}, aliases={"library": {}})
    try:
        stack = "bm25*0.5 + field:seen*0.5"
        put_pipeline(plugged, "numbers", url=service.url, stack=stack, timeout=20_000)
        explained = search(plugged, "cell", pipeline="numbers", ext={"rerank_stack": {"explain": True}})
        answer = explained["ext"]["rerank_stack"]
        what = "field 'seen' of index 'library' is not a number: it is of type integer, keyword"
        assert (answer["outcome"], answer["reason"]) == ("failed", "status_422")
        asked = (run, library, "--name", "numbers")
        assert any(what in line for line in hook_status(*asked)["problems"])
    finally:
        plugged.request("DELETE", "/seldom")
    assert not [line for line in hook_status(*asked)["problems"] if "no number" in line]


def test_equal_ids_of_two_indices_of_the_alias_are_not_reranked(installed, plugged, service, texts):
    """A score could belong to either document. Equal ids of an index beside the workspace do not matter."""

    def reason() -> str:
        explained = search(plugged, texts[0], size=40, ext={"rerank_stack": {"explain": True}})
        return str(explained["ext"]["rerank_stack"].get("reason"))

    make(plugged, "twin", aliases={"library": {}})
    try:
        for i in range(0, SIZE, 2):
            source = plugged.request("GET", f"/library-1/_doc/{i}")["_source"]
            plugged.request("PUT", f"/twin/_doc/{i}", source)
        plugged.request("POST", "/twin/_refresh")
        wait_until(lambda: reason() == "two hits have the same id")
        plain = search(plugged, texts[0], pipeline="_none", size=40)
        assert scored(search(plugged, texts[0], size=40)) == scored(plain)
    finally:
        plugged.request("DELETE", "/twin")


def test_documents_of_other_indices_keep_their_places(installed, plugged, run, library, service, texts):
    """This includes documents with equal ids. The other documents have the same order as without them."""
    make(plugged, "other")
    for i in range(0, SIZE, 3):
        source = plugged.request("GET", f"/library-1/_doc/{SIZE - 1 - i}")["_source"]
        plugged.request("PUT", f"/other/_doc/{i}", source)
    plugged.request("POST", "/other/_refresh")
    before = service.metric('rerank_unscored_total{reason="foreign"}')
    for text in texts:
        plain = search(plugged, text, "library,other", pipeline="_none", size=40)["hits"]["hits"]
        answer = search(plugged, text, "library,other", size=40)["hits"]["hits"]
        places = [i for i, hit in enumerate(plain) if hit["_index"] == "other"]
        assert places == [i for i, hit in enumerate(answer) if hit["_index"] == "other"]
        assert [plain[i]["_id"] for i in places] == [answer[i]["_id"] for i in places]
        scores = [hit["_score"] for hit in answer]
        assert scores == sorted(scores, reverse=True)
        assert {(h["_index"], h["_id"]) for h in plain} == {(h["_index"], h["_id"]) for h in answer}
    assert service.metric('rerank_unscored_total{reason="foreign"}') > before
    plugged.request("DELETE", "/other")


def test_documents_changed_by_other_clients_have_new_scores(installed, plugged, run, library, service, texts):
    """Changes are a partial update and an update by query. Changes of other fields need no encoding."""
    first, _ = expected(run, library, texts[0])[0]
    body = {"doc": {"head": texts[0], "body": f"{texts[0]} {texts[1]}", "tags": []}}
    plugged.request("POST", f"/library-1/_update/{first}?refresh=true", body)
    script = {"source": "ctx._source.seen = 1", "lang": "painless"}
    plugged.request("POST", "/library-1/_update_by_query?refresh=true", {"script": script})
    before = missing_features(service)
    assert_same_as_query(plugged, run, library, texts[:2])
    assert 0 < missing_features(service) - before <= 2  # only the document with another text
    lines = run("status", "-w", library).out
    assert f"1 feature missing: run `rerank encode -w {library}`" in lines
    (problem, _) = hook_status(run, library)["problems"]
    assert problem.startswith(f"{SIZE} documents new, moved, or written since")
    assert run("encode", "-w", library, "--json").json["encoded"] == {"text": 1, "meta": 1}
    assert run("encode", "-w", library, "--json").json["encoded"] == {"text": 0, "meta": 0}
    before = missing_features(service)
    assert_same_as_query(plugged, run, library, texts)
    assert missing_features(service) == before
    assert "features stored" in run("status", "-w", library).out


def test_the_alias_moves_to_a_rebuilt_index(installed, plugged, run, library, service, texts):
    make(plugged, "library-2", settings={"number_of_shards": 1, "number_of_replicas": 0})
    copied = {"source": {"index": "library-1"}, "dest": {"index": "library-2"}}
    plugged.request("POST", "/_reindex?refresh=true", copied)
    actions = [
        {"remove": {"index": "library-1", "alias": "library"}},
        {"add": {"index": "library-2", "alias": "library"}},
    ]
    plugged.request("POST", "/_aliases", {"actions": actions})
    for text in texts:  # without the default, then with it
        assert len(found(search(plugged, text))) == 10
    status = hook_status(run, library)
    assert status["indices"] == ["library-2"]
    default, *lacking = status["problems"]
    assert "library-2" in default
    assert len(lacking) == 2
    options = ("--service", service.url, "--stack", STACK, "--depth", 40, "--timeout", 20)
    assert run("hook", "install", "-w", library, *options, "--default").code == 0
    make(plugged, "other")
    plugged.request("PUT", "/other/_doc/0?refresh=true", {"body": texts[0]})
    # the service looks up the index of the document
    search(plugged, texts[0], "other", pipeline="rerank-library")
    for text in texts[:2]:  # and again, for an index that is new to the service
        assert len(found(search(plugged, text))) == 10
    # All texts are known, so nothing is encoded or written.
    assert run("encode", "-w", library, "--json").json["encoded"] == {"text": 0, "meta": 0}
    before_missing = missing_features(service)
    assert_same_as_query(plugged, run, library, texts)
    assert missing_features(service) == before_missing
    assert "rerank_features" not in json.dumps(plugged.request("GET", "/library-2/_mapping"))
    plugged.request("DELETE", "/library-1")
    assert hook_status(run, library)["problems"] == []
    done = run("hook", "remove", "-w", library)
    assert [line.split(" ")[0] for line in done.out.splitlines()] == ["PUT", "DELETE"]
    assert len(found(search(plugged, texts[0]))) == 10
