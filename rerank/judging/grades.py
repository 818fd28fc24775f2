"""Grades of clicked documents. Both formulas are smoothed click rates, and were chosen by measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rerank.judging.page_views import Ints, Shown

Floats = NDArray[np.float64]

STRENGTH = 5
"""Impressions with the mean click rate that are added to each document."""
LEAST_RATIO = 1.25
"""Click rate of a relevant document, divided by the expected click rate."""
NEAR_BEST = 0.8
"""Share of the best ratio of the query that a relevant document has."""
HIGHER = (2, 3)
"""Ratios from which the grade is 2, and 3."""
CLICKS_ONLY = (2, 5)
"""Clicks from which the grade is 1, and 2, in a log without impressions."""
_ROUNDING = 1e-9
"""Ratios are compared with thresholds up to this difference."""


@dataclass(frozen=True)
class ClickCounts:
    """Counts of each (text, document), ordered by both.

    impressions, clicks: page views with the document, and with a click on it. expected: clicks that documents
    at the same ranks have on average. ranks: number of different ranks.
    """

    text: Ints
    document: Ints
    impressions: Ints
    clicks: Ints
    expected: Floats
    ranks: Ints


def click_rates(shown: Shown) -> Floats:
    """Return the share of impressions with a click by rank; position 0 is not used.

    Ranks without impressions have rate 0.
    """
    impressions = np.bincount(shown.rank)
    clicks = np.bincount(shown.rank[shown.clicked], minlength=len(impressions))
    return clicks / np.maximum(impressions, 1)


def count_clicks(shown: Shown) -> ClickCounts:
    """Count the impressions and clicks of each query and document."""
    order = np.lexsort((shown.rank, shown.document, shown.text))
    shown = shown.select(order)
    begins_pair = _changes(shown.text) | _changes(shown.document)
    begins_rank = begins_pair | _changes(shown.rank)
    starts = np.flatnonzero(begins_pair)
    if not len(starts):
        empty = np.zeros(0, np.int64)
        return ClickCounts(empty, empty, empty, empty, np.zeros(0), empty)
    return ClickCounts(
        text=shown.text[starts],
        document=shown.document[starts],
        impressions=np.diff(np.append(starts, len(shown.text))),
        clicks=np.add.reduceat(shown.clicked.astype(np.int64), starts),
        expected=np.add.reduceat(click_rates(shown)[shown.rank], starts),
        ranks=np.add.reduceat(begins_rank.astype(np.int64), starts),
    )


def _changes(values: Ints) -> NDArray[np.bool_]:
    """Return which values differ from the value before; the first one does."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def training_grades(counts: ClickCounts) -> Ints:
    """Return the grades for training, by the smoothed click rate.

    The ratio is ``(c + 5 m) / ((n + 5) m)``, for c clicks in n impressions and the mean click rate m of the
    log. The grade is 1, 2 from ratio 2, and 3 from ratio 3. It is 0 without a click, below ratio 1.25, and
    below 0.8 times the best ratio of the query.

    >>> import numpy as np
    >>> zeros = np.zeros(5)
    >>> counts = ClickCounts(
    ...     text=np.array([0, 0, 0, 0, 1]),
    ...     document=np.arange(5),
    ...     impressions=np.array([20, 20, 20, 20, 80]),
    ...     clicks=np.array([12, 10, 9, 0, 1]),
    ...     expected=zeros,
    ...     ranks=zeros,
    ... )
    >>> training_grades(counts).tolist()
    [2, 2, 0, 0, 0]
    """
    mean = counts.clicks.sum() / max(counts.impressions.sum(), 1)
    if not mean:
        return np.zeros(len(counts.text), np.int64)
    ratio = (counts.clicks + STRENGTH * mean) / ((counts.impressions + STRENGTH) * mean)
    best = np.zeros(int(counts.text.max()) + 1)
    np.maximum.at(best, counts.text, ratio)
    grades = _grades(ratio, counts.clicks)
    grades[ratio < NEAR_BEST * best[counts.text] - _ROUNDING] = 0
    return grades


def tuning_grades(counts: ClickCounts) -> Ints:
    """Return the grades for tuning, by clicks over expected clicks.

    The ratio is ``(c + 1) / (e + 1)``, for c clicks and e expected clicks at the same ranks. The
    thresholds are the same as for training; other documents of the query have no effect.
    """
    return _grades((counts.clicks + 1) / (counts.expected + 1), counts.clicks)


def _grades(ratio: Floats, clicks: Ints) -> Ints:
    grades = np.ones(len(ratio), np.int64)
    for threshold in HIGHER:
        grades += ratio >= threshold - _ROUNDING
    grades[(clicks == 0) | (ratio < LEAST_RATIO - _ROUNDING)] = 0
    return grades


def grades_without_impressions(counts: ClickCounts) -> Ints:
    """Return the grades by the number of page views with a click."""
    grades = np.zeros(len(counts.text), np.int64)
    for threshold in CLICKS_ONLY:
        grades += counts.clicks >= threshold
    return grades
