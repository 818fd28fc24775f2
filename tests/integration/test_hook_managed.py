"""The build for managed clusters, which only adds a processor of search pipelines."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

import pytest

from tests.support.hook import COUNT, NUMBERS, PLACES, TOKEN, WHOLE, WORDS, Dummy, Hook, fill, ids
from tests.support.opensearch import unavailable
from tools.opensearch_node import CannotRunError, Node, free_port
from tools.opensearch_plugin import build, set_token

PORT = free_port()
OTHER_PORT = free_port()
OPTIONS = (
    "-Pmanaged",
    f"-Dallowed.urls=http://127.0.0.1:{PORT},http://127.0.0.1:{OTHER_PORT}",
    f"-Dconnect.to=127.0.0.1:{PORT}",
)
"""Of the build. Its policy lets it connect to one of two allowed services."""


@pytest.fixture(scope="module")
def managed() -> Iterator[Node]:
    """A node without any setting of the plugin: the build contains the URL of the service."""
    try:
        archive = build("3.6.0", *OPTIONS)
    except CannotRunError as error:
        unavailable(error)
    node = Node(heap="768m", plugins=[archive])
    try:
        set_token(node, TOKEN)
        fill(node.start().wait())
        yield node
    finally:
        node.stop()


def test_the_build_has_another_name_and_class() -> None:
    archive = build("3.6.0", *OPTIONS)
    assert archive.name == "opensearch-rerank-managed-0.1.0-for-3.6.0.zip"
    with zipfile.ZipFile(archive) as packed:
        about = packed.read("plugin-descriptor.properties").decode()
    assert "classname=rerank.opensearch.ManagedPlugin\n" in about


def test_searches_are_reranked_with_the_token_of_the_keystore(managed: Node) -> None:
    dummy = Dummy(PORT)
    try:
        hook = Hook(managed, dummy.url)
        for fields in (WHOLE, PLACES):
            dummy.reverse(requested_fields=fields)
            assert ids(hook.search(WORDS)) == NUMBERS[::-1][:10]
        assert dummy.seen[-1][1]["Authorization"] == f"Bearer {TOKEN}"
        body = {**WORDS, "size": 15}
        pages = [ids(hook.search({**body, "from": begin}, "spread")) for begin in (0, 15)]
        whole = ids(hook.plain({**WORDS, "size": COUNT}, "spread"))
        assert [*pages[0], *pages[1]] == whole[::-1]
        assert ids(hook.search({**WORDS, "collapse": {"field": "kind"}})) == ["29", "28"]
        with pytest.raises(ValueError, match="must be among the URLs"):
            Hook(managed, "http://127.0.0.1:1")
    finally:
        dummy.end()
    assert ids(hook.search(WORDS)) == NUMBERS[:10]  # the service does not answer


def test_the_node_refuses_connections_that_the_policy_of_the_build_does_not_name(managed: Node) -> None:
    dummy = Dummy(OTHER_PORT)
    try:
        hook = Hook(managed, dummy.url)
        assert ids(hook.search(WORDS)) == NUMBERS[:10]
        assert dummy.seen == []
        hook.configure(on_failure="error")
        with pytest.raises(ValueError, match="rerank: error"):
            hook.search(WORDS)
    finally:
        dummy.end()


def test_it_has_no_endpoint_and_no_options_of_a_search(managed: Node) -> None:
    with pytest.raises(ValueError, match="no handler found"):
        managed.request("GET", "/_plugins/_rerank_stack/stats")
    with pytest.raises(ValueError, match=r"400 .*SearchExtBuilder"):
        managed.request("POST", "/cells/_search", {**WORDS, "ext": {"rerank_stack": {"off": True}}})
