"""Stacks without the score of their first stage, plain reranking, and weights tuned on pools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Stack, Workspace, evaluate, tune
from rerank.common.errors import InputError, UsageError
from tests.support.rankers import Plain, put

TEXTS = {
    "wolf": "a wolf hunts at night and a wolf hunts by day",
    "fox": "a fox hunts mice",
    "owl": "owls hunt at night, too, and mice hide",
    "mouse": "mice eat at night",
}
AT: dict[str, Any] = {
    # No language: the weights below also need the word "at".
    "queries": [
        Query("q1", "hunts at night", lang="und"),
        Query("q2", "mice at night", lang="und"),
        Query("q3", "hunts mice"),
    ],
    "qrels": Qrels([("q1", "owl", 1), ("q1", "wolf", 2), ("q2", "mouse", 1), ("q3", "owl", 1)]),
}


class Shortness(Plain):
    """Score: higher for a shorter document."""

    family, name = "short", "short"

    def encode_documents(self, documents: Sequence[Document]) -> np.ndarray:
        return np.array([[1 / len(d.content)] for d in documents], np.float32)

    def encode_query(self, query: Query) -> np.ndarray:
        return np.ones(1, np.float32)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace.create(tmp_path_factory.mktemp("plain") / "ws", lang="en")
    workspace.engine.write(Document(id, text=text, extra={"age": 1}) for id, text in TEXTS.items())
    put(workspace, Shortness())
    return workspace


def test_a_stack_without_its_first_stage_is_tuned(workspace: Workspace, tmp_path: Path) -> None:
    """Like table 3 of Kuwa et al. (2020), which adds only the scores of text and meta."""
    path = tmp_path / "s.json"
    report = tune(workspace, "bm25,short", first_stage="tfidf", out=path, **AT)
    stack = report.stack
    assert (stack.signals, stack.first_stage) == (("bm25", "short"), "tfidf")
    rows = evaluate(workspace, [str(path)], **AT).results
    assert report.tuned.first_stage_value == pytest.approx(rows[0].measures["nDCG"], abs=1e-12)
    assert report.tuned.value == pytest.approx(rows[1].measures["nDCG"], abs=1e-12)


def test_a_stack_below_its_first_stage_is_not_activated(workspace: Workspace) -> None:
    at = {**AT, "qrels": Qrels([("q1", "wolf", 1)])}
    with pytest.raises(InputError, match=r"1 judged query: .*0\.4307, bm25 0\.6309; nothing is written"):
        tune(workspace, "short,field:age", **at)  # all documents have the same age
    assert not [*(workspace.folder / "stacks").glob("*age*")]
    assert workspace.default_stack == "bm25"
    assert not tune(workspace, "bm25,short", **at).tuned.value < 0.6309
    assert workspace.default_stack == "bm25,short"


def test_signals_with_zero_weight_are_removed(workspace: Workspace, tmp_path: Path) -> None:
    """The stack is found by the requested names, and gives the score that the tuner measured."""
    report = tune(workspace, "tfidf,bm25,field:age", **AT)  # all documents have the same age
    stack = report.stack
    assert (stack.signals, list(report.dropped)) == (("tfidf", "bm25"), ["field:age"])
    assert [row["signal"] for row in report.rows()] == ["tfidf", "bm25", "field:age"]
    assert report.rows()[-1]["weight"] == 0.0
    assert workspace.stack("bm25,field:age,tfidf", latest=True) == stack == Stack.load(report.path)
    workspace.use_stack(stack)
    assert workspace.stack("bm25,tfidf") == workspace.releases.stack  # also by the signals with weight
    row = evaluate(workspace, ["tfidf,bm25,field:age"], **AT).results[-1]
    assert row.measures["nDCG@10"] == pytest.approx(report.tuned.value, abs=1e-12)


def test_weights_are_tuned_on_judged_documents(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    report = tune(workspace, "tfidf,short", protocol="judged", out=path, **AT)
    record = report.stack.tuned
    assert (record["protocol"], record["candidate_recall"]) == ("judged", {})
    assert (report.stack.depth, report.protocol) == (1000, "judged")
    rows = evaluate(workspace, [str(path)], protocols=["judged"], **AT).results
    assert rows[1].measures["nDCG@10"] == pytest.approx(report.tuned.value, abs=1e-12)
    shallow = tune(workspace, "tfidf,short", protocol="retrieved:2", out=path, **AT).stack
    assert (shallow.depth, shallow.tuned["protocol"]) == (2, "retrieved:2")
    with pytest.raises(UsageError, match="unknown protocol 'pool:2'"):
        tune(workspace, "tfidf,short", protocol="pool:2", **AT)
