"""The category graph."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, combinations, pairwise
from typing import TYPE_CHECKING

from rerank.text import count_of, normalize

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_SEPARATOR = re.compile(r"(?:::|[/>|]|\.(?!\s))(?!$)")
"""A point before a space or at the end belongs to an abbreviation (``E. coli``)."""
SHARED_PREFIXES = 0.5
"""Smallest share of the names with a separator that share their first part, if it separates levels."""
MAX_CO_OCCURRING = 30
"""Only so many categories of a document are linked: the number of pairs grows with the square."""


def parents_of_path(category: str) -> list[str]:
    """Return a path's prefixes, nearest first.

    >>> parents_of_path("C.2.4"), parents_of_path("game::strategy"), parents_of_path("Deep Learning")
    (['C.2', 'C'], ['game'], [])
    """
    cuts = [match.start() for match in _SEPARATOR.finditer(category)]
    return [prefix for cut in reversed(cuts) if (prefix := category[:cut].rstrip())]


def path_names(categories: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the categories that are paths, and remarks on separators that do not make paths.

    A separator makes paths if most names with it share their first part with another name, or have several
    levels. ``HIV/AIDS`` among flat names is not a path.

    >>> path_names(["C.2.4", "C.1", "x"])[0], path_names(["HIV/AIDS", "Immunology", "Na/K"])
    (['C.2.4', 'C.1'], ([], ["2 categories with '/': no paths, because few share a prefix"]))
    """
    names = list(dict.fromkeys(categories))
    # The shortest prefix is the first part of a name. A name without a prefix is its own first part.
    first_parts = {name: [name, *parents_of_path(name)][-1] for name in names}
    names_with_first_part = Counter(first_parts.values())
    names_by_separator: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if first_parts[name] != name:
            for separator in set(_SEPARATOR.findall(name)):
                names_by_separator[separator].append(name)
    paths: set[str] = set()
    remarks = []
    for separator, members in sorted(names_by_separator.items()):
        in_levels = [
            name
            for name in members
            if names_with_first_part[first_parts[name]] > 1 or _levels(name, separator) > 1
        ]
        if len(in_levels) >= SHARED_PREFIXES * len(members):
            paths.update(members)
        else:
            count = count_of(len(members), "category")
            remarks.append(f"{count} with {separator!r}: no paths, because few share a prefix")
    return [name for name in names if name in paths], remarks


def _levels(name: str, separator: str) -> int:
    """Return how often a separator divides a name."""
    return _SEPARATOR.findall(name).count(separator)


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
    edges: dict[tuple[str, str], None] = {}
    for categories in sets:
        names = sorted(set(categories[:MAX_CO_OCCURRING]))
        edges.update(dict.fromkeys(combinations(names, 2)))
    return list(edges)


@dataclass(frozen=True)
class CategoryGraph:
    """Categories and undirected edges.

    names:     n categories, ascending.
    adjacency: (n, n) symmetric 0/1 matrix.
    remarks:   lines on categories that look like paths.
    """

    names: list[str]
    adjacency: csr_matrix
    remarks: tuple[str, ...] = ()

    @classmethod
    def build(
        cls, sets: Iterable[Sequence[str]], edges: Sequence[tuple[str, str]] | None = None
    ) -> CategoryGraph:
        """Build the graph of the categories in ``sets`` (one per document or query).

        Default edges: from paths (:func:`path_names`), and between categories that occur together, unless
        both are in paths. Unconnected paths are linked to their nearest known prefix.

        >>> graph = CategoryGraph.build([("C.2.4",), ("C.2",)])
        >>> graph.names, graph.adjacency.nnz
        (['C', 'C.2', 'C.2.4'], 4)
        """
        distinct_sets = list(dict.fromkeys(tuple(map(normalize, categories)) for categories in sets))
        categories = dict.fromkeys(chain.from_iterable(distinct_sets))
        remarks: list[str] = []
        if edges:
            edges = [(normalize(child), normalize(parent)) for child, parent in edges]
            edges += _prefix_edges(categories, set(chain.from_iterable(edges)))
        else:
            paths, remarks = path_names(categories)
            edges = path_edges(paths)
            in_paths = set(chain.from_iterable(edges))
            edges += [edge for edge in co_occurrence_edges(distinct_sets) if not in_paths.issuperset(edge)]
        names = sorted({*categories, *chain.from_iterable(edges)})
        return cls(names, _adjacency(names, edges), tuple(remarks))


def _prefix_edges(categories: Iterable[str], known: Container[str]) -> list[tuple[str, str]]:
    """Return an edge from each category to its nearest known prefix, or to itself if it is known."""
    edges = []
    for category in categories:
        prefix = nearest_known(category, known)
        if prefix is not None:
            edges.append((category, prefix))
    return edges


def _adjacency(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> csr_matrix:
    """Return a symmetric matrix, (n, n), with 1 for each edge between different names."""
    import numpy as np
    from scipy.sparse import csr_matrix

    position_of = {name: position for position, name in enumerate(names)}
    pairs = [(position_of[a], position_of[b]) for a, b in edges if a != b]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    both_ways = np.concatenate([ends, ends[:, ::-1]])
    ones = np.ones(len(both_ways), dtype=np.float32)
    adjacency = csr_matrix((ones, (both_ways[:, 0], both_ways[:, 1])), shape=(len(names), len(names)))
    adjacency.data[:] = 1.0  # repeated edges are added up
    return adjacency


def infer_categories(ranked: Iterable[tuple[float, Sequence[str]]]) -> tuple[str, ...]:
    """Infer up to four categories with a quarter of the candidates' votes, most votes first.

    ranked: (first-stage score, categories); the score is the weight of the vote.

    >>> infer_categories([(2.0, ["a", "b"]), (1.0, ["a"]), (0.5, ["c"])])
    ('a', 'b')
    """
    votes: dict[str, float] = defaultdict(float)
    total = 0.0
    for score, categories in ranked:
        if categories:
            total += score
        for category in set(categories):
            votes[category] += score
    frequent = [category for category, vote in votes.items() if vote >= 0.25 * total]
    return tuple(sorted(frequent, key=lambda category: (-votes[category], category))[:4])


def nearest_known(category: str, known: Container[str]) -> str | None:
    """Return the category or its nearest known prefix, or None."""
    if category in known:
        return category
    return next((prefix for prefix in parents_of_path(category) if prefix in known), None)


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
        category = normalize(category)
        exact = nearest_known(category, self._names)
        folded = nearest_known(category.casefold(), self._folded)
        if exact is not None and exact.casefold() == folded:
            return category
        return None if folded is None else self._folded[folded]

    def similar(self, category: str) -> list[str]:
        """Return known categories with similar names, best first."""
        return [self._folded[name] for name in get_close_matches(category.casefold(), self._folded)]
