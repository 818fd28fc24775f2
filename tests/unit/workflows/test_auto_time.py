"""How `rerank auto` divides its time: queries need some after the trainings, and retrieval may be late."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rerank import Stack
from rerank.common.progress import SILENT
from rerank.workflows.auto import plan as ranker_plan
from rerank.workflows.auto import tuning
from rerank.workflows.auto.context import AutoContext
from rerank.workflows.auto.files import Folder
from rerank.workflows.auto.plan import RULES, CollectionFacts, RankerChoice
from rerank.workflows.auto.training import Trainings
from rerank.workflows.tune import TuneReport

DENSE, NAMES = RULES[:2]
FACTS = CollectionFacts(documents=9, train_queries=60, dev_queries=100, test_queries=50, model=True)


def context(remaining_seconds: float) -> AutoContext:
    """Return the context of a run of 10 minutes."""
    files = Folder(Path(), Path("corpus.jsonl"), None, {})
    end = time.monotonic() + remaining_seconds
    return AutoContext(files, "nDCG@10", 10, 0, None, SILENT, end)


@pytest.mark.parametrize(("remaining_seconds", "is_measured"), [(1, True), (-80, True), (-100, False)])
def test_retrieval_is_measured_up_to_15_percent_late(monkeypatch, remaining_seconds, is_measured):
    run = context(remaining_seconds)
    run.workspace = MagicMock()
    tuned = SimpleNamespace(measure="nDCG@10", value=0.5, first_stage_value=0.4, queries=9)
    report = SimpleNamespace(stack="bm25*1.00", tuned=tuned, dropped={})
    measured = []
    monkeypatch.setattr(tuning, "_tune_signals", lambda *_: report)
    monkeypatch.setattr(tuning, "_try_vector_retrieval", lambda *_: measured.append(1) or report)
    assert tuning.tune_and_activate(run, ["bm25"]) is report
    assert bool(measured) == is_measured
    assert any(line.startswith("retrieval: no time is left") for line in run.messages) == (not is_measured)


@pytest.mark.parametrize(
    ("dev_values", "keeps_all"),
    [
        ({"inferred": 0.499, "none": 0.4}, False),
        ({"inferred": 0.499, "none": 0.39}, True),
        ({"": 0.5}, False),  # no signal of categories has a weight any more
        ({"": 0.49}, True),
    ],
)
def test_rankers_without_a_weight_stay_only_for_a_gain(monkeypatch, tmp_path, dev_values, keeps_all):
    """A ranker that encodes each query without a use can double the time of a query."""
    run = context(100)
    run.workspace = MagicMock()
    run.workspace.ranker = lambda name: SimpleNamespace(uses_categories=name == "meta")

    def report(stack, retrieve, values):
        path = tmp_path / f"{stack}.json"
        path.touch()
        cases = {case: SimpleNamespace(per_query={"q1": value}) for case, value in values.items()}
        return TuneReport(
            stack=replace(Stack.parse(stack), retrieve=retrieve, first_stage="bm25"),
            cases=cases,
            dropped={},
            leaks=[],
            path=path,
            scoring=MagicMock(),
            protocol="",
        )

    retrievers = ("bm25", "s2net:200", "meta:200", "text:200", "dense:200")
    with_all = report("s2net*1 + text*0 + meta*0", retrievers, {"inferred": 0.5, "none": 0.4})
    tuned = []

    def tune_signals(_, signals, *, retrieve):
        tuned.append((signals, retrieve))
        return report("s2net*1 + meta*0", tuple(retrieve), dev_values)

    monkeypatch.setattr(tuning, "_tune_signals", tune_signals)
    kept = tuning._drop_idle_rankers(run, with_all)
    assert tuned == [(["bm25", "s2net", "meta"], ["bm25", "s2net:200", "meta:200"])]
    assert (kept.stack == with_all.stack) == keeps_all
    assert list(tmp_path.iterdir()) == [kept.path]


@pytest.mark.parametrize(
    ("part_seconds", "end_seconds"),
    [(0.1, 450 - 150 * 0.1), (10, 0.8 * 500)],  # at most 20 % of the time is kept
)
def test_trainings_end_before_the_queries_are_encoded(monkeypatch, part_seconds, end_seconds):
    """The encoder reads 100 dev queries and 50 test queries after the training."""
    trainings = Trainings.__new__(Trainings)
    trainings.context = context(500)
    trainings.facts = FACTS
    trainings.end = trainings.context.end - 50
    trainings.part_seconds = part_seconds
    monkeypatch.setattr(ranker_plan, "RULES", (DENSE,))
    monkeypatch.setattr(Trainings, "_train", lambda self, rule, share: RankerChoice(rule.ranker, True, ""))
    assert [choice.trained for choice in trainings.run_all()] == [True]
    assert trainings.end - trainings.context.end + 500 == pytest.approx(end_seconds, abs=5)


@pytest.mark.parametrize(("rule", "parts"), [(DENSE, 1), (NAMES, 0)])
def test_only_the_texts_take_the_time_of_other_rankers(monkeypatch, rule, parts):
    """Reading one part of nine documents takes 9 seconds, and 5 are allowed."""
    trainings = Trainings.__new__(Trainings)
    trainings.context = context(500)
    trainings.facts = FACTS
    trainings.part_seconds = 1.0
    trainings._shared_parts = 0
    monkeypatch.setattr(Trainings, "_neighbors", 0)
    assert trainings._affordable(rule, allowed=5.0).parts == parts
