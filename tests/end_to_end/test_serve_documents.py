"""``rerank serve``: documents that a client sends are ranked (`/v1/rerank` and its other paths)."""

from __future__ import annotations

import pytest

from tests.support.service import (
    STACK,
    server,
)

__all__ = ["server"]


def test_a_cohere_client_can_rerank(server, small):
    cohere = pytest.importorskip("cohere")
    texts = [document["text"][:1500] for document in small.documents[:30]]
    expected = 7
    client = cohere.ClientV2("any", base_url=server.url)
    answer = client.rerank(model="rerank-v3.5", query=texts[expected][:200], documents=texts, top_n=5)
    assert len(answer.results) == 5
    assert answer.results[0].index == expected
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    old = cohere.Client("any", base_url=server.url)
    again = old.rerank(
        model="rerank-english-v3.0", query=texts[expected][:200], documents=texts, return_documents=True
    )
    assert [result.index for result in again.results][:5] == [result.index for result in answer.results]
    assert again.results[0].document.text == texts[expected]
    assert again.meta.api_version.version == "1"


def test_rerank_accepts_documents_as_objects(server, small):
    documents = [
        {"id": d["_id"], "title": d["title"], "text": d["text"], "categories": d["categories"], "more": 1}
        for d in small.documents[:10]
    ]
    body = {
        "query": documents[3]["title"],
        "documents": documents,
        "return_documents": True,
        "stack": "tfidf",
    }
    answer = server.post("/v1/rerank", body).json
    assert answer["results"][0]["document"] == documents[3]
    assert sorted(result["index"] for result in answer["results"]) == list(range(10))
    assert answer["model"] == "tfidf*1.00"
    assert answer["usage"]["total_tokens"] > 100


PAIRS = (
    (
        "grey wolf",
        "the wolf is grey",
        "a fox",
    ),
    (
        "how do bacteria become resistant to antibiotics",
        "Bacteria acquire resistance genes by horizontal transfer.",
        "The moon orbits the earth once a month.",
    ),
    (
        "malaria parasites",
        "Plasmodium falciparum invades red blood cells and causes malaria.",
        "Zebrafish regenerate their fins.",
    ),
    (
        "memory in sleep",
        "Sleep consolidates new memories in the hippocampus.",
        "Yeast cells divide by budding.",
    ),
    (
        "insulin secretion",
        "Beta cells of the pancreas release insulin.",
        "Ants follow pheromone trails.",
    ),
    (
        "how do birds learn songs",
        "Young zebra finches learn songs from a tutor.",
        "Iron is stored in ferritin.",
    ),
    (
        "heart disease",
        "Mutations in heart muscle proteins cause cardiomyopathy.",
        "Corals live with algae.",
    ),
    (
        "plant roots and water",
        "Roots grow toward water in the soil.",
        "Neurons fire action potentials.",
    ),
    (
        "cancer cells spread",
        "Metastasis is the spread of cancer cells to other organs.",
        "The retina detects light.",
    ),
    (
        "influenza virus mutation",
        "Influenza viruses mutate in every season.",
        "Bees dance to show where food is.",
    ),
    (
        "gut microbes and diet",
        "Diet changes the microbes of the gut.",
        "Wind turns turbines.",
    ),
    (
        "stem cell",
        "Stem cells renew tissue after an injury.",
        "A clock has two hands.",
    ),
    (
        "visual cortex",
        "Neurons in the visual cortex prefer edges.",
        "Salt dissolves in water.",
    ),
    (
        "dna repair",
        "Enzymes repair breaks of DNA.",
        "Whales sing in the ocean.",
    ),
    (
        "pain",
        "Nociceptors signal pain.",
        "Leaves turn red in autumn.",
    ),
    (
        "evolution of flowers",
        "Flowers evolved together with their pollinators.",
        "The kidney filters blood.",
    ),
    (
        "vaccine against hiv",
        "A vaccine trial tested antibodies against HIV.",
        "Spiders spin silk.",
    ),
    (
        "obesity in mice",
        "Mice on a fat diet become obese.",
        "Stars form in clouds of gas.",
    ),
    (
        "smell in flies",
        "Fruit flies smell with their antennae.",
        "Bones store calcium.",
    ),
    (
        "protein folding",
        "Chaperones help proteins fold.",
        "Rivers carry sand.",
    ),
)
"""A query, the document that answers it, and a document that does not."""


def test_the_better_one_of_two_documents_comes_first(server):
    """With two documents, z-scores are only 1 and -1: the scores need the statistics of the collection."""
    for query, answer, other in PAIRS:
        for documents in ([answer, other], [other, answer]):
            body = {"query": query, "documents": documents, "stack": STACK}
            results = server.post("/v1/rerank", body).json["results"]
            assert documents[results[0]["index"]] == answer, query


def test_documents_of_a_request_have_the_probabilities_of_the_collection(server, small):
    """A client can compare the scores of documents that it sends with those of a search."""
    documents = {document["_id"]: document for document in small.documents}
    query = small.documents[3]["title"]
    hits = server.post("/v1/search", {"query": query, "stack": STACK, "k": 20}).json["hits"]
    for count in (1, 2, 20):
        sent = [documents[hit["id"]] for hit in hits[:count]]
        body = {"query": query, "stack": STACK, "documents": sent}
        answer = server.post("/v1/rerank", body).json
        assert (answer["scores"], answer["normalization"]) == ("probability", "fitted")
        actual = {result["index"]: result["relevance_score"] for result in answer["results"]}
        expected = [hit["relevance"] for hit in hits[:count]]
        assert [actual[index] for index in range(count)] == pytest.approx(expected, abs=0.02)


def test_hits_below_the_minimum_score_are_removed_and_counted(server, small):
    query = small.documents[3]["title"]
    body = {"query": query, "stack": STACK, "k": 1000}
    complete = server.post("/v1/search", body).json
    probabilities = sorted(hit["relevance"] for hit in complete["hits"])
    limit = probabilities[len(probabilities) // 2]
    answer = server.post("/v1/search", {**body, "min_score": limit}).json
    assert min(hit["relevance"] for hit in answer["hits"]) >= limit
    assert answer["removed"] == complete["candidates"] - answer["candidates"] > 0
    reranked = {"query": query, "stack": STACK, "documents": ["zebra", small.documents[3]["text"]]}
    results = server.post("/v1/rerank", reranked).json["results"]
    limit = results[0]["relevance_score"]
    answer = server.post("/v1/rerank", {**reranked, "min_score": limit}).json
    assert [result["index"] for result in answer["results"]] == [1]
    assert answer["removed"] == 1
    for wrong in ({"min_score": 1.5}, {"min_score": 0.5, "stack": "bm25"}):
        assert server.post("/v1/search", {**body, **wrong}).status == 422
        assert server.post("/v1/rerank", {**reranked, **wrong}).status == 422


def test_rerank_honors_or_refuses_the_fields_of_other_services(server):
    documents = [{"name": "a red fox", "more": "x"}, {"name": "a grey wolf", "more": "y"}]
    body = {"query": "wolf", "stack": "bm25", "documents": documents, "rank_fields": ["name"], "top_n": 1}
    assert [result["index"] for result in server.post("/rerank", body).json["results"]] == [1]
    assert [result["index"] for result in server.post("/v2/rerank", body).json["results"]] == [1]
    for wrong in ({"rank_fields": ["nome"]}, {"rank_fields": None}, {"top_m": 1}, {"max_tokens_per_doc": 0}):
        answer = server.post("/v1/rerank", {**body, **wrong})
        assert answer.status == 422, wrong
        assert len(answer.json["error"].splitlines()) == 1
    texts = ["a fox and a wolf", "a wolf"]
    cut = {"query": "wolf", "stack": "bm25", "documents": texts, "max_tokens_per_doc": 2}
    scores = {r["index"]: r["relevance_score"] for r in server.post("/v1/rerank", cut).json["results"]}
    assert scores[0] == 0.5 < scores[1]  # a sum of 0


def test_rerank_with_ties_no_documents_and_a_translation(server):
    def order(**body) -> list[int]:
        answer = server.post("/v1/rerank", body).json
        return [result["index"] for result in answer["results"]]

    assert order(query="wolf", documents=["fox"] * 12, stack="bm25") == list(range(12))  # ties
    assert order(query="wolf", documents=[]) == []
    translated = {"query": "volpe", "lexical_text": "fox", "stack": "tfidf"}
    assert order(**translated, documents=["a wolf", "a fox"]) == [1, 0]


def test_a_model_selects_a_stack_only_if_it_names_signals(server):
    body = {"query": "wolf", "documents": ["wolf", "fox"]}
    assert server.post("/v1/rerank", {**body, "model": "bm25"}).json["model"] == "bm25*1.00"
    assert "meta" in server.post("/v1/rerank", {**body, "model": "jina/reranker v2"}).json["model"]
    server.post("/v1/rerank", {**body, "model": "tfidf,txt"}).fails(422, "'txt' is not trained")


def test_named_fields_are_the_text_of_a_document(server):
    documents = [{"Title": "fox", "body": "wolf"}, {"Title": "wolf"}, {"text": "wolf", "Title": "fox"}]
    body = {"query": "wolf", "documents": documents, "stack": "bm25", "rank_fields": ["Title"]}
    results = server.post("/v1/rerank", body).json["results"]
    assert [result["index"] for result in results] == [1, 0, 2]
    scores = [result["relevance_score"] for result in results]
    assert scores[0] > scores[1] == scores[2]
