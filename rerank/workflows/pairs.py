"""Pairs: how related documents are by rankers, and how well that agrees with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.errors import UsageError
from rerank.evaluation.pairs import (
    MEASURES,
    Bin,
    Sigmoid,
    accuracy,
    auc,
    best_threshold,
    calibration,
    f1,
    paired_test,
    seeds_test,
)
from rerank.evaluation.significance import holm
from rerank.progress import Progress
from rerank.records import LabeledPair
from rerank.results import Report
from rerank.search.pairs import Relates, score_pairs
from rerank.stack.signals import learned, resolve
from rerank.text import plural
from rerank.workspace import Workspace

Array = NDArray[np.float64]


@dataclass
class Predicted(Report):
    """Scores of pairs, in their order.

    pairs: two ids and the label that came with them, None where none did. threshold: from which on a pair is
    predicted to be related; None: nothing was said of it.
    """

    ranker: str
    threshold: float | None
    pairs: list[tuple[str, str, bool | None]]
    scores: Array

    def rows(self) -> list[dict[str, object]]:
        """A row for each pair: ``a``, ``b``, ``related`` (1, 0 or None), ``score``, ``predicted``."""
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
        """The ranker, the threshold and the rows."""
        return {"ranker": self.ranker, "threshold": self.threshold, "pairs": self.rows()}


@dataclass(frozen=True)
class PairComparison:
    """A ranker, or several seeds of one, against the baseline on one measure.

    p: of the randomization test over pairs; p_holm: corrected for all comparisons that were made with it.
    p_seeds: of the paired t-test over seeds; None if no test is possible, as for a single seed.
    """

    measure: str
    delta: float
    p: float
    p_holm: float
    p_seeds: float | None


@dataclass(frozen=True)
class PairRow:
    """What one ranker, or several seeds of one, achieves.

    thresholds: of each seed. measures, deviations: mean and standard deviation over the seeds.
    calibration_error, bins: of the first seed's probabilities; calibrated: whether these are its scores, or
    were made of them on the dev pairs. None where they cannot be made.
    """

    ranker: str
    thresholds: list[float]
    measures: dict[str, float]
    deviations: dict[str, float]
    calibrated: str | None
    calibration_error: float | None
    bins: list[Bin]
    comparisons: list[PairComparison]


@dataclass
class PairsReport(Report):
    """How well rankers tell related pairs from unrelated ones.

    pairs, related: of those that were measured; dev_pairs: of those that the thresholds are from.
    """

    pairs: int
    related: int
    dev_pairs: int
    baseline: str
    results: list[PairRow]
    scores: dict[str, Array] = field(default_factory=dict, repr=False)

    def rows(self) -> list[dict[str, object]]:
        """A row for each ranker: measures, calibration, and what it gains on the baseline, with p."""
        return [
            {
                "ranker": one.ranker,
                **one.measures,
                "ECE": one.calibration_error,
                **{f"delta {of.measure}": of.delta for of in one.comparisons},
                **{f"p {of.measure}": of.p_holm for of in one.comparisons},
            }
            for one in self.results
        ]


def predict_pairs(
    workspace: Workspace,
    ranker: str,
    pairs: Sequence[tuple[str, str, bool | None]],
    *,
    dev_pairs: Sequence[LabeledPair] = (),
    threshold: float | None = None,
    progress: Progress | None = None,
) -> Predicted:
    """Say how related pairs of documents are by a ranker, or by ``tfidf`` or ``bm25``.

    Its score with one document as the query, and with the other, is averaged. Labels are passed on.

    dev_pairs: the threshold is the one with the best accuracy on them; threshold: or this one. Without both
    it is the ranker's own; of one that has none nothing is predicted.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts at night", "fox": "a fox hunts mice", "elk": "elks eat"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    3
    >>> pairs = [("wolf", "fox", None), ("wolf", "elk", None)]
    >>> found = predict_pairs(workspace, "tfidf", pairs, threshold=0.1)
    >>> [row["predicted"] for row in found.rows()]
    [1, 0]
    """
    if dev_pairs and threshold is not None:
        raise UsageError("give --threshold or --dev-pairs, not both")
    if threshold is not None and not np.isfinite(threshold):
        raise UsageError(f"--threshold takes a number, not {threshold}")
    scores = _scores(workspace, ranker, [(a, b) for a, b, _ in pairs], progress)
    if dev_pairs:
        on_dev = _scores(workspace, ranker, [pair[:2] for pair in dev_pairs], progress)
        threshold = best_threshold(on_dev, [pair.related for pair in dev_pairs])
    elif threshold is None:
        threshold = own_threshold(workspace, ranker)
    return Predicted(ranker, threshold, list(pairs), scores)


def evaluate_pairs(
    workspace: Workspace,
    rankers: Sequence[str],
    pairs: Sequence[LabeledPair],
    *,
    dev_pairs: Sequence[LabeledPair] = (),
    baseline: str | None = None,
    permutations: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> PairsReport:
    """Measure how well rankers tell related pairs from unrelated ones, against a baseline.

    baseline: None: ``tfidf``, or ``bm25`` where the engine has no other.
    rankers: names of rankers, ``tfidf`` or ``bm25``; several with commas between are one ranker trained with
    several seeds. permutations: of the randomization test. dev_pairs: thresholds are those of the best
    accuracy on them, and scores that are no probabilities are made into such by a sigmoid that is fitted to
    them.

    Raises UsageError where there are no dev pairs for a ranker without a threshold of its own, or a pair is
    both among them and among those that are measured.

    >>> import tempfile
    >>> from rerank import Document, LabeledPair, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> texts = {"wolf": "a wolf hunts", "fox": "a fox hunts", "elk": "elks eat", "cow": "cows eat"}
    >>> workspace.engine.write(Document(id, text=text) for id, text in texts.items()).added
    4
    >>> dev = [LabeledPair("elk", "cow", True), LabeledPair("elk", "fox", False)]
    >>> test = [LabeledPair("wolf", "fox", True), LabeledPair("wolf", "cow", False)]
    >>> evaluate_pairs(workspace, ["bm25"], test, dev_pairs=dev).rows()[0]["accuracy"]
    1.0
    """
    _check_disjoint(pairs, dev_pairs)
    labels = np.array([pair.related for pair in pairs], np.bool_)
    if baseline is None:
        stages = workspace.engine.first_stages
        baseline = "tfidf" if "tfidf" in stages else stages[0]
    names = list(dict.fromkeys([baseline, *rankers]))
    groups = {name: _seeds(name) for name in names}
    scored = {
        name: _score(workspace, name, pairs, dev_pairs, progress)
        for name in dict.fromkeys(one for seeds in groups.values() for one in seeds)
    }
    by_group = {name: [scored[one] for one in seeds] for name, seeds in groups.items()}
    measured = {name: _measures(of, labels) for name, of in by_group.items()}
    tests = {
        name: paired_test(
            [(one.scores, one.threshold) for one in by_group[name]],
            [(one.scores, one.threshold) for one in by_group[baseline]],
            labels,
            permutations=permutations,
            seed=seed,
        )
        for name in names
        if name != baseline
    }
    corrected = iter(holm([test[measure] for test in tests.values() for measure in MEASURES]))
    results = []
    for name in names:
        comparisons = [
            PairComparison(
                measure=measure,
                delta=float(np.mean(measured[name][measure]) - np.mean(measured[baseline][measure])),
                p=tests[name][measure],
                p_holm=next(corrected),
                p_seeds=seeds_test(measured[name][measure], measured[baseline][measure]),
            )
            for measure in (MEASURES if name in tests else ())
        ]
        calibrated, error, bins = _calibration(workspace, by_group[name][0], labels)
        results.append(
            PairRow(
                ranker=name,
                thresholds=[one.threshold for one in by_group[name]],
                measures={measure: float(np.mean(of)) for measure, of in measured[name].items()},
                deviations={
                    measure: float(np.std(of, ddof=1)) if len(of) > 1 else 0.0
                    for measure, of in measured[name].items()
                },
                calibrated=calibrated,
                calibration_error=error,
                bins=bins,
                comparisons=comparisons,
            )
        )
    scores = {name: one.scores for name, one in scored.items()}
    return PairsReport(len(pairs), int(labels.sum()), len(dev_pairs), baseline, results, scores)


def _check_disjoint(pairs: Sequence[LabeledPair], dev_pairs: Sequence[LabeledPair]) -> None:
    """Raise UsageError for a pair that is in both."""
    both = {pair.key for pair in pairs} & {pair.key for pair in dev_pairs}
    if both:
        a, b = min(both)
        raise UsageError(
            f"{plural(len(both), 'pair[ is|s are]')} also in --dev-pairs ({a!r} and {b!r}"
            f" first); take {'it' if len(both) == 1 else 'them'} out"
        )


@dataclass(frozen=True)
class _Scored:
    """The scores of a ranker for n pairs, and for the m dev pairs; from its threshold, a pair is related."""

    name: str
    scores: Array
    threshold: float
    on_dev: Array | None
    dev_labels: NDArray[np.bool_]


def _score(
    workspace: Workspace,
    name: str,
    pairs: Sequence[LabeledPair],
    dev_pairs: Sequence[LabeledPair],
    progress: Progress | None,
) -> _Scored:
    """Score the pairs by a ranker, with its own threshold or that of the best accuracy on the dev pairs."""
    threshold = own_threshold(workspace, name)
    if not dev_pairs and threshold is None:
        raise UsageError(f"{name} has no threshold of its own: give --dev-pairs, on which it is chosen")
    scores = _scores(workspace, name, [pair[:2] for pair in pairs], progress)
    dev_labels = np.array([pair.related for pair in dev_pairs], np.bool_)
    if not dev_pairs:
        return _Scored(name, scores, threshold or 0.0, None, dev_labels)
    on_dev = _scores(workspace, name, [pair[:2] for pair in dev_pairs], progress)
    return _Scored(name, scores, best_threshold(on_dev, dev_labels), on_dev, dev_labels)


def _measures(seeds: Sequence[_Scored], labels: NDArray[np.bool_]) -> dict[str, list[float]]:
    """Return measure -> its value for each seed."""
    return {
        "accuracy": [accuracy(one.scores, labels, one.threshold) for one in seeds],
        "F1": [f1(one.scores, labels, one.threshold) for one in seeds],
        "AUC": [auc(one.scores, labels) for one in seeds],
    }


def own_threshold(workspace: Workspace, ranker: str) -> float | None:
    """From which score on two documents are related by a ranker that was fitted to say so."""
    made = workspace.ranker(ranker) if learned([ranker]) else None
    return made.threshold if isinstance(made, Relates) else None


def gives_probabilities(workspace: Workspace, ranker: str) -> bool:
    """Whether a ranker's scores are probabilities that two documents are related."""
    made = workspace.ranker(ranker) if learned([ranker]) else None
    return isinstance(made, Relates) and made.bounds == (0.0, 1.0)


def _seeds(group: str) -> list[str]:
    """Return the names in a group. Raises UsageError for one that is empty or occurs twice."""
    names = [one.strip() for one in group.split(",")]
    again = [one for one, count in Counter(names).items() if count > 1 or not one]
    if again:
        what = f"names {again[0]!r} more than once" if again[0] else "has an empty name"
        raise UsageError(f"--ranker {group!r} {what}; name the ranker of each seed once")
    return names


def _scores(
    workspace: Workspace, name: str, pairs: Sequence[tuple[str, str]], progress: Progress | None
) -> Array:
    rankers = {one: workspace.ranker(one) for one in learned([name])}
    (signal,) = resolve([name], rankers)
    return score_pairs(workspace.engine, signal, pairs, progress)


def _calibration(
    workspace: Workspace, scored: _Scored, labels: NDArray[np.bool_]
) -> tuple[str | None, float | None, list[Bin]]:
    """Return where the probabilities come from, their calibration error and its table."""
    if gives_probabilities(workspace, scored.name):
        return "its own", *calibration(scored.scores, labels)
    if scored.on_dev is None:
        return None, None, []
    sigmoid = Sigmoid.fit(scored.on_dev, scored.dev_labels)
    return "fitted on dev", *calibration(sigmoid(scored.scores), labels)
