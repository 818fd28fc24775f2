"""``dense`` on a real node, from links to a ranking with candidates that it retrieved."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rerank.formats import read_queries
from rerank.workspace.workspace import Workspace
from tests.support.dense import linked_documents, options, write_judgments
from tests.support.opensearch import foreign_index
from tests.support.service import serving

DOCUMENTS = linked_documents()
SIZE = len(DOCUMENTS)
STACK = "tfidf*0.5 + dense*0.5"
RETRIEVE = ("--retrieve", "tfidf,dense", "--depth", 5)
WORDS = "w39 w38 w37 w36 w35"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_lines) -> str:
    return str(write_lines(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", DOCUMENTS))


@pytest.fixture(scope="module")
def index(knn_node) -> Iterator[str]:
    name = f"dense-{secrets.token_hex(4)}"
    yield name
    knn_node.request("DELETE", f"/{name}-*")


def train(run, tiny: str, folder: Path, passages: int) -> Any:
    return run(
        "train", "dense", *options(tiny, "--steps", 4, "--passages", passages, "--json", "-w", folder)
    ).json


@pytest.fixture(scope="module")
def cluster(knn_node, index, corpus, tiny, run, tmp_path_factory) -> Path:
    """A workspace on the node in which ``dense`` is trained and retrieves."""
    folder: Path = tmp_path_factory.mktemp("cluster") / "ws"
    run("ingest", corpus, "-w", folder, "--url", knn_node.url, "--index", index, "--replicas", 0).ok()
    assert train(run, tiny, folder, 4)["encoded"] == {"dense": SIZE}
    query = ["query", WORDS, "--stack", STACK, "-w", folder]
    run(*query, *RETRIEVE).fails(2, "dense cannot retrieve on this index yet", "--retrieve dense")
    assert run("encode", "--retrieve", "dense", "-w", folder, "--json").json["encoded"] == {"dense": SIZE}
    assert run("encode", "--retrieve", "dense", "-w", folder, "--json").json["encoded"] == {"dense": 0}
    return folder


def test_dense_retrieves_in_tune_evaluate_query_and_serve(cluster, run, script, write_lines, tmp_path):
    judged = write_judgments(tmp_path, write_lines)
    files = (*judged, "-w", cluster, "--json")
    tuned = run("tune", "--stack", "tfidf,dense", *RETRIEVE, *files).json
    assert tuned["retrieve"] == ["tfidf", "dense"]
    recall = tuned["scoring"]["candidate_recall"]
    assert max(recall["tfidf"], recall["dense"]) <= recall["together"] <= 1
    assert tuned["scoring"]["recomputed"] == {}
    report = run("evaluate", "--stack", "tfidf,dense", "--protocol", "retrieved:5", *files).json
    rows = {tuple(row["retrieve"]): row["recall"] for row in report["candidate_recall"]}
    assert rows["tfidf", "dense"] == pytest.approx(recall, abs=1e-6)
    text = read_queries(judged[1])[0].text
    answer = run("query", text, "--stack", "tfidf,dense", "-w", cluster, "-k", 5, "--json").json
    assert answer["found"] == {"tfidf": 5, "dense": 5}
    assert answer["recomputed"] == {}
    with serving(script, cluster, tmp_path, "--stack", "tfidf,dense") as server:
        hits = server.post("/v1/search", {"query": text, "k": 5}).json["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in answer["hits"]]


def test_a_search_and_a_ranker_retrieve_together(cluster, run, write_lines, tmp_path):
    """The ranker finds only documents that the filters of the search accept."""
    allowed = [one["_id"] for one in DOCUMENTS[::2]]
    words = {"match": {"text": "{{text}}"}}
    body = {"query": {"bool": {"must": words, "filter": {"ids": {"values": allowed}}}}}
    (tmp_path / "own.json").write_text(json.dumps(body))
    first = ("--first-stage", f"template:{tmp_path / 'own.json'}")
    query = ["query", WORDS, "--stack", "search*0.7 + dense*0.3", *first, "--depth", 3]
    query += ["-w", cluster, "-k", 100, "--json"]
    scores = {hit["id"]: hit["signals"]["search"]["raw"] for hit in run(*query, "--depth", 100).json["hits"]}
    actual = run(*query, "--retrieve", "search,dense:40").json
    assert actual["found"]["search"] == 3
    assert 3 < actual["found"]["dense"] <= len(allowed)
    assert {hit["id"] for hit in actual["hits"]} <= {*allowed}
    for hit in actual["hits"]:
        raw = {name: signal["raw"] for name, signal in hit["signals"].items()}
        assert raw["search"] == pytest.approx(scores.get(hit["id"], 0.0), abs=1e-6)
    assert {hit["id"] for hit in actual["hits"]} & scores.keys() > {
        hit["id"] for hit in actual["hits"] if "search" in hit["found_by"]
    }

    files = (*write_judgments(tmp_path, write_lines), *first, "-w", cluster, "--json")
    union = ("--retrieve", "search,dense:40", "--depth", 3)
    tuned = run("tune", "--stack", "search,dense", *union, *files).json
    assert (tuned["first_stage"], tuned["retrieve"]) == ("search", ["search", "dense:40"])
    recall = tuned["scoring"]["candidate_recall"]
    assert recall["search"] < recall["together"]
    report = run("evaluate", "--stack", "search,dense", *union[:2], "--protocol", "retrieved:3", *files).json
    rows = {tuple(row["retrieve"]): row["recall"] for row in report["candidate_recall"]}
    assert rows["search", "dense:40"] == pytest.approx(recall, abs=1e-6)
    used = run("query", WORDS, "--stack", "search,dense", *first, "-w", cluster, "--json").json
    assert used["found"].keys() == {"search", "dense"}
    ids = [one.id for one in read_queries(files[1])]
    (tmp_path / "own.run").write_text("".join(f"{id} Q0 {allowed[0]} 1 1.5 other\n" for id in ids))
    of_run = ("--first-stage", f"run:{tmp_path / 'own.run'}", "--retrieve", "search,dense:40")
    judged = (*files[:4], "-w", cluster, "--json")
    (row,) = run("evaluate", "--stack", "search*0.5 + dense*0.5", *of_run, *judged).json["candidate_recall"][
        1:
    ]
    assert row["recall"]["search"] < row["recall"]["together"]
    run(*query, "--retrieve", "dense").fails(2, "--retrieve search,NAME")


def test_later_documents_and_versions_are_retrieved(
    cluster, index, knn_node, corpus, tiny, run, write_lines, tmp_path
):
    query = ["query", WORDS, "--stack", "dense", "--retrieve", "dense", "-w", cluster]
    new = write_lines(tmp_path / "new.jsonl", [{"_id": "new", "text": WORDS}])
    report = run("ingest", new, "-w", cluster, "--json").json
    assert (report["added"], report["documents"]) == (1, SIZE + 1)
    assert run(*query, "--json").json["hits"][0]["id"] == "new"
    before = Workspace.open(cluster).ranker("dense").version
    assert train(run, tiny, cluster, passages=1)["encoded"] == {"dense": SIZE + 1}
    assert Workspace.open(cluster).ranker("dense").version != before
    after = run(*query, "--json").json
    assert (after["hits"][0]["id"], after["recomputed"]) == ("new", {})
    assert run("ingest", "--delete", "new", "-w", cluster, "--json").json["documents"] == SIZE
    assert "new" not in {hit["id"] for hit in run(*query, "--json").json["hits"]}
    assert run("ingest", corpus, "--replace", "-w", cluster, "--json").json["documents"] == SIZE
    assert run(*query, "--json").json["found"]["dense"] > 0
    (about,) = knn_node.request("GET", f"/{index}").values()
    passages = about["mappings"]["properties"]["rerank_features"]["properties"]["dense:knn"]
    now = Workspace.open(cluster)  # a new index contains only needed versions
    needed = {now.ranker("dense").version, *now.versions_to_keep(include_previous=True).get("dense", ())}
    assert passages["properties"].keys() == needed
    run("ingest", corpus, "--replace", "--no-encode", "-w", cluster).ok()
    assert run("encode", "-w", cluster, "--json").json["encoded"] == {"dense": SIZE * len(needed)}
    assert run(*query, "--json").json["found"]["dense"] > 0


@pytest.mark.parametrize("graph", [True, False])
def test_dense_retrieves_on_an_attached_index(cluster, knn_node, run, tmp_path, graph):
    """Other clients continue to write documents, and their searches do not see the vectors."""
    with foreign_index(knn_node, DOCUMENTS[:30], graph=graph) as name:
        folder = tmp_path / "ws"
        fields = ["title=name", "text=body"]
        assert run("attach", "--url", knn_node.url, "--index", name, *fields, "-w", folder).code == 0
        shutil.copytree(cluster / "rankers", folder / "rankers")
        assert run("encode", "--retrieve", "dense", "-w", folder, "--json").json["encoded"]["dense"] == 30
        assert run("status", "-w", folder, "--json").json["documents"] == 30
        assert knn_node.request("GET", f"/{name}/_count")["count"] == 30
        query = [
            "query",
            "w0 w1",
            "--stack",
            "bm25*0.5 + dense*0.5",
            "--retrieve",
            "bm25,dense",
            "--depth",
            5,
        ]
        actual = run(*query, "-w", folder, "-k", 10, "--json").json
        assert (actual["found"]["dense"], actual["recomputed"]) == (5, {})
        first = DOCUMENTS[0]["_id"]
        knn_node.request("POST", f"/{name}/_update/{first}?refresh=true", {"doc": {"name": "changed"}})
        assert run("encode", "-w", folder).code == 0
        knn_node.request("DELETE", f"/{name}/_doc/{first}?refresh=true")
        assert knn_node.request("GET", f"/{name}/_count")["count"] == 29
        again = run(*query, "-w", folder, "--json").json
        assert first not in {hit["id"] for hit in again["hits"]}
