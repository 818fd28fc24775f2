"""Measures and tests for scores of related and unrelated pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.errors import UsageError

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
    # A cut before place i answers "unrelated" for i pairs: of them, the unrelated ones are right, and the
    # related ones are wrong.
    right = np.concatenate(([0], np.cumsum(np.where(related[order], -1, 1))))
    between = np.flatnonzero(np.concatenate(([True], ordered[1:] > ordered[:-1], [True])))
    best = between[right[between] == right[between].max()]
    place = int(best[len(best) // 2])
    if place == 0:
        return float(ordered[0])
    if place == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[place - 1] + ordered[place]) / 2
    return float(middle if middle > ordered[place - 1] else ordered[place])


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

    size = max(len(first), len(second))
    if not {len(first), len(second)} <= {1, size}:
        raise UsageError(f"{len(first)} and {len(second)} seeds do not pair")
    related = _checked(first[0][0], labels)[1]
    sides = [[of[0]] * size if len(of) == 1 else of for of in (first, second)]
    answers = np.array([[_checked(scores, labels)[0] >= at for scores, at in of] for of in sides])
    ranks = rankdata([[np.asarray(scores, np.float64) for scores, _ in of] for of in sides], axis=-1)
    found = _differences(answers, ranks, related)
    rng = np.random.default_rng(seed)
    counts = np.zeros(len(MEASURES), np.int64)
    for _ in range(permutations):
        exchanged = rng.random(len(related)) < 0.5
        drawn = _differences(
            np.where(exchanged, answers[::-1], answers), np.where(exchanged, ranks[::-1], ranks), related
        )
        counts += np.abs(drawn) >= np.abs(found) - 1e-12
    return {name: (int(count) + 1) / (permutations + 1) for name, count in zip(MEASURES, counts)}


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Labels]:
    values, related = np.asarray(scores, np.float64), np.asarray(labels, np.bool_)
    if values.ndim != 1 or values.shape != related.shape or not len(values):
        raise UsageError(f"{values.shape} scores and {related.shape} labels do not go together")
    if not np.isfinite(values).all():
        raise UsageError("a score is not finite")
    if related.all() | ~related.any():
        raise UsageError("all labels are the same: related and unrelated pairs are needed")
    return values, related


def _aucs(values: Array, related: Labels) -> Array:
    """(..., n) scores -> (...)."""
    from scipy.stats import rankdata

    positive = int(related.sum())
    sums = rankdata(values, axis=-1)[..., related].sum(axis=-1)  # of ranks from 1; ties get the mean rank
    found: Array = (sums - positive * (positive + 1) / 2) / (positive * (len(related) - positive))
    return found


def _f1s(answers: Labels, related: Labels) -> Array:
    """(..., n) answers -> (...)."""
    hits = (answers & related).sum(axis=-1)
    return np.asarray(2 * hits / (answers.sum(axis=-1) + related.sum()), np.float64)


def _differences(answers: Labels, ranks: Array, related: Labels) -> Array:
    """First minus second per measure, (3,), from (2, S, n)."""
    found = ((answers == related).mean(axis=-1), _f1s(answers, related), _aucs(ranks, related))
    return np.array([(one[0] - one[1]).mean() for one in found])
