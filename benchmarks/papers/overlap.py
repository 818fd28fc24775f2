"""Measure the category overlap of queries and relevant documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OVERLAP_BUCKETS = ("0%", *(f"{10 * tenth}-{10 * tenth + 10}%" for tenth in range(10)))
"""Ranges: exactly 0, then (0, 10], (10, 20], ... (90, 100]."""


@dataclass(frozen=True)
class Bucket:
    """One bar of a histogram over (query, relevant document) pairs (Kuwa et al. 2020, Figure 2).

    bucket: one of OVERLAP_BUCKETS.
    share:  share of all pairs.
    """

    bucket: str
    share: float
    pairs: int


@dataclass(frozen=True)
class Overlap:
    """A histogram of one grade, or of all grades (None).

    pairs:            pairs with categories on both sides.
    without_query:    pairs without query categories.
    without_document: other pairs without document categories.
    """

    grade: int | None
    pairs: int
    without_query: int
    without_document: int
    buckets: tuple[Bucket, ...]


def category_overlap(pairs: Iterable[tuple[int, Iterable[str], Iterable[str]]]) -> list[Overlap]:
    """Return histograms of (grade, query categories, document categories).

    The first histogram covers all grades. If pairs have several grades, one histogram per grade follows,
    highest grade first.

    >>> pairs = [(2, "ab", "ac"), (1, "a", "d"), (1, "", "d"), (1, "a", "")]
    >>> whole, wanted, related = category_overlap(pairs)
    >>> (whole.pairs, whole.without_query, whole.without_document), wanted.buckets[5].pairs
    ((2, 1, 1), 1)
    >>> related.buckets[0]
    Bucket(bucket='0%', share=1.0, pairs=1)
    """
    counts: dict[int, list[int]] = {}
    for grade, query_categories, document_categories in pairs:
        query, document = set(query_categories), set(document_categories)
        if not query:
            place = -2
        elif not document:
            place = -1
        else:  # round up: the first bucket contains only 0
            place = -(-10 * len(document & query) // len(document))
        counts.setdefault(grade, [0] * (len(OVERLAP_BUCKETS) + 2))[place] += 1
    whole = [sum(column) for column in zip(*counts.values())] or [0] * (len(OVERLAP_BUCKETS) + 2)
    each = sorted(counts.items(), reverse=True) if len(counts) > 1 else []
    return [_histogram(None, whole), *(_histogram(grade, found) for grade, found in each)]


def _histogram(grade: int | None, counts: list[int]) -> Overlap:
    *found, without_query, without_document = counts
    total = sum(found)
    buckets = (Bucket(name, count / max(total, 1), count) for name, count in zip(OVERLAP_BUCKETS, found))
    return Overlap(grade, total, without_query, without_document, tuple(buckets))
