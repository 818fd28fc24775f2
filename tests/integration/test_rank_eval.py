"""The body of ``rerank judge convert --to rank-eval`` on a real node, compared with nDCG of ir_measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ir_measures
import pytest

from rerank.documents.records import Query
from rerank.judging.convert import convert_judgments
from tools.opensearch_node import Node

INDEX = "rank-eval"
QUERIES = [Query("q1", "cell"), Query("q2", "filler"), Query("q3", "rare")]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def filled(node: Node) -> Iterator[Node]:
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    properties = {"text": {"type": "text"}}
    node.request("PUT", f"/{INDEX}", {"settings": settings, "mappings": {"properties": properties}})
    for number in range(30):
        text = "cell " * (number + 1) + "filler " * (30 - number) + "rare" * (number in (3, 5))
        node.request("PUT", f"/{INDEX}/_doc/{number}", {"text": text})
    node.request("POST", f"/{INDEX}/_refresh")
    yield node
    node.request("DELETE", f"/{INDEX}")


def both(node: Node, folder: Any, grades: dict[str, dict[str, int]]) -> list[tuple[float, float]]:
    """Return the value of _rank_eval and of ir_measures for each query."""
    source = folder / "qrels.tsv"
    rows = [f"{query}\t{id}\t{grade}\n" for query, row in grades.items() for id, grade in row.items()]
    source.write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    convert_judgments(source, folder / "body.json", queries=QUERIES, to="rank-eval", index=INDEX)
    body = json.loads((folder / "body.json").read_text())
    details = node.request("POST", f"/{INDEX}/_rank_eval", body)["details"]
    run = {}
    for request in body["requests"]:
        hits = node.request("POST", f"/{INDEX}/_search", {**request["request"], "size": 100})["hits"]["hits"]
        run[request["id"]] = {hit["_id"]: hit["_score"] for hit in hits}
    measured = {
        row.query_id: row.value for row in ir_measures.iter_calc([ir_measures.nDCG @ 10], grades, run)
    }
    return [(details[query]["metric_score"], measured[query]) for query in grades]


def test_binary_grades_give_the_same_ndcg(filled, tmp_path):
    grades = {"q1": {"3": 1, "20": 1, "28": 1, "29": 0}, "q2": {"2": 1, "27": 1}}
    for theirs, ours in both(filled, tmp_path, grades):
        assert 0 < ours < 1
        assert theirs == pytest.approx(ours, abs=1e-6)


def test_other_grades_give_another_ndcg(filled, tmp_path):
    """The gain of _rank_eval is 2^grade - 1, and of ir_measures the grade."""
    (pair,) = both(filled, tmp_path, {"q1": {"29": 1, "27": 3, "25": 2}})
    theirs, ours = pair
    assert abs(theirs - ours) > 0.005


def test_fewer_hits_than_relevant_documents_give_another_ndcg(filled, tmp_path):
    """The ideal ranking of _rank_eval has only as many documents as were returned: two of three."""
    ((theirs, ours),) = both(filled, tmp_path, {"q3": {"3": 1, "5": 1, "7": 1}})
    assert theirs == pytest.approx(1.0)
    assert ours < 0.9
