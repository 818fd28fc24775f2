"""Levels of connectivity: a ranked list of related documents, halved again and again.

Raman et al. 2021, equation 2: of n related documents in decreasing intimacy, the first
n_l = ceil(n / 2^(l-1)) are the positives of level l, and the rest of those of level l - 1 its negatives.
The last level has the first document against the second.
"""

from __future__ import annotations


def levels(related: int) -> int:
    """L = 1 + ceil(log2 n) levels of n related documents; 0 of none.

    >>> [levels(n) for n in (0, 1, 2, 5, 64, 1325)]
    [0, 1, 2, 4, 7, 12]
    """
    return (related - 1).bit_length() + 1 if related > 0 else 0


def level_size(related: int, level: int) -> int:
    """n_l = ceil(n / 2^(l-1)) in integers: positives of a level, which counts from 1.

    >>> [level_size(10, level) for level in range(1, 6)]
    [10, 5, 3, 2, 1]
    """
    return (related + (1 << (level - 1)) - 1) >> (level - 1)
