"""How much of a relevant document's categories a query has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OVERLAP_BUCKETS = ("0%", *(f"{10 * tenth}-{10 * tenth + 10}%" for tenth in range(10)))
"""0 alone, then ten buckets that include their upper end: (0, 10], (10, 20], ... (90, 100]."""


@dataclass(frozen=True)
class CategoryOverlap:
    """Histogram over pairs of a query and a relevant document, as Figure 2 of Kuwa et al. (2020).

    counts:             pairs per bucket of OVERLAP_BUCKETS.
    without_categories: pairs whose document has no categories; they are in no bucket.
    """

    counts: tuple[int, ...]
    without_categories: int

    @property
    def shares(self) -> tuple[float, ...]:
        """Each bucket's part of all counted pairs; all 0 when there are none."""
        total = sum(self.counts)
        return tuple(count / total if total else 0.0 for count in self.counts)


def category_overlap(pairs: Iterable[tuple[Iterable[str], Iterable[str]]]) -> CategoryOverlap:
    """Count how much of a relevant document's categories the query has, over (query's, document's) pairs.

    Most pairs in the 0 bucket mean that matching categories exactly cannot find those documents, and that
    a signal has to learn which categories go together.

    >>> overlap = category_overlap([(["a", "b"], ["a", "c"]), (["a"], ["d"]), ([], [])])
    >>> overlap.counts[0], overlap.counts[5], overlap.without_categories
    (1, 1, 1)
    """
    counts = [0] * len(OVERLAP_BUCKETS)
    without = 0
    for query_categories, document_categories in pairs:
        document = set(document_categories)
        if document:
            shared = len(document.intersection(query_categories))
            counts[-(-10 * shared // len(document))] += 1  # rounded up; only 0 is in the first bucket
        else:
            without += 1
    return CategoryOverlap(tuple(counts), without)
