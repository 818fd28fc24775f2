"""``rerank train`` with projections, those that cannot be trained, and ``rerank encode --every``."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest


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


@pytest.mark.slow
def test_encode_goes_on(script, run, workspace, small, write_lines, tmp_path):
    """Whoever adds documents meanwhile finds their features stored, until ctrl-C; what fails is said once."""
    command = [*script, "encode", "--every", "1s", "-w", str(workspace)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        few = [{**small.documents[0], "_id": f"new{i}"} for i in range(3)]
        more = write_lines(tmp_path / "more.jsonl", few)
        assert run("ingest", more, "--no-encode", "-w", workspace).code == 0
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(2)]
        assert sorted(lines) == ["meta: 3 documents encoded", "text: 3 documents encoded"]
        rankers = run("status", "-w", workspace, "--json").json["rankers"]
        assert [one["missing_features"] for one in rankers] == [0, 0]
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
