"""Candidates that can reach the measured ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerank.stack.normalize import LARGEST

MARGIN = 1e-5
"""Least difference of two scores, as a share of the largest one of the signal, that no sum rounds away."""
LEAST_MARGIN = 1e-100
"""Smaller differences have squares of 0, so that a normalization can make the scores of a signal equal."""
LEAST_PIVOTS = 64
PIVOTS_PER_RANK = 8
"""Number of candidates that all candidates are compared with, for each measured rank."""
MOST_RANKS = 50
LARGEST_SHARE = 0.05
"""Largest number of ranks, and share of all ranks. For more, the comparison takes longer than it saves."""


def contenders(
    scores: NDArray[Any], depth: int | None, largest: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return the rows of the candidates that can be among the first ``depth`` for some weights, ascending.

    Weights are at least 0, and a normalization keeps the order of the scores of a signal, but can make scores
    with nearly no difference equal. So a candidate is never above another one with a lower row and no lower
    score, or with clearly higher scores of all signals. If there are ``depth`` such candidates, it never
    reaches the first ranks, and the order of the first ``depth`` does not depend on it. Not all of these are
    found, because that takes longer than it saves.

    scores:  (n, S). Among equal sums, earlier rows rank first.
    depth:   None: all ranks are measured.
    largest: (S,) largest magnitude of each signal, for all queries that are normalized together. Default: of
        these scores.

    >>> import numpy as np
    >>> scores = np.column_stack([np.arange(100), np.arange(100) % 99])  # the last row has 99 and 0
    >>> contenders(scores, depth=2).tolist()
    [97, 98, 99]
    """
    n = len(scores)
    rows = np.arange(n)
    if depth is None or depth > min(MOST_RANKS, LARGEST_SHARE * n):
        return rows
    magnitudes = np.abs(scores).max(axis=0)
    if magnitudes.max() > LARGEST:  # which normalizations cut or scale
        return rows
    has_scores = magnitudes > 0
    columns = np.ascontiguousarray(scores[:, has_scores].T)
    margins = MARGIN * (magnitudes if largest is None else largest)[has_scores]
    margins[margins < LEAST_MARGIN] = np.inf
    pivots = _best_in_all(columns, min(n, max(LEAST_PIVOTS, PIVOTS_PER_RANK * depth)))
    is_above = pivots[:, None] < rows  # (P, n): for equal sums
    is_higher = np.ones_like(is_above)
    for column, margin in zip(columns, margins):
        is_above &= column[pivots, None] >= column
        is_higher &= column[pivots, None] > column + margin
    higher_counts = (is_above | is_higher).sum(axis=0)
    reaches = higher_counts < depth
    if not has_scores.all():  # if only a signal without scores has a weight, the first rows are first
        reaches[:depth] = True
    return np.flatnonzero(reaches)


def _best_in_all(columns: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return the rows of candidates whose worst rank of all signals is the best, (count,).

    columns: (S, n) scores.
    """
    order = np.argsort(-columns, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(columns.shape[1])[None], axis=1)
    worst: NDArray[np.int64] = ranks.max(axis=0, initial=0)
    return np.argsort(worst, kind="stable")[:count]
