"""Scores that do not depend on other candidates, and probabilities of relevance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

import rerank
from rerank.common.errors import UsageError
from rerank.stack.linear import Linear
from rerank.stack.normalize import Moments, normalize
from rerank.stack.relevance import Calibration, RelevanceModel
from rerank.stack.stack import Stack
from rerank.tuning.calibrate import CandidateList, area_under_curve, fit_calibration
from tests.support.data import QUERIES, qrels, topical

MOMENTS = (Moments(8.0, 4.0), Moments(0.1, 0.5))
FITTED = Linear(("bm25", "text"), (0.5, 0.5), "fitted", MOMENTS)


def test_fitted_scores_match_values_by_hand():
    assert normalize(np.array([[16.0, 0.6], [4.0, -0.4]]), "fitted", MOMENTS).tolist() == [[2, 1], [-1, -1]]
    assert FITTED.combine(np.array([[16.0, 0.6]]))[0].tolist() == [1.5]
    constant = (Moments(3.0, 0.0),)
    assert normalize(np.array([[3.0], [9.0]]), "fitted", constant).tolist() == [[0.0], [0.0]]


def test_moments_agree_with_numpy_for_any_order():
    scores = np.random.default_rng(0).normal(size=500)
    moments = Moments.from_scores(scores)
    np.testing.assert_allclose(moments, [scores.mean(), scores.std()])
    assert Moments.from_scores(scores[::-1]) == moments


@given(st.integers(0, 999), st.integers(0, 2**32 - 1))
def test_a_pair_has_the_same_score_alone_and_among_1000(position, seed):
    raw = np.random.default_rng(seed).normal((8, 0.1), (4, 0.5), size=(1000, 2))
    together, _, _ = FITTED.combine(raw)
    alone, _, _ = FITTED.combine(raw[[position]])
    assert abs(together[position] - alone[0]) < 1e-6


def test_fitted_needs_stored_moments_and_others_have_none():
    with pytest.raises(UsageError, match="tune"):
        Linear(("bm25", "text"), (0.5, 0.5), "fitted")
    with pytest.raises(UsageError):
        Linear(("bm25", "text"), (0.5, 0.5), "min-max", MOMENTS)


def lists(seed: int, queries: int = 40) -> list[CandidateList]:
    """Queries with 20 candidates, of which the better ones are relevant more often."""
    random = np.random.default_rng(seed)
    result = []
    for _ in range(queries):
        scores = np.sort(random.normal(size=20))[::-1]
        length = float(random.uniform(1, 4))
        relevant = random.random(20) < 1 / (1 + np.exp(-(2 * scores - 2 - 0.5 * length)))
        result.append(CandidateList(scores, relevant, random.normal(-2, 1, size=10), length))
    return result


def test_the_calibration_is_that_of_scikit_learn():
    judged = lists(1)
    calibration = fit_calibration(judged)
    assert calibration is not None
    scores = np.concatenate([part for each in judged for part in (each.scores, each.foreign)])
    lengths = np.concatenate([np.full(30, each.length) for each in judged])
    targets = np.concatenate([part for each in judged for part in (each.relevant, np.zeros(10, bool))])
    inputs = np.column_stack([scores, lengths])
    # The penalty is on the coefficients of inputs with a deviation of 1.
    scaled = StandardScaler().fit_transform(inputs)
    model = LogisticRegression(C=1 / (1e-4 * len(scores)), tol=1e-10, max_iter=10_000).fit(scaled, targets)
    expected = model.predict_proba(scaled[:20])[:, 1]
    probabilities = calibration.probabilities(scores[:20], lengths[0])
    np.testing.assert_allclose(probabilities, expected, atol=1e-4)


def test_probabilities_match_the_judgments_of_other_queries():
    calibration = fit_calibration(lists(2, 200))
    assert calibration is not None
    assert calibration.error < 0.05
    assert calibration.auc is not None
    assert calibration.auc > 0.9
    for other in lists(3, 3):
        probabilities = calibration.probabilities(other.scores, other.length)
        assert (np.diff(probabilities) <= 0).all()


def test_few_relevant_documents_or_scores_in_the_wrong_order_give_no_calibration():
    few = [CandidateList(np.array([1.0, 0.0]), np.array([True, False]), np.zeros(0), 1.0) for _ in range(29)]
    assert fit_calibration(few) is None
    wrong = [CandidateList(each.scores, each.relevant[::-1], -each.foreign, each.length) for each in lists(4)]
    assert fit_calibration(wrong) is None


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_the_area_under_the_curve_is_that_of_scikit_learn(positive, negative):
    targets = [1] * len(positive) + [0] * len(negative)
    actual = area_under_curve(np.array(positive, float), np.array(negative, float))
    assert actual == pytest.approx(roc_auc_score(targets, positive + negative))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = topical(tmp_path_factory.mktemp("relevance") / "ws")
    rerank.tune(workspace, "bm25,tfidf", queries=QUERIES, qrels=qrels(0, 36))
    return workspace


def test_a_tuned_stack_has_probabilities(workspace):
    stack = workspace.stack("bm25,tfidf")
    assert stack.relevance is not None
    assert stack.relevance.calibration is not None
    assert Stack.from_json(stack.to_json()) == stack
    answer = workspace.pipeline(stack.signals).answer(QUERIES[0], stack)
    probabilities = answer.ranking.relevance
    assert probabilities is not None
    assert ((probabilities > 0) & (probabilities < 1)).all()
    assert [hit.relevance for hit in answer.ranking] == probabilities[answer.ranking.order].tolist()


def test_hits_below_the_minimum_are_removed_and_counted(workspace):
    stack = workspace.stack("bm25,tfidf")
    pipeline = workspace.pipeline(stack.signals)
    query = rerank.Query("q", "w12 w13 w14 w30")
    complete = pipeline.answer(query, stack).ranking
    limit = max(hit.relevance for hit in complete)
    ranking = pipeline.answer(query, stack, min_score=limit).ranking
    assert ranking.ids == [hit.id for hit in complete if hit.relevance >= limit]
    assert ranking.removed == len(complete) - len(ranking) > 0
    assert [hit.rank for hit in ranking] == list(range(1, len(ranking) + 1))
    for hit in ranking:
        (same,) = [other for other in complete if other.id == hit.id]
        assert (hit.score, hit.signals, hit.relevance) == (same.score, same.signals, same.relevance)


@pytest.mark.parametrize("min_score", [-0.1, 1.1, float("nan")])
def test_a_minimum_outside_of_0_to_1_is_refused(workspace, min_score):
    stack = workspace.stack("bm25,tfidf")
    with pytest.raises(UsageError, match="0 to 1"):
        workspace.pipeline(stack.signals).answer(QUERIES[0], stack, min_score=min_score)


def test_a_minimum_without_probabilities_is_refused(workspace):
    stack = workspace.stack("bm25*0.5 + tfidf*0.5")
    with pytest.raises(UsageError, match="tune"):
        workspace.pipeline(stack.signals).answer(QUERIES[0], stack, min_score=0.5)


def test_each_category_case_has_its_own_model():
    other = RelevanceModel(FITTED, Calibration(0.0, 2.0, 0.0, 40, None, 0.1))
    model = RelevanceModel(FITTED, Calibration(0.0, 1.0, 0.0, 40, 0.9, 0.1), {"none": other})
    assert model.for_case("none") == other
    assert model.for_case("given").calibration == model.calibration
    raw = np.array([[16.0, 0.6]])  # the fitted score is 1.5
    assert other.relevance(raw, QUERIES[0]) == pytest.approx(1 / (1 + np.exp(-3.0)))
