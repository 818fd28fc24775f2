"""Documents that rankers add to a search, with the plugin on a real node and a small server as the service.

The oracle is brute force: the hits of the query and the named documents that meet its conditions, in the
order of the service's scores, then the other hits of the query.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.hook import Dummy, Handler, Hook, ids, requested, without_took
from tests.support.service import wait_until
from tools.opensearch_node import Node

COUNT = 40
DEPTH = 8
WORDS = {"match": {"text": "cell"}}
NAMED = [str(i) for i in (1, 3, 5, 7, 21, 2, 33, 0)]
"""The documents that the service names. Documents with an odd number do not have the word of the query."""


def number_score(number: int) -> float:
    """The score that the service gives to a document."""
    return float((number * 17) % 41 + 1)


@pytest.fixture(scope="module", params=[1, 3])
def herd(hooked: Node, request: pytest.FixtureRequest) -> Iterator[str]:
    """An index in which every second document has the word of the query."""
    index = f"herd-{request.param}"
    properties = {
        "text": {"type": "text"},
        "kind": {"type": "keyword"},
        "n": {"type": "integer"},
        "rerank_features": {"properties": {"text@v": {"type": "binary", "doc_values": True}}},
    }
    settings = {"number_of_shards": request.param, "number_of_replicas": 0}
    hooked.request("PUT", f"/{index}", {"settings": settings, "mappings": {"properties": properties}})
    for i in range(COUNT):
        source = {
            "text": ("cell " * (COUNT - i) if i % 2 == 0 else "") + "filler " * (i + 1),
            "kind": "abc"[i % 3],
            "n": i,
            "rerank_features": {"text@v": b64encode(bytes([i, 0, 0])).decode()},
        }
        hooked.request("PUT", f"/{index}/_doc/{i}", source)
    hooked.request("POST", f"/{index}/_refresh")
    hooked.request("PUT", f"/{index}/_alias/{index}-a", {"filter": {"term": {"kind": "a"}}})
    yield index
    hooked.request("DELETE", f"/{index}")


class Retrieving(Hook):
    """Searches through a pipeline that adds documents, and what brute force expects."""

    def __init__(self, node: Node, dummy: Dummy, index: str, *, ids: bool) -> None:
        self.index = index
        self.dummy = dummy
        self.fields = requested("text@v", ids=ids)
        super().__init__(node, dummy.url)
        dummy.answering = self.answer
        dummy.retrieve(node, index, *NAMED)
        self.search({"query": WORDS})  # after this search, candidates have the requested fields

    def configure(self, **settings: object) -> Hook:
        return super().configure(**{"retrieve": True, "words": ["text"], "depth": DEPTH, **settings})

    def answer(self, handler: Handler, body: dict[str, Any]) -> None:
        values = body["features"].get("text@v", [None] * len(body["ids"]))
        scores = [number_score(b64decode(value)[0]) if value else 0.0 for value in values]
        order = sorted(range(len(scores)), key=lambda position: -scores[position])
        answer = {
            "ids": [body["ids"][position] for position in order],
            "scores": [scores[position] for position in order],
            "requested_fields": self.fields,
            "dropped": 0,
        }
        handler.send(answer)

    def expected(self, body: dict[str, Any], named: list[str] = NAMED, index: str = "") -> list[str]:
        """The whole list by brute force. body: without the page."""
        hits = ids(self.plain({**body, "size": COUNT}, index))
        conditions = {"bool": {"filter": [{"ids": {"values": named}}, self.conditions(body)]}}
        added = ids(self.plain({"query": conditions, "size": COUNT}, index))
        union = {*hits[:DEPTH], *added}
        ranked = sorted(union, key=lambda id: -number_score(int(id)))
        return ranked + [id for id in hits if id not in union]

    def conditions(self, body: dict[str, Any]) -> dict[str, Any]:
        """The conditions of the queries of these tests."""
        clauses = [body["post_filter"]] if "post_filter" in body else []
        query = body["query"]
        if "function_score" in query:
            query = query["function_score"]["query"]
        for part in ("filter", "must_not"):
            if part in query.get("bool", {}):
                clauses.append({"bool": {part: query["bool"][part]}})
        return {"bool": {"filter": clauses}} if clauses else {"match_all": {}}


@pytest.fixture(params=["whole", "places"])
def hook(hooked: Node, herd: str, dummy: Dummy, request: pytest.FixtureRequest) -> Retrieving:
    """A hook with whole candidates, or with candidates without ids and a second search for the page."""
    return Retrieving(hooked, dummy, herd, ids=request.param == "whole")


def explained(hook: Hook, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    answer = hook.search({**body, "ext": {"rerank_stack": {"explain": True, **options}}})
    told: dict[str, Any] = answer["ext"]["rerank_stack"]
    return told


def words(**parts: Any) -> dict[str, Any]:
    return {"query": {"bool": {"must": WORDS, **parts}}}


KIND = {"term": {"kind": "a"}}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"query": WORDS},
    "filter": words(filter=KIND),
    "filter with the words": words(filter=[{"match": {"text": "filler"}}, {"range": {"n": {"gte": 3}}}]),
    "must_not": words(must_not=[{"range": {"n": {"lt": 4}}}]),
    "post_filter": {"query": WORDS, "post_filter": KIND},
    "function_score": {
        "query": {"function_score": {**words(filter=KIND), "field_value_factor": {"field": "n"}}}
    },
}


@pytest.mark.parametrize("name", BODIES)
def test_the_list_is_the_union_in_the_order_of_the_service(hook: Retrieving, name: str) -> None:
    body = BODIES[name]
    wanted = hook.expected(body)
    answer = hook.search({**body, "size": COUNT})
    assert ids(answer) == wanted
    assert answer["hits"]["total"] == {"value": len(wanted), "relation": "eq"}
    assert hook.dummy.last["first"] <= DEPTH
    for size in (1, 7):
        pages = [ids(hook.search({**body, "size": size, "from": begin})) for begin in range(0, COUNT, size)]
        assert [id for page in pages for id in page] == wanted


@pytest.mark.parametrize("name", BODIES)
def test_documents_that_do_not_meet_the_conditions_are_replaced(
    hook: Retrieving, herd: str, name: str
) -> None:
    body = BODIES[name]
    needed = NAMED[:2]
    hook.dummy.retrieve(hook.node, herd, *NAMED, depth=len(needed))
    conditions = {"bool": {"filter": [{"ids": {"values": needed}}, hook.conditions(body)]}}
    meeting = ids(hook.plain({"query": conditions, "size": COUNT}))
    wanted = hook.expected(body, needed if len(meeting) == len(needed) else NAMED)
    assert ids(hook.search({**body, "size": COUNT})) == wanted


def test_the_score_of_the_query_of_an_added_document_is_exact(hook: Retrieving) -> None:
    plain = {hit["_id"]: hit["_score"] for hit in hook.plain({"query": WORDS, "size": COUNT})["hits"]["hits"]}
    hook.search({"query": WORDS})
    call = hook.dummy.last
    numbers = [b64decode(value)[0] for value in call["features"]["text@v"]]
    assert call["scores"] == [plain.get(str(number), 0.0) for number in numbers]
    assert call["first"] == DEPTH
    assert {str(number) for number in numbers[DEPTH:]} <= set(NAMED)


@pytest.mark.parametrize(
    "more",
    [{"_source": ["n"]}, {"docvalue_fields": ["kind"]}, {"highlight": {"fields": {"text": {}}}},
     {"version": True, "seq_no_primary_term": True}, {"fields": ["n"]}, {"stored_fields": []},
     {"script_fields": {"twice": {"script": "doc['n'].value * 2"}}}, {"sort": ["_score", "n"]},
     {"query": {"match": {"text": {"query": "cell", "_name": "words"}}}}],
    ids=str,
)  # fmt: skip
def test_added_documents_have_all_parts_of_a_hit(hook: Retrieving, more: dict[str, Any]) -> None:
    body = {"query": WORDS, "size": COUNT, **more}
    everything = {"bool": {"should": [body["query"], {"bool": {"filter": {"match_all": {}}}}]}}
    plain = {
        hit["_id"]: hit for hit in hook.plain({**body, "query": everything, "size": COUNT})["hits"]["hits"]
    }
    found = hook.search(body)["hits"]["hits"]
    assert {hit["_id"] for hit in found} >= set(NAMED)
    for hit in found:
        for part in ("_score", "sort"):
            hit.pop(part, None)
            plain[hit["_id"]].pop(part, None)
        assert hit == plain[hit["_id"]]


def test_aggregations_count_the_union(hook: Retrieving) -> None:
    aggs = {"kinds": {"terms": {"field": "kind"}}, "mean": {"avg": {"field": "n"}}}
    for body in (BODIES["plain"], BODIES["filter"], BODIES["post_filter"]):
        wanted = hook.expected(body)
        answer = hook.search({**body, "size": COUNT, "aggs": aggs})
        assert ids(answer) == wanted
        assert answer["hits"]["total"]["value"] == len(wanted)
        added = {"ids": {"values": NAMED}}
        query = body["query"]
        filters = query.get("bool", {}).get("filter", [])
        both = {"bool": {"should": [query, {"bool": {"filter": [added, filters] if filters else [added]}}]}}
        by_hand = hook.plain({"query": both, "size": 0, "aggs": aggs})
        if "post_filter" not in body:
            assert answer["aggregations"] == by_hand["aggregations"]


def test_an_explanation_shows_what_was_added(hook: Retrieving) -> None:
    told = explained(hook, {"query": WORDS})
    assert told["added"]["documents"] == len(
        set(NAMED) - set(ids(hook.plain({"query": WORDS, "size": DEPTH})))
    )
    assert "reason" not in told["added"]
    before = hook.stats()["added"]
    hook.search({"query": WORDS})
    after = hook.stats()["added"]
    assert after["searches"] == before["searches"] + 1
    assert after["documents"] == before["documents"] + told["added"]["documents"]


def test_an_added_document_shows_the_ranker_that_found_it(hook: Retrieving) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        count = len(body["ids"])
        found_by = [["s2net"] if i >= body["first"] else [] for i in range(count)]
        scores = [float(count - i) for i in range(count)]
        signals = [{} for _ in range(count)]
        handler.send(
            {"ids": body["ids"], "scores": scores, "found_by": found_by, "signals": signals, "dropped": 0}
        )

    hook.dummy.answering = answer
    body = {"query": WORDS, "size": COUNT, "ext": {"rerank_stack": {"explain": True}}}
    first, added = [], []
    for hit in hook.search(body)["hits"]["hits"]:
        for about in hit.get("fields", {}).get("_rerank", []):
            (added if about["found_by"] else first).append(about)
    assert [about["first_stage"]["rank"] for about in first] == list(range(1, DEPTH + 1))
    assert added
    assert all(set(about["first_stage"]) == {"score"} for about in added)


def test_documents_beyond_the_depth_of_a_ranker_are_dropped(hook: Retrieving) -> None:
    """They keep their place among the hits of the query, if it finds them."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        kept = body["ids"][: body["first"] + 1]
        dropped = len(body["ids"]) - len(kept)
        handler.send({"ids": kept, "scores": [float(-i) for i in range(len(kept))], "dropped": dropped})

    hook.dummy.answering = answer
    plain = ids(hook.plain({"query": WORDS, "size": COUNT}))
    found = ids(hook.search({"query": WORDS, "size": COUNT}))
    assert found[:DEPTH] == plain[:DEPTH]
    assert found[DEPTH] in NAMED
    assert found[DEPTH + 1 :] == [id for id in plain[DEPTH:] if id != found[DEPTH]]


NOTHING: dict[str, dict[str, Any]] = {
    "min_score": {"query": WORDS, "min_score": 0.001},
    "rescore": {"query": WORDS, "rescore": {"query": {"rescore_query": {"match": {"text": "filler"}}}}},
    "terminate_after": {"query": WORDS, "terminate_after": 1000},
    "conditions": words(filter=[], must=[WORDS, {"match": {"text": "filler"}}]),
    "collapse": {"query": WORDS, "collapse": {"field": "kind"}},
}


@pytest.mark.parametrize("reason", NOTHING)
def test_nothing_is_added_with_a_reason(hook: Retrieving, reason: str) -> None:
    body = NOTHING[reason]
    before = hook.stats()["added"]["none"].get(reason, 0)
    calls = len(hook.dummy.retrievals)
    told = explained(hook, body)
    assert told["added"] == {"documents": 0, "reason": reason}
    assert told["outcome"] == "reranked"
    assert hook.stats()["added"]["none"][reason] == before + 1
    assert len(hook.dummy.retrievals) == calls


def test_a_response_processor_before_ours_may_remove_hits_so_nothing_is_added(hook: Retrieving) -> None:
    hook.configure(fetch="candidates")
    assert explained(hook, {"query": WORDS})["added"] == {"documents": 0, "reason": "fetch"}


def test_one_search_can_add_nothing(hook: Retrieving) -> None:
    calls = len(hook.dummy.retrievals)
    assert "added" not in explained(hook, {"query": WORDS}, retrieve=False)
    body = {"query": WORDS, "ext": {"rerank_stack": {"retrieve": False}}, "size": COUNT}
    assert set(ids(hook.search(body))) == set(ids(hook.plain({"query": WORDS, "size": COUNT})))
    assert len(hook.dummy.retrievals) == calls


def test_a_filtered_alias_holds_for_added_documents(hook: Retrieving) -> None:
    alias = f"{hook.index}-a"
    wanted = hook.expected({"query": WORDS}, index=alias)
    hook.search({"query": WORDS}, alias)  # the service requests fields of this list of indices
    assert ids(hook.search({"query": WORDS, "size": COUNT}, alias)) == wanted
    assert all(int(id) % 3 == 0 for id in wanted)


def test_documents_of_other_indices_are_not_added(hook: Retrieving) -> None:
    """Another index of the search has documents with the same ids."""
    found = hook.search({"query": WORDS, "size": 100, "_source": False}, f"{hook.index},cells")
    added = [hit for hit in found["hits"]["hits"] if hit["_index"] == "cells"]
    plain = hook.plain({"query": WORDS, "size": 100, "_source": False}, f"{hook.index},cells")
    assert len(added) == sum(hit["_index"] == "cells" for hit in plain["hits"]["hits"])


def test_a_query_without_hits_gets_documents(hook: Retrieving) -> None:
    answer, counters = hook.counted({"query": {"match": {"text": "unknownword"}}, "size": COUNT})
    assert ids(answer) == sorted(NAMED, key=lambda id: -number_score(int(id)))
    assert counters == {"reranked": 1}


def later_filter(hook: Hook, name: str) -> str:
    """Return the name of a pipeline with a filter after our processor."""
    config = {"url": hook.url, "timeout": 20_000, "retrieve": True, "words": ["text"], "depth": DEPTH}
    pipeline = {
        "request_processors": [{"rerank_stack": config}, {"filter_query": {"query": KIND}}],
        "response_processors": [{"rerank_stack": {}}],
    }
    hook.node.request("PUT", f"/_search/pipeline/{name}", pipeline)
    return name


@pytest.mark.parametrize("aggs", [{}, {"aggs": {"kinds": {"terms": {"field": "kind"}}}}], ids=["", "aggs"])
def test_filters_of_later_processors_hold(hook: Retrieving, aggs: dict[str, Any]) -> None:
    name = later_filter(hook, "later")
    path = f"/{hook.index}/_search?search_pipeline={name}"
    for _ in range(2):
        answer = hook.node.request("POST", path, {"query": WORDS, "size": COUNT, **aggs})
        assert all(int(id) % 3 == 0 for id in ids(answer))
    if not aggs:
        assert ids(answer) == hook.expected(words(filter=KIND))
    else:
        assert [bucket["key"] for bucket in answer["aggregations"]["kinds"]["buckets"]] == ["a"]


def failing(kind: str) -> Any:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        if kind.startswith("status"):
            handler.send(b'{"error": "no"}', int(kind[-3:]))
        elif kind == "timeout":
            time.sleep(2.5)  # longer than half of the time limit
            handler.send(b'{"passed": "late"}')
        elif kind == "connection":
            handler.close_connection = True
        elif kind == "no JSON":
            handler.send(b"nonsense")
        elif kind == "field":
            near = {"name": "x", "field": "text", "path": "", "vector": [1.0], "k": 3}
            handler.send(json.dumps({"find": [near], "uuids": [], "size": 3}).encode())
        else:
            handler.send(
                json.dumps({"find": [{"name": "x", "ids": [{"term": {}}]}], "uuids": [], "size": 3}).encode()
            )

    return answer


REASONS = {
    "status_500": "status_500",
    "status_404": "status_404",
    "timeout": "timeout",
    "connection": "connection",
    "no JSON": "bad_answer",
    "field": "bad_answer",
    "clause": "bad_answer",
}


@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize("aggs", [{}, {"aggs": {"kinds": {"terms": {"field": "kind"}}}}], ids=["", "aggs"])
def test_a_failed_retrieval_only_adds_nothing(hook: Retrieving, kind: str, aggs: dict[str, Any]) -> None:
    hook.configure(timeout=4000 if kind == "timeout" else 20_000)
    hook.search({"query": WORDS})
    hook.dummy.retrieving = failing(kind)
    begin = time.monotonic()
    answer = hook.search({"query": WORDS, "ext": {"rerank_stack": {"explain": True}}, "size": COUNT, **aggs})
    assert time.monotonic() - begin < 60
    told = answer["ext"]["rerank_stack"]
    assert told["added"] == {"documents": 0, "reason": REASONS[kind]}
    assert told["outcome"] == "reranked"
    assert answer["hits"]["total"]["value"] == COUNT // 2
    assert set(ids(answer)) == {str(i) for i in range(0, COUNT, 2)}


def test_an_older_service_does_not_open_the_breaker(hook: Retrieving) -> None:
    hook.configure(breaker_failures=2)
    hook.dummy.retrieving = failing("status_404")
    assert hook.changes(lambda: [hook.search({"query": WORDS}) for _ in range(6)]) == {"reranked": 6}


def test_failed_scoring_shows_the_first_stage_alone(hook: Retrieving) -> None:
    hook.dummy.answering = lambda handler, body: handler.send(b"{}", 500)
    for aggs in ({}, {"aggs": {"kinds": {"terms": {"field": "kind"}}}}):
        answer = hook.search({"query": WORDS, "size": COUNT, **aggs})
        plain = ids(hook.plain({"query": WORDS, "size": COUNT}))
        assert ids(answer)[: len(plain)] == plain
        assert answer["hits"]["total"]["value"] == len(ids(answer))  # with aggregations, of the union
        if not aggs:
            assert ids(answer) == plain


@pytest.mark.parametrize("aggs", [{}, {"aggs": {"kinds": {"terms": {"field": "kind"}}}}])
def test_nothing_is_added_if_one_search_may_not_have_so_many_hits(
    hook: Retrieving, aggs: dict[str, Any]
) -> None:
    """The service may name 1,000 documents, and the window of the index is smaller."""
    hook.node.request("PUT", f"/{hook.index}/_settings", {"index.max_result_window": 500})
    try:
        answers: list[dict[str, Any]] = []
        counters = hook.changes(lambda: answers.append(explained(hook, {"query": WORDS, **aggs})))
    finally:
        hook.node.request("PUT", f"/{hook.index}/_settings", {"index.max_result_window": None})
    assert counters == {"reranked": 1}
    assert answers[0]["added"] == {"documents": 0, "reason": "window"}


def test_a_document_that_changes_is_shown_once(hook: Retrieving) -> None:
    usual = hook.dummy.answering

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        hook.dummy.answering = usual
        for id in ("1", "4"):  # an added document, and a hit of the query
            source = hook.node.request("GET", f"/{hook.index}/_source/{id}")
            hook.node.request("PUT", f"/{hook.index}/_doc/{id}?refresh=true", source)
        usual(handler, body)

    wanted = hook.expected({"query": WORDS})
    hook.dummy.answering = answer
    assert ids(hook.search({"query": WORDS, "size": COUNT})) == wanted


def test_shadow_keeps_the_list_of_the_query(hook: Retrieving) -> None:
    hook.configure(shadow=True)
    hook.search({"query": WORDS})
    answer = hook.search({"query": WORDS, "size": COUNT})
    plain = hook.plain({"query": WORDS, "size": COUNT})
    assert without_took(answer) == without_took(plain)
    assert hook.dummy.last["first"] < len(hook.dummy.last["ids"])


def test_searches_at_the_same_time_are_not_confused(hook: Retrieving) -> None:
    wanted = {name: hook.expected(BODIES[name]) for name in BODIES}

    def is_right(number: int) -> bool:
        name = list(BODIES)[number % len(BODIES)]
        return ids(hook.search({**BODIES[name], "size": COUNT})) == wanted[name]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(is_right, range(60)))


def test_cancelling_a_search_ends_the_retrieval(hook: Retrieving) -> None:
    """The connection to the service is closed, and no search runs on."""
    asked, closed = threading.Event(), threading.Event()

    def wait(handler: Handler, body: dict[str, Any]) -> None:
        asked.set()
        if not handler.connection.recv(1):  # the node has closed the connection
            closed.set()
        handler.close_connection = True

    hook.configure(timeout=60_000)
    hook.dummy.retrieving = wait
    host = hook.node.url.removeprefix("http://")
    client = http.client.HTTPConnection(host)
    body = json.dumps({"query": WORDS, "aggs": {"kinds": {"terms": {"field": "kind"}}}})
    path = f"/{hook.index}/_search?search_pipeline=hook"
    client.request("POST", path, body, {"Content-Type": "application/json"})
    assert asked.wait(300)
    client.close()
    assert closed.wait(25)  # the time limit of this call is 30 seconds
    wait_until(lambda: not running_searches(hook.node))


def running_searches(node: Node) -> list[str]:
    nodes = node.request("GET", "/_tasks?actions=indices:data/read/search*")["nodes"]
    return [task for about in nodes.values() for task in about["tasks"]]
