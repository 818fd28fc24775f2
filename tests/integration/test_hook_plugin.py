"""The search-pipeline processor on a real node, with a small HTTP server instead of the service."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from tests.support.hook import (
    COUNT,
    NUMBERS,
    PLACES,
    TOKEN,
    WHOLE,
    WORDS,
    Dummy,
    Handler,
    Hook,
    ids,
    requested,
    reverse,
    without_took,
)


def test_hits_have_the_order_of_the_service(hook: Hook, dummy: Dummy) -> None:
    answer, counters = hook.counted(WORDS)
    assert ids(answer) == NUMBERS[::-1][:10]
    assert [hit["_score"] for hit in answer["hits"]["hits"]] == [100.0 + COUNT - i for i in range(10)]
    assert answer["hits"]["max_score"] == 100.0 + COUNT
    assert answer["hits"]["total"] == {"value": COUNT, "relation": "eq"}
    assert counters == {"reranked": 1}


def test_the_call_contains_query_candidates_and_options(hook: Hook, dummy: Dummy) -> None:
    hook.configure(stack="mine")
    hook.search(WORDS, "tissue")
    path, headers, body = dummy.seen[-1]
    assert path == "/v1/hook"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == "application/octet-stream"
    assert "Upgrade" not in headers
    assert body["query"]["match"]["text"]["query"] == "cell"
    assert body["ids"] == NUMBERS
    first = [hit["_score"] for hit in hook.plain({**WORDS, "size": COUNT})["hits"]["hits"]]
    assert body["scores"] == first
    assert len(body["places"]["uuids"]) == 1
    assert body["timeout"] == 20.0
    del body["query"], body["ids"], body["scores"], body["places"], body["timeout"]
    nothing: dict[str, object] = {"features": {}, "min_score": None}
    nothing |= {"stack_allowed": False, "raw_values": False, "shadow": False}
    assert body == {"stack": "mine", "index": ["tissue"], "rerank": None, **nothing}
    ext = {"stack": "other", "query": "my words", "categories": ["a", "b"], "lang": "de"}
    hook.search({**WORDS, "ext": {"rerank_stack": ext}})
    assert (dummy.last["stack"], dummy.last["rerank"], dummy.last["stack_allowed"]) == ("other", ext, False)
    hook.configure(stacks=["text*0.5 + other*0.5", "other"], raw_values=True)
    hook.search({**WORDS, "ext": {"rerank_stack": ext}})
    assert (dummy.last["stack_allowed"], dummy.last["raw_values"]) == (True, True)


def test_words_are_also_read_from_the_context_of_a_rerank_processor(hook: Hook, dummy: Dummy) -> None:
    body = {"query": {"match_all": {}}, "ext": {"rerank": {"query_context": {"query_text": "my words"}}}}
    answer, counters = hook.counted(body)
    assert (ids(answer), counters) == (NUMBERS[::-1][:10], {"reranked": 1})
    assert dummy.last["rerank"] == {"query": "my words"}
    body["ext"]["rerank_stack"] = {"query": "other words", "lang": "de"}
    hook.search(body)
    assert dummy.last["rerank"] == {"query": "other words", "lang": "de"}
    body["ext"] = {"rerank": {"query_context": {"query_text": "x" * 100_001}}}
    assert hook.counted(body)[1] == {"passed.query_too_long": 1}
    assert len(ids(hook.plain(body))) == 10


def test_features_are_fetched_when_the_service_requests_them(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(requested_fields=requested("text@v", "meta@w", "no@x"))
    hook.search(WORDS)
    assert dummy.last["features"] == {}
    answer = hook.search({**WORDS, "_source": False})
    features = dummy.last["features"]
    assert features["text@v"] == [b64encode(bytes([i, 0, 0])).decode() for i in range(COUNT)]
    expected = [b64encode(bytes([0, i, 0])).decode() if i % 2 else None for i in range(COUNT)]
    assert features["meta@w"] == expected
    assert features["no@x"] == [None] * COUNT
    assert all(set(hit) == {"_index", "_id", "_score"} for hit in answer["hits"]["hits"])
    dummy.reverse(requested_fields=requested())
    hook.search(WORDS)
    hook.search(WORDS)
    assert dummy.last["features"] == {}


def test_fields_that_the_user_requests_are_returned(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(requested_fields=requested("text@v", "meta@w"))
    hook.search(WORDS)
    for fields in (["n"], ["n", "rerank_features.text@v"], ["rerank_features.*"], [{"field": "n"}]):
        body = {**WORDS, "docvalue_fields": fields, "size": COUNT}
        actual = {h["_id"]: h.get("fields") for h in hook.search(body)["hits"]["hits"]}
        assert actual == {h["_id"]: h.get("fields") for h in hook.plain(body)["hits"]["hits"]}
        assert dummy.last["features"]["text@v"][3] == b64encode(bytes([3, 0, 0])).decode()


NAMED = {"match": {"text": {"query": "cell", "_name": "words"}}}


@pytest.mark.parametrize(
    "more",
    [
        {"_source": False},
        {"_source": ["n"]},
        {"_source": {"excludes": ["text", "rerank_features"]}},
        {"stored_fields": []},
        {"track_total_hits": False},
        {"track_total_hits": 5},
        {"aggs": {"kinds": {"terms": {"field": "kind"}, "aggs": {"mean": {"avg": {"field": "n"}}}}}},
        {"aggs": {"kinds": {"terms": {"field": "kind"}, "aggs": {"best": {"top_hits": {"size": 2}}}}}},
        {"highlight": {"fields": {"text": {}}}},
        {"suggest": {"s": {"text": "cel", "term": {"field": "text"}}}},
        {"sort": ["_score"]},
        {"sort": [{"_score": "desc"}]},
        {"version": True, "seq_no_primary_term": True},
        {"script_fields": {"twice": {"script": "doc['n'].value * 2"}}},
        {"fields": ["n", "kind"]},
        {"docvalue_fields": ["n"], "aggs": {"kinds": {"terms": {"field": "kind"}}}, "min_score": 0.0001},
        {"post_filter": {"term": {"kind": "a"}}},
        {"min_score": 0.0001},
        {"track_scores": True},
        {"timeout": "10s", "terminate_after": 1000},
        {"rescore": {"window_size": 5, "query": {"rescore_query": {"match": {"text": "filler"}}}}},
        {"highlight": {"fields": {"*": {"require_field_match": False}}}},
        {"query": {"function_score": {"query": WORDS["query"], "field_value_factor": {"field": "n"}}}},
        {"query": NAMED},
        {"query": {"bool": {"must": {"constant_score": {"filter": NAMED}}}}},
        {"query": {"boosting": {"positive": NAMED, "negative": {"term": {"n": 1}}, "negative_boost": 0.5}}},
        {"explain": True},
        {"profile": True},
    ],
    ids=lambda more: "-".join(more),
)
@pytest.mark.parametrize("requested_fields", [WHOLE, PLACES], ids=["whole", "places"])
@pytest.mark.parametrize("index", ["cells", "spread", "cells,spread"])
def test_search_options_work_with_the_hook(
    hook: Hook, dummy: Dummy, more: dict[str, Any], requested_fields: dict[str, Any], index: str
) -> None:
    dummy.reverse(requested_fields=requested_fields)
    body = {**WORDS, **more}
    hook.search(body, index)
    answer, counters = hook.counted({**body, "size": 12, "from": 1}, index)
    assert counters == {"reranked": 1}
    assert len(dummy.last["places"]["uuids"]) == 1 + index.count(",")
    plain = hook.plain({**body, "size": 100}, index)
    expected = plain["hits"]["hits"][::-1][1:13]
    for hit, score in zip(expected, range(100), strict=False):
        hit["_score"] = 100.0 + len(plain["hits"]["hits"]) - 1 - score
        hit.pop("_explanation", None)
    actual = without_took(answer)
    for hit in actual["hits"]["hits"]:
        hit.pop("_explanation", None)
    assert actual["hits"]["hits"] == expected
    plain["hits"] |= {"hits": expected, "max_score": 100.0 + len(dummy.last["ids"])}
    assert actual == without_took(plain)
    assert dummy.last["features"]["text@v"][0] is not None
    if "profile" in more:
        assert len(answer["profile"]["shards"]) == {"cells": 1, "spread": 3}.get(index, 4)


@pytest.mark.parametrize("change", ["update", "delete"])
def test_documents_that_change_during_scoring_are_searched_again(
    hook: Hook, dummy: Dummy, change: str
) -> None:
    """If a ranked document has changed, the candidates are searched again."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        dummy.reverse(requested_fields=PLACES)
        if change == "delete":
            hook.node.request("DELETE", "/changing/_doc/new?refresh=true")
        else:
            hook.node.request("PUT", "/changing/_doc/new?refresh=true", {**source, "n": 2})
        dummy.answering(handler, body)

    mapping = {"mappings": hook.node.request("GET", "/cells/_mapping")["cells"]["mappings"]}
    source = {"id": "new", "text": "novel", "n": 1}
    hook.node.request("PUT", "/changing", mapping)
    try:
        hook.node.request("PUT", "/changing/_doc/new?refresh=true", source)
        hook.node.request("PUT", "/changing/_doc/newer?refresh=true", {**source, "id": "newer"})
        dummy.reverse(requested_fields=PLACES)
        body = {"query": {"match": {"text": "novel"}}}
        hook.search(body, "changing")
        dummy.answering = answer
        actual, counters = hook.counted(body, "changing")
        plain = hook.plain(body, "changing")["hits"]["hits"]
        assert [(h["_id"], h["_source"]) for h in actual["hits"]["hits"]] == [
            (h["_id"], h["_source"]) for h in plain
        ][::-1]
        assert counters == {"reranked": 1}
        assert len(dummy.seen) == 3
    finally:
        hook.node.request("DELETE", "/changing")


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("sort", {**WORDS, "sort": ["n"]}),
        ("size_0", {**WORDS, "size": 0, "aggs": {"kinds": {"terms": {"field": "kind"}}}}),
        ("window", {**WORDS, "from": 20, "size": 10}),
        ("collapse_inner_hits", {**WORDS, "collapse": {"field": "kind", "inner_hits": {"name": "more"}}}),
        ("no_text_query", {}),
        ("no_text_query", {"suggest": {"s": {"text": "cel", "term": {"field": "text"}}}}),
        ("no_ids", {**WORDS, "stored_fields": "_none_"}),
        ("no_hits", {"query": {"match": {"text": "absent"}}}),
        ("off", {**WORDS, "ext": {"rerank_stack": {"off": True}}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_searches_that_cannot_be_reranked_pass_through(
    hook: Hook, dummy: Dummy, reason: str, body: dict[str, Any]
) -> None:
    hook.configure(depth=20)
    answer, counters = hook.counted(body)
    assert counters == {f"passed.{reason}": 1}
    assert without_took(answer) == without_took(hook.plain(body))
    assert dummy.seen == []


def test_scrolls_and_search_after_pass_through(hook: Hook, dummy: Dummy) -> None:
    assert hook.changes(lambda: hook.search({**WORDS, "size": 4}, more="&scroll=1m")) == {"passed.scroll": 1}
    pit = hook.node.request("POST", "/cells/_search/point_in_time?keep_alive=1m")["pit_id"]
    body = {**WORDS, "pit": {"id": pit, "keep_alive": "1m"}}
    after = {**body, "sort": ["n"], "search_after": [3]}
    path = "/_search?search_pipeline=hook"
    assert hook.changes(lambda: hook.node.request("POST", path, after)) == {"passed.search_after": 1}
    sliced = {**body, "slice": {"id": 0, "max": 2}}
    assert hook.changes(lambda: hook.node.request("POST", path, sliced)) == {"passed.slice": 1}
    first = {**body, "sort": [{"_score": "desc"}, {"n": "asc"}]}
    assert hook.changes(lambda: hook.node.request("POST", path, first)) == {"passed.pit": 1}
    assert dummy.seen == []
    answer = hook.node.request("POST", path, body)  # a page of a point in time is an ordinary search
    assert ids(answer) == NUMBERS[::-1][:10]
    assert "pit_id" in answer
    assert dummy.last["index"] == ["cells"]


def test_searches_that_the_service_passes_are_unchanged(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send({"passed": "no words"})
    body = {"query": {"bool": {"filter": {"term": {"kind": "a"}}}}, "from": 2, "size": 3}
    answer, counters = hook.counted(body)
    assert counters == {"passed.no words": 1}
    assert without_took(answer) == without_took(hook.plain(body))


def test_a_text_from_the_user_makes_any_query_rerankable(hook: Hook, dummy: Dummy) -> None:
    body = {"query": {"match_all": {}}, "size": 3, "ext": {"rerank_stack": {"query": "cell"}}}
    answer = hook.search(body)
    assert ids(answer) == NUMBERS[::-1][:3]
    hook.search({"ext": {"rerank_stack": {"query": "cell"}}})
    assert dummy.last["query"] is None


def test_limits_of_an_index_are_respected(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(requested_fields=requested("text@v", "meta@w"))
    assert ids(hook.search(WORDS, "small")) == NUMBERS[:20][::-1][:10]
    assert len(dummy.last["ids"]) == 20  # max_result_window
    hook.search(WORDS, "small")
    assert dummy.last["features"] == {}  # max_docvalue_fields_search
    assert hook.changes(lambda: hook.search({**WORDS, "from": 19, "size": 1}, "small")) == {"reranked": 1}


def test_several_indices_are_reranked(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(requested_fields=WHOLE)
    hook.search(WORDS, "cells,spread")
    answer = hook.search({**WORDS, "size": 60}, "cells,spread")
    plain = hook.plain({**WORDS, "size": 60}, "cells,spread")
    assert [(h["_index"], h["_id"]) for h in answer["hits"]["hits"]] == [
        (h["_index"], h["_id"]) for h in plain["hits"]["hits"]
    ][::-1]
    sent = [id.partition("#")[0] for id in dummy.last["ids"]]
    assert sent == [h["_id"] for h in plain["hits"]["hits"]]  # each id twice: the service knows the indices
    assert dummy.last["index"] == ["cells", "spread"]
    decoded = [b64encode(bytes([int(h["_id"]), 0, 0])).decode() for h in plain["hits"]["hits"]]
    assert dummy.last["features"]["text@v"] == decoded
    hook.search(WORDS, "cell*")
    assert dummy.last["index"] == ["cell*"]
    assert ids(hook.search(WORDS, "tissue")) == NUMBERS[::-1][:10]


@pytest.mark.parametrize("preference", ["session", "_local"])
def test_a_search_with_a_preference_calls_the_service_once(hook: Hook, dummy: Dummy, preference: str) -> None:
    dummy.reverse(requested_fields=PLACES)
    for calls in (1, 2):
        answer = hook.search(WORDS, "spread", f"&preference={preference}")
        assert (len(dummy.seen), len(ids(answer))) == (calls, 10)


def test_candidates_of_other_clusters_are_reranked(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(requested_fields=PLACES)
    seeds = {"cluster.remote.self.seeds": [f"127.0.0.1:{hook.node.transport}"]}
    with hook.node.changed(seeds):
        for index in ("cells,self:spread", "cells,self:spread*"):
            hook.search(WORDS, index)
            assert hook.counted(WORDS, index)[1] == {"reranked": 1}
            assert len(dummy.last["ids"]) == 2 * COUNT


@pytest.mark.parametrize("requested_fields", [WHOLE, PLACES], ids=["whole", "places"])
def test_hits_below_a_probability_are_left_out(
    hook: Hook, dummy: Dummy, requested_fields: dict[str, Any]
) -> None:
    def answer(handler: Handler, body: dict[str, Any]) -> None:
        low = body["ids"][:7]  # with a probability of 0.1; the others have 0.9
        best = [id for id in body["ids"][::-1] if id not in low or body["min_score"] <= 0.1]
        answer = {"ids": best, "scores": [100.0 - i for i in range(len(best))]}
        answer |= {"signals": [{}] * len(best), "relevance": [0.1 if id in low else 0.9 for id in best]}
        removed = len(body["ids"]) - len(best)
        handler.send({**answer, "removed": removed, "requested_fields": requested_fields})

    dummy.answering = answer
    hook.configure(depth=20, min_score=0.5)
    hook.search(WORDS)
    before = hook.stats()["removed"]
    pages = [hook.search({**WORDS, "from": i, "size": 5}) for i in (0, 5, 10, 15, 20)]
    assert [ids(page) for page in pages] == [NUMBERS[19:14:-1], NUMBERS[14:9:-1], NUMBERS[9:6:-1], [], []]
    for page in pages:
        assert page["hits"]["total"] == {"value": 13, "relation": "eq"}
        about = page["ext"]["rerank_stack"]
        assert (about["outcome"], about["removed"]) == ("reranked", 7)
    assert hook.stats()["removed"] == before + 5 * 7
    options = {"min_score": 0.1, "explain": True}
    page = hook.search({**WORDS, "size": 20, "ext": {"rerank_stack": options}})
    assert ids(page) == NUMBERS[19::-1]
    probabilities = [hit["fields"]["_rerank"][0]["relevance"] for hit in page["hits"]["hits"]]
    assert probabilities == [0.9] * 13 + [0.1] * 7
    assert "total" not in hook.search({**WORDS, "track_total_hits": False})["hits"]
    hook.configure(depth=20, min_score=0.5, shadow=True)
    page = hook.search(WORDS)
    assert ids(page) == NUMBERS[:10]
    assert page["hits"]["total"]["value"] == COUNT
    assert page["ext"]["rerank_stack"]["would_remove"] == 7


def test_a_search_without_any_probable_hit_is_empty_and_says_why(hook: Hook, dummy: Dummy) -> None:
    dummy.answering = lambda handler, body: handler.send({"removed": COUNT})
    answer = hook.search({**WORDS, "ext": {"rerank_stack": {"min_score": 0.99}}})
    assert answer["hits"] == {"total": {"value": 0, "relation": "eq"}, "max_score": None, "hits": []}
    assert answer["ext"]["rerank_stack"]["removed"] == COUNT


def test_a_search_whose_minimum_cannot_be_used_keeps_all_hits(hook: Hook, dummy: Dummy) -> None:
    """The reason is in the response: for an older service, and for a stack without probabilities."""
    for answer, reason in (
        (reverse, "the service has no min_score"),
        (lambda body: {"passed": "the stack has no probabilities"}, "the stack has no probabilities"),
    ):
        dummy.answering = lambda handler, body, answer=answer: handler.send(answer(body))
        search = {**WORDS, "from": 25, "size": 10}
        answer = hook.search({**search, "ext": {"rerank_stack": {"min_score": 0.5}}})
        assert answer["hits"] == hook.plain(search)["hits"]
        about = answer["ext"]["rerank_stack"]
        assert (about["outcome"], about["reason"]) == ("passed", reason)


def test_errors_of_the_search_are_returned_unchanged(hook: Hook) -> None:
    with pytest.raises(ValueError, match=r"404.*index_not_found"):
        hook.search(WORDS, "nowhere")
    with pytest.raises(ValueError, match=r"400.*parsing_exception"):
        hook.search({"query": {"nonsense": {}}})


def test_explain_returns_signals_and_reasons(hook: Hook, dummy: Dummy) -> None:
    dummy.reverse(signals=[{"text": i / 2, "words": ["a"]} for i in range(COUNT)])
    body = {**WORDS, "_source": False, "size": 2, "ext": {"rerank_stack": {"explain": True}}}
    answer = hook.search(body)
    assert answer["ext"]["rerank_stack"]["outcome"] == "reranked"
    assert answer["ext"]["rerank_stack"]["took_ms"] > 0
    scores = dummy.last["scores"]
    assert [hit["fields"] for hit in answer["hits"]["hits"]] == [
        {"_rerank": [{"first_stage": {"rank": rank, "score": scores[rank - 1]}, "signals": signals}]}
        for rank, signals in ((30, {"text": 0.0, "words": ["a"]}), (29, {"text": 0.5, "words": ["a"]}))
    ]
    assert "ext" not in hook.search(WORDS)
    assert "_rerank" not in json.dumps(hook.search(WORDS))
    assert "weights" not in answer["ext"]["rerank_stack"]
    weights = {"stack": "bm25*1.00", "normalization": "min-max", "case": "given"}
    dummy.reverse(weights=weights)
    assert hook.search(body)["ext"]["rerank_stack"]["weights"] == weights
    told = hook.search({**body, "sort": ["n"]})["ext"]["rerank_stack"]
    assert (told["outcome"], told["reason"]) == ("passed", "sort")
    refusal = {"error": "stack 'x' is not tuned"}
    for sent, status, reason in (
        (b"<html>", 200, "bad_answer"),
        (refusal, 422, "status_422"),
        (refusal, 500, "status_500"),
    ):
        dummy.answering = lambda handler, body, given=(sent, status): handler.send(*given)
        told = hook.search(body)["ext"]["rerank_stack"]
        assert (told["outcome"], told["reason"]) == ("failed", reason)
        assert set(told) == {"outcome", "reason", "took_ms"}


@pytest.mark.parametrize("ext", [{"of": True}, {"off": "yes"}])
def test_an_invalid_ext_is_an_error(hook: Hook, ext: object) -> None:
    with pytest.raises(ValueError, match=": 400 "):
        hook.search({**WORDS, "ext": {"rerank_stack": ext}})
