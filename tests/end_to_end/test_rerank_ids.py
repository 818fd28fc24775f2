"""``POST /v1/rerank_ids``: the order of ``rerank query`` for documents that are named by their ids."""

from __future__ import annotations

import random

import pytest

from rerank.formats import read_queries
from tests.end_to_end.test_serve import STACK, server

__all__ = ["server"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stack", ["text", "bm25", None])
def test_the_order_of_query(server, trained, small, run, stack):
    asked = ["--stack", stack] if stack else ["--stack", STACK]
    for query in read_queries(small.queries)[:2]:
        hits = run("query", query.text, *asked, "--depth", 60, "-k", 60, "-w", trained, "--json").json["hits"]
        ids = [hit["id"] for hit in hits]
        random.Random(1).shuffle(ids)
        body = {"query": query.text, "ids": ids} | ({"stack": stack} if stack else {})
        found = server.post("/v1/rerank_ids", body).json
        assert [ids[result["index"]] for result in found["results"]] == [hit["id"] for hit in hits]
        scores = [result["relevance_score"] for result in found["results"]]
        assert scores == pytest.approx([hit["score"] for hit in hits], rel=1e-6, abs=1e-6)


def test_numbers_that_ml_commons_can_read(server, small):
    """It fails on ``1``, and on numbers of more than 18 characters."""
    ids = [document["_id"] for document in small.documents[:100]]
    text = server.post("/v1/rerank_ids", {"query": "wolf cell dna", "ids": ids}).body.decode()
    scores = [part.split("}")[0] for part in text.split('"relevance_score":')[1:]]
    assert len(scores) == 100
    assert all(len(score) <= 18 and set(score) & set(".e") for score in scores), scores


def test_ids_that_the_engine_does_not_know(server, small):
    known = [document["_id"] for document in small.documents[:5]]
    found = server.post("/v1/rerank_ids", {"query": "wolf", "ids": [*known, "none-such"]})
    assert sorted(result["index"] for result in found.json["results"]) == list(range(6))
    assert server.post("/v1/rerank_ids", {"query": "wolf", "ids": []}).json["results"] == []


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"query": "wolf", "ids": ["none-such"]}, "knows none of the ids"),
        ({"query": "wolf", "ids": ["", ""]}, "twice"),
        ({"query": "wolf", "ids": [""]}, "knows none of the ids"),
        ({"query": "wolf", "ids": ["none-such"], "stack": "tfidf"}, "knows none of the ids"),
        ({"query": " ", "ids": ["a"]}, "the query is empty"),
        ({"query": "wolf", "ids": ["a"], "stack": "none"}, "none"),
        ({"query": "wolf", "ids": ["a"], "other": 1}, "other"),
        ({"query": "wolf", "ids": [str(i) for i in range(1001)]}, "1,001 ids"),
    ],
)
def test_what_cannot_be(server, body, part):
    answer = server.post("/v1/rerank_ids", body)
    assert answer.status == 422
    assert part in answer.json["error"]
