"""Document- and field-level security: the hook shows, sends and reads only data that the user may see.

A test plugin (tests/support/rights_plugin) hides documents and fields by a header of the request. It wraps
index readers, as OpenSearch's security plugin does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rerank.workspace.workspace import Workspace
from tests.support.hook import PLACES, WORDS, Dummy, Hook, ids, requested, reverse, without_took
from tests.support.service import Server, serving, wait_until
from tools.opensearch_node import Node
from tools.opensearch_plugin import put_pipeline

COUNT = 30
SECRET = {
    str(i) for i in range(0, COUNT, 3)
}  # documents that the clerk may not see; the clerk sees no kind either
SEEN = {"chief": [str(i) for i in range(COUNT)], "clerk": [str(i) for i in range(COUNT) if i % 3]}
REQUESTED = requested("text@v", "meta@w", ids=True)


@pytest.fixture(scope="module")
def guarded(hooked: Node) -> Iterator[Node]:
    mapping = hooked.request("GET", "/cells/_mapping")["cells"]["mappings"]
    mapping["properties"]["secret"] = {"type": "keyword"}
    hooked.request("PUT", "/guarded", {"mappings": mapping, "settings": {"number_of_replicas": 0}})
    for i in range(COUNT):
        source = hooked.request("GET", f"/cells/_source/{i}")
        source["secret"] = "yes" if str(i) in SECRET else "no"
        features = {**source.get("rerank_features", {}), "text@v": "AAAA", "meta@w": "AAAB"}
        hooked.request("PUT", f"/guarded/_doc/{i}", {**source, "rerank_features": features})
    hooked.request("POST", "/guarded/_refresh")
    yield hooked
    hooked.request("DELETE", "/guarded")


@pytest.fixture(params=["whole", "places"])
def hook(guarded: Node, dummy: Dummy, request: pytest.FixtureRequest) -> Hook:
    """A hook with whole candidates, or with candidates without ids and a second search for the page."""
    hook = Hook(guarded, dummy.url)
    hook.bare = request.param == "places"
    dummy.reverse(requested_fields=PLACES if hook.bare else REQUESTED)
    return hook


def search(hook: Hook, user: str | None, body: dict[str, Any], pipeline: str = "hook") -> dict[str, Any]:
    """Return the answer to a search of this user."""
    headers = {"x-user": user} if user else {}
    found: dict[str, Any] = hook.node.request(
        "POST", f"/guarded/_search?search_pipeline={pipeline}", body, **headers
    )
    return found


def rights(hook: Hook) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = hook.node.request("GET", "/_rights")
    return found


def test_the_test_plugin_hides_documents_and_fields(hook: Hook) -> None:
    everything = {**WORDS, "size": COUNT, "docvalue_fields": ["kind"]}
    for user, seen in SEEN.items():
        answer = search(hook, user, everything, "_none")
        assert ids(answer) == seen
        assert all(("kind" in hit["_source"]) == (user == "chief") for hit in answer["hits"]["hits"])
        assert all(("fields" in hit) == (user == "chief") for hit in answer["hits"]["hits"])
    assert ids(search(hook, None, everything, "_none")) == []


@pytest.mark.parametrize("user", SEEN)
@pytest.mark.parametrize(
    "more",
    [{}, {"size": COUNT}, {"highlight": {"fields": {"text": {}}}}, {"docvalue_fields": ["kind", "n"]},
     {"fields": ["*"]}, {"ext": {"rerank_stack": {"explain": True}}}],
    ids=str,
)  # fmt: skip
def test_a_reranked_search_shows_the_same_as_a_plain_search(
    hook: Hook, user: str, more: dict[str, Any]
) -> None:
    body = {**WORDS, **more}
    search(hook, user, body)  # the first answer contains the service's requested_fields
    plain = {hit["_id"]: hit for hit in search(hook, user, {**body, "size": COUNT}, "_none")["hits"]["hits"]}
    actual = search(hook, user, body)
    assert ids(actual) == SEEN[user][::-1][: body.get("size", 10)]
    assert actual["hits"]["total"]["value"] == len(SEEN[user])
    for hit in actual["hits"]["hits"]:
        hit.get("fields", {}).pop("_rerank", None)
        for part in ("_source", "highlight"):
            assert hit.get(part) == plain[hit["_id"]].get(part)
        assert (hit.get("fields") or None) == plain[hit["_id"]].get("fields")


@pytest.mark.parametrize("user", SEEN)
def test_the_service_receives_only_data_that_the_user_may_see(hook: Hook, dummy: Dummy, user: str) -> None:
    search(hook, user, WORDS)
    search(hook, user, WORDS)
    call = dummy.last
    named = call["ids"]
    if named[0] == "000000":  # documents were indexed in the order of their ids
        named = [str(number) for number in call["places"]["seq_nos"]]
    assert named == SEEN[user]
    assert call["features"]["text@v"] == ["AAAA"] * len(SEEN[user])
    assert call["features"]["meta@w"] == ["AAAB" if user == "chief" else None] * len(SEEN[user])
    assert user not in json.dumps([headers for _, headers, _ in dummy.seen])


def test_no_data_is_read_with_the_rights_of_others(hook: Hook) -> None:
    """The second search also has the rights of the user. No other reader is opened."""
    for user in SEEN:
        before = rights(hook)["readers"]
        for more in ({}, {"highlight": {"fields": {"text": {}}}}, {"from": 5}):
            search(hook, user, {**WORDS, **more})
        after = rights(hook)["readers"]
        assert {name for name in after if after[name] != before.get(name, 0)} == {user}


def test_hidden_documents_named_by_the_service_are_not_shown(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Any, body: dict[str, Any]) -> None:
        sent = reverse(body, requested_fields=REQUESTED)
        handler.send({**sent, "ids": ["0", *sent["ids"][1:]]})

    dummy.answering = answer
    # the answer is invalid, so the order is the first stage's
    assert ids(search(hook, "clerk", WORDS)) == SEEN["clerk"][:10]


def test_users_are_not_confused_under_load(hook: Hook) -> None:
    def asks(number: int) -> bool:
        user = ("chief", "clerk")[number % 2]
        return ids(search(hook, user, WORDS)) == SEEN[user][::-1][:10]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asks, range(80)))


def test_documents_hidden_during_scoring_are_not_shown(hook: Hook, dummy: Dummy) -> None:
    """They become hidden between the search for candidates and the page."""

    source = hook.node.request("GET", "/cells/_source/29")
    source["rerank_features"] = {"text@v": "AAAA", "meta@w": "AAAB"}

    def set_secret(value: str) -> None:
        hook.node.request("PUT", "/guarded/_doc/29?refresh=true", {**source, "secret": value})

    def answer(handler: Any, body: dict[str, Any]) -> None:
        set_secret("yes")
        handler.send(reverse(body, requested_fields=REQUESTED))

    search(hook, "clerk", WORDS)
    usual = dummy.answering
    dummy.answering = answer
    try:
        actual = ids(search(hook, "clerk", WORDS))
        after = ids(search(hook, "clerk", {**WORDS, "size": COUNT}, "_none"))
    finally:
        dummy.answering = usual
        set_secret("no")
    assert "29" not in after
    if hook.bare:  # whole hits were read before the change, when the user could still see the document
        assert "29" not in actual


@pytest.fixture
def retrieving(hook: Hook, dummy: Dummy) -> Hook:
    """A pipeline for which the service names all documents of the index, also hidden ones."""
    hook.configure(retrieve=True, words=["text"], depth=5)
    dummy.retrieve(hook.node, "guarded", *SEEN["chief"])
    return hook


@pytest.mark.parametrize("user", SEEN)
@pytest.mark.parametrize(
    "aggs", [{}, {"aggs": {"secrets": {"terms": {"field": "secret"}}}}], ids=["", "aggs"]
)
def test_added_documents_are_visible_to_the_user(
    retrieving: Hook, dummy: Dummy, user: str, aggs: dict[str, Any]
) -> None:
    search(retrieving, user, WORDS)
    before = rights(retrieving)["readers"]
    answer = search(retrieving, user, {**WORDS, "size": COUNT, **aggs})
    after = rights(retrieving)["readers"]
    assert sorted(ids(answer)) == sorted(SEEN[user])
    assert answer["hits"]["total"]["value"] == len(SEEN[user])
    assert {name for name in after if after[name] != before.get(name, 0)} == {user}
    call = dummy.last
    assert call["first"] == 5
    assert len(call["ids"]) == len(SEEN[user])
    assert call["features"]["meta@w"] == ["AAAB" if user == "chief" else None] * len(SEEN[user])
    if aggs and user == "clerk":
        assert {bucket["key"] for bucket in answer["aggregations"]["secrets"]["buckets"]} <= {"no"}


def test_a_filter_of_a_hidden_field_adds_nothing(retrieving: Hook) -> None:
    """The clerk cannot find documents by the field, also not the documents that the service names."""
    query = {"bool": {"must": WORDS["query"], "filter": {"term": {"kind": "a"}}}}
    for user, count in (("chief", COUNT // 2), ("clerk", 0)):
        search(retrieving, user, {"query": query})
        assert len(ids(search(retrieving, user, {"query": query, "size": COUNT}))) == count


def test_users_are_not_confused_under_load_with_added_documents(retrieving: Hook) -> None:
    search(retrieving, "chief", WORDS)

    def is_right(number: int) -> bool:
        user = ("chief", "clerk")[number % 2]
        return sorted(ids(search(retrieving, user, {**WORDS, "size": COUNT}))) == sorted(SEEN[user])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(60)))


@pytest.fixture(scope="module")
def ledger(hooked: Node, script: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with an index. The clerk sees neither its numbers (pay) nor one of its texts (note)."""
    types = {"text": "text", "note": "text", "pay": "integer", "secret": "keyword"}
    properties = {name: {"type": kind} for name, kind in types.items()}
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    hooked.request("PUT", "/guarded-ledger", {"mappings": {"properties": properties}, "settings": settings})
    for i in range(10):
        note = "bankruptcy" if i == 4 else "nothing"
        source = {"text": "cell " * (10 - i), "note": note, "pay": 51_000 + i * i, "secret": "no"}
        hooked.request("PUT", f"/guarded-ledger/_doc/{i}", source)
    hooked.request("POST", "/guarded-ledger/_refresh")
    folder = tmp_path_factory.mktemp("ledger")
    fields = {"text": ["text", "note"]}
    cluster = {"url": [hooked.url], "index": "guarded-ledger", "fields": fields, "user": "chief"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RERANK_OPENSEARCH_PASSWORD", "secret")
        patch.setenv("RERANK_OPENSEARCH_HOSTS", hooked.url.removeprefix("http://"))
        Workspace.create(folder / "ws", lang="en", engine="opensearch", settings=cluster, attach=True)
        with serving(script, folder / "ws", folder, "--only", "hook") as started:
            yield started
    hooked.request("DELETE", "/guarded-ledger")


LEAKS = (
    {"stack": "bm25*0.5 + field:pay*0.5"},
    {"stack": "field:pay"},
    {"stack": "search*1 + bm25*1", "query": "bankruptcy"},
    {"stack": "bm25*1 + tfidf*1", "query": "bankruptcy"},
    {"stack": "bm25*0.5 + field:nope*0.5"},
    {"stack": "bm25*0.5 + unknown*0.5"},
)
"""Options of a search that make the service read what the user may not read."""


def search_ledger(node: Node, pipeline: str, **options: object) -> dict[str, Any]:
    body = {**WORDS, "ext": {"rerank_stack": {"explain": True, **options}}}
    path = f"/guarded-ledger/_search?search_pipeline={pipeline}"
    found: dict[str, Any] = node.request("POST", path, body, **{"x-user": "clerk"})
    return found


@pytest.mark.parametrize("leak", LEAKS, ids=str)
def test_a_search_cannot_make_the_service_show_hidden_values(
    hooked: Node, ledger: Server, leak: dict[str, str]
) -> None:
    put_pipeline(hooked, "ledger", url=ledger.url, stack="bm25", timeout=20_000)
    plain = search_ledger(hooked, "_none", off=True)
    answer = search_ledger(hooked, "ledger", **leak)
    told = answer.pop("ext")["rerank_stack"]
    assert told["outcome"] in ("passed", "failed")
    assert without_took(answer) == without_took(plain)
    assert "pay" not in json.dumps([answer, told])
    assert set(told) == {"outcome", "reason", "took_ms"}


def test_a_pipeline_can_allow_stacks_and_values(hooked: Node, ledger: Server) -> None:
    stack, settings = "bm25*0.5 + field:pay*0.5", {"url": ledger.url, "timeout": 20_000}
    for allowing in ({"stack": stack}, {"stack": "bm25", "stacks": [stack]}):
        put_pipeline(hooked, "ledger", **settings, **allowing)
        answer = search_ledger(hooked, "ledger", stack=stack)
        assert answer["ext"]["rerank_stack"]["outcome"] == "reranked"
        for hit in answer["hits"]["hits"]:
            (about,) = hit["fields"]["_rerank"]
            assert set(about["signals"]["field:pay"]) == {"normalized", "weighted"}
    put_pipeline(hooked, "ledger", **settings, stack=stack, raw_values=True)
    answer = search_ledger(hooked, "ledger")
    raw = {
        hit["_id"]: hit["fields"]["_rerank"][0]["signals"]["field:pay"]["raw"]
        for hit in answer["hits"]["hits"]
    }
    assert raw == {str(i): 51_000 + i * i for i in range(10)}


def test_errors_of_the_service_are_in_the_log_of_the_node(hooked: Node, ledger: Server) -> None:
    stack = "bm25*0.5 + field:nope*0.5"
    put_pipeline(hooked, "ledger", url=ledger.url, stack=stack, timeout=20_000)
    told = search_ledger(hooked, "ledger")["ext"]["rerank_stack"]
    assert (told["outcome"], told["reason"], set(told)) == (
        "failed",
        "status_422",
        {"outcome", "reason", "took_ms"},
    )
    wait_until(lambda: "field 'nope'" in (hooked.folder / "output").read_text("utf-8"))
    put_pipeline(hooked, "ledger", url=ledger.url, stack=stack, timeout=20_000, on_failure="error")
    with pytest.raises(ValueError, match="status_422") as caught:
        search_ledger(hooked, "ledger")
    assert "pay" not in str(caught.value)
    assert "nope" not in str(caught.value)
