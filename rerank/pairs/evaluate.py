"""Relatedness of documents, and agreement with labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rerank.common.errors import UsageError
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.documents.records import LabeledPair
from rerank.documents.text import count_of
from rerank.evaluation.pair_measures import MEASURES, accuracy, auc, best_threshold, f1, paired_test
from rerank.evaluation.significance import holm
from rerank.formats.inputs import Pairs, as_list, as_pairs
from rerank.pairs.score import Relates, score_pairs
from rerank.stack.signals import ranker_names, resolve
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

Array = NDArray[np.float64]


@dataclass
class PairScores(Report):
    """Scores of n pairs of documents by a ranker.

    ranker:    its name.
    threshold: smallest score of a related pair, or None if the ranker has no threshold.
    pairs:     n pairs: two ids, and whether they are related, or None if that is not known.
    scores:    (n,) scores.
    """

    ranker: str
    threshold: float | None
    pairs: list[tuple[str, str, bool | None]]
    scores: Array

    def rows(self) -> list[dict[str, object]]:
        """Return one row per pair: ``a``, ``b``, ``related``, ``score`` and ``predicted``.

        ``related`` and ``predicted`` are 1, 0 or None.
        """
        rows: list[dict[str, object]] = []
        for (a, b, related), score in zip(self.pairs, self.scores.tolist()):
            row: dict[str, object] = {"a": a, "b": b, "related": None, "score": score, "predicted": None}
            if related is not None:
                row["related"] = int(related)
            if self.threshold is not None:
                row["predicted"] = int(score >= self.threshold)
            rows.append(row)
        return rows

    def to_json(self) -> dict[str, object]:
        """Return the ranker, its threshold, and the rows of :meth:`rows` as ``pairs``."""
        return {"ranker": self.ranker, "threshold": self.threshold, "pairs": self.rows()}


@dataclass(frozen=True)
class PairComparison:
    """The difference of a ranker from the baseline, by one measure.

    measure: its name.
    delta:   value of the ranker minus value of the baseline.
    p:       two-sided p-value of the randomization test over pairs.
    p_holm:  the p-value corrected for all rankers and measures.
    """

    measure: str
    delta: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class PairRow:
    """The measures of one ranker, and how they differ from the baseline.

    threshold:   smallest score of a related pair.
    measures:    measure -> value.
    comparisons: one per measure; empty for the baseline.
    """

    ranker: str
    threshold: float
    measures: dict[str, float]
    comparisons: list[PairComparison] = field(default_factory=list)


@dataclass
class PairsReport(Report):
    """How well rankers separate related from unrelated pairs.

    pairs:     number of test pairs.
    related:   number of test pairs that are related.
    dev_pairs: number of pairs that set the thresholds.
    baseline:  name of the ranker that the others are compared with.
    results:   one per ranker, first the baseline.
    scores:    ranker -> (n,) scores of the test pairs.
    """

    pairs: int
    related: int
    dev_pairs: int
    baseline: str
    results: list[PairRow]
    scores: dict[str, Array] = field(default_factory=dict, repr=False)

    def rows(self) -> list[dict[str, object]]:
        """Return a row per ranker with its measures. The baseline has None as differences."""
        rows: list[dict[str, object]] = []
        for result in self.results:
            row: dict[str, object] = {"ranker": result.ranker, **result.measures}
            for measure in MEASURES:
                row |= {f"delta {measure}": None, f"p {measure}": None}
            for comparison in result.comparisons:
                row[f"delta {comparison.measure}"] = comparison.delta
                row[f"p {comparison.measure}"] = comparison.p_holm
            rows.append(row)
        return rows


def predict_pairs(
    workspace: WorkspaceOrPath,
    ranker: str,
    pairs: Sequence[tuple[str, str, bool | None]],
    *,
    dev_pairs: Pairs = (),
    threshold: float | None = None,
    progress: Progress = SILENT,
) -> PairScores:
    """Score the relatedness of pairs of documents, and predict which are related.

    ranker:    a trained ranker, ``tfidf`` or ``bm25``. See :func:`rerank.pairs.score.score_pairs`.
    pairs:     two ids, and whether they are related, or None.
    dev_pairs: labeled pairs, or a file of them. They set the threshold to the most accurate one.
    threshold: smallest score of related pairs. Default: from ``dev_pairs``, else the threshold of the ranker,
        else none, so that nothing is predicted.

    Raises UsageError for both a threshold and dev pairs, InputError for an unknown id.

    >>> pairs = [("wolf", "owl", None), ("fox", "owl", None)]
    >>> [row["predicted"] for row in predict_pairs(workspace, "tfidf", pairs, threshold=0.3).rows()]
    [1, 0]
    """
    workspace = Workspace.open(workspace)
    if threshold is not None:
        _check_threshold(threshold, dev_pairs)
    dev = _drop_duplicates(as_pairs(dev_pairs, workspace.engine.contains))
    scores, best = _scores(workspace, ranker, pairs, dev, progress)
    if threshold is None:
        threshold = best
    return PairScores(ranker, threshold, list(pairs), scores)


def _check_threshold(threshold: float, dev_pairs: Pairs) -> None:
    """Raise UsageError for a threshold that is not a number, or if dev pairs also set one."""
    if dev_pairs:
        raise UsageError("give --threshold or --dev-pairs, not both")
    if not np.isfinite(threshold):
        raise UsageError(f"--threshold must be a number, not {threshold}")


def evaluate_pairs(
    workspace: WorkspaceOrPath,
    rankers: str | Sequence[str],
    pairs: Pairs,
    *,
    dev_pairs: Pairs = (),
    baseline: str | None = None,
    permutations: int = 2000,
    seed: int = 0,
    progress: Progress = SILENT,
) -> PairsReport:
    """Measure how well rankers separate related from unrelated pairs, and compare them with a baseline.

    rankers:      names of trained rankers; also ``tfidf`` or ``bm25``.
    pairs:        labeled test pairs, or a file of them.
    dev_pairs:    labeled pairs that set the threshold of each ranker to the most accurate one.
    baseline:     Default: ``tfidf``, or ``bm25`` if the engine has no ``tfidf``.
    permutations: number of drawn exchanges in the randomization test.
    seed:         of the randomization test.

    Raises UsageError for a pair in both sets, and without dev pairs for a ranker that has no threshold.

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
    dev_pairs = _drop_duplicates(as_pairs(dev_pairs, workspace.engine.contains))
    pairs = _drop_duplicates(as_pairs(pairs, workspace.engine.contains))
    overlap = {pair.key for pair in pairs} & {pair.key for pair in dev_pairs}
    if overlap:
        first_pair = " and ".join(min(overlap))
        raise UsageError(
            f"{count_of(len(overlap), 'pair')} also in --dev-pairs, first {first_pair}; remove these from one"
            " of the files"
        )
    if baseline is None:
        stages = workspace.engine.first_stages
        baseline = "tfidf" if "tfidf" in stages else stages[0]
    labels = _labels(pairs)
    scores: dict[str, Array] = {}
    results: list[PairRow] = []
    for name in dict.fromkeys([baseline, *as_list(rankers)]):
        scores[name], threshold = _scores(workspace, name, pairs, dev_pairs, progress)
        if threshold is None:
            raise UsageError(f"{name} has no threshold; give --dev-pairs to choose one")
        values = (
            accuracy(scores[name], labels, threshold),
            f1(scores[name], labels, threshold),
            auc(scores[name], labels),
        )
        results.append(PairRow(name, threshold, dict(zip(MEASURES, values))))
    _compare(results, scores, labels, permutations, seed)
    return PairsReport(len(pairs), sum(labels), len(dev_pairs), baseline, results, scores)


def _compare(
    results: Sequence[PairRow],
    scores: Mapping[str, Array],
    labels: Sequence[bool],
    permutations: int,
    seed: int,
) -> None:
    """Add the comparisons with the first result to the other results. scores: ranker -> (n,) scores."""
    first = results[0]
    tested: list[tuple[PairRow, str, float]] = []
    for result in results[1:]:
        p_values = paired_test(
            [(scores[result.ranker], result.threshold)],
            [(scores[first.ranker], first.threshold)],
            labels,
            permutations=permutations,
            seed=seed,
        )
        tested += [(result, measure, p_values[measure]) for measure in MEASURES]
    corrected = holm([p for _, _, p in tested])
    for (result, measure, p), p_holm in zip(tested, corrected):
        delta = result.measures[measure] - first.measures[measure]
        result.comparisons.append(PairComparison(measure, delta, p, p_holm))


def _scores(
    workspace: Workspace,
    name: str,
    pairs: Sequence[tuple[str, str, bool | None]],
    dev_pairs: Sequence[LabeledPair],
    progress: Progress,
) -> tuple[Array, float | None]:
    """Return (n,) scores by a signal, and the threshold: the best one on dev pairs, else the ranker's."""
    rankers = {ranker: workspace.ranker(ranker) for ranker in ranker_names([name])}
    (signal,) = resolve([name], rankers)
    threshold: float | None = None
    if dev_pairs:
        dev_scores = score_pairs(workspace.engine, signal, _ids(dev_pairs), progress)
        threshold = best_threshold(dev_scores, _labels(dev_pairs))
    elif isinstance(signal, Relates):
        threshold = signal.threshold
    return score_pairs(workspace.engine, signal, _ids(pairs), progress), threshold


def _ids(pairs: Iterable[tuple[str, str, bool | None]]) -> list[tuple[str, str]]:
    return [(first, second) for first, second, _ in pairs]


def _labels(pairs: Iterable[LabeledPair]) -> list[bool]:
    return [pair.related for pair in pairs]


def _drop_duplicates(pairs: Sequence[LabeledPair]) -> list[LabeledPair]:
    """Return each pair once, without pairs that have both labels.

    Raises UsageError if this leaves only related, or only unrelated pairs.
    """
    labels: dict[tuple[str, str], set[bool]] = {}
    for pair in pairs:
        labels.setdefault(pair.key, set()).add(pair.related)
    unique: dict[tuple[str, str], LabeledPair] = {}
    for pair in pairs:
        has_one_label = len(labels[pair.key]) == 1
        if has_one_label:
            unique.setdefault(pair.key, pair)

    are_all_used = len(unique) == len(labels)
    remaining_labels = set(_labels(unique.values()))
    if not are_all_used and len(remaining_labels) < 2:
        raise UsageError("without pairs that have both labels, all are related, or all unrelated; add pairs")
    return list(unique.values())
