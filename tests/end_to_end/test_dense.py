"""``dense`` through the commands: trained on links, tuned and evaluated."""

from __future__ import annotations

import pytest

from tests.support.dense import linked_documents, options, write_judgments


@pytest.fixture
def linked(run, write_lines, tmp_path):
    corpus = write_lines(tmp_path / "corpus.jsonl", linked_documents())
    assert run("ingest", corpus, "-w", tmp_path / "ws").code == 0
    return tmp_path / "ws"


def test_links_train_a_ranker(run, linked, tiny, tmp_path, write_lines):
    report = run("train", "dense", *options(tiny, "--steps", 30, "--json"), "-w", linked).json
    assert report["encoded"] == {"dense": 49}
    (trained,) = report["rankers"]
    assert (trained["name"], trained["family"], trained["variant"]) == ("dense", "dense", "dense")
    actual = trained["details"]
    assert actual["unknown"] == actual["without_text"] == 1
    assert actual["history"][0]["step"] == 0
    best = next(
        m for m in actual["history"] if (m["step"], m["share"]) == (trained["epoch"], actual["share"])
    )
    assert best["NDCG"] == max(m["NDCG"] for m in actual["history"]) == trained["dev"]
    assert actual["history"][0]["NDCG"] == trained["baseline"]
    assert not (linked / "training" / "dense").exists()
    table = run(
        "train", "dense", *options(tiny, "--steps", 10, "--objective", "quintuplet"), "-w", linked
    ).out
    assert table.count("kept") == 1
    assert "untrained" in table

    hits = run(
        "query", "w10 w11 w12 w13 w14", "--stack", "bm25*0.2 + dense*0.8", "--json", "-w", linked
    ).json["hits"]
    assert all(0 <= hit["signals"]["dense"]["raw"] <= 1 for hit in hits)
    files = (*write_judgments(tmp_path, write_lines), "-w", linked)
    assert run("tune", "--stack", "bm25,dense", *files).code == 0
    assert "bm25,dense" in run("evaluate", "--stack", "bm25,dense", *files).out


def test_a_pretrained_encoder_needs_no_links(run, tiny, tmp_path, write_lines):
    corpus = write_lines(tmp_path / "corpus.jsonl", [{"_id": f"d{i}", "text": f"w{i} w3"} for i in range(5)])
    folder = tmp_path / "ws"
    assert run("ingest", corpus, "-w", folder).code == 0
    train = ("train", "dense", "--untrained", "--model", tiny, "-w", folder)
    run(*train, "--rate", 0.1).fails(2, "--rate", "--untrained")
    report = run(*train, "--json").json
    assert report["encoded"] == {"dense": 5}
    assert report["rankers"][0]["dev"] is None
    assert not (folder / "training").exists()
    hits = run("query", "w2 w3", "--stack", "dense", "--json", "-w", folder).json["hits"]
    assert hits[0]["id"] == "d2"
