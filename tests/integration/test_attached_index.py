"""An attached index that its owner changes: aliases, renamed fields, settings; and `encode --force`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank import Document, Qrels, Query, RerankError, Workspace, attach, encode, evaluate, train
from rerank.common.errors import UsageError
from rerank.documents.filters import filters_of
from rerank.engines.base import Encoder
from rerank.engines.opensearch import Settings
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.formats import read_template
from tests.support.cli import run_here as run
from tests.support.service import wait_until
from tools.opensearch_node import Node

ALIAS = "library"
FIELDS = {"title": ["name"], "text": ["body"]}
PROPERTIES = {
    "name": {"type": "text"},
    "body": {"type": "text", "analyzer": "standard"},
    "year": {"type": "integer"},
}
COUNT = 30


def lengths(documents: Sequence[Document]) -> np.ndarray:
    return np.array([[len(document.text), 1] for document in documents], np.float32)


def doubles(documents: Sequence[Document]) -> np.ndarray:
    return 2 * lengths(documents)


def index(
    node: Node, name: str, properties: dict[str, Any] = PROPERTIES, *, first: int = 0, **settings: Any
) -> None:
    """Create an index with documents, and make the alias point only to it."""
    body = {"mappings": {"properties": properties}, "settings": {"number_of_replicas": 0, **settings}}
    node.request("PUT", f"/{name}", body)
    title, text = list(properties)[:2]
    for i in range(first, first + COUNT):
        source = {title: f"wolf {i}", text: "grey wolf " * (1 + i % 7) + str(i), "year": 2000 + i}
        node.request("PUT", f"/{name}/_doc/d{i}", source)
    node.request("POST", f"/{name}/_refresh")
    swap = [{"remove": {"index": "library-*", "alias": ALIAS, "must_exist": False}}]
    node.request("POST", "/_aliases", {"actions": [*swap, {"add": {"index": name, "alias": ALIAS}}]})


@pytest.fixture
def library(node: Node, tmp_path: Path) -> Iterator[Workspace]:
    index(node, "library-1")
    settings = {"url": [node.url], "index": ALIAS, "fields": FIELDS}
    folder = tmp_path / "ws"
    yield Workspace.create(folder, lang="en", engine="opensearch", settings=settings, attach=True)
    for name in node.request("GET", "/library-*"):
        node.request("DELETE", f"/{name}")


def missing(workspace: Workspace, name: str, version: str) -> int:
    actual = workspace.engine.find(
        SearchRequest("wolf", first_stage="bm25", depth=COUNT, features={name: version})
    )
    assert len(actual) == COUNT
    values = doubles if version == "v2" else lengths
    documents = [one for one in workspace.engine.get(actual.ids) if one is not None]
    there = ~actual.missing[name]
    if there.any():
        assert (actual.features[name][there] == values(documents)[there]).all()
    return int(actual.missing[name].sum())


def test_force_replaces_the_features_of_its_rankers_only(library: Workspace) -> None:
    one, two = Encoder("one", "v1", lengths), Encoder("two", "v1", lengths)
    newer = Encoder("two", "v2", doubles)
    library.engine.write_features([one, two])
    library.engine.write_features([newer], keep={"two": ["v1"]})
    done = library.engine.write_features([newer], force=True, keep={"two": ["v1"]})
    assert done == {"two": COUNT}
    for name, version in (("one", "v1"), ("two", "v1"), ("two", "v2")):
        assert missing(library, name, version) == 0
        assert library.engine.missing_features(name, version) == 0
    # A workspace in another process uses the same files.
    assert missing(Workspace.open(library.folder), "two", "v2") == 0


def test_searches_return_the_ids_of_the_cluster(library: Workspace, node: Node, tmp_path: Path) -> None:
    """Ids of encoded documents are read from the workspace, which is faster. They must never be old."""
    encoder, words = Encoder("one", "v1", lengths), {"fields": ["name", "body"], "type": "most_fields"}
    template = tmp_path / "own.json"
    template.write_text(json.dumps({"query": {"multi_match": {"query": "{{text}}", **words}}}))
    search = read_template(f"template:{template}")
    assert search is not None
    requests = [
        SearchRequest("grey wolf", "bm25", 100),
        SearchRequest("", "search", 100, template=FilledTemplate(search, Query("q", "grey wolf"))),
    ]

    def check() -> None:
        body = {"query": {"multi_match": {"query": "grey wolf", **words}}, "size": 100}
        hits = node.request("POST", f"/{ALIAS}/_search", body)["hits"]["hits"]
        for request in requests:
            actual = library.engine.find(request)
            assert dict(zip(actual.ids, actual.scores)) == {hit["_id"]: hit["_score"] for hit in hits}

    check()
    library.engine.write_features([encoder])
    check()
    node.request("PUT", "/library-1/_doc/d3", {"name": "wolf", "body": "a wolf"})
    node.request("PUT", "/library-1/_doc/new", {"name": "wolf", "body": "a grey wolf"})
    node.request("DELETE", "/library-1/_doc/d4?refresh=true")
    check()
    library.engine.write_features([encoder])
    check()
    node.request("DELETE", "/library-1")
    index(node, "library-1", first=5)  # the sequence numbers are of other ids
    check()


def test_searches_use_the_current_index_of_the_alias(library: Workspace, node: Node) -> None:
    """The result window and the field types come from the present index of the alias."""
    recent = filters_of(["year>=2020"])

    def found() -> int:
        return len(library.engine.find(SearchRequest("wolf", first_stage="bm25", depth=100, filters=recent)))

    assert found() == 10
    index(node, "library-2", {**PROPERTIES, "year": {"type": "keyword"}}, max_result_window=20)

    def refused() -> bool:
        try:
            found()
        except RerankError as error:
            return "of type keyword" in str(error)
        return False

    def windowed() -> bool:
        with contextlib.suppress(RerankError):
            return len(library.engine.find(SearchRequest("wolf", first_stage="bm25", depth=19))) == 19
        return False

    wait_until(refused)
    wait_until(windowed)


def test_encode_refuses_an_index_without_the_configured_fields(library: Workspace, node: Node) -> None:
    encoder = Encoder("one", "v1", lengths)
    library.engine.write_features([encoder])
    index(node, "library-2", {"headline": {"type": "text"}, "body": {"type": "text"}})
    with pytest.raises(UsageError, match=r"no field .name."):
        library.engine.write_features([encoder])
    run("encode", "-w", library.folder).fails(2, "no field 'name'")
    # With the right fields, all documents are read again.
    file = library.folder / "rerank.toml"
    file.write_text(file.read_text().replace('title = ["name"]', 'title = ["headline"]'))
    repaired = Workspace.open(library.folder)
    repaired.engine.write_features([encoder])
    assert missing(repaired, "one", "v1") == 0


def test_documents_of_a_moved_alias_are_not_encoded_again(library: Workspace, node: Node) -> None:
    queries = [Query(f"q{i}", f"wolf {i}") for i in range(20)]
    qrels = Qrels((f"q{i}", f"d{i}", 1) for i in range(20))
    train(library, ["lsi"], queries=queries, qrels=qrels, config={"dim": 2})
    (version,) = library.versions().values()
    index(node, "library-2")
    assert library.engine.missing_features("lsi", version) == 0  # the texts are known
    node.request("PUT", "/library-2/_doc/new?refresh=true", {"name": "fox", "body": "red fox"})
    assert library.engine.missing_features("lsi", version) == 1
    node.request("DELETE", "/library-2/_doc/new?refresh=true")
    assert encode(library).encoded == {"lsi": 0}


@contextlib.contextmanager
def shelf(node: Node, properties: dict[str, Any], sources: Sequence[dict[str, Any]]) -> Iterator[Settings]:
    """Create an index with documents for the block."""
    body = {"mappings": {"properties": properties}, "settings": {"number_of_replicas": 0}}
    node.request("PUT", "/shelf", body)
    for position, source in enumerate(sources):
        node.request("PUT", f"/shelf/_doc/{position}", source)
    node.request("POST", "/shelf/_refresh")
    try:
        yield Settings((node.url,), "shelf")
    finally:
        node.request("DELETE", "/shelf")


def test_an_index_that_left_the_alias_is_not_owned(library: Workspace, node: Node) -> None:
    """The hook must not rerank its hits as documents of the workspace; a new index is owned at once."""

    def uuid(name: str) -> str:
        return node.request("GET", f"/{name}")[name]["settings"]["index"]["uuid"]

    source = library.engine.hook_source()
    assert source is not None
    before = uuid("library-1")
    assert source.owned([before]) == [True]
    index(node, "library-2")
    assert source.owned([uuid("library-2"), before]) == [True, False]
    move = [
        {"remove": {"index": "library-2", "alias": ALIAS}},
        {"add": {"index": "library-1", "alias": ALIAS}},
    ]
    node.request("POST", "/_aliases", {"actions": move})
    wait_until(lambda: source.owned([uuid("library-2"), before]) == [False, True])


def test_a_document_in_two_indices_of_an_alias_counts_once(library: Workspace, node: Node) -> None:
    index(node, "library-2")
    node.request("PUT", "/library-2/_doc/d3?refresh=true", {"name": "wolf", "body": "a short text"})
    node.request("POST", "/_aliases", {"actions": [{"add": {"index": "library-1", "alias": ALIAS}}]})
    engine = Workspace.open(library.folder).engine
    ids = [f"d{i}" for i in range(COUNT)]
    candidates = engine.find(SearchRequest("wolf", "bm25", 100))
    assert sorted(candidates.ids) == engine.ids() == sorted(ids)
    assert sorted(document.id for document in engine.documents()) == sorted(ids)
    assert [document.id for document in engine.get(ids) if document is not None] == ids
    selected = engine.find(SearchRequest("wolf", "bm25", ids=ids))
    assert (selected.ids, selected.scores.tolist()) == (candidates.ids, candidates.scores.tolist())
    assert engine.score("wolf", "bm25", candidates).tolist() == candidates.scores.tolist()
    engine.write_features([Encoder("one", "v1", lengths)])
    assert not engine.find(SearchRequest("wolf", "bm25", 100, features={"one": "v1"})).missing["one"].any()
    qrels = Qrels([("q", candidates.ids[0], 1)])
    report = evaluate(library, ["bm25"], queries=[Query("q", "wolf")], qrels=qrels, measures=["nDCG@10"])
    assert report.results[0].measures["nDCG@10"] == 1.0


TEXT = {"type": "text"}
UNREADABLE: list[tuple[dict[str, Any], dict[str, list[str]], str]] = [
    ({"all": TEXT, "name": {**TEXT, "copy_to": "all"}}, {"text": ["all"]}, "'all'"),
    ({"all": TEXT, "name": {**TEXT, "copy_to": "all"}}, {"text": ["name"], "categories": ["all"]}, "'all'"),
    ({"parts": {"type": "nested", "properties": {"body": TEXT}}}, {"text": ["parts.body"]}, "'parts.body'"),
    ({"name": TEXT, "body": {**TEXT, "index": False}}, {"title": ["name"], "text": ["body"]}, "'body'"),
    ({"name": TEXT, "tag": {"type": "alias", "path": "name"}}, {"text": ["name"], "links": ["tag"]}, "'tag'"),
]


@pytest.mark.parametrize(("properties", "fields", "name"), UNREADABLE)
def test_fields_without_readable_texts_are_refused(
    node: Node, tmp_path: Path, properties: dict[str, Any], fields: dict[str, list[str]], name: str
) -> None:
    source = {"name": "wolf", "body": "a wolf", "parts": [{"body": "a wolf"}]}
    with shelf(node, properties, [source]) as settings:
        with pytest.raises(UsageError, match=name):
            attach(tmp_path / "ws", fields, opensearch=settings)
        assert not Workspace.exists(tmp_path / "ws")


def test_filters_on_fields_of_every_kind_apply_or_are_refused(node: Node, tmp_path: Path) -> None:
    keyword = {"type": "keyword"}
    parts = {"type": "nested", "properties": {"tag": keyword, "pages": {"type": "integer"}}}
    hidden = {**keyword, "index": False, "doc_values": False}
    properties = {"name": TEXT, "parts": parts, "until": {"type": "date"}, "place": keyword, "hidden": hidden}
    sources = [
        {
            "name": "wolf",
            "parts": [{"tag": "a", "pages": 3}],
            "until": "9999-12-31",
            "place": "Orle\u0301ans",
        },
        {"name": "wolf", "parts": [{"tag": "b", "pages": 9}], "until": "2020-01-01", "place": "Orl\u00e9ans"},
    ]
    with shelf(node, properties, sources) as settings:
        attach(tmp_path / "ws", {"title": ["name"]}, opensearch=settings)
        engine = Workspace.open(tmp_path / "ws").engine

        def matches(text: str) -> list[str]:
            return sorted(engine.find(SearchRequest("wolf", "bm25", 9, filters_of(text))).ids)

        assert matches("parts.tag=a") == ["0"]
        assert matches("parts.pages>=4") == ["1"]
        assert matches("until>2025-01-01") == ["0"]
        assert matches("place=Orl\u00e9ans") == matches("place=Orle\u0301ans") == ["0", "1"]
        for text in ("hidden=a", "parts.tags=a", "untill>2025", "parts=a"):
            with pytest.raises(UsageError, match=text.partition("=")[0].partition(">")[0]):
                matches(text)
        with pytest.raises(UsageError, match="nested"):
            engine.field_values(["0"], ["parts.pages"])
