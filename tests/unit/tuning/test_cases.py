"""Weights for three cases: queries with categories, with inferred categories, and without categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank import Document, Qrels, Query, Stack, Workspace, evaluate, tune
from rerank.common.errors import InputError
from rerank.stack.linear import CASES
from tests.support.rankers import Plain, put

TOPICS = ("a", "b", "c")


class SharedCategories(Plain):
    """Score: the number of categories that query and document share. It is 0 for all without categories."""

    family, name, bounds, uses_categories = "same", "same", (0.0, 3.0), True

    def encode_documents(self, documents: Sequence[Document]) -> np.ndarray:
        return np.array([[c in d.categories for c in TOPICS] for d in documents], np.float32)

    def encode_query(self, query: Query) -> np.ndarray:
        return np.array([c in query.categories for c in TOPICS], np.float32)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Documents of topic a rank first. Queries with category b or c want documents of their topic."""
    workspace = Workspace.create(tmp_path_factory.mktemp("cases") / "ws", lang="en")
    documents = [
        Document(f"{topic}{i}", text=" ".join(["wolf"] * (20 - 6 * k - i)), categories=(topic,))
        for k, topic in enumerate(TOPICS)
        for i in range(6)
    ]
    workspace.engine.write(documents)
    put(workspace, SharedCategories())
    brought = [Query(f"q{i}", "wolf", ("bc"[i % 2],)) for i in range(4)]
    bare = [Query(f"p{i}", "wolf") for i in range(4)]
    qrels = Qrels(
        [(q.id, f"{q.categories[0]}{i}", 1) for q in brought for i in range(3)]
        # The categories of the first candidates are not useful here.
        + [(q.id, f"b{i}", 1) for q in bare for i in range(3)]
    )
    return workspace, brought, bare, qrels


def test_each_case_has_its_weights(topics: Any) -> None:
    workspace, brought, bare, qrels = topics
    report = tune(workspace, "bm25,same", queries=[*brought, *bare], qrels=qrels)
    stack = report.stack
    assert (report.tuned.queries, report.tuned.value) == (4, 1.0)
    assert list(stack.combiner.cases) == ["inferred", "none"]
    assert report.cases["inferred"].queries == report.cases["none"].queries == 8
    told = stack.tuned["cases"]
    assert list(told) == list(CASES)
    assert told["inferred"]["value"] == pytest.approx(report.cases["inferred"].value, abs=1e-6)
    assert told["inferred"]["value"] >= told["inferred"]["first_stage_value"]
    assert workspace.stack("bm25,same") == stack == Stack.from_json(stack.to_json())


def test_status_shows_the_weights_of_each_case(topics: Any, run: Any) -> None:
    workspace, brought, bare, qrels = topics
    stack = tune(workspace, "bm25,same", queries=[*brought, *bare], qrels=qrels).stack
    workspace.use_stack(stack)
    shown = run("status", "-w", workspace.folder).out
    for queries, one in (
        ("queries with categories", stack.combiner),
        ("queries with inferred categories", stack.combiner.cases["inferred"]),
        ("queries without categories", stack.combiner.cases["none"]),
    ):
        assert f"  {queries}: {one}   ({one.normalization})\n" in shown
    cases = run("status", "-w", workspace.folder, "--json").json["releases"][0]["cases"]
    assert {case: one["stack"] for case, one in cases.items()} == {
        case: str(one) for case, one in stack.combiner.cases.items()
    }


def test_without_a_weight_for_categories_there_is_one_case(topics: Any) -> None:
    """All queries want the documents that rank first anyway."""
    workspace, brought, bare, _ = topics
    queries = [*brought, *bare]
    report = tune(
        workspace, "bm25,same", queries=queries, qrels=Qrels((query.id, "a0", 1) for query in queries)
    )
    stack = report.stack
    assert (stack.signals, stack.combiner.cases, [*report.cases]) == (("bm25",), {}, [""])
    assert (list(report.dropped), report.tuned.queries, report.tuned.value) == (["same"], 8, 1.0)


def test_a_mixed_set_is_evaluated_with_the_weights_of_each_query(topics: Any) -> None:
    workspace, brought, bare, qrels = topics
    stack = tune(workspace, "bm25,same", queries=[*brought, *bare], qrels=qrels).stack
    weights = {"given": stack, "inferred": stack.for_case("inferred"), "none": stack.for_case("none")}

    def value(queries: Sequence[Query], **options: Any) -> float:
        judged = Qrels((q.id, d, g) for q in queries for d, g in qrels[q.id].items())
        given = {"queries": queries, "qrels": judged, "baseline": "bm25", "measures": ["nDCG"], **options}
        return evaluate(workspace, ["bm25,same"], **given).results[-1].measures["nDCG"]

    mixed = value([*brought, *bare])
    assert mixed == pytest.approx((value(brought) + value(bare)) / 2)
    pipeline = workspace.pipeline(stack.signals)
    for query, case in ((brought[0], "given"), (bare[0], "inferred")):
        answer = pipeline.answer(query, stack)
        alone = pipeline.answer(
            query, replace(weights[case], combiner=replace(weights[case].combiner, cases={}))
        )
        assert answer.case == answer.to_json([])["case"] == case
        assert (answer.ranking.ids, str(answer.stack)) == (alone.ranking.ids, str(weights[case]))
    blind = replace(pipeline, infer_categories=False).answer(bare[0], stack)
    assert (blind.case, str(blind.stack)) == ("none", str(weights["none"]))


def test_without_a_signal_that_reads_categories_there_is_one_case(topics: Any) -> None:
    workspace, brought, bare, qrels = topics
    report = tune(workspace, "bm25,tfidf", queries=[*brought, *bare], qrels=qrels)
    assert (report.tuned.queries, [*report.cases], report.tuned.combiner.cases) == (8, [""], {})


@pytest.mark.parametrize(
    ("cases", "what"),
    [
        ({"mine": None}, "got `null` - at `[$].cases"),
        ({"none": {"stack": "bm25*1"}}, "missing required field .* at `[$].cases"),
        ({"sometimes": True}, "'sometimes' is not a case"),
    ],
)
def test_bad_cases_are_refused(cases: dict[str, Any], what: str) -> None:
    whole = Stack.parse("bm25*0.5 + text*0.5").to_json()
    own = {name: whole[name] for name in ("stack", "normalization")}
    given = {case: own if values is True else values for case, values in cases.items()}
    with pytest.raises(InputError, match=what):
        Stack.from_json({**whole, "cases": given})
