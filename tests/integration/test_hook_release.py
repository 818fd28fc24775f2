"""The plugin on the oldest release of OpenSearch, or on the release that RERANK_TEST_RELEASE names."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.hook import COUNT, NUMBERS, PLACES, TOKEN, WHOLE, WORDS, Dummy, Hook, fill, ids
from tests.support.opensearch import unavailable
from tools.opensearch_node import CannotRunError, Node
from tools.opensearch_plugin import SETTINGS, build, set_token

RELEASE = os.environ.get("RERANK_TEST_RELEASE", "3.0.0")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def released() -> Iterator[Node]:
    try:
        started = Node(version=RELEASE, heap="512m", plugins=[build(RELEASE)], settings=SETTINGS)
    except CannotRunError as error:
        unavailable(error)
    try:
        set_token(started, TOKEN)
        fill(started.start().wait())
        yield started
    finally:
        started.stop()


@pytest.fixture
def hook(released: Node, dummy: Dummy) -> Hook:
    return Hook(released, dummy.url)


def test_searches_have_the_order_of_the_service(hook: Hook, dummy: Dummy) -> None:
    (about,) = hook.node.request("GET", "/_nodes/plugins")["nodes"].values()
    assert (about["version"], [plugin["name"] for plugin in about["plugins"]]) == (RELEASE, ["rerank"])
    for fields in (WHOLE, PLACES):
        dummy.reverse(requested_fields=fields)
        assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
    assert dummy.seen[-1][1]["Authorization"] == f"Bearer {TOKEN}"
    order = ids(hook.plain({**WORDS, "size": COUNT}, "spread"))
    assert ids(hook.search({**WORDS, "from": 7, "size": 9}, "spread")) == order[::-1][7:16]


def test_groups_keep_their_best_hits(hook: Hook) -> None:
    order = ids(hook.plain({**WORDS, "size": COUNT}, "spread"))
    last_of_kind = {int(id) % 2: id for id in order}
    answer = hook.search({**WORDS, "collapse": {"field": "kind"}}, "spread")
    assert sorted(ids(answer)) == sorted(last_of_kind.values())


def test_a_search_is_repeated_if_its_candidates_fail(hook: Hook) -> None:
    script = "if (doc['n'].value == 3) { throw new IllegalArgumentException('no') } return 1"
    body = {**WORDS, "size": 2, "explain": True, "script_fields": {"one": {"script": script}}}
    answer, counters = hook.counted(body)
    assert (ids(answer), counters) == (NUMBERS[:2], {"failed.search": 1})


def test_options_are_read_from_both_names(hook: Hook, dummy: Dummy) -> None:
    options = {"rerank": {"query_context": {"query_text": "my words"}}, "rerank_stack": {"explain": True}}
    answer = hook.search({"query": {"match_all": {}}, "ext": options})
    assert answer["ext"]["rerank_stack"]["outcome"] == "reranked"
    assert dummy.last["rerank"]["query"] == "my words"


def test_a_search_keeps_its_order_without_the_service(hook: Hook, dummy: Dummy) -> None:
    dummy.end()
    answer, counters = hook.counted(WORDS)
    assert (ids(answer), counters) == (NUMBERS[:10], {"failed.refused": 1})
