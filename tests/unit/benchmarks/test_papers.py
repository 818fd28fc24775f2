"""The verdicts on the claims of the papers follow from the result files."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rerank.documents.records import Document, Qrels, Query
from rerank.rankers.graphs.citations import Citations
from rerank.tuning.score_table import ScoreTable

SCRIPTS = Path(__file__).parents[3] / "benchmarks" / "papers"


@pytest.fixture(scope="module")
def scripts() -> Any:
    """Return a function that imports a module of benchmarks/papers by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module


def lines_of_results() -> list[dict[str, Any]]:
    files = sorted((SCRIPTS / "results").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def test_every_result_has_its_origin() -> None:
    results = lines_of_results()
    assert results
    states = json.loads((SCRIPTS / "results" / "defaults.json").read_text("utf-8"))
    for result in results:
        assert result["command"], result["step"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"]), result["step"]
        assert re.fullmatch(r"[0-9a-f]{7,40}", result["commit"]), result["step"]
        assert result["defaults"] in states, result["step"]


def test_tests_of_results_compare_their_systems() -> None:
    """A test of a seed compares with a system of this line, or of another line of its group."""
    systems: dict[tuple[str, ...], set[str]] = {}
    for result in lines_of_results():
        key = (result["table"], result["collection"], result["setting"])
        systems.setdefault(key, set()).update(result["values"])
    for result in lines_of_results():
        for first, second, _, p in result["tests"]:
            key = (result["table"], result["collection"], result["setting"])
            assert {first, second} <= systems[key], result["step"]
            assert 0 <= p <= 1


def test_every_claim_has_a_result_or_a_reason(scripts: Any) -> None:
    page = scripts("page")
    for paper, claims in page.CLAIMS.items():
        for claim in claims:
            assert bool(claim.verdict) != bool(page.tested(paper, claim)), claim.text
            assert not claim.verdict or claim.reason, claim.text


def test_results_of_other_defaults_need_a_reason(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = scripts("results")
    assert [line for paper in module.PAPERS for line in module.outdated(paper)] == []
    now = module.defaults_of("004")
    monkeypatch.setattr(module, "defaults_of", lambda paper: {**now, "queue": now["queue"] + 1})
    (line,) = module.outdated("004")
    assert f"queue {now['queue']} -> {now['queue'] + 1}" in line


REMOVED = {"layers", "train-layers", "equal-anchors", "one-language", "filter"}
"""Options of earlier versions of the scripts, which are in the commits of their results."""


def test_commands_of_results_exist() -> None:
    shared = (SCRIPTS / "running.py").read_text("utf-8")
    for result in lines_of_results():
        script, *words = result["command"].removeprefix("python benchmarks/papers/").split() or [""]
        # Other scripts are in the commit of the result.
        if re.fullmatch(r"run_\d+\.py", script):
            text = shared + (SCRIPTS / script).read_text("utf-8")
            options = [word.removeprefix("--") for word in words if word.startswith("--")]
            unknown = [
                option
                for option in options
                if option not in REMOVED and f'"--{option}"' not in text and f'"{option}"' not in text
            ]
            assert unknown == [], result["step"]


# By hand: a two-sided p of 0.05 is 1.96 standard errors, 0.01 is 2.576, 0.32 is 0.994.
@pytest.mark.parametrize(
    ("deltas", "ps", "above", "equal"),
    [
        # 0.02 is 2.576 standard errors of 0.0078.
        ([0.02], [0.01], "holds", "does not hold"),
        ([-0.02], [0.01], "does not hold", "does not hold"),
        # 0.02 is 0.994 standard errors of 0.0201, so the range is -0.013 to 0.053.
        ([0.02], [0.32], "not decided", "not decided"),
        # The standard error is 0.0201, so the upper bound is -0.02 + 0.033: a gain of 0.01 is possible.
        ([-0.02], [0.32], "not decided", "not decided"),
        # The standard error is 0.002, so a gain of 0.01 is excluded. A loss is not shown.
        ([0.002], [0.32], "no gain above 0.01 shown", "holds"),
        ([-0.002], [0.32], "no gain above 0.01 shown", "holds"),
        # A significant loss is a loss, even if it is small.
        ([-0.002], [0.01], "does not hold", "holds"),
        # One seed loses significantly, and so does the mean: -0.015 is 2.33 standard errors of 0.0064.
        ([-0.02, -0.01], [0.01, 0.05], "does not hold", "does not hold"),
        # Seeds that contradict each other: mean 0, standard error 0.0078, upper bound 0.0128.
        ([0.02, -0.02], [0.01, 0.01], "not decided", "not decided"),
        # A seed with p = 1 has no standard error. It takes 0.0102, and 0.01 / 0.0102 is 0.98.
        ([0.02, 0.0], [0.05, 1.0], "not decided", "not decided"),
        ([0.02], [None], "not tested (same direction)", None),
        ([-0.02, 0.01], [0.01, None], "not tested (other direction)", None),
    ],
)
def test_verdicts_follow_from_deltas_and_p_values(
    scripts: Any, deltas: list[float], ps: list[float | None], above: str, equal: str | None
) -> None:
    difference = scripts("results").Difference.over_seeds(deltas, ps)
    assert difference.above(difference.p) == above
    assert equal is None or difference.equal(difference.p) == equal


def test_a_correction_can_only_weaken_a_verdict(scripts: Any) -> None:
    """0.02 is 2.576 standard errors of 0.0078, but after the correction p is 0.2."""
    difference = scripts("results").Difference.over_seeds([0.02], [0.01])
    assert difference.above(0.2) == "not decided"
    assert (-difference).above(0.2) == "no gain above 0.01 shown"


def test_the_mean_over_seeds_is_tested(scripts: Any) -> None:
    """By hand: standard errors 0.0102 and 0.0078, mean 0.0090; 0.02 / 0.0090 = 2.227, so p = 0.026."""
    difference = scripts("results").Difference.over_seeds([0.02, 0.02], [0.05, 0.01])
    assert difference.p == pytest.approx(0.0260, abs=5e-4)


def test_a_test_decides_in_both_directions(scripts: Any) -> None:
    """A test of a against b also decides b against a. A measure without a test decides nothing."""
    values = {"sentence": {"MAP": [0.6, 0.7], "F1": 0.5}, "direct": {"MAP": [0.5, 0.6], "F1": 0.4}}
    step = {"seeds": 2, "values": values, "tests": [["direct", "sentence", "MAP", 0.01]]}
    group = scripts("results").Group([step])
    difference = group.difference("sentence", "direct", "MAP")
    assert difference.mean == pytest.approx(0.1)
    assert difference.above(difference.p) == "holds"
    assert group.difference("sentence", "direct", "F1").p is None


def test_candidates_of_a_protocol_are_part_of_the_deepest_pool(scripts: Any) -> None:
    """By hand: r and s are relevant, and tf-idf does not find s. Documents b and c tie."""
    scores = {"a": 0.9, "r": 0.8, "b": 0.7, "c": 0.7, "d": 0.1, "s": 0.0}
    rows = [("q", list(scores), np.array([[one] for one in scores.values()]))]
    table = ScoreTable.build(["tfidf"], rows)
    qrels = Qrels([("q", "r", 2), ("q", "s", 1)])
    cut = scripts("run_003").cut

    def ids(kind: str, count: int, seed: int = 0) -> str:
        return "".join(cut(table, qrels, kind, count, seed).rows[0].ids)

    assert [ids("retrieved", n) for n in (1, 3, 9)] == ["a", "abr", "abcdr"]
    assert [ids("pool-first", n) for n in (1, 2, 9)] == ["ars", "abrs", "abcdrs"]
    assert {ids("pool-random", 1, seed) for seed in range(40)} == {"ars", "brs", "crs", "drs"}
    assert ids("pool-random", 4) == "abcdrs"


def test_degraded_categories_have_the_expected_errors(scripts: Any) -> None:
    """Half of the categories are dropped, a quarter become a sibling, and each run draws the same ones."""
    degraded = scripts("run_003").degraded
    queries = [Query(str(n), "x", tuple("abcd")) for n in range(500)]
    drawn = [degraded(query, {one: [one.upper()] for one in "abc"}) for query in queries]
    assert drawn == [degraded(query, {one: [one.upper()] for one in "abc"}) for query in queries]
    of = "".join(one for found in drawn for one in found)
    assert len(of) == pytest.approx(1000, abs=80)
    assert sum(of.count(one) for one in "ABC") == pytest.approx(375, abs=60)
    assert "D" not in of  # D has no sibling


def test_without_best_removes_documents_of_the_highest_grade(scripts: Any) -> None:
    """By hand: without b, c is the first document of the only query with another relevant document."""
    qrels = Qrels([("p", "b", 2), ("p", "c", 1), ("q", "b", 2)])
    runs, rest = scripts("run_003").without_best({"s": {"p": ["a", "b", "c"], "q": ["b"]}}, qrels)
    assert (runs, dict(rest["p"]), [*rest]) == ({"s": {"p": ["a", "c"]}}, {"c": 1}, ["p"])


def test_pooled_auc_matches_values_by_hand(scripts: Any) -> None:
    """By hand: the pairs of grades 2 and 1 are 0.9, 0.2 and 0.8, 0.1. Three of four are in order."""
    qrels = Qrels([("p", "a", 2), ("p", "b", 1), ("q", "a", 2), ("q", "b", 1)])
    scores = {"p": (["a", "b"], [0.9, 0.8]), "q": (["a", "b"], [0.2, 0.1])}
    other = {"p": (["a", "b"], [0.9, 0.1]), "q": (["a"], [0.2])}
    actual = scripts("run_002").pooled(scores, other, qrels)
    assert (actual["pairs"], actual["auc"], actual["input"]) == (4, 0.75, 1.0)


def test_direct_citations_are_triplets_of_articles_and_their_references(scripts: Any) -> None:
    """By hand: p cites a and q, q cites a, b, c, and r cites d."""
    cited = {"p": "aq", "q": "abc", "r": "d"}
    documents = [
        Document(
            key,
            title=f"title of {key}",
            extra={
                "citations": [{"ref": ref} for ref in cited.get(key, "")],
                "references": {ref: f"title of {ref}" for ref in cited.get(key, "")},
            },
        )
        for key in "pqrxyz"
    ]
    graph = Citations.from_documents(documents)
    usable = np.ones(len(graph.ids), np.bool_)
    triplets = scripts("run_001").CitingTriplets.from_citations(graph, usable)
    keys = triplets.network.keys
    assert {keys[target] for target in triplets.targets()} == {"p", "q", "r"}
    drawn = triplets.draw(keys.index("p"), np.random.default_rng(0))
    names = [(keys[positive], keys[negative]) for positive, negative in drawn]
    assert len(names) == 5
    assert {positive for positive, _ in names} <= {"a", "q"}
    assert not {negative for _, negative in names} & {"p", "a", "q"}
