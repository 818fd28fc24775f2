"""Several processes encode one index by slices."""

from __future__ import annotations

import shutil
import signal
from itertools import islice
from pathlib import Path

import pytest

from rerank import Workspace, train
from tests.support.cli import Result
from tests.support.opensearch import MANY, Gate, Proxy, at, edit, start_command
from tools.opensearch_node import Node

SLICES = 4


@pytest.fixture
def trained(run, many: Path, node: Node, name: str, tmp_path: Path) -> Path:
    """Return a workspace whose ranker has encoded nothing. The index has three shards."""
    folder = tmp_path / "ws"
    assert run("ingest", many, "-w", folder, *at(node.url, name), "--shards", 3).code == 0
    workspace = Workspace.open(folder)
    documents = list(islice(workspace.engine.documents(), 40))
    queries = [{"_id": f"q{document.id}", "text": document.content} for document in documents]
    qrels = {f"q{document.id}": {document.id: 1} for document in documents}
    train(workspace, "lsi", queries=queries, qrels=qrels, config={"dim": 8}, encode_features=False)
    return folder


def missing(folder: Path) -> int:
    workspace = Workspace.open(folder)
    return workspace.engine.missing_features("lsi", workspace.ranker("lsi").version)


def test_processes_encode_disjoint_slices_and_a_killed_one_is_repeated(run, node, trained, tmp_path):
    assert missing(trained) == MANY
    copies = [shutil.copytree(trained, tmp_path / f"machine{number}") for number in range(SLICES)]
    gate = Gate(0)
    with Proxy(node.port, rule=gate) as proxy:
        edit(copies[0], url=proxy.url)
        processes = [
            start_command("encode", "-w", copy, "--slice", f"{number}/{SLICES}", "--json")
            for number, copy in enumerate(copies, start=1)
        ]
        assert gate.reached.wait(180)
        processes[0].send_signal(signal.SIGKILL)
        results = [process.communicate(timeout=180) for process in processes]
        gate.open()
    codes = [process.returncode for process in processes]
    assert codes == [-signal.SIGKILL, 0, 0, 0], results
    edit(copies[0], url=node.url)
    left = missing(trained)
    assert 0 < left < MANY
    others = [Result(0, out, err).json["encoded"]["lsi"] for out, err in results[1:]]
    assert sum(others) == MANY - left

    repeated = run("encode", "-w", copies[0], "--slice", f"1/{SLICES}", "--json")
    # The node may have received the request that the killed process was sending.
    assert 0 <= repeated.json["encoded"]["lsi"] <= left
    assert missing(trained) == 0
    finished = run("encode", "-w", copies[1], "--slice", f"2/{SLICES}", "--json")
    assert finished.json["encoded"] == {"lsi": 0}


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/4"])
def test_a_slice_that_is_none_is_refused(run, tmp_path, text):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "apple"}\n')
    assert run("ingest", tmp_path / "corpus.jsonl", "-w", tmp_path / "ws").code == 0
    run("encode", "-w", tmp_path / "ws", "--slice", text).fails(2, "NUMBER/COUNT")


def test_documents_in_files_have_no_slices(run, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "apple"}\n')
    assert run("ingest", tmp_path / "corpus.jsonl", "-w", tmp_path / "ws").code == 0
    run("encode", "-w", tmp_path / "ws", "--slice", "1/4").fails(2, "OpenSearch index")
