"""The category graph."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_SEPARATOR = re.compile(r"::|[/>|]|\.(?!\s)")
"""A point before a space belongs to an abbreviation (``E. coli``)."""
MAX_CO_OCCURRING = 30
"""Only so many categories of a document are linked: the number of pairs grows with the square."""


def parents_of_path(category: str) -> list[str]:
    """Return a path's prefixes, nearest first.

    >>> parents_of_path("C.2.4"), parents_of_path("game::strategy"), parents_of_path("Deep Learning")
    (['C.2', 'C'], ['game'], [])
    """
    cuts = [match.start() for match in _SEPARATOR.finditer(category)]
    return [prefix for cut in reversed(cuts) if (prefix := category[:cut].rstrip())]


def path_edges(categories: Iterable[str]) -> list[tuple[str, str]]:
    """Return child-parent edges of category paths.

    >>> path_edges(["C.2.4"])
    [('C.2.4', 'C.2'), ('C.2', 'C')]
    """
    chains = ([category, *parents_of_path(category)] for category in categories)
    return list(dict.fromkeys(edge for chain in chains for edge in pairwise(chain)))


def co_occurrence_edges(sets: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Link categories that occur together in a document.

    >>> co_occurrence_edges([("b", "a"), ("a", "c")])
    [('a', 'b'), ('a', 'c')]
    """
    names = (sorted(set(categories[:MAX_CO_OCCURRING])) for categories in sets)
    return list(dict.fromkeys(edge for some in names for edge in combinations(some, 2)))


@dataclass(frozen=True)
class CategoryGraph:
    """Categories and undirected edges.

    names:     n categories, ascending.
    adjacency: (n, n) symmetric 0/1 matrix.
    """

    names: list[str]
    adjacency: csr_matrix

    @classmethod
    def build(
        cls, sets: Iterable[Sequence[str]], edges: Sequence[tuple[str, str]] | None = None
    ) -> CategoryGraph:
        """Build the graph of the categories in ``sets`` (one per document or query).

        Default edges: from paths, else from co-occurrences. Unconnected paths are linked to their nearest
        known prefix.

        >>> graph = CategoryGraph.build([("C.2.4",), ("C.2",)])
        >>> graph.names, graph.adjacency.nnz
        (['C', 'C.2', 'C.2.4'], 4)
        """
        import numpy as np
        from scipy.sparse import csr_matrix

        sets = list(dict.fromkeys(tuple(s) for s in sets))
        seen = dict.fromkeys(category for s in sets for category in s)
        if edges:
            nodes = {name for edge in edges for name in edge}
            edges = [*edges, *((c, p) for c in seen if (p := nearest_known(c, nodes)) is not None)]
        else:
            edges = path_edges(seen) or co_occurrence_edges(sets)
        names = sorted(set(seen) | {name for edge in edges for name in edge})
        index = {name: i for i, name in enumerate(names)}
        pairs = np.array([(index[a], index[b]) for a, b in edges if a != b], dtype=np.int64).reshape(-1, 2)
        ones = np.ones(2 * len(pairs), dtype=np.float32)
        both = np.concatenate([pairs, pairs[:, ::-1]])
        adjacency = csr_matrix((ones, (both[:, 0], both[:, 1])), shape=(len(names), len(names)))
        adjacency.data[:] = 1.0
        return cls(names, adjacency)


def infer_categories(ranked: Iterable[tuple[float, Sequence[str]]]) -> tuple[str, ...]:
    """Infer up to four categories with a quarter of the candidates' votes, most votes first.

    ranked: (first-stage score, categories); the score is the weight of the vote.

    >>> infer_categories([(2.0, ["a", "b"]), (1.0, ["a"]), (0.5, ["c"])])
    ('a', 'b')
    """
    votes: dict[str, float] = defaultdict(float)
    cast = 0.0
    for score, categories in ranked:
        cast += score if categories else 0.0
        for category in set(categories):
            votes[category] += score
    kept = sorted((-v, c) for c, v in votes.items() if v >= 0.25 * cast)
    return tuple(c for _, c in kept[:4])


def nearest_known(category: str, known: Container[str]) -> str | None:
    """Return the category or its nearest known prefix, or None."""
    if category in known:
        return category
    return next((p for p in parents_of_path(category) if p in known), None)


class CategoryNames:
    """The categories of a trained ranker; case is ignored.

    >>> names = CategoryNames(["Immunology", "game::strategy"])
    >>> names.find("immunology"), names.find("game::strategy::chess"), names.find("Nonsense")
    ('Immunology', 'game::strategy::chess', None)
    >>> names.similar("Imunology")
    ['Immunology']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    @cached_property
    def _folded(self) -> dict[str, str]:
        return {name.casefold(): name for name in sorted(self._names, reverse=True)}

    def find(self, category: str) -> str | None:
        """Return the category as spelled in training; None: unknown. Paths below known paths are known."""
        exact, folded = nearest_known(category, self._names), nearest_known(category.casefold(), self._folded)
        if exact is not None and exact.casefold() == folded:
            return category
        return None if folded is None else self._folded[folded]

    def similar(self, category: str) -> list[str]:
        """Return known categories with similar names, best first."""
        return [self._folded[name] for name in get_close_matches(category.casefold(), self._folded)]
