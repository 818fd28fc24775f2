"""Measures and tests for scores of related and unrelated pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.common.errors import UsageError

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

MEASURES = ("accuracy", "F1", "AUC")


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the ROC curve; ties count half.

    >>> auc([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    return float(_aucs(*_checked(scores, labels)))


def accuracy(scores: ArrayLike, labels: ArrayLike, threshold: float) -> float:
    """Return the share of correct answers. Scores from the threshold up mean related.

    >>> accuracy([0.9, 0.4, 0.4, 0.1], [True, True, False, False], 0.4)
    0.75
    """
    values, related = _checked(scores, labels)
    return float(((values >= threshold) == related).mean())


def f1(scores: ArrayLike, labels: ArrayLike, threshold: float) -> float:
    """Return the F1 of related pairs.

    >>> f1([0.9, 0.4, 0.4, 0.1], [True, True, False, False], 0.4)
    0.8
    """
    values, related = _checked(scores, labels)
    return float(_f1s(values >= threshold, related))


def best_threshold(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the most accurate threshold, between two scores; the middle one in ties.

    Raises UsageError if all labels are equal.

    >>> best_threshold([0.9, 0.6, 0.4, 0.1], [True, True, False, False])
    0.5
    """
    values, related = _checked(scores, labels)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    # A cut before position i answers "unrelated" for i pairs: the unrelated ones of these are right, and the
    # related ones are wrong.
    right = np.concatenate(([0], np.cumsum(np.where(related[order], -1, 1))))
    cuts = np.flatnonzero(np.concatenate(([True], ordered[1:] > ordered[:-1], [True])))
    best_cuts = cuts[right[cuts] == right[cuts].max()]
    cut = int(best_cuts[len(best_cuts) // 2])
    if cut == 0:
        return float(ordered[0])
    if cut == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[cut - 1] + ordered[cut]) / 2
    return float(middle if middle > ordered[cut - 1] else ordered[cut])


def paired_test(
    first: Sequence[tuple[ArrayLike, float]],
    second: Sequence[tuple[ArrayLike, float]],
    labels: ArrayLike,
    *,
    permutations: int = 2000,
    seed: int = 0,
) -> dict[str, float]:
    """Return measure -> two-sided p of a randomization test over pairs (Yeh 2000).

    first, second: (n,) scores and threshold per seed; one entry stands for all seeds.
    Answers (AUC: ranks) are exchanged at random; p = (count + 1) / (permutations + 1). p is too small if
    pairs share documents.

    Raises UsageError for seeds that do not match.
    """
    from scipy.stats import rankdata

    seeds = max(len(first), len(second))
    if not {len(first), len(second)} <= {1, seeds}:
        raise UsageError(f"{len(first)} and {len(second)} seeds do not pair")
    _, related = _checked(first[0][0], labels)
    answers: list[list[Labels]] = []
    scores_of_sides: list[list[Array]] = []
    for side in (first, second):
        side_of_seeds = list(side) * seeds if len(side) == 1 else side
        side_scores = [_checked(scores, labels)[0] for scores, _ in side_of_seeds]
        scores_of_sides.append(side_scores)
        thresholds = [threshold for _, threshold in side_of_seeds]
        answers.append([scores >= threshold for scores, threshold in zip(side_scores, thresholds)])
    return _randomize(
        np.array(answers), rankdata(scores_of_sides, axis=-1), related, permutations=permutations, seed=seed
    )


def _randomize(
    answers: Labels, ranks: Array, related: Labels, *, permutations: int, seed: int
) -> dict[str, float]:
    """Return measure -> p. answers, ranks: (2, S, n) for two sides, S seeds and n pairs."""
    observed = np.abs(_differences(answers, ranks, related)) - 1e-12  # with tolerance for rounding
    generator = np.random.default_rng(seed)
    counts = np.zeros(len(MEASURES), np.int64)
    for _ in range(permutations):
        exchanged = generator.random(len(related)) < 0.5
        drawn_answers = np.where(exchanged, answers[::-1], answers)
        drawn_ranks = np.where(exchanged, ranks[::-1], ranks)
        counts += np.abs(_differences(drawn_answers, drawn_ranks, related)) >= observed
    return {name: (int(count) + 1) / (permutations + 1) for name, count in zip(MEASURES, counts)}


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Labels]:
    """Return scores and labels as arrays. Raises UsageError for other shapes or values."""
    values = np.asarray(scores, np.float64)
    related = np.asarray(labels, np.bool_)
    is_list = values.ndim == 1 and len(values) > 0
    if not is_list or values.shape != related.shape:
        raise UsageError(f"{values.shape} scores and {related.shape} labels do not go together")
    if not np.isfinite(values).all():
        raise UsageError("a score is not finite")
    if len(np.unique(related)) == 1:
        raise UsageError("all labels are the same: related and unrelated pairs are needed")
    return values, related


def _aucs(values: Array, related: Labels) -> Array:
    """Return the AUC of each row: (..., n) scores -> (...)."""
    from scipy.stats import rankdata

    positive = int(related.sum())
    sums = rankdata(values, axis=-1)[..., related].sum(axis=-1)  # of ranks from 1; ties get the mean rank
    aucs: Array = (sums - positive * (positive + 1) / 2) / (positive * (len(related) - positive))
    return aucs


def _f1s(answers: Labels, related: Labels) -> Array:
    """Return the F1 of each row: (..., n) answers -> (...)."""
    hits = (answers & related).sum(axis=-1)
    return np.asarray(2 * hits / (answers.sum(axis=-1) + related.sum()), np.float64)


def _differences(answers: Labels, ranks: Array, related: Labels) -> Array:
    """Return the mean difference of the two sides for each measure, (3,), from (2, S, n)."""
    accuracies = (answers == related).mean(axis=-1)
    differences: list[float] = []
    for values in (accuracies, _f1s(answers, related), _aucs(ranks, related)):
        differences.append((values[0] - values[1]).mean())
    return np.array(differences)
