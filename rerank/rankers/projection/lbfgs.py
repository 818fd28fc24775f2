"""L-BFGS for one large matrix, in its own precision."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]
Objective = Callable[[Matrix], tuple[float, Matrix]]

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""Constants of the weak Wolfe conditions (Nocedal, Wright 2006, section 3.1)."""
LONGEST_SEARCH = 20
LEAST_GAIN = 1e-9
"""Share of the loss that an iteration must gain; less is rounding."""


@dataclass(frozen=True)
class Step:
    """An iteration. evaluations: of the objective, so far."""

    point: Matrix
    loss: float
    evaluations: int


def minimize(objective: Objective, start: Matrix, *, memory: int = 10) -> Iterator[Step]:
    """Yield steps of L-BFGS with a weak Wolfe line search (Nocedal, Wright 2006, algorithm 7.5).

    objective: point -> (loss, gradient), same shape and dtype.
    memory:    pairs of differences; uses 2 * memory + 5 copies of ``start``.

    Ends if no step reduces the loss.
    """
    point = start
    loss, gradient = objective(point)
    evaluations = 1
    pairs: deque[tuple[Matrix, Matrix, float]] = deque(maxlen=memory)
    while True:
        direction = _direction(gradient, pairs)
        slope = _dot(gradient, direction)
        length = 1.0 if pairs else 1.0 / max(_dot(gradient, gradient) ** 0.5, 1e-30)
        if not slope < 0:
            return
        found = None
        low, high = 0.0, np.inf
        for _ in range(LONGEST_SEARCH):
            there = point + direction * point.dtype.type(length)
            there_loss, there_gradient = objective(there)
            evaluations += 1
            if not there_loss <= loss + SUFFICIENT * length * slope:  # also when it is NaN
                high = length
            else:
                found = there, there_loss, there_gradient
                if _dot(there_gradient, direction) >= CURVATURE * slope:
                    break
                low = length
            length = (low + high) / 2 if np.isfinite(high) else 2 * length
        if found is None:
            if not pairs:
                return
            pairs.clear()
            continue
        there, there_loss, there_gradient = found
        moved, turned = there - point, there_gradient - gradient
        curvature = _dot(moved, turned)
        if curvature > 0:
            pairs.append((moved, turned, curvature))
        gained = loss - there_loss
        point, loss, gradient = there, there_loss, there_gradient
        yield Step(point, loss, evaluations)
        if gained <= LEAST_GAIN * max(abs(loss), gained):
            return


def _direction(gradient: Matrix, pairs: deque[tuple[Matrix, Matrix, float]]) -> Matrix:
    """Return -H * gradient (Nocedal, Wright 2006, algorithm 7.4)."""
    direction = -gradient
    shares = []
    for moved, turned, curvature in reversed(pairs):
        share = _dot(moved, direction) / curvature
        shares.append(share)
        direction -= turned * direction.dtype.type(share)
    if pairs:
        _, turned, curvature = pairs[-1]
        direction *= direction.dtype.type(curvature / _dot(turned, turned))
    for (moved, turned, curvature), share in zip(pairs, reversed(shares)):
        direction += moved * direction.dtype.type(share - _dot(turned, direction) / curvature)
    return direction


def _dot(a: Matrix, b: Matrix) -> float:
    return float(np.vdot(a, b))
