"""Candidates of a single shard are scored where they are found: one search, which fetches the page."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.hook import BARE, COUNT, IN_SHARD, NUMBERS, WORDS, Dummy, Handler, Hook, fill, ids, reverse
from tests.node import CannotRunError, Cluster
from tests.plugin import build
from tests.unavailable import unavailable


def answer(handler: Handler, body: dict[str, Any]) -> None:
    handler.send(reverse(body, wishes=IN_SHARD))


def takes_one_search(hook: Hook, act: Callable[[], object]) -> None:
    """It does so soon: on a busy machine an answer may take longer than a shard waits."""
    until = time.monotonic() + 60
    while hook.searched(act) != 1:
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.fixture
def hook(hook: Hook, dummy: Dummy) -> Hook:
    """Of which the service's wishes are known: they come with the first answer."""
    dummy.answering = answer
    hook.configure(**BARE)
    hook.search(WORDS)
    return hook


def test_one_search(hook: Hook) -> None:
    takes_one_search(hook, lambda: hook.search(WORDS))
    found, counters = hook.counted({**WORDS, "size": 12, "from": 3})
    assert ids(found) == NUMBERS[::-1][3:15]
    assert found["hits"]["max_score"] == 100.0 + COUNT
    assert [hit["_score"] for hit in found["hits"]["hits"]] == [100.0 + COUNT - i for i in range(3, 15)]
    assert counters == {"reranked": 1}


def test_the_call_is_that_of_two_searches(hook: Hook, dummy: Dummy) -> None:
    for more in ({}, {"post_filter": {"term": {"kind": "a"}}}):
        hook.search({**WORDS, **more})
        one = dummy.last
        searches = hook.searched(lambda more=more: hook.search({**WORDS, **more, "sort": ["_score"]}))
        assert searches == 2
        assert dummy.last == one
        assert one["features"]["text@v"][1] is not None
        assert len(one["places"]["seq_nos"]) == len(one["scores"]) == len(one["ids"])
        assert sorted(one["categories"]) == ["000000", "000001", "000002"]


@pytest.mark.parametrize(
    "more",
    [
        {"script_fields": {"twice": {"script": "doc['n'].value * 2"}}},
        {"fields": ["n"], "highlight": {"fields": {"text": {}}}},
        {"docvalue_fields": ["n"], "stored_fields": []},
    ],
    ids=lambda more: "-".join(more),
)
def test_what_else_the_user_wants_is_fetched_for_the_page_alone(hook: Hook, more: dict[str, Any]) -> None:
    body = {**WORDS, **more}
    plain = {hit["_id"]: hit for hit in hook.plain({**body, "size": COUNT})["hits"]["hits"]}
    takes_one_search(hook, lambda: hook.search(body))
    for hit in hook.search(body)["hits"]["hits"]:
        assert {**hit, "_score": 0} == {**plain[hit["_id"]], "_score": 0}


def test_pages_go_on_behind_the_candidates(hook: Hook) -> None:
    hook.configure(depth=20, **BARE)
    hook.search(WORDS)
    takes_one_search(hook, lambda: hook.search({**WORDS, "from": 15, "size": 10}))
    shown = [id for start in (0, 7, 14) for id in ids(hook.search({**WORDS, "from": start, "size": 7}))]
    assert shown == [*NUMBERS[:20][::-1], "20"]
    assert ids(hook.search({**WORDS, "from": 15, "size": 10})) == ["4", "3", "2", "1", "0", *NUMBERS[20:25]]


@pytest.mark.parametrize(
    ("index", "more"),
    [
        ("spread", {}),
        ("cells,spread", {}),
        ("cells", {"sort": ["_score", "n"]}),
        ("cells", {"ext": {"rerank": {"explain": True}}}),
        ("cells", {"explain": True}),
        ("cells", {"rescore": {"query": {"rescore_query": {"match": {"text": "filler"}}}}}),
        ("cells", {"profile": True}),
        ("cells", {"query": {"template": WORDS["query"]}}),
    ],
    ids=str,
)
def test_the_others_go_the_other_way(hook: Hook, dummy: Dummy, index: str, more: dict[str, Any]) -> None:
    body = {**WORDS, **more}
    hook.search(body, index)
    searches = hook.searched(lambda: hook.search(body, index), index)
    assert searches > 1 or dummy.last["ids"] == NUMBERS, "else numbers are sent in the place of ids"
    assert hook.counted(body, index)[1] == {"reranked": 1}


def test_hits_within_aggregations_are_not_reranked(hook: Hook, dummy: Dummy) -> None:
    best = {"best": {"top_hits": {"size": 2, "_source": False}}}
    body = {**WORDS, "aggs": {"kinds": {"terms": {"field": "kind"}, "aggs": best}}}
    calls = len(dummy.seen)
    assert hook.search(body)["aggregations"] == hook.plain(body)["aggregations"]
    assert len(dummy.seen) == calls + 1
    del body["aggs"]["kinds"]["aggs"]
    takes_one_search(hook, lambda: hook.search(body))


def test_other_clusters_have_candidates_too(hook: Hook, dummy: Dummy) -> None:
    seeds = {"cluster.remote.self.seeds": [f"127.0.0.1:{hook.node.transport}"]}
    hook.node.request("PUT", "/_cluster/settings", {"persistent": seeds})
    try:
        for index in ("cells,self:spread", "cells,self:spread*"):
            hook.search(WORDS, index)
            assert hook.counted(WORDS, index)[1] == {"reranked": 1}
            assert len(dummy.last["ids"]) == 2 * COUNT
    finally:
        hook.node.request("PUT", "/_cluster/settings", {"persistent": dict.fromkeys(seeds)})


def test_what_is_cached_is_asked_for_anew(hook: Hook, dummy: Dummy) -> None:
    for _ in range(3):
        calls = len(dummy.seen)
        takes_one_search(hook, lambda: hook.search(WORDS, more="&request_cache=true"))
        assert len(dummy.seen) > calls


def test_nothing_found(hook: Hook, dummy: Dummy) -> None:
    calls = len(dummy.seen)
    for more, searches in (({}, 1), ({"from": 5}, 3)):  # of a later page nobody knows whether there were any
        body = {"query": {"match": {"text": "nowhere"}}, **more}
        assert hook.searched(lambda body=body: hook.search(body)) <= searches
        assert hook.counted(body)[1] == {"passed.no_hits": 1}
    assert len(dummy.seen) == calls


def test_what_the_service_passes(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send({"passed": "because"})
    found, counters = hook.counted(WORDS)
    assert counters == {"passed.because": 1}
    assert ids(found) == NUMBERS[:10]


@pytest.mark.parametrize(
    ("reason", "fails"),
    [
        ("status_500", lambda handler, body: handler.send({"error": "no"}, 500)),
        ("status_422", lambda handler, body: handler.send({"error": "no"}, 422)),
        ("not_json", lambda handler, body: handler.send(b"<html>")),
        ("bad_answer", lambda handler, body: handler.send(reverse({"ids": [*body["ids"][1:], "another"]}))),
        ("connection", lambda handler, body: handler.send(reverse(body), cut=10)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failures_are_those_of_the_other_way(
    hook: Hook, dummy: Dummy, reason: str, fails: Callable[[Handler, dict[str, Any]], None]
) -> None:
    dummy.answering = fails
    found, counters = hook.counted(WORDS)
    assert counters == {f"failed.{reason}": 1}
    assert ids(found) == NUMBERS[:10]
    assert "max_score" in found["hits"]
    dummy.answering = answer
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]


def test_a_slow_service_keeps_no_shard_waiting(hook: Hook, dummy: Dummy) -> None:
    """After a moment the search goes the other way, and those after it do so at once."""

    def late(handler: Handler, body: dict[str, Any]) -> None:
        time.sleep(0.2)
        answer(handler, body)

    takes_one_search(hook, lambda: hook.search(WORDS))
    dummy.answering = late
    assert hook.searched(lambda: hook.search(WORDS)) == 3
    for _ in range(3):
        found, counters = hook.counted(WORDS)
        assert counters == {"reranked": 1}
        assert ids(found) == NUMBERS[::-1][:10]
    calls = len(dummy.seen)
    for _ in range(10):
        hook.search(WORDS)
    assert len(dummy.seen) <= calls + 15, "it is tried again after one second, two, four, ..."
    dummy.answering = answer
    takes_one_search(hook, lambda: hook.search(WORDS))


def test_a_shadow_moves_nothing(hook: Hook) -> None:
    hook.configure(shadow=True, **BARE)
    hook.search(WORDS)
    found, counters = hook.counted(WORDS)
    assert counters == {"passed.shadow": 1}
    assert ids(found) == NUMBERS[:10]


def test_no_search_can_ask_for_it(hook: Hook) -> None:
    for pipeline in ("hook", "_none"):
        body = {**WORDS, "rescore": {"window_size": 5, "rerank_stack": {}}}
        with pytest.raises(ValueError, match=r"400 .*a processor of search pipelines"):
            hook.node.request("POST", f"/cells/_search?search_pipeline={pipeline}", body)


@pytest.mark.slow
def test_shards_of_other_nodes_go_the_other_way(dummy: Dummy) -> None:
    """On the wire there is no plan: only a search that stays on its node can take the short way."""
    try:
        cluster = Cluster(2, heap="512m", plugins=[build()], **{"rerank.allowed_urls": "http://127.0.0.1:*"})
    except CannotRunError as error:
        unavailable(error)
    dummy.answering = answer
    try:
        one, two = (Hook(node, dummy.url).configure(**BARE) for node in cluster.start().nodes)
        fill(one.node)
        (placed,) = one.node.request("GET", "/_cat/shards/cells?format=json")
        here, there = (one, two) if placed["node"] == one.node.name else (two, one)
        for replicas, short in (
            (0, {(here, ""), (here, "_local"), (here, "mine")}),
            (1, {(here, "_local"), (there, "_local")}),
        ):
            one.node.request("PUT", "/cells/_settings", {"number_of_replicas": replicas})
            one.node.request(
                "GET", "/_cluster/health/cells?wait_for_status=green&wait_for_no_relocating_shards=true"
            )
            for hook in (here, there):
                for preference in ("", "_local", "mine"):
                    more = f"&preference={preference}" if preference else ""
                    hook.search(WORDS, more=more)
                    for page in (0, 10):
                        found, counters = hook.counted({**WORDS, "from": page}, more=more)
                        assert ids(found) == NUMBERS[::-1][page : page + 10]
                        assert counters == {"reranked": 1}
                    act = partial(hook.search, WORDS, more=more)
                    if (hook, preference) in short:
                        takes_one_search(hook, act)
                    else:
                        assert hook.searched(act) > 1
        # A copy that fails behind its query: the other node's, which knows of no plan, takes its place.
        script = "if (Math.random() < 0.2) {throw new IllegalArgumentException('no')} return 1"
        unsure = {**WORDS, "size": 3, "script_fields": {"one": {"script": script}}}
        for _ in range(30):
            with contextlib.suppress(ValueError):  # all have failed
                found, counters = here.counted(unsure, more="&preference=_local")
                best = NUMBERS[::-1] if counters == {"reranked": 1} else NUMBERS
                assert ids(found) == best[:3]
                assert counters in ({"reranked": 1}, {"failed.search": 1})
    finally:
        cluster.stop()
