"""How long eigenvectors will take, told before they are computed: LAPACK tells nothing on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rerank.training.projection.lbfgs import Matrix, Objective

Expect = Callable[[float], object]
"""Called with the seconds that the rest will take."""


def untold(seconds: float) -> None:
    """Nobody wants to know."""


PARTS = 8, 4
"""The same is done with so small a part of the texts, twice; their times tell that of the whole."""
WORTH = 1000
"""Texts up to which it takes a second, and nothing is told."""
BLOCK = 16
"""Part of rows that a product and a factorisation are timed on."""


def foretell(solve: Callable[[int], float], count: int, cost: float, expect: Expect) -> None:
    """Time the same on parts of ``count`` texts, and tell the time of the whole.

    solve: does it with so many texts, and returns what that costs; cost: of the whole. Costs are in any unit:
    what is timed is taken for a + b * cost.
    """
    if count < WORTH:
        return
    (small, few), (large, more) = (_timed(solve, count // part) for part in PARTS)
    each = max(0.0, (more - few) / max(large - small, 1e-9))
    expect(max(more, few + each * (cost - small)))


def svd_seconds(texts: Any, k: int, iterations: int) -> float:
    """Seconds that a randomized SVD takes: (n, V) ``texts`` and their transpose are multiplied by k columns
    and factorised, once in every iteration; what follows takes about two more.
    """
    from scipy.linalg import lu

    rows = texts[: -(-texts.shape[0] // BLOCK)]
    start = np.random.default_rng(0).normal(size=(texts.shape[1], k))
    seconds = 0.0
    begin = time.monotonic()
    for matrix, size in ((rows, texts.shape[0]), (rows.T, texts.shape[1])):
        start = matrix @ start
        seconds += (time.monotonic() - begin) * texts.shape[0] / max(1, rows.shape[0])
        part = start[: -(-size // BLOCK)]
        begin = time.monotonic()
        lu(part, permute_l=True, check_finite=False)
        seconds += (time.monotonic() - begin) * size / max(1, len(part))
        begin = time.monotonic()
    return seconds * (iterations + 2)


def first_timed(objective: Objective, expect: Expect) -> Objective:
    """A function that tells the seconds of its first evaluation."""
    waiting = [expect]

    def loss(point: Matrix) -> tuple[float, Matrix]:
        begin = time.monotonic()
        found = objective(point)
        if waiting:
            waiting.pop()(time.monotonic() - begin)
        return found

    return loss


def _timed(solve: Callable[[int], float], count: int) -> tuple[float, float]:
    """What it cost, and the seconds that it took."""
    begin = time.monotonic()
    cost = solve(count)
    return cost, time.monotonic() - begin
