"""Ranking by score descending, then id ascending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rank(ids: Sequence[str] | NDArray[np.str_], scores: ArrayLike) -> NDArray[np.intp]:
    """Return (n,) positions into ``ids``, best first.

    Ties: ids by code point. Raises ValueError for NaN and different lengths.

    >>> rank(["d10", "d2", "d1"], [0.5, 0.9, 0.5]).tolist()
    [1, 2, 0]
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (len(ids),):
        raise ValueError(f"{len(ids)} ids need scores of shape ({len(ids)},), not {values.shape}")
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    if np.isnan(ordered[-1:]).any():  # NaN is sorted to the end
        raise ValueError("a score is NaN: nothing can be ordered by it")
    tied = ordered[1:] == ordered[:-1]  # (n - 1,) True where a document ties with the one before it
    if not tied.any():
        return order

    id_at: Callable[[int], str] = ids.__getitem__
    before = map(id_at, order[:-1][tied].tolist())
    after = map(id_at, order[1:][tied].tolist())
    if all(map(le, before, after)):  # as engines return candidates
        return order
    # Runs of equal scores: [start, last] in `order`; only these are sorted by id.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], tied, [False])).astype(np.int8)))
    for start, last in edges.reshape(-1, 2).tolist():
        run = order[start : last + 1]
        order[start : last + 1] = sorted(run.tolist(), key=id_at)
    return order
