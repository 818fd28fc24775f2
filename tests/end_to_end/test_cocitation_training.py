"""Commands from citations in JSON lines to a second encoder in a stack."""

from __future__ import annotations

import numpy as np

from tests.support.dense import linked_documents, options


def test_citations_train_a_second_encoder_for_a_stack(run, tiny, write_lines, tmp_path):
    """40 papers cite three references of a topic per sentence. One of the three is not a document."""
    rows, rng = linked_documents(), np.random.default_rng(0)
    for paper in range(40):
        citations, titles = [], {}
        for sentence, topic in enumerate(rng.permutation(6)[:3].tolist()):
            inside = [f"d{i}" for i in rng.choice(np.arange(topic, 48, 6), 2, replace=False)]
            outside = f"10.1/{topic}.{rng.integers(8)}"
            titles[outside] = f"w{topic * 5} w{topic * 5 + 1} w{rng.integers(30, 40)}"
            place = {"section": "Intro", "paragraph": sentence // 2, "sentence": sentence}
            citations += [{"ref": ref, **place} for ref in (*inside, outside)]
        rows.append({"_id": f"p{paper}", "title": "w39", "citations": citations, "references": titles})
    corpus, where = write_lines(tmp_path / "corpus.jsonl", rows), ("-w", tmp_path / "ws")
    assert run("ingest", corpus, *where).code == 0
    quick = options(tiny, "--steps", 4, "--json", *where)
    assert run("train", "dense", *quick).code == 0
    strategy = ("--objective", "cocitation", "--strategy", "sentence")
    done = run("train", "dense", "--as", "cocited", *strategy, *quick).ok()
    (one,) = done.json["rankers"]
    actual = one["details"]
    assert one["name"] == "cocited"
    assert actual["outside"] > 30
    assert actual["documents"] == 89
    assert 0 < actual["held_out"] < 200
    assert actual["train_links"] > 200
    assert done.json["encoded"]["cocited"] == 89  # references are not documents
    fixed = "tfidf*0.4+dense*0.3+cocited*0.3"
    hit = run("query", "w0 w1", "--stack", fixed, "--json", *where).json["hits"][0]
    assert {*hit["signals"]} == {"tfidf", "dense", "cocited"}
