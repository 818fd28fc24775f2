"""The map of a sample (t-SNE), its colours, and how often near documents have something in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEAREST = 10
SHOWN = 7
"""Categories with a mark of their own."""
COMMON = 0.5
"""A category that more than this share of the documents has tells nothing apart: it is left out."""
LEAST = 5
"""Documents below which there is no map."""
OTHER, NONE = -1, -2
"""In place of a category: has others, has none."""


@dataclass(frozen=True)
class Legend:
    """Categories with a mark, the most frequent first, and what was left out as too common.

    marks: (K,) of each document: which of ``names``, OTHER or NONE; of several the rarest.
    """

    names: list[str]
    counts: list[int]
    left_out: list[str]
    marks: list[int]


def legend(categories: Sequence[Sequence[str]]) -> Legend:
    """Choose the categories to show.

    >>> found = legend([("a", "x"), ("a",), ("b",), ("c", "b"), ()])
    >>> found.names, found.marks
    (['a', 'b', 'c', 'x'], [3, 0, 1, 2, -2])
    """
    count = Counter(c for some in categories for c in dict.fromkeys(some))
    ranked = sorted(count, key=lambda c: (-count[c], c))
    left_out = [c for c in ranked if count[c] > COMMON * len(categories)]
    names = [c for c in ranked if c not in left_out][:SHOWN]
    place = {name: i for i, name in enumerate(names)}
    marks = []
    for some in categories:
        known = [place[c] for c in some if c in place]
        marks.append(max(known) if known else OTHER if some else NONE)
    counts = [marks.count(i) for i in range(len(names))]
    return Legend(names, counts, left_out, marks)


def in_common(categories: Sequence[Sequence[str]], left_out: Sequence[str]) -> NDArray[np.bool_]:
    """(K, K) whether two documents have a category in common; itself: no."""
    from scipy.sparse import csr_matrix

    gone, number = set(left_out), dict[str, int]()
    entries = [
        (row, number.setdefault(c, len(number)))
        for row, some in enumerate(categories)
        for c in dict.fromkeys(some)
        if c not in gone
    ]
    rows, columns = np.array(entries, dtype=np.int64).reshape(-1, 2).T
    has = csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(categories), len(number)))
    found: NDArray[np.bool_] = (has @ has.T).toarray() > 0
    np.fill_diagonal(found, False)
    return found


@dataclass(frozen=True)
class Share:
    """Of the NEAREST documents of those that have any such: the share that is; and of all others.

    documents: those that have any.
    """

    documents: int
    nearest: float
    chance: float


def share_near(unit: NDArray[np.float32], such: NDArray[np.bool_], nearest: int = NEAREST) -> Share | None:
    """How often the nearest documents are such: (K, E) unit vectors, (K, K); None where there are none.

    >>> such = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    >>> share_near(np.float32([[1, 0], [0.8, 0.6], [0, 1]]), such, nearest=1)
    Share(documents=2, nearest=1.0, chance=0.5)
    """
    any_such = np.flatnonzero(such.any(axis=1))
    if not len(any_such):
        return None
    scores = unit[any_such] @ unit.T
    scores[np.arange(len(any_such)), any_such] = -np.inf
    count = min(nearest, len(unit) - 1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    hits = np.take_along_axis(such[any_such], order, axis=1)
    chance = such[any_such].sum(axis=1) / (len(unit) - 1)
    return Share(len(any_such), float(hits.mean()), float(chance.mean()))


def tsne(
    unit: NDArray[np.float32], seed: int, start: NDArray[np.float64] | None = None
) -> NDArray[np.float64] | None:
    """(K, E) -> (K, 2), the longer side from 0 to 1; None of fewer than LEAST documents.

    start: an earlier map of the same documents, so that the two can be compared.
    """
    if len(unit) < LEAST:
        return None
    from sklearn.manifold import TSNE

    init: object = "pca"
    if start is not None:
        init = ((start - start.mean(axis=0)) / max(float(start.std()), 1e-9) * 1e-4).astype(np.float32)
    elif not np.ptp(unit):
        init = "random"
    perplexity = min(30.0, (len(unit) - 1) / 3)
    points = TSNE(perplexity=perplexity, init=init, random_state=seed).fit_transform(unit)
    low, span = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-9)
    scaled: NDArray[np.float64] = ((points - low) / span.max()).astype(np.float64)
    return scaled
