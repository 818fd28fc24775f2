"""How much of a relevant document's categories a query has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OVERLAP_BUCKETS = ("0%", *(f"{10 * tenth}-{10 * tenth + 10}%" for tenth in range(10)))
"""0 alone, then ten buckets that include their upper end: (0, 10], (10, 20], ... (90, 100]."""


@dataclass(frozen=True)
class Bucket:
    """A bar of a histogram over pairs of a query and a relevant document, as Figure 2 of Kuwa et al. (2020).

    bucket: one of OVERLAP_BUCKETS. share: its part of all pairs; 0 when there are none.
    """

    bucket: str
    share: float
    pairs: int


@dataclass(frozen=True)
class Overlap:
    """The histogram of the documents of one grade, or of all.

    grade:            theirs; None: all of them.
    pairs:            of which both sides have categories: those that the buckets are over.
    without_query:    pairs whose query brings no categories.
    without_document: other pairs, whose document has none.
    """

    grade: int | None
    pairs: int
    without_query: int
    without_document: int
    buckets: tuple[Bucket, ...]


def category_overlap(pairs: Iterable[tuple[int, Iterable[str], Iterable[str]]]) -> list[Overlap]:
    """Count how much of a relevant document's categories the query has, over (grade, query's, document's).

    One histogram over all pairs, and one for each grade, the highest first, where there are several. Most
    pairs in the 0 bucket mean that matching categories exactly cannot find those documents, and that a signal
    has to learn which categories go together.

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
        else:  # rounded up; only 0 is in the first bucket
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
