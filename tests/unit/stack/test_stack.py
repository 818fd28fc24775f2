"""The stack: its notation, its file, normalization, and the explanation of a score."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import rankdata

from rerank.common.errors import InputError, RerankError, TrainingError, UsageError, WorkspaceError
from rerank.stack.linear import Linear
from rerank.stack.normalize import normalize
from rerank.stack.parse import parse_stack
from rerank.stack.ranking import Hit, SignalScore
from rerank.stack.stack import Stack

TEXT = "tfidf*0.35 + text*0.40 + meta*0.25"


@pytest.mark.parametrize(
    "text", [TEXT, "tfidf*0.35+text*0.4+meta*.25", " tfidf * .35, text*0.400 ,meta*0.250 "]
)
def test_different_spellings_give_one_stack(text):
    stack = Stack.parse(text)
    assert str(stack) == TEXT
    assert stack.combiner == Linear(("tfidf", "text", "meta"), (0.35, 0.4, 0.25))
    assert stack.combiner.weights == (0.35, 0.40, 0.25)


@pytest.mark.parametrize(
    ("text", "weights", "shown"),
    [
        ("a*1+b*0.5", (1, 0.5), "a*1.00 + b*0.50"),
        ("a*0.333+b*2", (0.333, 2), "a*0.333 + b*2.000"),
        ("a*0.123456789+b*999999", (0.123456789, 999999), "a*0.123456789 + b*999999.000000000"),
        ("a*0+b*3.", (0, 3), "a*0.00 + b*3.00"),
    ],
)
def test_weights_with_any_number_of_digits_are_kept(text, weights, shown):
    stack = Stack.parse(text)
    assert (stack.combiner.weights, str(stack)) == (weights, shown)
    assert Stack.parse(str(stack)).combiner.weights == stack.combiner.weights


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "+", "a+", "a,,b", "a*", "a*-1", "a*x", "a*1e3", "0.5*a", "a*0.5+b", "a+a", "a*0.5+a*0.5",
        "a*0", "a*1/2", "a b", "a*0.5*2", "a*inf", "a*nan", "a*1.0000000001",
    ],
)  # fmt: skip
def test_invalid_stacks_are_refused(text):
    with pytest.raises(UsageError) as caught:
        Stack.parse(text)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "given_stage", "expected"),
    [
        ("text*1+tfidf*1", None, "tfidf"),
        ("text", None, "bm25"),
        ("tfidf*1+bm25*1", None, "tfidf"),
        ("tfidf*1", "bm25", "bm25"),
    ],
)
def test_the_first_stage_is_given_or_taken_from_the_signals(text, given_stage, expected):
    assert Stack.parse(text, first_stage=given_stage).first_stage == expected


@given(st.lists(st.decimals(0, 900, places=9), min_size=1, max_size=5))
def test_the_notation_is_exact(weights):
    assume(any(weights))
    stack = Stack(Linear(tuple(f"s{n}" for n in range(len(weights))), tuple(map(float, weights))), "bm25")
    again = Stack.parse(str(stack))
    assert again.signals == stack.signals
    assert again.combiner.weights == stack.combiner.weights
    assert parse_stack(str(stack))[1] == tuple(map(float, weights))


@pytest.mark.parametrize(
    "fields",
    [
        {"signals": ()},
        {"signals": ("a", "a")},
        {"signals": ("a", "b c")},
        {"weights": (1,)},
        {"weights": (0, 0)},
        {"weights": (2, -1)},
        {"weights": (1, float("inf"))},
        {"normalization": "robust"},
    ],
)
def test_inconsistent_stack_settings_are_refused(fields):
    with pytest.raises(UsageError):
        Linear(**{"signals": ("a", "b"), "weights": (1, 1), **fields})


def full_stack():
    return Stack.parse(TEXT, normalization="z-score", depth=500, versions={"text": "3f"})


def test_a_stack_file_is_readable_and_loads_the_same_stack(tmp_path):
    stack = full_stack()
    stack.save(tmp_path / "stack.json")
    assert Stack.load(tmp_path / "stack.json") == stack
    data = json.loads((tmp_path / "stack.json").read_text())
    assert data["stack"] == TEXT
    before = (tmp_path / "stack.json").read_bytes()
    Stack.load(tmp_path / "stack.json").save(tmp_path / "stack.json")
    assert (tmp_path / "stack.json").read_bytes() == before


def changed_file(**fields):
    return json.dumps({**full_stack().to_json(), **fields}).encode()


@pytest.mark.parametrize(
    ("content", "kind", "what"),
    [
        (b"{", InputError, ": not a JSON file"),
        (b"\xff", InputError, ": not a JSON file"),
        (b"[]", InputError, ": no stack"),
        (b"{}", InputError, ": no stack"),
        (changed_file(rerank_stack=1), WorkspaceError, ": stack format 1, but this version reads 2"),
        (changed_file(cases=[1]), InputError, ": Expected `object`, got `array` - at `$.cases`"),
        (changed_file(weigths={}), InputError, ": Object contains unknown field `weigths`"),
        (changed_file(stack="bm25,text"), InputError, ": 2 signals need as many weights"),
        (changed_file(stack="bm25*?"), InputError, ": stack 'bm25*?'"),
        (changed_file(depth=True), InputError, ": Expected `int`, got `bool` - at `$.depth`"),
        (changed_file(normalization="robust"), InputError, ": unknown normalization 'robust'"),
        (changed_file(first_stage=None), InputError, ": Expected `str`, got `null` - at `$.first_stage`"),
        (changed_file(bounds={}), InputError, ": Object contains unknown field `bounds`"),
        (changed_file(versions={"text": 3}), InputError, ": Expected `str`, got `int` - at `$.versions"),
        (changed_file(tuned={"signals": "text"}), InputError, ": Expected `array`, got `str`"),
    ],
)
def test_bad_stack_files_are_refused(tmp_path, content, kind, what):
    path = tmp_path / "stack.json"
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        Stack.load(path)
    assert str(caught.value).startswith(f"{path}{what}")


def test_a_missing_stack_file_is_reported(tmp_path):
    with pytest.raises(InputError, match="no such stack file"):
        Stack.load(tmp_path / "none.json")
    with pytest.raises(RerankError, match="cannot be read"):
        Stack.load(tmp_path)


columns = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 3)),
    elements=st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0, 2.0]),
)


def test_normalize_matches_values_by_hand():
    raw = np.array([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]])
    assert normalize(raw, "min-max").tolist() == [[0, 0], [1, 0], [0.5, 0]]
    root = np.sqrt(1.5)
    np.testing.assert_allclose(normalize(raw, "z-score"), [[-root, 0], [root, 0], [0, 0]])
    assert normalize(raw, "none").tolist() == raw.tolist()
    assert raw[0, 0] == 1.0
    for method in ("min-max", "z-score", "none"):
        assert normalize(np.empty((0, 2)), method).shape == (0, 2)
    with pytest.raises(UsageError, match="unknown normalization 'robust'"):
        normalize(raw, "robust")


def is_constant(column):
    return column.max() - column.min() <= 1e-6 * abs(column).max()


def test_the_last_bits_of_fp32_are_ignored():
    """Matrix products give equal documents scores that differ in the last bits, depending on the batch."""
    cosine = np.float32(0.8)
    bits = [cosine, np.nextafter(cosine, np.float32(0)), np.nextafter(cosine, np.float32(1))]
    for sign in (1, -1):
        raw = np.array([[sign * float(bit), float(number)] for number, bit in enumerate(bits)])
        for method in ("min-max", "z-score", "rank"):
            result = normalize(raw, method)
            assert result[:, 0].tolist() == [0, 0, 0]
            assert result[:, 1].any()
    assert normalize(np.array([[1.0], [1.00001]]), "min-max").tolist() == [[0], [1]]
    assert normalize(np.array([[1e-9], [2e-9]]), "min-max").tolist() == [[0], [1]]


@pytest.mark.parametrize("method", ["min-max", "z-score", "rank"])
def test_dates_a_minute_apart_differ_and_computed_scores_do_not(method):
    """1,751,328,000 is 2025-07-01 in seconds: within 28 minutes, the relative difference is below 1e-6."""
    raw = 1_751_328_000.0 + np.array([[0.0, 0.0], [60.0, 60.0], [120.0, 120.0]])
    result = normalize(raw, method, signals=["field:published", "text"])
    expected = {"min-max": [0, 0.5, 1], "z-score": [-np.sqrt(1.5), 0, np.sqrt(1.5)], "rank": [0, 0.5, 1]}
    np.testing.assert_allclose(result[:, 0], expected[method], atol=1e-9)
    assert result[:, 1].tolist() == [0, 0, 0]
    final, _, _ = Linear(("field:published", "text"), (1.0, 1.0), method).combine(raw)
    assert final.tolist() == result[:, 0].tolist()


@pytest.mark.parametrize("factor", [1.0, 1e308, 1e-200, 5e-324])
def test_extreme_values_are_normalized_like_others(factor):
    raw = np.array([[-1.0], [0.0], [1.0]]) * factor
    assert normalize(raw, "min-max")[:, 0].tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(normalize(raw, "z-score")[:, 0], [-np.sqrt(1.5), 0, np.sqrt(1.5)])
    assert normalize(raw, "rank")[:, 0].tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("method", ["min-max", "z-score", "rank", "none"])
def test_sums_of_the_largest_values_and_weights_are_finite(method):
    linear = Linear(("field:a", "field:b"), (1e100, 1e100), method)
    final, _, weighted = linear.combine(np.array([[1e308, 1e308], [-1e308, -1e308], [0.0, 1.0]]))
    assert np.isfinite(final).all()
    assert np.isfinite(weighted).all()
    assert ((linear.relevance(final) >= 0) & (linear.relevance(final) <= 1)).all()
    assert final.argmax() == 0
    for weight in (1e101, -1.0, np.nan):
        with pytest.raises(UsageError, match="weights must be numbers from 0 to"):
            Linear(("bm25",), (weight,))


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=12))
def test_rank_is_the_share_of_lower_scores(numbers):
    result = normalize(np.array([numbers], np.float64).T * 3.7, "rank")[:, 0]
    expected = (
        (rankdata(numbers) - 1) / (len(numbers) - 1) if len(set(numbers)) > 1 else np.zeros(len(numbers))
    )
    np.testing.assert_allclose(result, expected)
    assert normalize(np.array([[3.0]]), "rank").tolist() == [[0.0]]


@given(columns, st.sampled_from(["min-max", "z-score", "rank", "none"]), st.randoms())
def test_properties_of_normalized_scores(raw, method, random):
    result = normalize(raw, method)
    shuffled = list(range(len(raw)))
    random.shuffle(shuffled)
    assert normalize(raw[shuffled], method).tolist() == result[shuffled].tolist()
    assert normalize(np.asfortranarray(raw), method).tolist() == result.tolist()
    for before, after in zip(raw.T, result.T):
        assert (np.diff(after[np.argsort(before)]) >= 0).all()
        if method in ("min-max", "z-score") and is_constant(before):
            assert not after.any()
        elif method == "min-max":
            assert (after.min(), after.max()) == (0.0, 1.0)
        elif method == "z-score" and before.max() - before.min() > 1e-6:
            assert (after.mean(), after.std()) == pytest.approx((0, 1), abs=1e-6)


def test_a_ranking_explains_its_scores():
    stack = Stack.parse("bm25*0.5+text*0.5")
    ranking = stack.rank(["a", "b", "c"], np.array([[9.0, 0.0], [5.0, 1.0], [1.0, 0.0]]))
    assert ranking.ids == ["b", "a", "c"]
    assert ranking[0] == Hit(
        "b", 0.75, 1, 2, {"bm25": SignalScore(5.0, 0.5, 0.25), "text": SignalScore(1.0, 1.0, 0.5)}
    )
    assert [hit.first_stage_rank for hit in ranking] == [2, 1, 3]
    assert ranking[-1].rank == 3
    assert ranking.top(2) == list(ranking)[:2]
    assert len(ranking.top(10)) == len(ranking) == 3
    assert ranking.run() == [("b", 0.75), ("a", 0.5), ("c", 0.0)]
    with pytest.raises(IndexError):
        ranking[3]


@given(columns)
def test_the_weighted_scores_add_up_to_the_score(raw):
    stack = Stack(Linear(tuple("abc"[: raw.shape[1]]), (0.35, 0.4, 0.25)[: raw.shape[1]]), "bm25")
    for hit in stack.rank([f"d{n}" for n in range(len(raw))], raw):
        assert sum(signal.weighted for signal in hit.signals.values()) == pytest.approx(hit.score)


def test_a_signal_with_scores_that_are_not_finite_is_named():
    stack = Stack.parse("bm25*0.5+text*0.5")
    with pytest.raises(TrainingError, match="a score of text is not finite"):
        stack.rank(["a", "b"], np.array([[1.0, np.nan], [1.0, 0.0]]))
