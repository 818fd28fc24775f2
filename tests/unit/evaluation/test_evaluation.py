"""Measures, the randomization test and Holm's correction agree with other implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import pytrec_eval
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from rerank.common.errors import InputError, UsageError
from rerank.documents.records import Qrels
from rerank.evaluation.judged import JudgedHits, count_judged
from rerank.evaluation.measures import Evaluation, check_measures, evaluate_runs, split_measures
from rerank.evaluation.protocols import parse_protocol
from rerank.evaluation.significance import compare, holm, randomization_test


def test_measures_agree_with_pytrec_eval_in_the_order_of_the_run():
    """trec_eval would sort equal scores by id. Our measures must use the given order."""
    random = np.random.default_rng(0)
    qrels = Qrels(
        (f"q{q}", f"d{d}", int(random.integers(0, 3))) for q in range(20) for d in random.choice(40, 8, False)
    )
    run = {query: [f"d{d}" for d in random.permutation(40)[:25]] for query in qrels}
    evaluation = evaluate_runs({"r": run}, qrels)
    scored = {query: {id: 1 / place for place, id in enumerate(ids, 1)} for query, ids in run.items()}
    trec = pytrec_eval.RelevanceEvaluator(
        {query: dict(qrels[query]) for query in qrels}, {"ndcg", "recip_rank", "ndcg_cut.10", "recall.100"}
    ).evaluate(scored)
    names = {"nDCG": "ndcg", "nDCG@10": "ndcg_cut_10", "RR": "recip_rank", "R@100": "recall_100"}
    for measure, name in names.items():
        expected = [trec[query][name] for query in evaluation.query_ids]
        assert evaluation.values["r"][measure].tolist() == pytest.approx(expected, abs=1e-12)


def test_queries_without_results_count_without_relevant_they_do_not():
    qrels = Qrels([("q1", "a", 1), ("q2", "a", 1), ("q3", "a", 1), ("none", "a", 0)])
    runs = {
        "full": {"q1": ["a"], "q2": ["a"], "q3": ["a"], "none": ["a"]},
        "poor": {"q1": ["a"], "q2": [], "unjudged": ["a"]},
        "void": {},
    }
    evaluation = evaluate_runs(runs, qrels, ["RR"])
    assert evaluation.query_ids == ("q1", "q2", "q3")
    assert evaluation.none_relevant == ("none",)
    assert evaluation.values["poor"]["RR"].tolist() == [1, 0, 0]
    assert dict(evaluation.empty) == {"full": 0, "poor": 2, "void": 3}
    assert [evaluation.mean(run, "RR") for run in runs] == [1, pytest.approx(1 / 3), 0]


def test_judged_hits_agree_with_ir_measures():
    """Their mean over queries is our share if each query has ten hits or more."""
    random = np.random.default_rng(1)
    qrels = Qrels(
        (f"q{q}", f"d{d}", int(random.integers(0, 2) if n else 1))
        for q in range(9)
        for n, d in enumerate(random.choice(30, 12, False))
    )
    run = {query: [f"d{d}" for d in random.permutation(30)[:15]] for query in qrels}
    counted = count_judged(run, qrels)
    assert counted.hits == 90
    assert counted.share == pytest.approx(
        evaluate_runs({"run": run}, qrels, ["Judged@10"]).mean("run", "Judged@10")
    )


def test_hits_of_queries_without_relevant_documents_are_not_counted():
    """q1: a and b of three hits are judged. q2 has only an irrelevant document, q3 no hits."""
    qrels = Qrels([("q1", "a", 1), ("q1", "b", 0), ("q2", "a", 0), ("q3", "a", 1)])
    counted = count_judged({"q1": ["b", "x", "a"], "q2": ["a"], "unjudged": ["a"]}, qrels)
    assert counted == JudgedHits(2, 3)
    assert count_judged({}, qrels).share is None


def test_long_runs_keep_their_order():
    ids = [f"d{n}" for n in range(20_000)]
    evaluation = evaluate_runs({"r": {"q": ids}}, Qrels([("q", "d19998", 1)]), ["RR"])
    assert evaluation.mean("r", "RR") == pytest.approx(1 / 19_999)


def test_unknown_measures_are_refused():
    for name in ("Foo", "nDCG@x", "", "nDCG@", "__import__('os')"):
        with pytest.raises(UsageError, match="unknown measure"):
            check_measures([name])
    assert check_measures(["RR", "MRR", "AP(rel=2)", "P@5"]) == ("RR", "AP(rel=2)", "P@5")


def test_invalid_runs_are_refused():
    with pytest.raises(InputError, match="retrieved twice"):
        evaluate_runs({"r": {"q": ["a", "a"]}}, Qrels([("q", "a", 1)]))
    with pytest.raises(InputError, match="none of the judged queries"):
        evaluate_runs({"r": {"q": ["a"]}}, Qrels([("q", "a", 0)]))


def enumerated_p_value(differences):
    observed = abs(sum(differences)) - 1e-12
    signs = itertools.product([1, -1], repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(pattern, differences))) for pattern in signs]
    return sum(total >= observed for total in sums) / len(sums)


@given(st.lists(st.integers(-6, 6), max_size=9))
def test_small_samples_are_enumerated(values):
    assert randomization_test([value / 10 for value in values]) == pytest.approx(enumerated_p_value(values))


def test_sixteen_differences_are_enumerated_and_seventeen_sampled():
    assert randomization_test([1.0] * 16) == 2 / 2**16
    drawn = randomization_test([1.0] * 17, permutations=999)
    assert drawn in {1 / 1000, 2 / 1000}


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_many_differences_agree_with_scipy(shift):
    differences = np.random.default_rng(1).normal(shift, 0.3, 60)
    expected = scipy.stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=10_000,
        vectorized=True,
        random_state=np.random.default_rng(2),
    ).pvalue
    ours = randomization_test(differences, permutations=10_000, seed=5)
    assert ours == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 10_000) + 2e-4)
    assert randomization_test(differences, permutations=10_000, seed=5) == ours
    assert randomization_test(-differences, permutations=10_000, seed=5) == ours
    assert randomization_test(np.append(differences, np.zeros(100)), permutations=10_000, seed=5) == ours


def test_randomization_test_of_edge_cases():
    assert randomization_test([]) == randomization_test([0.0, 0.0]) == randomization_test([0.5]) == 1.0
    assert randomization_test([1.0] * 500, permutations=999) == 1 / 1000
    with pytest.raises(ValueError, match="finite"):
        randomization_test([float("nan")])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_raises_p_values_keeps_their_order_and_a_maximum_of_one(p_values):
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()
    if p_values:
        assert min(corrected) == pytest.approx(min(1, len(p_values) * min(p_values)))


def test_compare_corrects_over_all_comparisons():
    random = np.random.default_rng(0)
    base = random.random(40)
    values = {
        "bm25": {"nDCG": base, "RR": base},
        "good": {"nDCG": base + 0.1, "RR": base + random.normal(0, 0.1, 40)},
        "same": {"nDCG": base, "RR": base},
    }
    evaluation = Evaluation(("nDCG", "RR"), tuple(map(str, range(40))), values, {}, ())
    comparisons = compare(evaluation, "bm25", permutations=999, seed=1)
    assert [(c.stack, c.measure) for c in comparisons] == [
        ("good", "nDCG"), ("good", "RR"), ("same", "nDCG"), ("same", "RR"),
    ]  # fmt: skip
    best = comparisons[0]
    assert (best.baseline, best.p, best.p_holm) == ("bm25", 0.001, 0.004)
    assert (best.wins, best.losses) == (40, 0)
    assert best.delta == pytest.approx(0.1)
    assert [c.p for c in comparisons[2:]] == [1, 1]
    assert [c.p_holm for c in comparisons] == holm([c.p for c in comparisons])
    assert len(compare(evaluation, "bm25", measures=["RR"], permutations=99)) == 2


@pytest.mark.parametrize(
    "text", ["", "retrieved", "retrieved:", "retrieved:0", "pool:40", "retrieved:-1", "a:b", "judged:5"]
)
def test_invalid_protocols_are_refused(text):
    with pytest.raises(UsageError, match="use judged, retrieved:N"):
        parse_protocol(text)


REFUSED = (
    "P@0", "nDCG@0", "P@-1", "P@1.5", "P(rel=0)@5", "AP(rel=99999999999)", "RBP(p=1.5)", "nDCG(dcg='x')@10",
    "SDCG@10", "nope", "nDCG(", "__import__('os')", "ERR@10", "nDCG(dcg='exp-log2')@10", "RBP(p=0.8,rel=1)",
)  # fmt: skip
COMPUTED = (
    "infAP", "IPrec@0.1", "Compat(p=0.8)", "Accuracy@10", "SetF(beta=0.5)", "Bpref", "Judged@10",
    "R(rel=2)@10", "P@99999999999",
)  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED, *COMPUTED])
def test_every_measure_is_computed_or_refused_without_another_program(name, monkeypatch):
    monkeypatch.setenv("PATH", "")
    qrels = Qrels([("q:a", "d 1", 2), ("q:a", "d2", 0), ("b", "x", 1)])
    run = {"q:a": ["d2", "d 1"], "b": ["y", "x"]}
    if name in COMPUTED:
        evaluation = evaluate_runs({"run": run}, qrels, [name])
        assert 0 <= evaluation.mean("run", evaluation.measures[0]) <= 1
        return
    with pytest.raises(UsageError, match=r"\Ameasure|\Aunknown measure") as caught:
        evaluate_runs({"run": run}, qrels, [name])
    assert "\n" not in str(caught.value)


def test_names_of_measures_are_split_outside_of_parentheses():
    assert split_measures("nDCG@10,RBP(p=0.8,rel=1) RR") == ["nDCG@10", "RBP(p=0.8,rel=1)", "RR"]
    assert split_measures("nDCG(") == ["nDCG", "("]
