"""Relatedness of documents, and agreement with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.evaluation.pairs import MEASURES, accuracy, auc, best_threshold, f1, paired_test
from rerank.evaluation.significance import holm
from rerank.inputs import Pairs, as_pairs
from rerank.progress import Progress
from rerank.records import LabeledPair
from rerank.results import Report
from rerank.scoring.pairs import Relates, score_pairs
from rerank.stack.signals import learned, resolve
from rerank.text import plural
from rerank.workspace import Workspace, WorkspaceOrPath

Array = NDArray[np.float64]


@dataclass
class PairScores(Report):
    """Scores of pairs.

    pairs: two ids and a label or None. threshold: smallest score of a related pair.
    """

    ranker: str
    threshold: float | None
    pairs: list[tuple[str, str, bool | None]]
    scores: Array

    def rows(self) -> list[dict[str, object]]:
        """Return rows: ``a``, ``b``, ``related`` (1, 0 or None), ``score``, ``predicted``."""
        return [
            {
                "a": a,
                "b": b,
                "related": None if related is None else int(related),
                "score": score,
                "predicted": None if self.threshold is None else int(score >= self.threshold),
            }
            for (a, b, related), score in zip(self.pairs, self.scores.tolist())
        ]

    def to_json(self) -> dict[str, object]:
        """Return ranker, threshold and rows."""
        return {"ranker": self.ranker, "threshold": self.threshold, "pairs": self.rows()}


@dataclass(frozen=True)
class PairComparison:
    """A ranker compared with the baseline. p: randomization test over pairs; p_holm: corrected."""

    measure: str
    delta: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class PairRow:
    """Results of a ranker."""

    ranker: str
    threshold: float
    measures: dict[str, float]
    comparisons: list[PairComparison] = field(default_factory=list)


@dataclass
class PairsReport(Report):
    """Agreement with labels. pairs, related: test pairs. dev_pairs: set the thresholds."""

    pairs: int
    related: int
    dev_pairs: int
    baseline: str
    results: list[PairRow]
    scores: dict[str, Array] = field(default_factory=dict, repr=False)

    def rows(self) -> list[dict[str, object]]:
        """Return a row per ranker; the baseline has no differences."""
        names = [f"{kind} {name}" for name in MEASURES for kind in ("delta", "p")]
        rows = [{"ranker": one.ranker, **one.measures, **dict.fromkeys(names)} for one in self.results]
        for row, one in zip(rows, self.results):
            for of in one.comparisons:
                row |= {f"delta {of.measure}": of.delta, f"p {of.measure}": of.p_holm}
        return rows


def predict_pairs(
    workspace: WorkspaceOrPath,
    ranker: str,
    pairs: Sequence[tuple[str, str, bool | None]],
    *,
    dev_pairs: Pairs = (),
    threshold: float | None = None,
    progress: Progress | None = None,
) -> PairScores:
    """Score the relatedness of documents by a ranker, ``tfidf`` or ``bm25``: the mean of both directions.

    threshold: smallest score of related pairs. Default: the most accurate on ``dev_pairs``, the ranker's, or
        none.

    >>> pairs = [("wolf", "owl", None), ("fox", "owl", None)]
    >>> [row["predicted"] for row in predict_pairs(workspace, "tfidf", pairs, threshold=0.3).rows()]
    [1, 0]
    """
    workspace = Workspace.open(workspace)
    if dev_pairs and threshold is not None:
        raise UsageError("give --threshold or --dev-pairs, not both")
    if threshold is not None and not np.isfinite(threshold):
        raise UsageError(f"--threshold must be a number, not {threshold}")
    dev = _once(as_pairs(dev_pairs, workspace.engine.contains))
    scores, found = _scores(workspace, ranker, pairs, dev, progress)
    return PairScores(ranker, found if threshold is None else threshold, list(pairs), scores)


def evaluate_pairs(
    workspace: WorkspaceOrPath,
    rankers: Sequence[str],
    pairs: Pairs,
    *,
    dev_pairs: Pairs = (),
    baseline: str | None = None,
    permutations: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> PairsReport:
    """Measure how well rankers separate related from unrelated pairs, and compare them with a baseline.

    rankers: also ``tfidf`` or ``bm25``.
    baseline: Default: ``tfidf``, or ``bm25`` if the engine has no ``tfidf``.
    dev_pairs: set thresholds (best accuracy). permutations: of the randomization test.

    Raises UsageError for a ranker without threshold and dev pairs, and for a pair in both sets.

    >>> from rerank import Document, LabeledPair, Workspace
    >>> workspace = Workspace.create(folder / "pairs", lang="en")
    >>> texts = {"wolf": "a wolf hunts", "fox": "a fox hunts", "elk": "elks eat", "cow": "cows eat"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    4
    >>> dev = [LabeledPair("elk", "cow", True), LabeledPair("elk", "fox", False)]
    >>> test = [LabeledPair("wolf", "fox", True), LabeledPair("wolf", "cow", False)]
    >>> evaluate_pairs(workspace, ["bm25"], test, dev_pairs=dev).rows()[0]["accuracy"]
    1.0
    """
    workspace = Workspace.open(workspace)
    dev_pairs, pairs = (_once(as_pairs(one, workspace.engine.contains)) for one in (dev_pairs, pairs))
    if both := {pair.key for pair in pairs} & {pair.key for pair in dev_pairs}:
        some = plural(len(both), "pair[ is|s are] also in --dev-pairs")
        raise UsageError(f"{some}, first {' and '.join(min(both))}; remove these from one of the files")
    if baseline is None:
        stages = workspace.engine.first_stages
        baseline = "tfidf" if "tfidf" in stages else stages[0]
    labels = [pair.related for pair in pairs]
    scores: dict[str, Array] = {}
    results = []
    for name in dict.fromkeys([baseline, *rankers]):
        scores[name], threshold = _scores(workspace, name, pairs, dev_pairs, progress)
        if threshold is None:
            raise UsageError(f"{name} has no threshold; give --dev-pairs to choose one")
        binary = (measure(scores[name], labels, threshold) for measure in (accuracy, f1))
        values = dict(zip(MEASURES, (*binary, auc(scores[name], labels))))
        results.append(PairRow(name, threshold, values))
    first = [(scores[baseline], results[0].threshold)]
    tests = [
        paired_test(
            [(scores[one.ranker], one.threshold)], first, labels, permutations=permutations, seed=seed
        )
        for one in results[1:]
    ]
    corrected = iter(holm([test[measure] for test in tests for measure in MEASURES]))
    for one, test in zip(results[1:], tests):
        for measure in MEASURES:
            delta = one.measures[measure] - results[0].measures[measure]
            one.comparisons.append(PairComparison(measure, delta, test[measure], next(corrected)))
    return PairsReport(len(pairs), sum(labels), len(dev_pairs), baseline, results, scores)


def _scores(
    workspace: Workspace,
    name: str,
    pairs: Sequence[tuple[str, str, bool | None]],
    dev_pairs: Sequence[LabeledPair],
    progress: Progress | None,
) -> tuple[Array, float | None]:
    """Return (n,) scores by a signal, and the threshold: the best one on dev pairs, else the ranker's."""
    rankers = {one: workspace.ranker(one) for one in learned([name])}
    (signal,) = resolve([name], rankers)
    scores, dev = (
        score_pairs(workspace.engine, signal, [pair[:2] for pair in some], progress)
        for some in (pairs, dev_pairs)
    )
    if dev_pairs:
        return scores, best_threshold(dev, [pair.related for pair in dev_pairs])
    ranker = rankers.get(name)
    return scores, ranker.threshold if isinstance(ranker, Relates) else None


def _once(pairs: Sequence[LabeledPair]) -> list[LabeledPair]:
    """Return each pair once, without pairs that have both labels in the two orders of their ids."""
    labels: dict[tuple[str, str], set[bool]] = {}
    for pair in pairs:
        labels.setdefault(pair.key, set()).add(pair.related)
    first = {pair.key: pair for pair in reversed(pairs)}
    kept = [first[key] for key, found in labels.items() if len(found) == 1]
    if len(kept) < len(pairs) and len({pair.related for pair in kept}) < 2:
        raise UsageError("without pairs that have both labels, all are related, or all unrelated; add pairs")
    return kept
