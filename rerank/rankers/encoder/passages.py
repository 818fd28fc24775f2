"""Passages and their scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BEST = 2
"""Passages whose cosines make the score of a document; measurements: benchmarks/README.md."""
DECAY = 0.05
"""Omega (Raman et al. 2021, section 4.2)."""


def windows(length: int, size: int, most: int | None = None) -> list[int]:
    """Return starts of half-overlapping windows; the last ends with the text.

    At most ``most`` are kept, evenly spaced.

    >>> windows(100, 128), windows(128, 128), windows(200, 128), windows(1000, 128, most=3)
    ([0], [0], [0, 64, 72], [0, 436, 872])
    """
    if length <= size:
        return [0] if length > 0 else []
    last = length - size
    starts = [*range(0, last, max(1, size // 2)), last]
    if most is None or len(starts) <= most:
        return starts
    return [round(i * last / (most - 1)) for i in range(most)] if most > 1 else [0]


def decayed_sum(
    cosines: NDArray[np.float32], counts: NDArray[np.integer], *, best: int = BEST, normalize: bool = True
) -> NDArray[np.float64]:
    """Return document scores, (n,) (Raman et al. 2021, equation 6).

    cosines: (n, F), 0 after the last passage.
    counts: (n,) passages.
    best: number of cosines summed with weights exp(-DECAY k), k from 1; negative ones as 0.
    normalize: divide by the weights, for scores from 0 to 1.
    """
    best = min(best, cosines.shape[1])
    ranked = -np.sort(-np.maximum(cosines, 0), axis=1)[:, :best]
    weights = np.exp(-DECAY * np.arange(1, best + 1)).astype(np.float32)
    scores: NDArray[np.float64] = (ranked @ weights).astype(np.float64)
    if normalize:
        sums = np.concatenate(([1.0], np.cumsum(weights, dtype=np.float64)))
        scores /= sums[np.minimum(counts, best)]
    return scores
