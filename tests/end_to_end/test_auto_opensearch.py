"""``rerank auto`` with documents in OpenSearch, interrupted and resumed."""

from __future__ import annotations

import pytest

import rerank
from rerank.engines.opensearch import Settings
from rerank.workflows.auto import plan as ranker_plan
from rerank.workflows.auto.plan import Rule
from tests.support.cli import write_demo_collection
from tests.support.progress import Watch


def test_auto_builds_a_stack_in_a_cluster_and_resumes(run, node, small, tmp_path, monkeypatch):
    rules = tuple(Rule(name, (), "it is quick") for name in ("lsi", "cllsi"))
    monkeypatch.setattr(ranker_plan, "RULES", rules)
    folder, index = write_demo_collection(small, tmp_path / "theirs"), "auto-books"
    (folder / "categories.tsv").unlink()
    command = ("auto", folder, "-w", tmp_path / "ws", "--url", node.url, "--index", index)
    with pytest.raises(KeyboardInterrupt):
        rerank.auto(
            folder,
            tmp_path / "ws",
            opensearch=Settings((node.url,), index),
            progress=Watch(title="fit cllsi"),
        )
    done = run(*command).ok()
    for part in (
        "ingest: 200 documents (en): 0 added, 0 updated, 200 unchanged\n",
        "rankers: lsi is trained: it is quick (done before)\n",
        "rankers: cllsi is trained: it is quick\n",
        f"report: {tmp_path / 'ws' / 'report.html'}\n",
    ):
        assert part in done.err
    assert "p nDCG@10 (Holm)" in done.out
    # Other commands work: the stack in use ranks, and a page needs no names.
    hits = run("query", "how do cells divide", "-w", tmp_path / "ws", "--json").json["hits"]
    assert hits
    assert node.request("GET", f"/{index}/_count")["count"] == 200
