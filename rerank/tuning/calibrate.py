"""Fit the probability that a document is relevant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.stack.relevance import Calibration

Array = NDArray[np.float64]

MIN_RELEVANT = 30
"""Fewer relevant candidates give no calibration."""

LIST_SIZE = 10
"""Best candidates of a query in the regression."""

_FOLDS = 5
_GROUPS = 10
_GROUP_SIZE = 100
"""Smallest group of the calibration error. In smaller ones, most of the difference would be chance."""

_STEPS = 50
_RIDGE = 1e-4
"""Weight of the squared coefficients, so that they stay finite if the scores separate all documents."""

_CONSTANT = 1e-9


@dataclass(frozen=True, eq=False)
class CandidateList:
    """Candidates of a query, best first.

    scores:   (n,) fitted scores.
    relevant: (n,) bool.
    foreign:  (m,) fitted scores of candidates of another query, without relevant documents.
    length:   of the query (:func:`rerank.stack.relevance.query_length`).
    """

    scores: Array
    relevant: NDArray[np.bool_]
    foreign: Array
    length: float


def fit_calibration(lists: Sequence[CandidateList]) -> Calibration | None:
    """Fit a calibration, or return None for too few relevant documents or scores that do not order them.

    Candidates without a judgment count as not relevant.
    """
    relevant = sum(int(candidates.relevant.sum()) for candidates in lists)
    if relevant < MIN_RELEVANT or len(lists) < _FOLDS:
        return None
    coefficients = _fit(lists)
    if coefficients is None:
        return None
    intercept, slope, length_slope = coefficients
    auc, error = _cross_fitted(lists)
    return Calibration(intercept, slope, length_slope, relevant, auc, error)


def _fit(lists: Sequence[CandidateList]) -> tuple[float, float, float] | None:
    """Newton's method for logistic regression. None: a larger score does not mean a larger probability."""
    score_parts: list[Array] = []
    target_parts: list[NDArray[np.bool_]] = []
    for candidates in lists:
        score_parts += [candidates.scores, candidates.foreign]
        target_parts += [candidates.relevant, np.zeros(len(candidates.foreign), np.bool_)]
    scores = np.concatenate(score_parts)
    targets = np.concatenate(target_parts).astype(np.float64)
    sizes = [len(candidates.scores) + len(candidates.foreign) for candidates in lists]
    lengths = np.repeat([candidates.length for candidates in lists], sizes)
    inputs = np.column_stack([np.ones(len(scores)), scores, lengths])
    # Columns of mean 0 and deviation 1 keep the steps stable.
    center = inputs.mean(axis=0) * (0, 1, 1)
    deviation = inputs.std(axis=0)
    is_constant = deviation <= _CONSTANT * np.abs(inputs).max(axis=0)
    scale = np.where(is_constant, np.inf, deviation)  # a constant input gets the coefficient 0
    scale[0] = 1.0
    columns = (inputs - center) / scale
    weights = np.zeros(3)
    ridge = np.diag([0.0, _RIDGE, _RIDGE]) * len(scores) + np.eye(3) * 1e-12
    for _ in range(_STEPS):
        probabilities = 0.5 + 0.5 * np.tanh(columns @ weights / 2)
        gradient = columns.T @ (targets - probabilities) - ridge @ weights
        curvature = (columns * (probabilities * (1 - probabilities))[:, None]).T @ columns + ridge
        step = np.linalg.solve(curvature, gradient)
        weights += step * min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-12))
        if float(np.abs(step).max()) < 1e-9:
            break
    slopes = weights / scale
    intercept = float(slopes[0] - slopes[1:] @ center[1:])
    if not np.isfinite(slopes).all() or slopes[1] <= 0:
        return None
    return intercept, float(slopes[1]), float(slopes[2])


def _cross_fitted(lists: Sequence[CandidateList]) -> tuple[float | None, float]:
    """Return the AUC and the calibration error of queries that a regression on the others did not see."""
    best: list[float] = []
    best_foreign: list[float] = []
    probabilities: list[Array] = []
    targets: list[NDArray[np.bool_]] = []
    for fold in range(_FOLDS):
        fitted = _fit([candidates for i, candidates in enumerate(lists) if i % _FOLDS != fold])
        if fitted is None:
            continue
        calibration = Calibration(*fitted, relevant=0, auc=None, error=0.0)
        for candidates in lists[fold::_FOLDS]:
            held_out = calibration.probabilities(candidates.scores, candidates.length)
            probabilities.append(held_out)
            targets.append(candidates.relevant)
            if candidates.relevant.any():
                best.append(float(held_out.max()))
            if len(candidates.foreign):
                foreign = calibration.probabilities(candidates.foreign, candidates.length)
                best_foreign.append(float(foreign.max()))
    if not probabilities:
        return None, 1.0
    error = calibration_error(np.concatenate(probabilities), np.concatenate(targets))
    return area_under_curve(np.array(best), np.array(best_foreign)), error


def calibration_error(probabilities: Array, targets: NDArray[np.bool_]) -> float:
    """Return the mean difference of probability and share of relevant documents in groups of equal size.

    There are ten groups, or fewer, so that a group has at least 100 documents.

    >>> calibration_error(np.array([0.25, 0.25, 0.75, 0.75]), np.array([False, False, True, False]))
    0.25
    """
    count = min(_GROUPS, max(len(probabilities) // _GROUP_SIZE, 1))
    groups = np.array_split(np.argsort(probabilities, kind="stable"), count)
    differences = [
        abs(float(probabilities[group].mean() - targets[group].mean())) * len(group)
        for group in groups
        if len(group)
    ]
    return sum(differences) / max(len(probabilities), 1)


def area_under_curve(positive: Array, negative: Array) -> float | None:
    """Return the probability that a positive value is larger than a negative one; ties count half.

    >>> area_under_curve(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not len(positive) or not len(negative):
        return None
    ordered = np.sort(negative)
    below = np.searchsorted(ordered, positive, "left") + np.searchsorted(ordered, positive, "right")
    return float(below.sum() / (2 * len(positive) * len(negative)))
