"""Document- and field-level security: the hook shows, sends and reads what the same user's search may see.

A plugin for tests hides documents and fields by the header of who asks, in a wrapper of the readers, as
OpenSearch's security plugin does (tests/rights_plugin).
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.hook import PLACES, WORDS, Dummy, Hook, ids, requested, reverse
from tests.node import Node

COUNT = 30
SECRET = {
    str(i) for i in range(0, COUNT, 3)
}  # documents that the clerk may not see; the kind of none, either
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
    """Full candidates; or candidates without ids, and a second search for the page."""
    requested_fields = PLACES if request.param == "places" else REQUESTED
    dummy.answering = lambda handler, body: handler.send(reverse(body, requested_fields=requested_fields))
    hook = Hook(guarded, dummy.url)
    hook.bare = request.param != "whole"
    return hook


def search(hook: Hook, user: str | None, body: dict[str, Any], pipeline: str = "hook") -> dict[str, Any]:
    """What this user's search answers."""
    request = urllib.request.Request(
        f"{hook.node.url}/guarded/_search?search_pipeline={pipeline}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **({"x-user": user} if user else {})},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def rights(hook: Hook) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = hook.node.request("GET", "/_rights")
    return found


def test_the_tests_plugin_hides_as_it_should(hook: Hook) -> None:
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
def test_a_hooked_search_shows_what_a_plain_one_would(hook: Hook, user: str, more: dict[str, Any]) -> None:
    body = {**WORDS, **more}
    search(hook, user, body)  # the service's requested_fields come with the first answer
    plain = {hit["_id"]: hit for hit in search(hook, user, {**body, "size": COUNT}, "_none")["hits"]["hits"]}
    found = search(hook, user, body)
    assert ids(found) == SEEN[user][::-1][: body.get("size", 10)]
    assert found["hits"]["total"]["value"] == len(SEEN[user])
    for hit in found["hits"]["hits"]:
        hit.get("fields", {}).pop("_rerank", None)
        for part in ("_source", "highlight"):
            assert hit.get(part) == plain[hit["_id"]].get(part)
        assert (hit.get("fields") or None) == plain[hit["_id"]].get("fields")


@pytest.mark.parametrize("user", SEEN)
def test_the_service_hears_what_the_user_may_see(hook: Hook, dummy: Dummy, user: str) -> None:
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


def test_nothing_is_read_under_other_rights(hook: Hook) -> None:
    """The second search, too, is the user's: no reader is opened by anybody else."""
    for user in SEEN:
        before = rights(hook)["readers"]
        for more in ({}, {"highlight": {"fields": {"text": {}}}}, {"from": 5}):
            search(hook, user, {**WORDS, **more})
        after = rights(hook)["readers"]
        assert {name for name in after if after[name] != before.get(name, 0)} == {user}


def test_a_service_that_names_hidden_documents_shows_none(hook: Hook, dummy: Dummy) -> None:
    def answer(handler: Any, body: dict[str, Any]) -> None:
        sent = reverse(body, requested_fields=REQUESTED)
        handler.send({**sent, "ids": ["0", *sent["ids"][1:]]})

    dummy.answering = answer
    assert ids(search(hook, "clerk", WORDS)) == SEEN["clerk"][:10]  # as without the hook: a bad answer


def test_users_do_not_mix_under_load(hook: Hook) -> None:
    def asks(number: int) -> bool:
        user = ("chief", "clerk")[number % 2]
        return ids(search(hook, user, WORDS)) == SEEN[user][::-1][:10]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asks, range(80)))


def test_documents_that_become_hidden_meanwhile(hook: Hook, dummy: Dummy) -> None:
    """Between the candidates and the page."""

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
        found = ids(search(hook, "clerk", WORDS))
        after = ids(search(hook, "clerk", {**WORDS, "size": COUNT}, "_none"))
    finally:
        dummy.answering = usual
        set_secret("no")
    assert "29" not in after
    if hook.bare:  # whole hits were read before, by the user who might see them then
        assert "29" not in found
