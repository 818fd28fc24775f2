"""``rerank train`` with projections."""

from __future__ import annotations

import json


def test_projections_from_judgments_and_from_pairs(run, small, tmp_path):
    folder = tmp_path / "ws"
    run("ingest", small.corpus, "-w", folder)
    judged = ("--queries", small.queries, "--qrels", small.train, "--dev-qrels", small.dev)
    report = run(
        "train", "s2net", "lsi", *judged, "--dim", 16, "--init", "random", "--json", "-w", folder
    ).json
    assert [one["name"] for one in report["rankers"]] == ["s2net", "lsi"]
    assert report["encoded"] == {"lsi": len(small.documents), "s2net": len(small.documents)}
    assert all(one["dev"] >= one["baseline"] > 0 for one in report["rankers"])
    hits = run("query", "cells", "--stack", "tfidf*0.5+s2net*0.5", "--json", "-w", folder).json["hits"]
    assert all(-1 <= hit["signals"]["s2net"]["raw"] <= 1 for hit in hits)
    run("tune", "--stack", "tfidf,s2net", *judged[:2], "--qrels", small.dev, "-w", folder)
    run("query", "cells", "--stack", "tfidf,s2net", "-w", folder)

    pairs = tmp_path / "pairs.jsonl"
    rows = ({"query": one["title"], "document": one["text"]} for one in small.documents)
    pairs.write_text("\n".join(json.dumps(row) for row in rows if row["query"] and row["document"]))
    done = run("train", "cllsi", "--text-pairs", pairs, "--dim", 16, "-w", folder)
    assert "dev pairs" in done.out, done
    assert "mean reciprocal rank of dev pairs" in done.out
    status = run("status", "--json", "-w", folder).json
    assert {one["name"]: one["features"] for one in status["rankers"]} == {
        "cllsi": True,
        "lsi": True,
        "s2net": True,
    }
