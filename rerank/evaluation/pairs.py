"""Measures and tests for scores of related and unrelated pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rerank.errors import UsageError

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

MEASURES = ("accuracy", "F1", "AUC")
BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Pairs with a probability from ``low`` to ``high``.

    mean: probability. share: of related pairs.
    """

    low: float
    high: float
    pairs: int
    mean: float
    share: float


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the ROC curve; ties count half.

    >>> auc([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    values, related = _checked(scores, labels)
    return float(_aucs(values, related))


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
    # A cut before place i answers "unrelated" for i pairs: count the unrelated ones before it, and the
    # related ones after it.
    right = np.concatenate(([0], np.cumsum(~related[order]))) + related.sum()
    right = right - np.concatenate(([0], np.cumsum(related[order])))
    between = np.flatnonzero(np.concatenate(([True], ordered[1:] > ordered[:-1], [True])))
    best = between[right[between] == right[between].max()]
    place = int(best[len(best) // 2])
    if place == 0:
        return float(ordered[0])
    if place == len(ordered):
        return float(np.nextafter(ordered[-1], np.inf))
    middle = (ordered[place - 1] + ordered[place]) / 2
    return float(middle if middle > ordered[place - 1] else ordered[place])


def calibration(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> tuple[float, list[Bin]]:
    """Return the expected calibration error and its equal-width bins (Guo et al. 2017, equation 3).

    Empty bins are skipped. Raises UsageError for probabilities outside of [0, 1].

    >>> error, table = calibration([0.9, 0.9, 0.1, 0.1], [True, True, False, True])
    >>> round(error, 6), [(one.low, one.pairs, one.share) for one in table]
    (0.25, [(0.1, 2, 0.5), (0.9, 2, 1.0)])
    """
    values, related = _checked(probabilities, labels, both=False)
    if values.min() < 0 or values.max() > 1:
        raise UsageError("probabilities are from 0 to 1")
    # Rounding puts 0.3 into the bin from 0.3, although 3 * 0.1 > 0.3 in floating point.
    place = np.minimum(np.floor(np.round(values * bins, 9)).astype(np.int64), bins - 1)
    table = [
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            pairs=int(inside.sum()),
            mean=float(values[inside].mean()),
            share=float(related[inside].mean()),
        )
        for number in range(bins)
        if (inside := place == number).any()
    ]
    return sum(one.pairs * abs(one.mean - one.share) for one in table) / len(values), table


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """Maps scores to probabilities: 1 / (1 + exp(-(slope * score + shift))) (Platt 1999)."""

    slope: float
    shift: float

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> Sigmoid:
        """Fit labeled scores with Platt's targets.

        >>> fitted = Sigmoid.fit([0.9, 0.6, 0.6, 0.1], [True, True, False, False])
        >>> fitted([0.1, 0.6, 0.9]).round(2).tolist()
        [0.23, 0.53, 0.71]
        """
        from scipy.optimize import minimize
        from scipy.special import expit

        values, related = _checked(scores, labels)
        positive = int(related.sum())
        negative = len(related) - positive
        target = np.where(related, (positive + 1) / (positive + 2), 1 / (negative + 2))
        center, spread = float(values.mean()), float(values.std()) or 1.0
        x = np.stack(((values - center) / spread, np.ones(len(values))), axis=1)

        def loss(w: Array) -> tuple[float, Array]:
            t = x @ w
            return float((np.logaddexp(0, t) - target * t).mean()), x.T @ (expit(t) - target) / len(x)

        def curvature(w: Array) -> Array:
            p = expit(x @ w)
            return np.asarray(x.T @ (x * (p * (1 - p))[:, None]) / len(x))

        start = np.array([0.0, np.log((positive + 1) / (negative + 1))])
        w = minimize(loss, start, jac=True, hess=curvature, method="trust-exact", tol=1e-10).x
        slope = float(w[0]) / spread
        return cls(slope, float(w[1]) - slope * center)

    def __call__(self, scores: ArrayLike) -> Array:
        """Return (n,) probabilities."""
        from scipy.special import expit

        return np.asarray(expit(self.slope * np.asarray(scores, np.float64) + self.shift))


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
    size = max(len(first), len(second))
    if not {len(first), len(second)} <= {1, size}:
        raise UsageError(f"{len(first)} and {len(second)} seeds do not pair")
    related = _checked(first[0][0], labels)[1]
    sides = [[of[0]] * size if len(of) == 1 else of for of in (first, second)]
    answers = np.array([[_checked(scores, labels)[0] >= at for scores, at in of] for of in sides])
    ranks = np.array([[_ranks(np.asarray(scores, np.float64)) for scores, _ in of] for of in sides])
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


def seeds_test(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the two-sided p of the paired t-test over seeds; one number stands for all.

    None for fewer than two seeds, unmatched numbers, or equal differences.

    >>> round(seeds_test([0.8, 0.82, 0.81], [0.7]), 4)
    0.0027
    """
    from scipy.stats import ttest_rel

    size = max(len(first), len(second))
    if size < 2 or not {len(first), len(second)} <= {1, size}:
        return None
    one, other = (np.full(size, of[0]) if len(of) == 1 else np.asarray(of) for of in (first, second))
    if np.ptp(one - other) < 1e-12:
        return None
    return float(ttest_rel(one, other).pvalue)


def _checked(scores: ArrayLike, labels: ArrayLike, *, both: bool = True) -> tuple[Array, Labels]:
    values, related = np.asarray(scores, np.float64), np.asarray(labels, np.bool_)
    if values.ndim != 1 or values.shape != related.shape or not len(values):
        raise UsageError(f"{values.shape} scores and {related.shape} labels do not go together")
    if not np.isfinite(values).all():
        raise UsageError("a score is not finite")
    if both and related.all() | ~related.any():
        raise UsageError("all labels are the same: related and unrelated pairs are needed")
    return values, related


def _ranks(values: Array) -> Array:
    """Ranks from 1; ties get the mean rank."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(values), np.float64)


def _aucs(values: Array, related: Labels) -> Array:
    """(..., n) scores -> (...)."""
    positive = int(related.sum())
    rows = values.reshape(-1, values.shape[-1])
    sums = np.array([_ranks(row)[related].sum() for row in rows]).reshape(values.shape[:-1])
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
