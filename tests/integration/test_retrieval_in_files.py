"""Rankers retrieve documents of an attached index from feature files, under the conditions of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank import Document, Query, Workspace
from rerank.common.errors import InputError
from rerank.documents.filters import filters_of
from rerank.documents.records import Candidates
from rerank.engines.opensearch import OpenSearchEngine
from rerank.engines.search_request import FilledTemplate, SearchRequest
from rerank.formats import read_template
from tests.conformance.vector_rules import Case, found_by, queries
from tools.opensearch_node import Node

COUNT = 60
CASES = (Case("s2net", 0), Case("dense", 4))
TEXTS, ROWS = queries(8)


def document(number: int) -> Document:
    return Document(str(number), text=f"wolf {'abc'[number % 3]} {number}")


@pytest.fixture(scope="module", params=[1, 3])
def shelf(
    node: Node, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenSearchEngine]:
    """An attached index with features of every document, and no vectors in the index."""
    index = f"files-{request.param}"
    properties = {"body": {"type": "text"}, "year": {"type": "integer"}, "kind": {"type": "keyword"}}
    properties["p"] = {"type": "nested"}
    body = {
        "mappings": {"properties": properties},
        "settings": {"number_of_replicas": 0, "number_of_shards": request.param},
    }
    node.request("PUT", f"/{index}", body)
    for i in range(1, COUNT + 1):
        source = {"body": document(i).text, "year": 2000 + i, "kind": "ab"[i % 2]}
        node.request("PUT", f"/{index}/_doc/{i}", source)
    node.request("POST", f"/{index}/_refresh")
    settings = {"url": [node.url], "index": index, "fields": {"text": ["body"]}}
    folder = tmp_path_factory.mktemp("files") / "ws"
    workspace = Workspace.create(folder, lang="en", engine="opensearch", settings=settings, attach=True)
    engine = workspace.engine
    assert isinstance(engine, OpenSearchEngine)
    engine.write_features([case.encoder(encode=by_text(case), retrieves=False) for case in CASES])
    yield engine
    node.request("DELETE", f"/{index}")


def by_text(case: Case) -> Any:
    """Encode documents by the number in their text: ids are unknown to encoders of attached texts."""

    def encode(documents: Sequence[Document]) -> Any:
        return case.encode([Document(document.text.split()[-1]) for document in documents])

    return encode


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_nearest_documents_equal_brute_force(shelf: OpenSearchEngine, case: Case) -> None:
    assert shelf.count_missing_vectors(case.name, "v1") == 0
    for row in ROWS:
        for depth in (1, 7, COUNT):
            request = SearchRequest("c", "bm25", depth, retrievers=["bm25", case.by(row)])
            found = shelf.find(request)
            wanted = case.nearest([document(i) for i in range(1, COUNT + 1)], row, depth)
            assert found_by(found, case.name) == set(wanted)
            scores = dict(zip(found.ids, found.scores.tolist()))
            everything = shelf.find(SearchRequest("c", "bm25", ids=found.ids))
            assert scores == dict(zip(everything.ids, everything.scores.tolist()))


def searched(engine: OpenSearchEngine, folder: Path, body: str, row: np.ndarray, depth: int) -> Candidates:
    path = folder / "own.json"
    path.write_text(body)
    template = read_template(f"template:{path}")
    assert template is not None
    query = Query("q", "c")
    request = SearchRequest(
        "c",
        "search",
        depth,
        retrievers=["search", CASES[0].by(row)],
        template=FilledTemplate(template, query),
    )
    return engine.find(request)


WORDS = '{"match": {"body": "{{text}}"}}'
CONDITIONS = {
    f'"query": {{"bool": {{"must": {WORDS}, "filter": {{"range": {{"year": {{"gt": 2040}}}}}}}}}}':
        lambda i: i > 40,
    f'"query": {{"bool": {{"must": {WORDS}, "must_not": {{"term": {{"kind": "a"}}}}}}}}':
        lambda i: i % 2 == 1,
    f'"query": {WORDS}, "post_filter": {{"term": {{"kind": "a"}}}}': lambda i: i % 2 == 0,
    f'"query": {{"bool": {{"must": [{WORDS}, {{"match": {{"kind": "b"}}}}]}}}}': lambda i: i % 2 == 1,
}  # fmt: skip
"""Body of a search -> whether a document meets its conditions."""


@pytest.mark.parametrize("body", CONDITIONS)
def test_added_documents_meet_the_conditions_of_the_search(
    shelf: OpenSearchEngine, tmp_path: Path, body: str
) -> None:
    allowed = [i for i in range(1, COUNT + 1) if CONDITIONS[body](i)]
    for row in ROWS:
        found = searched(shelf, tmp_path, "{" + body + "}", row, 12)
        wanted = CASES[0].nearest([document(i) for i in allowed], row, 12)
        assert {int(id) for id in found.ids} <= set(allowed)
        assert found_by(found, "s2net") == set(wanted)  # 48 documents contain the best 12 of a half
        scores = dict(zip(found.ids, found.scores.tolist()))
        for id, score in scores.items():
            assert (score > 0) == (int(id) % 3 == 2)  # the documents with the word c


def test_filters_of_a_query_hold(shelf: OpenSearchEngine) -> None:
    filters = filters_of(["year>2040"])
    for row in ROWS:
        request = SearchRequest("c", "bm25", 5, filters, retrievers=["bm25", CASES[0].by(row)])
        near = CASES[0].nearest([document(i) for i in range(41, COUNT + 1)], row, 5)
        # The 20 nearest of all documents contain at least some of the nearest with the condition.
        assert found_by(shelf.find(request), "s2net") <= set(near) | {str(i) for i in range(41, COUNT + 1)}


def test_a_search_whose_conditions_are_unknown_is_refused(shelf: OpenSearchEngine, tmp_path: Path) -> None:
    body = (
        '{"query": {"nested": {"path": "p", "query": {"bool": {"filter": {"match": {"p.x": "{{text}}"}}}}}}}'
    )
    with pytest.raises(InputError, match='"filter" inside "nested"'):
        searched(shelf, tmp_path, body, ROWS[0], 5)
