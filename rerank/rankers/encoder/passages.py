"""Passages: overlapping windows of a long document's tokens, and a document's score from theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def windows(length: int, size: int, most: int | None = None) -> list[int]:
    """Where the passages of a text of ``length`` tokens begin, each ``size`` tokens long, half overlapping.

    The last one ends with the text. Of more than ``most``, as many are kept, spread evenly from first to
    last.
    No tokens: no passages.

    >>> windows(100, 128), windows(128, 128), windows(200, 128), windows(1000, 128, most=3)
    ([0], [0], [0, 64, 72], [0, 436, 872])
    """
    if length <= 0:
        return []
    if length <= size:
        return [0]
    last = length - size
    starts = [*range(0, last, max(1, size // 2)), last]
    if most is None or len(starts) <= most:
        return starts
    return [round(i * last / (most - 1)) for i in range(most)] if most > 1 else [0]


BEST = 2
"""Passages whose cosines make the score of a document. The paper does not say how many it takes; what was
measured is in benchmarks/README.md."""


DECAY = 0.05
"""Omega, as in Raman et al. 2021, section 4.2."""


def passage_weights(best: int) -> NDArray[np.float32]:
    """w_k = exp(-DECAY k), k from 1: (best,).

    >>> [round(w, 3) for w in passage_weights(2).tolist()]
    [0.951, 0.905]
    """
    weights: NDArray[np.float32] = np.exp(-DECAY * np.arange(1, best + 1)).astype(np.float32)
    return weights


def decayed_sum(
    cosines: NDArray[np.float32],
    counts: NDArray[np.integer],
    *,
    best: int = BEST,
    normalize: bool = True,
) -> NDArray[np.float64]:
    """Score of n documents from their passages' cosines with the query (Raman et al. 2021, equation 6).

    cosines: (n, F), what is beyond a document's passages is 0; counts: (n,) passages of each.
    The ``best`` largest, negative ones as 0, are summed with weights exp(-DECAY k). ``normalize`` divides by
    the sum of as many weights: otherwise a long document of mediocre passages beats a short one that fits
    perfectly.

    Returns (n,) scores, from 0 to 1 when normalized; 0 without passages.

    >>> decayed_sum(np.float32([[0.9, 0.5, 0.1]]), np.array([3]), best=2, normalize=False).round(6).tolist()
    [1.308525]
    """
    best = min(best, cosines.shape[1])
    positive = np.maximum(cosines, 0)
    if best < cosines.shape[1]:
        positive = np.partition(positive, cosines.shape[1] - best, axis=1)[:, -best:]
    ranked = np.sort(positive, axis=1)[:, ::-1]
    weights = passage_weights(best)
    scores: NDArray[np.float64] = (ranked @ weights).astype(np.float64)
    if normalize:
        sums = np.concatenate(([1.0], np.cumsum(weights, dtype=np.float64)))
        scores /= sums[np.minimum(counts, best)]
    return scores
