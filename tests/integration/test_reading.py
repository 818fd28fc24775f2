"""Reading all documents of an index in slices, also of indices that have no mapping yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.common.errors import EngineError
from rerank.engines.base import IndexSlice
from rerank.engines.opensearch import Settings
from rerank.engines.opensearch.index import Index
from rerank.engines.opensearch.reading import pages
from tools.opensearch_node import Node

SHARDS = {"settings": {"number_of_shards": 3, "number_of_replicas": 0}}


def read(node: Node, name: str, index_slice: IndexSlice | None = None) -> list[str]:
    index = Index(Settings((node.url,), name), Path())
    read_pages = pages(index, {"size": 2, "_source": False}, index_slice)
    return sorted(hit["_id"] for hits in read_pages for hit in hits)


def write(node: Node, index: str, ids: list[str]) -> None:
    for id in ids:
        node.request("PUT", f"/{index}/_doc/{id}?refresh=true", {"title": "wolf"} if id != "empty" else {})


@pytest.fixture
def unmapped(node: Node, name: str) -> str:
    """An alias of an index with several shards that no document was ever written to."""
    node.request("PUT", f"/{name}-1", {**SHARDS, "aliases": {name: {}}})
    return name


@pytest.mark.parametrize("index_slice", [None, IndexSlice(1, 2), IndexSlice(2, 2)])
def test_an_index_without_mapping_has_no_documents(node, unmapped, index_slice):
    assert read(node, unmapped, index_slice) == []


def test_an_index_without_mapping_does_not_hide_the_others_of_its_alias(node, unmapped):
    node.request("PUT", f"/{unmapped}-2", {**SHARDS, "aliases": {unmapped: {}}})
    ids = [str(number) for number in range(9)]
    write(node, f"{unmapped}-2", ids)
    assert read(node, unmapped) == ids
    parts = [read(node, unmapped, IndexSlice(number, 2)) for number in (1, 2)]
    assert sorted(parts[0] + parts[1]) == ids


def test_documents_without_fields_are_read(node, unmapped):
    write(node, f"{unmapped}-1", ["empty"])
    assert node.request("GET", f"/{unmapped}-1/_mapping") == {f"{unmapped}-1": {"mappings": {}}}
    assert read(node, unmapped) == ["empty"]


@pytest.mark.parametrize("index_slice", [None, IndexSlice(1, 2)])
def test_a_filtered_alias_with_an_index_without_mapping_is_explained(node, unmapped, index_slice):
    """Only the alias applies the filter, so the index that cannot be read in slices cannot be left out."""
    filtered = f"{unmapped}-filtered"
    alias = {"filter": {"match": {"title": "wolf"}}}
    node.request("PUT", f"/{unmapped}-1/_alias/{filtered}", alias)
    assert read(node, filtered, index_slice) == []
    node.request("PUT", f"/{unmapped}-2", {**SHARDS, "aliases": {filtered: alias}})
    write(node, f"{unmapped}-2", ["a", "b"])
    with pytest.raises(
        EngineError, match=f"{filtered}' has a filter and an index without mapping, {unmapped}-1"
    ):
        read(node, filtered, index_slice)
    node.request("PUT", f"/{unmapped}-1/_mapping", {"properties": {"title": {"type": "text"}}})
    parts = [read(node, filtered, IndexSlice(number, 2)) for number in (1, 2)]
    assert sorted(parts[0] + parts[1]) == ["a", "b"]
