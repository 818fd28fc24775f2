"""The tuner agrees with ir_measures, on tables with many ties and with relevant documents not retrieved."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerank.common.errors import InputError, TrainingError, UsageError
from rerank.documents.records import Qrels
from rerank.evaluation.measures import evaluate_runs
from rerank.evaluation.ranks import RankMeasure
from rerank.stack.parse import parse_stack
from rerank.stack.stack import Stack
from rerank.tuning import measure as measuring
from rerank.tuning import tune as tuning
from rerank.tuning.grid import Grid, compositions, weight_grid
from rerank.tuning.score_table import ScoreTable
from rerank.tuning.shortlist import shortlist
from rerank.tuning.tune import tune

SIGNALS = ("bm25", "text", "meta")


def random_case(seed, *, queries=12, candidates=30, signals=SIGNALS, levels=4, relevant=4):
    """Return a table with many ties, and judgments that include unretrieved documents."""
    random = np.random.default_rng(seed)
    rows, judgments = [], []
    for q in range(queries):
        n = int(random.integers(0, candidates + 1)) if q else 0
        ids = [f"d{number}" for number in random.choice(1000, n, replace=False)]
        rows.append(
            (
                f"q{q}",
                ids,
                random.integers(0, levels, (n, len(signals)))
                / 3
                * [7, 1, 0.1, 1, 1, 1, 1, 1][: len(signals)],
            )
        )
        for id in random.permutation(ids)[: int(random.integers(0, relevant + 1))]:
            judgments.append((f"q{q}", str(id), int(random.integers(0, 4))))
        judgments.append((f"q{q}", "unretrieved", int(random.integers(0, 3))))
    judgments.append(("absent", "d1", 1))
    return ScoreTable.build(signals, rows), Qrels(judgments), rows


def run_of(combiner, rows):
    stack = Stack(combiner, "bm25")
    return {query: stack.rank(ids, scores).ids for query, ids, scores in rows}


def by_ir_measures(stack, rows, qrels, measure="nDCG"):
    evaluation = evaluate_runs({"run": run_of(stack, rows)}, qrels, [measure])
    return dict(zip(evaluation.query_ids, evaluation.values["run"][measure].tolist()))


def by_tuner(stack, table, qrels, measure="nDCG"):
    """Return the tuner's value of one setting by query."""
    by = RankMeasure.parse(measure)
    judged, _ = measuring.judge(table.select_signals(stack.signals), qrels, by)
    return measuring.values_by_query(judged, stack, by)


def test_the_grid_has_the_known_sizes():
    assert [len(compositions(n)) for n in (1, 2, 3, 4)] == [1, 21, 231, 1771]
    assert compositions(3, 2).tolist() == [
        [2, 0, 0], [1, 1, 0], [1, 0, 1], [0, 2, 0], [0, 1, 1], [0, 0, 2],
    ]  # fmt: skip


@given(st.integers(1, 4), st.integers(1, 12))
def test_compositions_are_complete(n_signals, parts):
    rows = [tuple(row) for row in compositions(n_signals, parts).tolist()]
    everything = [r for r in itertools.product(range(parts + 1), repeat=n_signals) if sum(r) == parts]
    assert sorted(everything, reverse=True) == rows


@pytest.mark.parametrize("n_signals", [1, 2, 4])
def test_the_raw_grid_reaches_near_zero_without_duplicates(n_signals):
    weights = weight_grid("none", n_signals)
    even = compositions(n_signals)
    assert weights[: len(even)].tolist() == (even / 20).tolist()
    thousandths = (weights * 1000).round().astype(int)
    directions = {tuple(w // math.gcd(*row) for w in row) for row in thousandths.tolist()}
    assert len(directions) == len(weights)
    if n_signals > 1:
        assert (1000, 1) in {tuple(row[:2]) for row in thousandths.tolist()}
    assert weights.max() == 1
    assert (weights >= 0).all()


def test_many_signals_of_few_candidates_are_tuned():
    """The complete grid has 888,030 settings."""
    table, qrels, _ = random_case(0, queries=3, candidates=4, signals=[f"s{n}" for n in range(8)])
    assert tune(table, qrels, first_stage="s0", normalizations=["z-score"]).settings < 1000


def test_the_search_of_a_large_grid_finds_nearly_the_best_setting(monkeypatch):
    """The best weights of the five signals come from the full grid of 10,626 settings."""
    random = np.random.default_rng(0)
    quality, scale = random.uniform(0.5, 2, 5), 10.0 ** random.uniform(-1, 1.5, 5)
    rows, judgments = [], []
    for q in range(20):
        relevant = random.choice(20, 3, replace=False)
        truth = np.isin(np.arange(20), relevant)[:, None] * (random.random((20, 5)) < 0.8)
        scores = (random.normal(size=(20, 5)) + quality * truth) * scale
        rows.append((f"q{q}", [f"d{d:02}" for d in range(20)], scores))
        judgments += [(f"q{q}", f"d{d:02}", 1) for d in relevant.tolist()]
    table, qrels = ScoreTable.build([f"s{n}" for n in range(5)], rows), Qrels(judgments)
    settings = {"first_stage": "s0", "measure": "nDCG@10", "normalizations": ["z-score"]}
    monkeypatch.setattr(tuning, "FEW_QUERIES", 0)  # the best setting, not a mean of good ones
    full = tune(table, qrels, **settings)
    monkeypatch.setattr(tuning, "MAX_WORK", 0)
    actual = tune(table, qrels, **settings)
    assert actual.settings < full.settings / 100
    assert actual.value >= full.value - 0.001
    assert actual.single_signal == pytest.approx(full.single_signal)
    for name, value in full.ablation.items():
        assert actual.ablation[name] >= value - 0.002
    raw = tune(table, qrels, **{**settings, "normalizations": ["none"]}).combiner
    assert parse_stack(str(raw)) == (raw.signals, raw.weights)


@settings(max_examples=30)
@given(st.integers(2, 7), st.sampled_from([1, 10, 20, 21]), st.integers(0, 9))
def test_a_shortlist_contains_valid_and_different_settings(n_signals, parts, seed):
    best = np.random.default_rng(seed).dirichlet(np.ones(n_signals)) * parts
    settings = shortlist(n_signals, parts, lambda rows: -np.abs(rows - best).sum(axis=1), 40)
    assert (settings.sum(axis=1) == parts).all()
    assert (settings >= 0).all()
    assert len({tuple(row) for row in settings.tolist()}) == len(settings)
    for signal in range(n_signals):
        assert (settings[:, signal] == parts).any()
        assert (settings[:, signal] == 0).any()


def test_tuner_ndcg_matches_values_by_hand():
    """The ranking is d1 (grade 1), d2 (0), d3 (2). Document d4 (grade 3) was not retrieved."""
    table = ScoreTable.build(["bm25"], [("q", ["d3", "d1", "d2"], np.array([[1.0], [3.0], [2.0]]))])
    qrels = Qrels([("q", "d1", 1), ("q", "d2", 0), ("q", "d3", 2), ("q", "d4", 3), ("empty", "d1", 1)])
    dcg = 1 / math.log2(2) + 2 / math.log2(4)
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    values = by_tuner(Stack.parse("bm25").combiner, table, qrels)
    assert values == {"empty": 0.0, "q": pytest.approx(dcg / ideal, abs=1e-15)}
    assert tune(table, qrels, first_stage="bm25").value == pytest.approx(dcg / ideal / 2)


def test_a_tie_is_decided_by_the_id():
    table = ScoreTable.build(["bm25"], [("q", ["d2", "d10", "d1"], np.zeros((3, 1)))])
    bm25 = Stack.parse("bm25").combiner
    for id, place in (("d1", 1), ("d10", 2), ("d2", 3)):
        assert by_tuner(bm25, table, Qrels([("q", id, 1)]))["q"] == 1 / math.log2(place + 1)


@pytest.mark.parametrize(("seed", "signals"), [(0, SIGNALS), (1, SIGNALS[:2]), (2, SIGNALS[:1])])
@pytest.mark.parametrize(
    ("measure", "sort_from"),
    [("nDCG", 0), ("nDCG", 96), ("nDCG@5", 96), ("RR", 0), ("RR", 96), ("AP", 0), ("AP", 96), ("AP@7", 96)],
)
def test_every_setting_equals_ir_measures(monkeypatch, seed, signals, measure, sort_from):
    monkeypatch.setattr(measuring, "_SORT_FROM", sort_from)
    monkeypatch.setattr(measuring, "_STEP_SCORES", 200)  # several steps for one query
    table, qrels, rows = random_case(seed, signals=signals)
    by = RankMeasure.parse(measure)
    judged, _ = measuring.judge(table, qrels, by)
    for normalization in ("min-max", "z-score", "none"):
        grid = Grid(normalization, weight_grid(normalization, len(signals), 5))
        (means,) = measuring.grid_means(judged, [grid], by)
        for setting in range(0, len(grid), 11):
            stack = grid.linear(setting, signals)
            expected = by_ir_measures(stack, rows, qrels, measure)
            assert by_tuner(stack, table, qrels, measure) == pytest.approx(expected, abs=1e-12)
            assert means[setting] == pytest.approx(np.mean(list(expected.values())), abs=1e-12)


@pytest.mark.parametrize("normalization", ["min-max", "z-score"])
def test_the_tuner_ignores_the_last_bits_of_scores(normalization):
    _, qrels, rows = random_case(5)
    noisy = []
    for number, (query, ids, scores) in enumerate(rows):
        scores = scores.copy()
        scores[:, 1] = 0.7 + 1e-7 * np.random.default_rng(number).random(len(scores))  # as fp32 can give
        noisy.append((query, ids, scores))
    table = ScoreTable.build(SIGNALS, noisy)
    for text in ("text*1.0", "bm25*0.3+text*0.6+meta*0.1"):
        stack = Stack.parse(text, normalization=normalization).combiner
        chosen = [SIGNALS.index(name) for name in stack.signals]
        expected = by_ir_measures(stack, [(q, ids, scores[:, chosen]) for q, ids, scores in noisy], qrels)
        actual = by_tuner(stack, table, qrels)
        assert {query: actual[query] for query in expected} == pytest.approx(expected, abs=1e-12)
    without = [(q, ids, scores[:, [0, 2]]) for q, ids, scores in noisy]
    assert run_of(Stack.parse("bm25*0.3+meta*0.1", normalization=normalization).combiner, without) == run_of(
        Stack.parse("bm25*0.3+text*0.6+meta*0.1", normalization=normalization).combiner, noisy
    )


def test_many_candidates_and_many_relevant_documents():
    """Tests more candidates than 8 x 256, and too many relevant documents to count one by one."""
    random = np.random.default_rng(5)
    ids = [f"d{n:04d}" for n in range(4500)]
    rows = [("q", ids, random.integers(0, 50, (4500, 2)).astype(float))]
    table = ScoreTable.build(["bm25", "text"], rows)
    stack = Stack.parse("bm25*0.55+text*0.45").combiner
    for relevant in (3, 400):
        qrels = Qrels(("q", str(id), 1) for id in random.choice(ids, relevant, replace=False))
        for measure in ("nDCG", "nDCG@10", "RR", "AP"):
            expected = by_ir_measures(stack, rows, qrels, measure)
            assert by_tuner(stack, table, qrels, measure) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(["nDCG", "nDCG@10", "nDCG@3", "RR", "AP"]))
def test_the_best_setting_is_never_below_the_first_stage(seed, n_signals, measure):
    table, qrels, rows = random_case(seed, queries=6, candidates=12, signals=SIGNALS[:n_signals])
    tuned = tune(table, qrels, first_stage="bm25", parts=10, measure=measure)
    evaluated = by_ir_measures(tuned.combiner, rows, qrels, measure)
    assert (tuned.measure, tuned.record()["measure"]) == (measure, measure)
    assert tuned.value == pytest.approx(sum(evaluated.values()) / tuned.queries, abs=1e-12)
    first_column = [(query, ids, scores[:, :1]) for query, ids, scores in rows]
    alone = by_ir_measures(Stack.parse("bm25").combiner, first_column, qrels, measure)
    assert tuned.first_stage_value == pytest.approx(sum(alone.values()) / tuned.queries, abs=1e-12)
    assert tuned.value >= tuned.first_stage_value - 1e-12
    assert tuned.single_signal["bm25"] == tuned.first_stage_value
    assert tuned.queries == len(evaluated)
    assert tuned.none_relevant == len(qrels) - len(evaluated)
    assert all(tuned.value >= value - 1e-12 for value in tuned.single_signal.values())
    assert max(best.value for best in tuned.best.values()) >= tuned.value - 1e-12
    assert set(tuned.ablation) == (set(table.signals) if n_signals > 1 else set())


def test_few_queries_do_not_choose_weights_of_a_thousandth(monkeypatch):
    """Raw scores are tried with many queries, or if the caller names them."""
    table, qrels, _ = random_case(3)
    few = tune(table, qrels, first_stage="bm25", parts=10)
    named = tune(table, qrels, first_stage="bm25", parts=10, normalizations=["none", "fitted"])
    monkeypatch.setattr(tuning, "FEW_QUERIES", 2)
    many = tune(table, qrels, first_stage="bm25", parts=10)
    assert set(few.best) == {"min-max", "z-score", "fitted"}
    assert set(named.best) == {"none", "fitted"}
    assert set(many.best) == {*few.best, "none"}


def test_without_any_gain_the_first_stage_has_all_the_weight():
    rows = [("q", ["a", "b"], np.array([[1.0, 0.5, 0.5], [2.0, 0.5, 0.5]]))]
    tuned = tune(ScoreTable.build(SIGNALS, rows), Qrels([("q", "b", 1)]), first_stage="bm25")
    assert (str(tuned.combiner), tuned.combiner.normalization) == (
        "bm25*1.00 + text*0.00 + meta*0.00",
        "min-max",
    )


def test_ties_prefer_the_first_stage_then_equal_weights(monkeypatch):
    """Relevant b is last for bm25 and first for text and meta. It wins if these two have enough weight."""
    monkeypatch.setattr(tuning, "FEW_QUERIES", 0)
    rows = [("q", ["a", "b"], np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))]
    table, qrels = ScoreTable.build(SIGNALS, rows), Qrels([("q", "b", 1)])
    tuned = tune(table, qrels, first_stage="bm25", normalizations=["min-max"], parts=21)
    # 10 of 21 is the highest weight of bm25 with which b wins. 6 and 5 are the most equal rest.
    assert [round(21 * weight, 6) for weight in tuned.combiner.weights] == [10, 6, 5]
    moved = tune(table.select_signals(["text", "bm25", "meta"]), qrels, first_stage="bm25", parts=21)
    assert [round(21 * weight, 6) for weight in moved.combiner.weights] == [6, 10, 5]


def test_few_queries_get_the_mean_of_all_good_settings(monkeypatch):
    """The best weights of 20 queries fit noise. New queries of the same kind show this."""

    def case(seed, queries):
        random, rows, judgments = np.random.default_rng(seed), [], []
        for q in range(queries):
            truth = np.arange(20) < 3
            noise = random.normal(size=(20, 3))
            rows.append((f"q{q:03}", [f"d{d:02}" for d in range(20)], noise + 0.8 * truth[:, None]))
            judgments += [(f"q{q:03}", f"d{d:02}", 1) for d in range(3)]
        return ScoreTable.build(SIGNALS, rows), Qrels(judgments)

    table, qrels = case(0, 80)
    settings = {"first_stage": "bm25", "measure": "nDCG@10", "normalizations": ["z-score"]}
    values: dict[int, list[float]] = {0: [], tuning.FEW_QUERIES: []}
    for seed in range(1, 7):
        for few, found in values.items():
            monkeypatch.setattr(tuning, "FEW_QUERIES", few)
            chosen = tune(*case(seed, 20), **settings).combiner
            found += by_tuner(chosen, table, qrels, "nDCG@10").values()
    best, averaged = map(np.mean, values.values())
    assert averaged - best > 0.003


@pytest.mark.parametrize("normalization", ["min-max", "z-score", "rank"])
def test_dates_a_minute_apart_get_weight(normalization):
    """The newest document is relevant; 1,751,328,000 is 2025-07-01 in seconds."""
    scores = np.array([[3.0, 0], [2, 60], [1, 120]]) + [0, 1_751_328_000.0]
    table = ScoreTable.build(["bm25", "field:published"], [("q1", ["a", "b", "c"], scores)])
    tuned = tune(table, Qrels([("q1", "c", 1)]), first_stage="bm25", normalizations=[normalization])
    assert (tuned.first_stage_value, tuned.value) == (0.5, 1.0)
    assert tuned.single_signal["field:published"] == 1.0


def test_the_order_of_normalizations_decides_ties():
    table, qrels, _ = random_case(2, signals=SIGNALS[:1])
    for names in (["z-score", "min-max"], ["none", "z-score"]):
        assert tune(table, qrels, first_stage="bm25", normalizations=names).combiner.normalization == names[0]


def test_raw_scores_of_different_scales_need_the_fine_grid():
    """bm25 is in the hundreds and text in the hundredths. Even steps cannot balance them, but 0.001 can."""
    random = np.random.default_rng(3)
    rows, judgments = [], []
    for q in range(30):
        words, meaning = random.random(20), random.random(20)
        rows.append((f"q{q}", [f"d{n}" for n in range(20)], np.stack([300 * words, meaning], axis=1)))
        judgments.append((f"q{q}", f"d{int((words + meaning).argmax())}", 1))
    table, qrels = ScoreTable.build(["bm25", "text"], rows), Qrels(judgments)
    tuned = tune(table, qrels, first_stage="bm25", normalizations=["none"])
    assert str(tuned.combiner) == "bm25*0.003 + text*1.000"
    assert tuned.value == 1.0


@pytest.mark.parametrize(("least", "weight", "value"), [(0, 0.05, 1.0), (0.3, 0.45, 0.75), (0.5, 1.0, 0.5)])
def test_the_first_stage_keeps_a_share_of_the_weight(monkeypatch, least, weight, value):
    """With the weight w of bm25, relevant b of q1 is first if 1 - w > w + 0.9 (1 - w), so below 1/11.

    For q2, it is first if 1 - w > w. Otherwise it is second. Ties prefer more weight for bm25.
    """
    monkeypatch.setattr(tuning, "FEW_QUERIES", 0)
    ids = ["a", "b", "c"]
    scores = {"q1": [[1, 0.9], [0, 1], [0, 0]], "q2": [[1, 0], [0, 1], [0, 0]]}
    table = ScoreTable.build(["bm25", "text"], [(query, ids, rows) for query, rows in scores.items()])
    qrels = Qrels([("q1", "b", 1), ("q2", "b", 1)])
    tuned = tune(
        table, qrels, first_stage="bm25", measure="RR", normalizations=["min-max"], least_share=least
    )
    assert tuned.combiner.weights_by_signal()["bm25"] == weight
    assert tuned.value == value
    assert (tuned.single_signal, tuned.first_stage_value) == ({"bm25": 0.5, "text": 1.0}, 0.5)
    assert tuned.ablation == ({"bm25": 1.0, "text": 0.5} if not least else {"text": 0.5})


@settings(max_examples=20)
@given(st.integers(0, 999), st.sampled_from(["min-max", "z-score", "none", "fitted"]), st.integers(2, 4))
def test_the_smallest_share_holds_for_each_normalization(seed, normalization, n_signals):
    """Shares of raw scores are weights times the mean deviation of the scores within a query."""
    signals = ("bm25", "text", "meta", "more")[:n_signals]
    table, qrels, _ = random_case(seed, queries=8, signals=signals)
    options = {"first_stage": "bm25", "measure": "nDCG@10", "normalizations": [normalization]}
    tuned = tune(table, qrels, least_share=0.3, **options)
    spread = np.ones(n_signals)
    if normalization == "none":
        by_query = {row.query: row for row in table.rows}
        rows = [by_query[query] for query in qrels if query in by_query and qrels.relevant(query)]
        with_relevant = [row for row in rows if set(row.ids) & set(qrels.relevant(row.query))]
        spread = np.mean([row.scores.std(axis=0) for row in with_relevant], axis=0)
        spread = np.maximum(spread, 1e-9)  # of one candidate, for example
    effects = np.array(tuned.combiner.weights) * spread
    assert effects[0] / effects.sum() >= 0.3 - 1e-6
    assert tuned.first_stage_value <= tuned.value + 1e-12
    assert tuned.value <= tune(table, qrels, **options).best_value + 1e-12


def test_the_search_of_a_large_grid_keeps_the_smallest_share(monkeypatch):
    table, qrels, _ = random_case(5, queries=20, signals=[f"s{n}" for n in range(5)])
    options = {"first_stage": "s0", "measure": "nDCG@10", "normalizations": ["z-score"], "least_share": 0.4}
    monkeypatch.setattr(tuning, "FEW_QUERIES", 0)
    full = tune(table, qrels, **options)
    monkeypatch.setattr(tuning, "MAX_WORK", 0)
    searched = tune(table, qrels, **options)
    assert 1 < searched.settings < full.settings / 10
    for tuned in (full, searched):
        assert tuned.combiner.weights_by_signal()["s0"] >= 0.4
    assert searched.value >= full.value - 0.002


def test_tuning_is_reproducible_and_its_result_is_saved(tmp_path):
    table, qrels, _ = random_case(4, queries=70)
    seen: list[int] = []
    one = tune(table, qrels, first_stage="bm25", progress=seen.append)
    two = tune(table, qrels, first_stage="bm25")
    assert one == two
    assert sum(seen) == one.queries
    stack = Stack(one.combiner, "bm25", 30, versions={"text": "v1"}, tuned=one.record())
    stack.save(tmp_path / "one.json")
    loaded = Stack.load(tmp_path / "one.json")
    assert loaded == stack
    assert loaded.tuned["value"] == round(one.value, 6)
    assert (loaded.versions, loaded.depth) == ({"text": "v1"}, 30)
    assert json.loads(json.dumps(one.record())) == one.record()


def test_the_record_of_one_query_is_valid_json():
    """One query has no standard error, so that no gain can be shown."""
    table = ScoreTable.build(["bm25", "text"], [("q", ["a", "b"], np.array([[0.9, 0.1], [0.1, 0.9]]))])
    gain = tune(table, Qrels([("q", "b", 1)]), first_stage="bm25").record()["gain"]
    assert (len(gain), gain[3]) == (4, None)


def test_impossible_tunings_are_refused():
    table, qrels, _ = random_case(0)
    with pytest.raises(UsageError, match="signal tfidf was not scored; there are bm25, text, meta"):
        tune(table, qrels, first_stage="tfidf")
    with pytest.raises(UsageError, match="unknown normalization 'robust'"):
        tune(table, qrels, first_stage="bm25", normalizations=["robust"])
    for measure in ("ndcg", "P@5", "nDCG@0", "RR@", "AP@1.5"):
        with pytest.raises(UsageError, match=f"'{measure}'; use nDCG"):
            tune(table, qrels, first_stage="bm25", measure=measure)
    with pytest.raises(InputError, match="none of the judged queries has a relevant"):
        tune(table, Qrels([("q1", "d1", 0)]), first_stage="bm25")
    for least in (-0.1, 1.0, math.nan):
        with pytest.raises(UsageError, match="from 0 to below 1"):
            tune(table, qrels, first_stage="bm25", least_share=least)
    with pytest.raises(UsageError, match="bm25, which is not among the signals; add it"):
        tune(table, qrels, signals=["text", "meta"], first_stage="bm25", least_share=0.3)
    with pytest.raises(InputError, match="no judged query was scored"):
        tune(table, Qrels([("other", "d1", 1)]), first_stage="bm25")


def test_the_score_table_is_sorted_by_id():
    rows = [
        ("q1", ["d2", "d10", "é"], np.array([[1.0, 0.1], [2.0, 0.2], [3.0, 0.3]])),
        ("q2", [], np.empty((0, 2))),
        ("q3", ["x"], np.array([[4.0, 0.4]])),
    ]
    table = ScoreTable.build(["bm25", "text"], rows)
    assert [row.ids for row in table.rows] == [("d10", "d2", "é"), (), ("x",)]
    assert table.rows[0].scores.tolist() == [[2.0, 0.2], [1.0, 0.1], [3.0, 0.3]]
    assert table.select_signals(["text"]).rows[2].scores.tolist() == [[0.4]]
    with pytest.raises(UsageError, match="signal meta was not scored; there are bm25, text"):
        table.select_signals(["meta"])


@pytest.mark.parametrize(
    ("rows", "error", "what"),
    [
        ([("q", ["a"], np.ones((1, 2)))], ValueError, "cannot reshape"),
        ([("q", ["a"], np.full((1, 1), np.nan))], TrainingError, "query 'q': a score of bm25 is not finite"),
    ],
)
def test_invalid_rows_of_a_table_are_refused(rows, error, what):
    with pytest.raises(error, match=what):
        ScoreTable.build(["bm25"], rows)
