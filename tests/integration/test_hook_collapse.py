"""Searches with ``collapse``: reranked before grouping, compared with a grouping by hand."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hook import PLACES, WHOLE, WORDS, Dummy, Hook, ids, without_took
from tools.opensearch_node import Node

COUNT = 60
SHARDS = {"grouped": 1, "groups": 3}


def source(i: int) -> dict[str, Any]:
    """Return a document. Each ninth has no kind and no number; some numbers are negative or fractions."""
    values: dict[str, Any] = {} if i % 9 == 4 else {"kind": f"k{i % 7}", "n": i // 5 - 4, "price": i // 4 / 3}
    text = "cell " * (COUNT - i) + "filler " * i
    return {"text": text, **values, "day": f"2024-01-{i % 9 + 1:02}", "tags": ["a", "b"] if i == 30 else "a"}


@pytest.fixture(scope="module")
def grouped(hooked: Node) -> Iterator[Node]:
    keyword = {"type": "keyword"}
    properties = {"text": {"type": "text"}, "kind": keyword, "tags": keyword, "day": {"type": "date"}}
    properties |= {
        "n": {"type": "long"},
        "price": {"type": "double"},
        "alias": {"type": "alias", "path": "n"},
    }
    features = {"type": "binary", "doc_values": True}
    properties["rerank_features"] = {"properties": {"text@v": features, "meta@w": features}}  # type: ignore[dict-item]
    for index, shards in SHARDS.items():
        settings = {"number_of_shards": shards, "number_of_replicas": 0}
        hooked.request("PUT", f"/{index}", {"settings": settings, "mappings": {"properties": properties}})
        for i in range(COUNT):
            hooked.request("PUT", f"/{index}/_doc/{i}", source(i))
        hooked.request("POST", f"/{index}/_refresh")
    yield hooked
    hooked.request("DELETE", ",".join(SHARDS))


@pytest.fixture
def hook(grouped: Node, dummy: Dummy) -> Hook:
    found = Hook(grouped, dummy.url).configure(depth=5)  # 15 candidates
    found.index = "groups"
    return found


def first_stage(hook: Hook, index: str) -> list[str]:
    return ids(hook.plain({**WORDS, "size": COUNT}, index))


def by_hand(order: list[str], candidates: int, field: str) -> list[str]:
    """Return the best document of each group, if the service reverses the candidates."""
    best: dict[object, str] = {}
    for id in order[:candidates][::-1] + order[candidates:]:
        best.setdefault(source(int(id)).get(field), id)
    return list(best.values())


@pytest.mark.parametrize("index", SHARDS)
@pytest.mark.parametrize("field", ["kind", "n", "price"])
@pytest.mark.parametrize("fields", [WHOLE, PLACES], ids=["whole", "places"])
def test_each_group_keeps_its_best_hit_on_every_page(
    hook: Hook, dummy: Dummy, index: str, field: str, fields: dict[str, Any]
) -> None:
    dummy.reverse(requested_fields=fields)
    body = {**WORDS, "collapse": {"field": field}}
    hook.search(body, index)
    wanted = by_hand(first_stage(hook, index), 15, field)
    answer, counters = hook.counted({**body, "size": COUNT}, index)
    assert (ids(answer), counters) == (wanted, {"reranked": 1})
    assert answer["hits"]["total"] == {"value": COUNT, "relation": "eq"}
    for size in (1, 4, 7):
        pages = [hook.search({**body, "from": at, "size": size}, index) for at in range(0, len(wanted), size)]
        assert [id for page in pages for id in ids(page)] == wanted
    assert len(dummy.last["ids"]) == 15


@pytest.mark.parametrize("fields", [WHOLE, PLACES], ids=["whole", "places"])
@pytest.mark.parametrize("index", SHARDS)
def test_hits_have_the_same_parts_as_without_reranking(
    hook: Hook, dummy: Dummy, index: str, fields: dict[str, Any]
) -> None:
    """The service keeps the order here, so that the best hits of all groups are those of OpenSearch."""

    def keep(handler: Any, body: dict[str, Any]) -> None:
        found = body["ids"]
        scores = [-float(i) for i in range(len(found))]
        handler.send({"ids": found, "scores": scores, "requested_fields": fields})

    dummy.answering = keep
    more: list[dict[str, Any]] = [
        {"_source": False},
        {"docvalue_fields": ["price"], "size": COUNT},
        {"docvalue_fields": ["kind", "n"], "highlight": {"fields": {"text": {"number_of_fragments": 1}}}},
        {"aggs": {"kinds": {"terms": {"field": "kind"}}}, "track_total_hits": 7},
        {"sort": ["_score", {"n": "desc"}], "size": COUNT, "version": True, "seq_no_primary_term": True},
        {"query": {"bool": {"must": [WORDS["query"]], "filter": [{"range": {"n": {"gte": 2}}}]}}},
        {"post_filter": {"terms": {"kind": ["k1", "k3"]}}, "size": COUNT},
    ]
    for part in more:
        body: dict[str, Any] = {**WORDS, "collapse": {"field": "kind"}, "from": 1, **part}
        hook.search(body, index)
        answer, counters = hook.counted(body, index)
        assert counters == {"reranked": 1}
        plain = hook.plain(body, index)
        for found in (answer, plain):
            del found["hits"]["max_score"], found["took"]
            for hit in found["hits"]["hits"]:
                del hit["_score"]
                hit.get("sort", [None])[0] = None
        assert answer == plain, part


def test_an_explanation_shows_the_place_among_all_candidates(hook: Hook, dummy: Dummy) -> None:
    count = 15
    dummy.reverse(signals=[{"text": {"raw": i, "normalized": i, "weighted": i}} for i in range(count)])
    body = {**WORDS, "collapse": {"field": "kind"}, "ext": {"rerank_stack": {"explain": True}}, "size": COUNT}
    answer = hook.search(body)
    order = first_stage(hook, "groups")
    assert answer["ext"]["rerank_stack"]["outcome"] == "reranked"
    ranks = {
        hit["_id"]: hit["fields"]["_rerank"][0]["first_stage"]["rank"]
        for hit in answer["hits"]["hits"]
        if "_rerank" in hit.get("fields", {})
    }
    assert ranks == {id: order.index(id) + 1 for id in ids(answer) if order.index(id) < count}
    assert min(ranks.values()) > 1  # the best of its group is not the first of it


def test_searches_keep_the_groups_of_opensearch_if_the_service_fails(hook: Hook, dummy: Dummy) -> None:
    body = {**WORDS, "collapse": {"field": "kind"}, "size": COUNT}
    hook.search(body)
    dummy.end()
    for page in (body, {**body, "from": 2, "size": 4}):
        answer, counters = hook.counted(page)
        assert counters == {"failed.refused": 1}
        assert without_took(answer) == without_took(hook.plain(page))


def test_hits_below_a_probability_are_removed_before_grouping(hook: Hook, dummy: Dummy) -> None:
    def above(handler: Any, body: dict[str, Any]) -> None:
        found = body["ids"][::-1][:8]
        scores = [1.0 - i / 10 for i in range(len(found))]
        handler.send({"ids": found, "scores": scores, "relevance": scores, "removed": len(body["ids"]) - 8})

    dummy.answering = above
    body = {
        **WORDS,
        "collapse": {"field": "kind"},
        "size": COUNT,
        "ext": {"rerank_stack": {"min_score": 0.1}},
    }
    answer = hook.search(body)
    order = first_stage(hook, "groups")[:15][::-1][:8]
    assert ids(answer) == by_hand(order[::-1], 8, "kind")
    assert answer["hits"]["total"] == {"value": 8, "relation": "eq"}


def test_a_shadowed_search_returns_the_groups_of_opensearch(hook: Hook) -> None:
    hook.configure(depth=5, shadow=True)
    body = {**WORDS, "collapse": {"field": "n"}, "size": COUNT}
    answer, counters = hook.counted(body)
    assert counters == {"passed.shadow": 1}
    assert answer["hits"] == hook.plain(body)["hits"]


def test_the_number_of_candidates_is_a_setting(hook: Hook, dummy: Dummy) -> None:
    for factor, count in ((1, 5), (4, 20), (100, COUNT)):
        hook.configure(depth=5, collapse_factor=factor)
        answer = hook.search({**WORDS, "collapse": {"field": "kind"}, "size": COUNT})
        assert len(dummy.last["ids"]) == count
        assert ids(answer) == by_hand(first_stage(hook, "groups"), count, "kind")


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("collapse_inner_hits", {"collapse": {"field": "kind", "inner_hits": {"name": "more", "size": 2}}}),
        ("collapse", {"collapse": {"field": "alias"}}),
        ("collapse", {"collapse": {"field": "n"}, "docvalue_fields": [{"field": "n", "format": "0"}]}),
        ("collapse", {"collapse": {"field": "n"}, "fields": ["n"]}),
    ],
)
def test_other_groups_are_left_to_opensearch(hook: Hook, reason: str, body: dict[str, Any]) -> None:
    answer, counters = hook.counted({**WORDS, **body})
    assert counters == {f"passed.{reason}": 1}
    assert without_took(answer) == without_took(hook.plain({**WORDS, **body}))


@pytest.mark.parametrize("index", SHARDS)
@pytest.mark.parametrize("part", [{}, {"ext": {"rerank_stack": {"off": True}}}], ids=["passed", "off"])
def test_the_searches_for_inner_hits_are_not_reranked(
    hook: Hook, dummy: Dummy, index: str, part: dict[str, Any]
) -> None:
    """OpenSearch makes a search for each group, which runs through the default pipeline of the index."""
    dummy.reverse()
    inner: dict[str, Any] = {"name": "more", "size": 3}
    body = {**WORDS, "collapse": {"field": "kind", "inner_hits": inner}}
    reason = "off" if part else "collapse_inner_hits"
    plain = hook.plain(body, index)
    with hook.node.changed({"index.search.default_pipeline": "hook"}, index):
        found: list[dict[str, Any]] = []
        assert hook.changes(lambda: found.append(hook.plain({**body, **part}, index))) == {
            f"passed.{reason}": 1
        }
        assert found[0]["hits"] == plain["hits"]


def test_a_search_after_one_with_inner_hits_is_reranked(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse()
    grouped = {**WORDS, "collapse": {"field": "kind", "inner_hits": {"name": "more", "size": 3}}}
    with hook.node.changed({"index.search.default_pipeline": "hook"}, "groups"):
        hook.plain(WORDS)
        changed = hook.changes(lambda: search_many(hook.node, "groups", [grouped, WORDS, grouped, WORDS]))
    assert changed == {"passed.collapse_inner_hits": 2, "reranked": 2}


def search_many(node: Node, index: str, bodies: list[dict[str, Any]]) -> None:
    """Send searches in one request, which the node answers one after the other."""
    lines = "".join("{}\n" + json.dumps(body) + "\n" for body in bodies)
    url = f"{node.url}/{index}/_msearch?max_concurrent_searches=1"
    headers = {"Content-Type": "application/x-ndjson"}
    with urllib.request.urlopen(urllib.request.Request(url, lines.encode(), headers)) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("field", ["day", "text", "missing"])
def test_a_field_that_cannot_group_is_an_error_of_opensearch(hook: Hook, field: str) -> None:
    def refused(search: Any) -> str:
        with pytest.raises(ValueError, match=": 400 ") as error:
            search({**WORDS, "collapse": {"field": field}})
        return str(error.value).partition(": ")[2]

    assert refused(hook.search) == refused(hook.plain)


def test_documents_with_several_values_fail_as_in_opensearch(hook: Hook) -> None:
    """Their shard fails; the other shards answer."""
    body = {**WORDS, "collapse": {"field": "tags"}}
    answer, counters = hook.configure(depth=100).counted(body)
    assert counters == {"failed.search": 1}
    plain = hook.plain(body)
    assert plain["_shards"]["failed"] == answer["_shards"]["failed"] == 1
    assert answer["hits"] == plain["hits"]
    hook.configure(depth=100, on_failure="error")
    with pytest.raises(ValueError, match="cannot be grouped"):
        hook.search(body)
