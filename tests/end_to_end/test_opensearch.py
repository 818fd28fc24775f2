"""Commands on a real OpenSearch node. Both engines give the same scores."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.engines.base import FIRST_STAGES
from rerank.engines.search_request import SearchRequest
from rerank.formats import read_queries
from rerank.scoring.scorer import ScoringInput
from rerank.workspace.workspace import Workspace

STACK = "bm25,text,meta"


@pytest.fixture(scope="module")
def index(node) -> Iterator[str]:
    name = f"cli-{secrets.token_hex(4)}"
    yield name
    node.request("DELETE", f"/{name}-*")


@pytest.fixture(scope="module")
def cluster(node, index, small, trained, run, write_lines, tmp_path_factory) -> Path:
    """A workspace on the node, with rankers that were trained on the local engine."""
    folder: Path = tmp_path_factory.mktemp("cluster") / "ws"
    few = write_lines(folder.parent / "few.jsonl", small.documents[:20])
    profiles = folder.parent / "profiles.toml"
    profiles.write_text('[exact]\nsearch_type = "dfs_query_then_fetch"\ntimeout = 90\n', "utf-8")
    where = ("--profile", "exact", "--url", node.url, "--index", index, "--shards", 2, "--replicas", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RERANK_PROFILES", str(profiles))
        run("ingest", few, "--categories", small.categories, "-w", folder, *where).ok()
    shutil.copytree(trained / "rankers", folder / "rankers")
    assert run("encode", "-w", folder, "--json").json["encoded"] == {"meta": 20, "text": 20}
    # A new index with all features has no deleted documents that would count in idf.
    run("ingest", small.corpus, "--replace", "-w", folder).ok()
    assert run("encode", "-w", folder, "--json").json["encoded"] == {"meta": 0, "text": 0}
    return folder


def test_both_engines_give_equal_scores_for_equal_candidates(cluster, trained, small):
    """Lucene lacks the factor k1 + 1 = 2.2 of BM25. BM25 scores are compared only where stems agree."""
    here, there = Workspace.open(trained), Workspace.open(cluster)
    compared = same = 0
    for query in read_queries(small.queries)[:25]:
        found = here.engine.find(SearchRequest(query.text, first_stage="bm25", depth=50))
        if not len(found):
            continue
        scores = {}
        for workspace in (here, there):
            pipeline = workspace.pipeline(["bm25", "text", "meta"])
            asked = pipeline.scorer(["text", "meta"], "bm25").features
            chosen = workspace.engine.find(
                SearchRequest(query.text, ids=found.ids, first_stage="bm25", features=asked)
            )
            assert not any(missing.any() for missing in chosen.missing.values())
            scorer = pipeline.scorer(["bm25", "text", "meta"], "bm25")
            raw = scorer.score(query, ScoringInput.from_candidates(chosen, "bm25")).raw
            order = np.argsort(np.array(chosen.ids))
            scores[workspace.folder] = raw[order]
        local, distant = scores.values()
        np.testing.assert_allclose(distant[:, 1:], local[:, 1:], atol=1e-5)
        same += int(np.isclose(distant[:, 0] * 2.2, local[:, 0], rtol=1e-4).sum())
        compared += len(local)
    assert compared > 200
    # The English stemmer of the cluster is older (docs/opensearch/documents.md): organism, universal.
    assert same > 0.6 * compared


@pytest.mark.parametrize("stage", FIRST_STAGES)
def test_both_engines_retrieve_nearly_the_same_documents(cluster, trained, small, stage):
    here, there = Workspace.open(trained).engine, Workspace.open(cluster).engine
    shared = []
    for query in read_queries(small.queries)[:25]:
        local = here.find(SearchRequest(query.text, first_stage=stage, depth=20)).ids
        distant = there.find(SearchRequest(query.text, first_stage=stage, depth=20)).ids
        shared.append(len(set(local) & set(distant)) / max(len(local), 1))
    assert np.mean(shared) > (0.9 if stage == "bm25" else 0.75)


def test_train_tune_query_and_evaluate_on_a_cluster(run, node, index, cluster, small, text, tmp_path):
    queries = ("--queries", small.queries, "--qrels")
    run("train", "meta", *queries, small.train, "--dev-qrels", small.dev, "--epochs", 2, "-w", cluster).ok()
    done = run("tune", "--stack", STACK, *queries, small.dev, "-w", cluster, "--json")
    assert done.json["tuned"]["value"] >= done.json["tuned"]["first_stage_value"]
    actual = run("query", text, "--stack", STACK, "-w", cluster, "--timings", "--explain", "--json").json
    assert set(actual["seconds"]) == {"engine", "transfer", "encode", "score"}
    assert actual["recomputed"] == {}
    assert actual["hits"][0]["signals"].keys() == {"bm25", "text", "meta"}
    run(
        "evaluate", "--stack", STACK, "--baseline", "bm25", *queries, small.test, "-w", cluster, "--json",
        "--save-run", tmp_path / "runs",
    ).ok()  # fmt: skip
    assert list((tmp_path / "runs").rglob("*"))
    status = run("status", "-w", cluster, "--json").json
    assert status["location"] == f"index {index} at {node.url}"
    assert [ranker["missing_features"] for ranker in status["rankers"]] == [0, 0]


def test_later_documents_are_written_with_their_features(
    run, write_lines, node, index, cluster, small, tmp_path
):
    new: dict[str, Any] = {
        "_id": "new",
        "title": "Quokkas on bicycles",
        "text": "A gene",
        "categories": ["Ecology"],
    }
    report = run("ingest", write_lines(tmp_path / "new.jsonl", [new]), "-w", cluster, "--json").json
    assert (report["added"], report["documents"]) == (1, len(small.documents) + 1)
    assert node.request("GET", f"/{index}/_doc/new")["_version"] == 1  # documents and features in one write
    actual = run("query", "quokka", "--stack", "bm25*0.5+text*0.5", "-w", cluster, "--json").json
    assert ([hit["id"] for hit in actual["hits"]], actual["recomputed"]) == (["new"], {})
    assert run("ingest", "--delete", "new", "-w", cluster, "--json").json["deleted"] == 1


def test_replace_on_the_local_engine_deletes_other_documents(run, write_lines, small, plain):
    few = write_lines(plain.parent / "other.jsonl", small.documents[15:30])
    report = run("ingest", few, "--replace", "--yes", "-w", plain, "--json").json
    assert (report["added"], report["unchanged"], report["deleted"], report["documents"]) == (10, 5, 15, 15)


def test_unchanged_documents_are_neither_sent_nor_encoded(run, trained, small, node, write_lines, tmp_path):
    """Only changed documents are sent and encoded."""
    folder, index = tmp_path / "ws", f"same-{secrets.token_hex(4)}"
    some = [{**document, "year": 1990 + i} for i, document in enumerate(small.documents[:12])]
    corpus = tmp_path / "corpus.jsonl"
    write_lines(corpus, some)
    where = ("--url", node.url, "--index", index, "--replicas", 0, "-w", folder, "--lang", "en")
    assert run("ingest", corpus, *where).code == 0
    shutil.copytree(trained / "rankers", folder / "rankers")
    assert run("ingest", corpus, "-w", folder, "--json").json["encoded"] == {"text": 12, "meta": 12}

    def written():
        total = node.request("GET", f"/{index}/_stats/indexing")["_all"]["total"]["indexing"]
        return total["index_total"]

    before = written()
    again = run("ingest", corpus, "-w", folder, "--json").json
    counts = ("added", "updated", "unchanged", "documents")
    assert [again[name] for name in counts] == [0, 0, 12, 12]
    assert again["encoded"] == {"text": 0, "meta": 0}
    assert written() == before
    some[3]["text"] += " and more"
    some[4]["year"] = 1900
    write_lines(corpus, some)
    again = run("ingest", corpus, "-w", folder, "--json").json
    assert [again[name] for name in counts] == [0, 2, 10, 12]
    assert again["encoded"] == {"text": 2, "meta": 2}
    assert written() == before + 2
