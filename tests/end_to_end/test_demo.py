"""``rerank demo`` on a small collection."""

from __future__ import annotations

import json

import pytest

import rerank.workflows.demo
from tests.support.cli import write_demo_collection

STACK = f"{rerank.workflows.demo.STACK},{rerank.workflows.demo.ENCODER}"  # tests have MiniLM


@pytest.fixture
def tiny_demo(small, tmp_path, monkeypatch):
    """The demo with the small collection, and with few training epochs."""
    folder = write_demo_collection(small, tmp_path / "collection")
    monkeypatch.setattr(rerank.workflows.demo, "COLLECTION", folder)

    def train(workspace, names, config, **options):
        few = {} if names == rerank.workflows.demo.ENCODER else {"epochs": 3, "word_epochs": 1, "walks": 1}
        return rerank.train(workspace, names, config={**config, **few}, **options)

    monkeypatch.setattr(rerank.workflows.demo, "train", train)
    return folder


@pytest.mark.slow
def test_the_demo_prints_and_reports_its_results(run, small, tiny_demo, tmp_path):
    done = run("demo", "-w", tmp_path / "ws").ok()
    for part in ("retrieved:1000", "bm25", STACK, "nDCG@10", "p nDCG@10 (Holm)", "upper bound"):
        assert part in done.out
    assert done.out.count("Query q:") == rerank.workflows.demo.EXAMPLES
    assert " -> " in done.out
    assert f"--stack {STACK} --explain" in done.out
    parts = ["summaries as", "Short queries", "with subject headings*"]
    assert sorted(parts, key=done.out.index) == parts
    page = (tmp_path / "ws" / rerank.workflows.demo.PAGE).read_text("utf-8")
    for table in page.split(f"<h2>{rerank.workflows.demo.WITH_HEADINGS}</h2>", 1):
        assert f"<tr><td>{STACK}</td><td>0." in table
    status = run("status", "-w", tmp_path / "ws", "--json").json
    assert status["documents"] == len(small.documents)
    in_use = [one["name"] for one in status["releases"] if one["in_use"]]
    assert [{*name.split(",")} for name in in_use] == [{*STACK.split(",")}]  # the complete stack
    # Repeat the demo with JSON output. It empties the folder of the previous demo.
    (tmp_path / "ws" / "left over").write_text("")
    report = run("demo", "-w", tmp_path / "ws", "--json").json
    assert not (tmp_path / "ws" / "left over").exists()
    rows = {row["stack"]: row["measures"] for row in report["results"]}
    assert {"bm25", "text", "meta", STACK} <= set(rows)
    assert report["baseline"] == report["with_headings"]["baseline"] == "bm25"
    assert all(not example["categories"] for example in report["examples"])
    headings = {row["stack"]: row["measures"] for row in report["with_headings"]["results"]}
    assert headings["bm25"] == rows["bm25"]
    assert headings[STACK] != rows[STACK]
    assert len(report["examples"]) == rerank.workflows.demo.EXAMPLES
    assert report["better"] is ("is NOT significantly better" not in done.out)
    for row in json.loads(json.dumps(report["comparisons"])):
        assert row["delta"] == pytest.approx(
            rows[row["stack"]][row["measure"]] - rows["bm25"][row["measure"]]
        )
