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


def category_overlap(pairs: Iterable[tuple[Iterable[str], Iterable[str]]]) -> list[Bucket]:
    """Count how much of a relevant document's categories the query has, over (query's, document's) pairs.

    Documents without categories are in no bucket. Most pairs in the 0 bucket mean that matching categories
    exactly cannot find those documents, and that a signal has to learn which categories go together.

    >>> overlap = category_overlap([(["a", "b"], ["a", "c"]), (["a"], ["d"]), ([], [])])
    >>> overlap[0], overlap[5].pairs
    (Bucket(bucket='0%', share=0.5, pairs=1), 1)
    """
    counts = [0] * len(OVERLAP_BUCKETS)
    for query_categories, document_categories in pairs:
        document = set(document_categories)
        if document:
            shared = len(document.intersection(query_categories))
            counts[-(-10 * shared // len(document))] += 1  # rounded up; only 0 is in the first bucket
    total = max(sum(counts), 1)
    return [Bucket(name, count / total, count) for name, count in zip(OVERLAP_BUCKETS, counts)]
