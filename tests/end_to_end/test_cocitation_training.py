"""From citations in JSON lines to a second encoder in a stack, through the commands."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dense import judge, linked_documents, options

COCITED = ("--objective", "cocitation", "--strategy", "sentence")


@pytest.fixture(scope="module")
def cited(run, tiny, write_lines, tmp_path_factory):
    """Linked documents; 40 more cite three of a topic in a sentence, of which one is no document."""
    folder, rng = tmp_path_factory.mktemp("cited"), np.random.default_rng(0)
    rows = linked_documents()
    for paper in range(40):
        citations, titles = [], {}
        for sentence, topic in enumerate(rng.permutation(6)[:3].tolist()):
            inside = [f"d{i}" for i in rng.choice(np.arange(topic, 48, 6), 2, replace=False)]
            outside = f"10.1/{topic}.{rng.integers(8)}"
            titles[outside] = f"w{topic * 5} w{topic * 5 + 1} w{rng.integers(30, 40)}"
            place = {"section": "Intro", "paragraph": sentence // 2, "sentence": sentence}
            citations += [{"ref": ref, **place} for ref in (*inside, outside)]
        rows.append({"_id": f"p{paper}", "title": "w39", "citations": citations, "references": titles})
    corpus = write_lines(folder / "corpus.jsonl", rows)
    assert run("ingest", corpus, "-w", folder / "ws").code == 0
    quick = options(tiny, "--steps", 4, "--json", "-w", folder / "ws")
    assert run("train", "dense", *quick).code == 0
    done = run("train", "dense", "--as", "cocited", *COCITED, *quick).ok()
    return folder, done.json


def test_what_was_learned_from(cited):
    _, report = cited
    (one,) = report["rankers"]
    found = one["details"]
    assert one["name"] == "cocited"
    assert found["outside"] > 30
    assert found["documents"] == 89
    assert 0 < found["held_out"] < 200
    assert found["train_links"] > 200
    assert report["encoded"]["cocited"] == 89  # the references are no documents


def test_beside_dense_in_one_stack(cited, run, write_lines):
    folder, _ = cited
    where = ("-w", folder / "ws")
    judged = judge(folder, write_lines)
    assert run("tune", "--stack", "tfidf,dense,cocited", *judged, *where).code == 0
    fixed = "tfidf*0.4+dense*0.3+cocited*0.3"
    hit = run("query", "w0 w1", "--stack", fixed, "--json", *where).json["hits"][0]
    assert {*hit["signals"]} == {"tfidf", "dense", "cocited"}
    shown = run("query", "w0 w1", "--stack", fixed, "--explain", *where)
    assert "cocited" in shown.out


def test_collections_without_places_say_which_strategy_is_left(run, tiny, write_lines, tmp_path):
    corpus = write_lines(tmp_path / "corpus.jsonl", linked_documents())
    assert run("ingest", corpus, "-w", tmp_path / "ws").code == 0
    train = ("train", "dense", *COCITED, *options(tiny, "--steps", 1, "-w", tmp_path / "ws"))
    run(*train).fails(1, "--strategy sentence finds no two texts", "give --strategy document")
