"""Relatedness of pairs: measures agree with scikit-learn and simple loops, and the commands work."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from rerank import Workspace, ingest
from rerank.common.errors import UsageError
from rerank.documents.records import Document, LabeledPair, Query
from rerank.engines.search_request import SearchRequest
from rerank.evaluation.pair_measures import accuracy, auc, best_threshold, f1, paired_test
from rerank.pairs.evaluate import evaluate_pairs, predict_pairs
from rerank.pairs.score import score_pairs
from rerank.rankers.projection.ranker import Projection, Terms
from rerank.stack.signals import LexicalSignal
from tests.support.rankers import Plain

RNG = np.random.default_rng(3)
LABELS = RNG.random(150) < 0.4
SCORES = np.round(RNG.normal(size=150) + LABELS, 1)  # with ties
OTHER = RNG.normal(size=150) + 0.5 * LABELS
COLORS = ("red", "blue", "green")


@pytest.mark.parametrize("scores", [SCORES, OTHER, -SCORES, np.zeros(150)])
def test_measures_equal_scikit_learn(scores):
    assert auc(scores, LABELS) == pytest.approx(roc_auc_score(LABELS, scores), abs=1e-12)
    for threshold in (-9.0, 0.0, 0.5, 9.0):
        answers = scores >= threshold
        assert accuracy(scores, LABELS, threshold) == accuracy_score(LABELS, answers)
        assert f1(scores, LABELS, threshold) == pytest.approx(f1_score(LABELS, answers, zero_division=0))


@pytest.mark.parametrize("scores", [SCORES, OTHER, -SCORES, np.zeros(150), np.arange(150) * 1e-300])
def test_no_other_threshold_is_better(scores):
    values = np.unique(scores)
    every = [*values, values[-1] + 1, values[0] - 1]
    best = max(accuracy_score(LABELS, scores >= one) for one in every)
    assert accuracy(scores, LABELS, best_threshold(scores, LABELS)) == best


def test_the_paired_randomization_test():
    same = paired_test([(SCORES, 0.5)], [(SCORES, 0.5)], LABELS, permutations=50)
    assert set(same.values()) == {1.0}
    perfect = LABELS.astype(float)
    actual = paired_test([(perfect, 0.5)], [(OTHER, 0.3)], LABELS, permutations=300)
    assert max(actual.values()) == pytest.approx(1 / 301)
    # For accuracy it equals the sign test, because exchanging answers flips the sign of each difference.
    better = (SCORES >= 0.5) == LABELS
    worse = (OTHER >= 0.3) == LABELS
    wins, losses = int((better & ~worse).sum()), int((worse & ~better).sum())
    actual = paired_test([(SCORES, 0.5)], [(OTHER, 0.3)], LABELS, permutations=1000)
    assert actual["accuracy"] == pytest.approx(binomtest(wins, wins + losses).pvalue, abs=0.03)
    # Two equal seeds give the result of one.
    one = paired_test([(SCORES, 0.5)], [(OTHER, 0.3)], LABELS, permutations=200)
    assert paired_test([(SCORES, 0.5)] * 2, [(OTHER, 0.3)], LABELS, permutations=200) == one
    with pytest.raises(UsageError, match="do not pair"):
        paired_test([(SCORES, 0.5)] * 2, [(OTHER, 0.3)] * 3, LABELS)


def documents() -> list[dict]:
    """Return four documents for each of three colors. Each document has two more words."""
    return [
        {"_id": f"{color}{i}", "title": color, "text": f"{color} of word{i} and other{n}"}
        for n, color in enumerate(COLORS)
        for i in range(4)
    ]


def labeled(which: range) -> list[LabeledPair]:
    ids = [f"{color}{i}" for color in COLORS for i in which]
    return [LabeledPair(a, b, a[:-1] == b[:-1]) for i, a in enumerate(ids) for b in ids[i + 1 :]]


TEST, DEV = labeled(range(2)), labeled(range(2, 4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_lines):
    """A workspace with a projection that separates red from other colors, and one that does not."""
    folder = tmp_path_factory.mktemp("pairs")
    ingest(str(folder / "ws"), [write_lines(folder / "corpus.jsonl", documents())], lang="en")
    workspace = Workspace.open(folder / "ws")
    names = [*COLORS, *(f"word{i}" for i in range(4))]
    terms = Terms(names, np.ones(len(names), dtype=np.float32), letters=0, longest=400)
    for name, weights in (("lsi", [[1, 0], [0, 1], [0, 1]]), ("s2net", [[1, 0]] * 3)):
        matrix = np.array([*weights, *[[0, 0.1]] * 4], dtype=np.float16)
        workspace.install(Projection(name=name, terms=terms, query=matrix, document=matrix))
    lines = "".join(f"{a}\t{b}\t{int(label)}\n" for a, b, label in TEST)
    (folder / "test.tsv").write_text(lines)
    (folder / "dev.tsv").write_text("".join(f"{a}\t{b}\t{int(label)}\n" for a, b, label in DEV))
    return folder


def test_the_score_of_a_pair_is_the_mean_of_both_orders(folder):
    workspace = Workspace.open(folder / "ws")
    ranker, engine = workspace.ranker("lsi"), workspace.engine
    by_id = {one["_id"]: Document(one["_id"], one["title"], one["text"]) for one in documents()}
    for signal in (ranker, LexicalSignal("bm25")):
        actual = score_pairs(engine, signal, [("red0", "blue1"), ("blue1", "red0"), ("red2", "red2")])
        assert actual[0] == actual[1]
        for (a, b), score in zip([("red0", "blue1"), ("red2", "red2")], actual[[0, 2]].tolist()):
            both = []
            for query, document in ((a, b), (b, a)):
                if isinstance(signal, LexicalSignal):
                    text = Query("q", by_id[query].content).search_text(engine.lang)
                    both.append(
                        engine.find(SearchRequest(text, ids=[document], first_stage="bm25")).scores[0]
                    )
                else:
                    vector = ranker.encode_query(Query("q", by_id[query].content))
                    both.append(ranker.score(vector, ranker.encode_documents([by_id[document]]))[0])
            assert score == pytest.approx(np.mean(both), abs=1e-9)


def test_evaluate_pairs_reports_measures_and_comparisons(folder):
    workspace = Workspace.open(folder / "ws")
    actual = evaluate_pairs(workspace, ["lsi", "s2net"], TEST, dev_pairs=DEV, permutations=50)
    by = {one.ranker: one for one in actual.results}
    assert list(by) == ["tfidf", "lsi", "s2net"]
    assert (actual.pairs, actual.related, actual.dev_pairs) == (15, 3, 15)
    labels = [pair.related for pair in TEST]
    for name, row in by.items():
        expected = f1_score(labels, actual.scores[name] >= row.threshold)
        assert row.measures["F1"] == pytest.approx(expected)
    assert by["tfidf"].measures["AUC"] == 1.0
    assert by["lsi"].measures["AUC"] < 1.0
    (delta, *_) = by["lsi"].comparisons
    assert delta.delta == by["lsi"].measures["accuracy"] - by["tfidf"].measures["accuracy"]
    assert delta.p_holm >= delta.p
    rows = actual.rows()
    assert {tuple(row) for row in rows[1:]} == {tuple(rows[1])}
    reversed_, both = TEST[0]._replace(a=TEST[0].b, b=TEST[0].a), LabeledPair("red1", "blue3", True)
    more = [*TEST, reversed_, both, LabeledPair("blue3", "red1", False)]
    again = evaluate_pairs(workspace, ["lsi"], more, dev_pairs=DEV, permutations=50)
    assert (again.pairs, again.results[1].measures) == (15, by["lsi"].measures)


def test_a_repeated_pair_has_no_two_labels(folder):
    related = next(pair for pair in DEV if pair.related)
    repeated = [related, related._replace(a=related.b, b=related.a)]
    with pytest.raises(UsageError, match="all labels are the same"):
        predict_pairs(folder / "ws", "bm25", [(related.a, related.b, None)], dev_pairs=repeated)


def test_predict_pairs_uses_a_given_or_chosen_threshold(folder):
    workspace = Workspace.open(folder / "ws")
    pairs = [("red0", "red1", None), ("red0", "blue0", False), ("blue0", "red0", True)]
    actual = predict_pairs(workspace, "lsi", pairs, threshold=0.5)
    assert [row["related"] for row in actual.rows()] == [None, 0, 1], "labels and zeros are kept"
    assert [row["predicted"] for row in actual.rows()] == [1, 0, 0]
    assert predict_pairs(workspace, "lsi", pairs).rows()[0]["predicted"] is None
    chosen = predict_pairs(workspace, "lsi", pairs, dev_pairs=DEV)
    assert chosen.threshold == best_threshold(
        predict_pairs(workspace, "lsi", [(a, b, None) for a, b, _ in DEV]).scores,
        [pair.related for pair in DEV],
    )


def test_pairs_commands_print_tables_and_json(folder, run, tmp_path):
    where = ("-w", folder / "ws")
    files = ("--pairs", folder / "test.tsv", "--dev-pairs", folder / "dev.tsv")
    done = run("pairs", "evaluate", "--ranker", "lsi", *files, *where)
    lines = done.out.splitlines()
    assert lines[0] == "15 pairs, 3 related, thresholds of 15 dev pairs"
    header, _, baseline, row = lines[1:]
    assert "delta AUC" in header
    assert len(baseline.split()) == 4
    assert len(row.split()) == 10
    actual = run("pairs", "evaluate", "--ranker", "lsi", "--baseline", "bm25", *files, *where, "--json").json
    assert [one["ranker"] for one in actual["results"]] == ["bm25", "lsi"]
    assert "scores" not in actual
    (tmp_path / "some.tsv").write_text("red0\tred1\nred1\tblue0\n")
    some = ("pairs", "predict", "--ranker", "lsi", "--pairs", tmp_path / "some.tsv", *where)
    done = run(*some)
    assert [line.split("\t")[:2] for line in done.out.splitlines()] == [
        ["a", "b"],
        ["red0", "red1"],
        ["red1", "blue0"],
    ]
    assert "--threshold" in done.err
    done = run(*some, "--threshold", 0.5)
    assert [line.split("\t")[-1] for line in done.out.splitlines()] == ["predicted", "1", "0"]
    labels = run("pairs", "predict", "--ranker", "tfidf", *files, *where, "--json").json["pairs"]
    assert [row["related"] for row in labels] == [int(pair.related) for pair in TEST]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("evaluate --ranker lsi --pairs {test}", 2, "no threshold; give --dev-pairs"),
        ("evaluate --ranker lsi --pairs {test} --dev-pairs {test}", 2, "15 pairs also in --dev-pairs"),
        ("evaluate --ranker opca --pairs {test} --dev-pairs {dev}", 1, "'opca' is not trained"),
        ("evaluate --ranker nothing --pairs {test} --dev-pairs {dev}", 2, "'nothing' is unknown"),
        ("predict --ranker lsi --pairs {test} --threshold nan", 2, "--threshold"),
        ("predict --ranker lsi --pairs {test} --threshold 1 --dev-pairs {dev}", 2, "not both"),
    ],
)
def test_pairs_commands_refuse_bad_input(folder, run, words, code, message):
    paths = {name: folder / f"{name}.tsv" for name in ("test", "dev")}
    run("pairs", *words.format(**paths).split(), "-w", folder / "ws").fails(code, message)


class Related(Plain):
    """Computes relatedness from features: one number, the count of words."""

    family, name, threshold = "related", "related", 0.75

    def encode_documents(self, documents):
        return np.array([[len(one.title)] for one in documents], np.float32)

    def encode_query(self, query):
        raise AssertionError("features are enough")

    def score(self, query, features):
        raise AssertionError("features are enough")

    def relatedness(self, a, b):
        return 1 / (1 + np.abs(a - b)[:, 0].astype(np.float64))


def test_a_ranker_that_computes_relatedness_from_features(folder, monkeypatch):
    workspace = Workspace.open(folder / "ws")
    monkeypatch.setitem(workspace._rankers, "related", Related())
    monkeypatch.setattr(workspace, "ranker", lambda name: workspace._rankers[name])
    actual = predict_pairs(workspace, "related", [("red0", "red1", None), ("blue0", "red0", None)])
    assert actual.scores.tolist() == [1.0, 0.5]
    assert [row["predicted"] for row in actual.rows()] == [1, 0], "the ranker's threshold"
    report = evaluate_pairs(workspace, ["related"], TEST, baseline="related")
    (row,) = report.results
    assert row.threshold == 0.75
