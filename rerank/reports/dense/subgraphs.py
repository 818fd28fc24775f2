"""A few subgraphs of the link graph, beside where an encoder puts them (figure 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rerank.reports.dense.figures import Mapped
from rerank.reports.dense.neighbours import LEAST
from rerank.reports.dense.svg import SHAPES, drawing, line, mark
from rerank.wording import amount

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SUBGRAPHS, AROUND, FEWEST = 6, 12, 3
"""So many documents, each with at most AROUND and at least FEWEST of those it is linked with."""
SIZE, EDGE, TITLE = 360, 12, 80
STEPS = 300
BEYOND = 2.0
"""Hops that lie between documents that no link connects, more than between the farthest others."""


def choose(links: csr_matrix, usable: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw documents with what they are linked with: (K, 2) documents, and which subgraph each is of.

    Middles of two subgraphs are not linked; a document is of the first that reaches it.
    """
    rows: list[tuple[int, int]] = []
    taken = np.zeros(len(usable), np.bool_)
    for middle in rng.permutation(np.flatnonzero(usable & (np.diff(links.indptr) >= FEWEST))).tolist():
        around = links[middle].indices
        if taken[middle] or taken[around].any():
            continue
        around = rng.permutation(around[usable[around]])[:AROUND]
        if len(around) < FEWEST:
            continue
        number = len({of for _, of in rows})
        for document in (middle, *around.tolist()):
            taken[document] = True
            rows.append((document, number))
        if number + 1 == SUBGRAPHS:
            break
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def layout(linked: NDArray[np.bool_], seed: int) -> NDArray[np.float64] | None:
    """(K, K) which are linked -> (K, 2) places as far apart as the links between, the longer side 0 to 1.

    Multidimensional scaling of the shortest paths by SMACOF (de Leeuw 1977), which lowers the stress at each
    step; scikit-learn's takes its arguments by other names in each version. None of fewer than LEAST
    documents.
    """
    if len(linked) < LEAST:
        return None
    from scipy.sparse.csgraph import shortest_path

    hops = shortest_path(linked.astype(np.float64), unweighted=True, directed=False)
    apart = np.isinf(hops)
    hops[apart] = hops[~apart].max() + BEYOND
    points = np.random.default_rng(seed).normal(size=(len(linked), 2))
    for _ in range(STEPS):
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        pull = -hops / np.maximum(distances, 1e-9)
        np.fill_diagonal(pull, 0.0)
        np.fill_diagonal(pull, -pull.sum(axis=1))
        points = pull @ points / len(points)
    low, span = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-9)
    scaled: NDArray[np.float64] = (points - low) / span.max()
    return scaled


def draw_subgraphs(
    points: Sequence[Sequence[float]], mapped: Sequence[Mapped], links: Sequence[Sequence[int]], title: str
) -> Markup:
    """One mark a document, of its subgraph's shape and colour, and the links as lines."""
    at = [(_place(x), _place(y)) for x, y in points]
    parts = [line(*at[a], *at[b], "grid") for a, b in links]
    for (x, y), one in zip(at, mapped):
        name = " ".join((one.title or one.id).split())[:TITLE]
        parts.append(mark(SHAPES[one.mark], x, y, f"spot c{one.mark}", 3.6, name))
    about = f"{amount(len(points), 'document[|s]')}, {amount(len(links), 'link[|s]')}"
    return drawing(SIZE, SIZE, title, parts, about)


def _place(share: float) -> float:
    return round(EDGE + (SIZE - 2 * EDGE) * share, 1)
