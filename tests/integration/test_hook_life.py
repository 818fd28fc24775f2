"""Changes of an index and options of searches: all searches work, and paging loses no hit.

The tests use a real node, with a small HTTP server instead of the service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rerank import Workspace
from rerank.hook import HookOptions, try_search
from rerank.hook.plugin import PluginHook
from tests.support.hook import (
    COUNT,
    NUMBERS,
    PLACES,
    WHOLE,
    WORDS,
    Dummy,
    Handler,
    Hook,
    ids,
    requested,
    without_took,
)

DEFAULT = "index.search.default_pipeline"


def prepare(hook: Hook, dummy: Dummy, kind: str, **settings: object) -> Hook:
    """Configure the hook and search once, so that the node learns the fields that the service requests."""
    dummy.reverse(requested_fields=KINDS[kind])
    hook.configure(**settings)
    hook.search(WORDS)
    return hook


KINDS = {"whole": WHOLE, "places": PLACES}


@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_every_size_form_one_ranking(hook: Hook, dummy: Dummy, kind: str) -> None:
    """First the candidates in the service's order, then other hits, without gaps or duplicates."""
    prepare(hook, dummy, kind, depth=12)
    whole = NUMBERS[:12][::-1] + NUMBERS[12:]
    for size in (*range(1, 17), COUNT, 2 * COUNT):
        pages = []
        for start in range(0, COUNT, size):
            pages += ids(hook.search({**WORDS, "from": start, "size": size, "_source": False}))
        assert pages == whole, size
    actual = hook.search({**WORDS, "from": 10, "size": 4})["hits"]["hits"]
    plain = hook.plain({**WORDS, "from": 12, "size": 2})["hits"]["hits"]
    assert actual[2:] == plain  # hits that are not reranked are unchanged
    assert len(dummy.last["ids"]) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_equal_scores_keep_the_order_of_the_first_stage(hook: Hook, dummy: Dummy, kind: str) -> None:
    prepare(hook, dummy, kind)

    def halves(handler: Any, body: dict[str, Any]) -> None:
        scores = [2.0] * 10 + [1.0] * (COUNT - 10)
        handler.send({"ids": body["ids"][::-1], "scores": scores, "requested_fields": KINDS[kind]})

    dummy.answering = halves
    body = {**WORDS, "sort": ["_score", {"kind": "desc"}, {"n": {"order": "desc"}}], "size": COUNT}
    answer, counters = hook.counted(body)
    assert counters == {"reranked": 1}
    assert ids(answer) == NUMBERS[20:] + NUMBERS[:20]
    assert answer["hits"]["hits"][0]["sort"] == [2.0, "a", 20]
    assert answer["hits"]["hits"][0]["_score"] == 2.0


def test_only_the_page_is_highlighted(hook: Hook, dummy: Dummy) -> None:
    """A candidate that cannot be highlighted affects only its page."""
    prepare(hook, dummy, "places")
    # texts with higher numbers are longer
    with hook.node.changed({"index.highlight.max_analyzed_offset": 180}, "cells"):
        body = {**WORDS, "highlight": {"fields": {"text": {"type": "plain"}}}, "size": 3}
        with pytest.raises(ValueError, match="max_analyzed_offset"):
            hook.plain({**body, "size": COUNT})
        dummy.answering = lambda handler, body: handler.send(
            {"ids": body["ids"], "scores": [float(-i) for i in range(COUNT)], "requested_fields": PLACES}
        )
        answer, counters = hook.counted(body)
        assert counters == {"reranked": 1}
        assert all("highlight" in hit for hit in answer["hits"]["hits"])


@pytest.fixture
def rebuilt(hook: Hook) -> Any:
    """A copy of an index, in which dynamic mapping made all fields text."""
    texts = {name: {"type": "text"} for name in ("id", "kind", "text")}
    features = {"properties": {"text@v": {"type": "text"}}}
    mappings = {"properties": {**texts, "rerank_features": features}}
    hook.node.request("PUT", "/rebuilt", {"mappings": mappings})
    body = {"source": {"index": "cells"}, "dest": {"index": "rebuilt"}}
    hook.node.request("POST", "/_reindex?refresh=true", body)
    yield "rebuilt"
    hook.node.request("DELETE", "/rebuilt")


def test_a_rebuilt_index_keeps_the_order_of_the_first_stage(hook: Hook, dummy: Dummy, rebuilt: str) -> None:
    """Features that became text cause errors on all shards. The search is repeated without them."""
    dummy.reverse(requested_fields=requested("text@v"))
    for index in (rebuilt, f"cells,{rebuilt}"):
        assert hook.counted(WORDS, index)[1] == {"reranked": 1}  # features are not requested yet
        for _ in range(2):
            answer, counters = hook.counted({**WORDS, "size": 100}, index)
            assert counters == {"failed.search": 1}
            assert answer["_shards"]["failed"] == 0
            assert len(ids(answer)) == COUNT * (1 + index.count(","))
    hook.search(WORDS)
    hook.search(WORDS)
    assert dummy.last["features"]["text@v"][1] is not None  # the other index is unchanged


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_the_hook_requests_break_no_search(hook: Hook, dummy: Dummy, kind: str) -> None:
    """A script fails for documents that only the hook requests, or that are only on its page."""
    prepare(hook, dummy, kind)
    script = "if (doc['n'].value > 20) { throw new IllegalArgumentException('no') } return doc['n'].value"
    body = {**WORDS, "script_fields": {"twice": {"script": script}}}
    for index, most in (("cells", 10), ("spread", 3)):
        explained = {**body, "size": most, "ext": {"rerank_stack": {"explain": True}}}
        answer, counters = hook.counted(explained, index)
        assert answer["_shards"]["failed"] == 0
        assert counters == {"failed.search": 1}
        assert answer.pop("ext")["rerank_stack"]["reason"] == "search"
        assert without_took(answer) == without_took(hook.plain({**body, "size": most}, index))
    with pytest.raises(ValueError, match="script_exception"):  # an error of the user's script
        hook.search({**body, "size": COUNT})
    assert hook.changes(lambda: hook.search(WORDS)) == {"reranked": 1}


def test_ties_with_the_last_candidate_do_not_count_as_another_order(
    hook: Hook, dummy: Dummy, tmp_path: Path
) -> None:
    """Among equal scores, the index selects other documents than the hook."""
    node = hook.node
    mapping = {"settings": {"number_of_replicas": 0}, "mappings": {"properties": {"text": {"type": "text"}}}}
    node.request("PUT", "/ties", mapping)
    for i in range(12, 0, -1):
        node.request("PUT", f"/ties/_doc/d{i:02}", {"text": "cell"})
    node.request("POST", "/ties/_refresh")
    settings = {"url": [node.url], "index": "ties", "fields": {"text": ["text"]}}
    workspace = Workspace.create(
        tmp_path / "ws", lang="en", engine="opensearch", settings=settings, attach=True
    )
    dummy.answering = lambda handler, body: handler.send(
        {"ids": sorted(body["ids"]), "scores": [body["scores"][0]] * len(body["ids"])}
    )
    made = PluginHook(workspace)
    made.install(HookOptions(dummy.url, stack="bm25", depth=5, timeout=20.0))
    actual = try_search(made, "cell")
    made.remove()
    assert actual.plain[:5] == ("d12", "d11", "d10", "d09", "d08")
    assert actual.expected == ("d08", "d09", "d10", "d11", "d12")
    assert actual.reranked == (*actual.expected, "d07", "d06", "d05", "d04", "d03")
    assert actual.same
    node.request("DELETE", "/ties")


@pytest.mark.parametrize("bare", [False, True])
def test_processors_after_ours_apply_to_repeated_searches(hook: Hook, dummy: Dummy, bare: bool) -> None:
    """If a search is repeated, because a script fails or a document changed, filters still apply."""
    behind = [{"filter_query": {"query": {"term": {"kind": "a"}}}}]
    renamed = [{"rename_field": {"field": "n", "target_field": "m"}}]
    theirs = {"request_processors": behind, "response_processors": renamed}
    hook.node.request("PUT", "/_search/pipeline/theirs", theirs)
    config = {"rerank_stack": {"url": dummy.url, "timeout": 20000}}
    ours = {"request_processors": [config, *behind], "response_processors": [{"rerank_stack": {}}, *renamed]}
    hook.node.request("PUT", "/_search/pipeline/hook", ours)
    dummy.reverse(requested_fields=PLACES if bare else WHOLE)
    hook.search(WORDS, "spread")
    whole = {**WORDS, "size": COUNT}
    plain = hook.plain(whole, "spread", "search_pipeline=theirs")["hits"]["hits"]
    if bare:
        changed = f"/spread/_doc/{plain[-1]['_id']}"  # changed while the service computes

        def answer(handler: Handler, body: dict[str, Any]) -> None:
            dummy.reverse(requested_fields=PLACES)
            document = hook.node.request("GET", changed)["_source"]
            hook.node.request("PUT", f"{changed}?refresh=true", document)
            dummy.answering(handler, body)

        dummy.answering = answer
        actual, counters = hook.counted(whole, "spread")
        assert (sorted(ids(actual)), counters) == (sorted(NUMBERS[::2]), {"reranked": 1})
        assert [hit["_source"]["m"] for hit in actual["hits"]["hits"]] == [int(id) for id in ids(actual)]
    else:  # a script fails for a hit that is on no page of the user
        script = f"if (doc['n'].value == {plain[-1]['_id']}) {{ throw new Exception('no') }} return 1"
        body = {**WORDS, "size": 3, "script_fields": {"one": {"script": script}}, "_source": True}
        actual, counters = hook.counted(body, "spread")
        assert counters == {"failed.search": 1}
        assert actual["hits"] == hook.plain(body, "spread", "search_pipeline=theirs")["hits"]
    assert actual["hits"]["total"]["value"] == COUNT / 2


def test_a_pattern_uses_the_pipeline_of_the_index_that_set_it(hook: Hook, dummy: Dummy) -> None:
    with hook.node.changed({DEFAULT: "hook"}, "cells"):
        plain = hook.plain({**WORDS, "size": 60}, "cells,spread", "search_pipeline=_none")
        actual = hook.plain({**WORDS, "size": 60}, "ce*,sp*")
        assert [(h["_index"], h["_id"]) for h in actual["hits"]["hits"]] == [
            (h["_index"], h["_id"]) for h in plain["hits"]["hits"]
        ][::-1]
        assert len(dummy.last["places"]["uuids"]) == 2
