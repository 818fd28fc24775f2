"""The plugin on a node with ML Commons and neural-search, as in OpenSearch's packages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hook import COUNT, NUMBERS, WORDS, Dummy, Hook, fill, ids
from tools.opensearch_node import Node


@pytest.fixture(scope="module")
def full(ml_node: Node) -> Iterator[Node]:
    fill(ml_node)
    yield ml_node
    ml_node.request("DELETE", "/cells,spread,small")
    ml_node.request("DELETE", "/_search/pipeline/*")


@pytest.fixture
def hook(full: Node, dummy: Dummy) -> Hook:
    return Hook(full, dummy.url)


def test_a_node_with_neural_search_reranks_searches(hook: Hook) -> None:
    assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    assert ids(hook.plain(WORDS)) == NUMBERS[:10]
    assert len(ids(hook.search({**WORDS, "ext": {"rerank_stack": {"stack": "other"}}}, "spread"))) == 10


def test_a_hybrid_search_keeps_its_normalization(hook: Hook) -> None:
    """This also holds if the search is repeated because shards fail with the hook's fields."""
    technique = {"normalization": {"technique": "min_max"}, "combination": {"technique": "arithmetic_mean"}}
    theirs = {"phase_results_processors": [{"normalization-processor": technique}]}
    hook.node.request("PUT", "/_search/pipeline/theirs", theirs)
    ours = {"request_processors": [{"rerank_stack": {"url": hook.url, "timeout": 20000}}]}
    ours["response_processors"] = [{"rerank_stack": {}}]
    hook.node.request("PUT", "/_search/pipeline/hook", {**theirs, **ours})
    match = {"match": {"text": "cell"}}
    body = {"query": {"hybrid": {"queries": [match, {"match": {"text": "filler"}}]}}, "size": 3}
    plain = hook.plain({**body, "size": COUNT}, "spread", "search_pipeline=theirs")["hits"]["hits"]
    actual, counters = hook.counted(body, "spread")
    assert (ids(actual), counters) == ([hit["_id"] for hit in plain][::-1][:3], {"reranked": 1})
    script = (
        f"if (doc['n'].value == {plain[-1]['_id']}) {{ throw new IllegalArgumentException('no') }} return 1"
    )
    body["script_fields"] = {"one": {"script": script}}
    actual, counters = hook.counted(body, "spread")
    assert counters == {"failed.search": 1}
    assert actual["hits"] == hook.plain(body, "spread", "search_pipeline=theirs")["hits"]


def test_the_rerank_processor_of_neural_search_still_works(hook: Hook) -> None:
    rerank = {"by_field": {"target_field": "n", "remove_target_field": False}}
    hook.node.request("PUT", "/_search/pipeline/theirs", {"response_processors": [{"rerank": rerank}]})
    actual = hook.node.request("POST", "/cells/_search?search_pipeline=theirs", {**WORDS, "size": 3})
    assert ids(actual) == ["2", "1", "0"]


def test_both_plugins_read_the_words_of_the_query_context(hook: Hook, dummy: Dummy) -> None:
    body = {"query": {"match_all": {}}, "ext": {"rerank": {"query_context": {"query_text": "my words"}}}}
    answer, counters = hook.counted(body, "spread")
    assert (len(ids(answer)), counters) == (10, {"reranked": 1})
    assert dummy.last["rerank"] == {"query": "my words"}
