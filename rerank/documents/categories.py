"""Categories of documents and queries: paths, the graph of categories, and names that a ranker knows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, combinations, filterfalse, pairwise
from typing import TYPE_CHECKING

from rerank.common.values import first_in, items_at, items_in, without_none
from rerank.documents.records import Document
from rerank.documents.stop_words import without_stop_words
from rerank.documents.text import count_of, normalize, words

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_SEPARATOR = re.compile(r"(?:::|[/>|]|\.(?!\s))(?!$)")
"""A point before a space or at the end belongs to an abbreviation (``E. coli``)."""
SHARED_PREFIXES = 0.5
"""Smallest share of the names with a separator that share their first part, if it separates levels."""
MAX_CO_OCCURRING = 30
"""Only so many categories of a document are linked: the number of pairs grows with the square."""


LEAST_LETTERS = 3
"""Letters of a word that can name a subject. One letter of Chinese, Japanese (kanji) or Korean is enough."""


def parents_of_path(category: str) -> list[str]:
    """Return the prefixes of a category that is a path, longest first.

    >>> parents_of_path("C.2.4"), parents_of_path("game::strategy"), parents_of_path("Deep Learning")
    (['C.2', 'C'], ['game'], [])
    """
    prefixes = [category[: match.start()].rstrip() for match in _SEPARATOR.finditer(category)]
    return list(filter(None, reversed(prefixes)))


def path_names(categories: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the categories that are paths, and remarks on separators that do not make paths.

    A separator makes paths if most names with it share their first part with another name, or have several
    levels. ``HIV/AIDS`` among flat names is not a path.

    >>> path_names(["C.2.4", "C.1", "x"])[0], path_names(["HIV/AIDS", "Immunology", "Na/K"])
    (['C.2.4', 'C.1'], ([], ["2 categories with '/': no paths, because few share a prefix"]))
    """
    names = list(dict.fromkeys(categories))
    names_with_first_part = Counter(map(_first_part, names))
    paths: set[str] = set()
    remarks: list[str] = []
    for separator, members in sorted(_names_by_separator(names).items()):
        in_levels = 0
        for name in members:
            shares_first_part = names_with_first_part[_first_part(name)] > 1
            in_levels += shares_first_part or _SEPARATOR.findall(name).count(separator) > 1
        if in_levels >= SHARED_PREFIXES * len(members):
            paths.update(members)
        else:
            count = count_of(len(members), "category")
            remarks.append(f"{count} with {separator!r}: no paths, because few share a prefix")
    return items_in(names, paths), remarks


def _first_part(name: str) -> str:
    """Return the shortest prefix of a name. A name without a prefix is its own first part."""
    return [name, *parents_of_path(name)][-1]


def _names_by_separator(names: Iterable[str]) -> dict[str, list[str]]:
    """Return separator -> the names that it divides, in their order."""
    names_by_separator: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if parents_of_path(name):
            for separator in set(_SEPARATOR.findall(name)):
                names_by_separator[separator].append(name)
    return names_by_separator


def path_edges(categories: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of child and parent of category paths, each once.

    >>> path_edges(["C.2.4"])
    [('C.2.4', 'C.2'), ('C.2', 'C')]
    """
    edges: dict[tuple[str, str], None] = {}
    for category in categories:
        edges.update(dict.fromkeys(pairwise([category, *parents_of_path(category)])))
    return list(edges)


def co_occurrence_edges(sets: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Return the pairs of categories that occur together in a set, each once, in ascending order.

    sets: the categories of each document. Only the first :data:`MAX_CO_OCCURRING` of a set are linked.

    >>> co_occurrence_edges([("b", "a"), ("a", "c")])
    [('a', 'b'), ('a', 'c')]
    """
    edges: dict[tuple[str, str], None] = {}
    for categories in sets:
        names = sorted(set(categories[:MAX_CO_OCCURRING]))
        edges.update(dict.fromkeys(combinations(names, 2)))
    return list(edges)


def count_mentioned_names(document: Document, lang: str | None = None) -> int:
    """Return how many categories of a document have a name with a word of its title or text.

    Stop words, numbers and shorter words than LEAST_LETTERS do not count.

    lang: of a document without ``lang``.

    >>> categories = ("Rail.Trains", "Peru", "Salt and Pepper", "B.1", "Europe")
    >>> count_mentioned_names(Document("1", "Trains and ships in Peru, 1", categories=categories, lang="en"))
    2
    """
    words_of_text = set(words(document.content))
    count = 0
    for name in document.categories:
        words_of_name = words(without_stop_words(names_as_text([name]), document.lang or lang))
        count += any(word in words_of_text for word in words_of_name if _can_name_subject(word))
    return count


def _can_name_subject(word: str) -> bool:
    if len(word) < LEAST_LETTERS:
        return word >= "\u3100"  # after kana: Chinese characters, Hangul
    return not word.isdecimal()


def names_as_text(categories: Iterable[str]) -> str:
    """Return the names of categories for a reader of text: levels and words with spaces, names with commas.

    >>> names_as_text(["Design_and_Technology.Railway_transport", "section::net", "C++"])
    'Design and Technology Railway transport, section net, C++'
    """
    names = [_SEPARATOR.sub(" ", name).replace("_", " ").strip() for name in categories]
    return ", ".join(filter(None, names))


def with_names_as_text(document: Document) -> Document:
    """Return the document with the names of its categories in place of its title and text."""
    return replace(document, title="", text=names_as_text(document.categories))


@dataclass(frozen=True)
class CategoryGraph:
    """n categories, and undirected edges between them.

    names:     n categories, ascending.
    adjacency: (n, n) symmetric matrix: 1 for an edge, else 0.
    remarks:   messages for the user about categories that look like paths.
    """

    names: list[str]
    adjacency: csr_matrix
    remarks: tuple[str, ...] = ()

    @classmethod
    def build(
        cls, sets: Iterable[Sequence[str]], edges: Sequence[tuple[str, str]] | None = None
    ) -> CategoryGraph:
        """Build the graph of all categories of a collection.

        sets:  the categories of each document or query.
        edges: pairs of child and parent. Each category is also linked to its nearest prefix among them.
            Default: the edges of paths (:func:`path_names`), and an edge between categories that occur
            together, unless both are in paths.

        >>> graph = CategoryGraph.build([("C.2.4",), ("C.2",)])
        >>> graph.names, graph.adjacency.nnz
        (['C', 'C.2', 'C.2.4'], 4)
        """
        distinct_sets = list(dict.fromkeys(tuple(map(normalize, categories)) for categories in sets))
        categories = dict.fromkeys(chain.from_iterable(distinct_sets))
        remarks: list[str] = []
        if edges:
            all_edges = [(normalize(child), normalize(parent)) for child, parent in edges]
            all_edges += _prefix_edges(categories, set(chain.from_iterable(all_edges)))
        else:
            paths, remarks = path_names(categories)
            all_edges = path_edges(paths)
            in_paths = set(chain.from_iterable(all_edges))
            all_edges += filterfalse(in_paths.issuperset, co_occurrence_edges(distinct_sets))
        names = sorted({*categories, *chain.from_iterable(all_edges)})
        return cls(names, _adjacency(names, all_edges), tuple(remarks))


def _prefix_edges(categories: Iterable[str], vocabulary: Container[str]) -> list[tuple[str, str]]:
    """Return an edge from each category to its nearest known prefix, or to itself if it is known."""
    prefixes = {category: nearest_known(category, vocabulary) for category in categories}
    return list(without_none(prefixes).items())


def _adjacency(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> csr_matrix:
    """Return a symmetric matrix, (n, n), with 1 for each edge between different names."""
    import numpy as np
    from scipy.sparse import csr_matrix

    position_of = dict(zip(names, range(len(names))))
    pairs = [(position_of[a], position_of[b]) for a, b in edges if a != b]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    both_ways = np.concatenate([ends, ends[:, ::-1]])
    edge_weights = np.ones(len(both_ways), dtype=np.float32)
    adjacency = csr_matrix((edge_weights, (both_ways[:, 0], both_ways[:, 1])), shape=(len(names), len(names)))
    adjacency.data[:] = 1.0  # repeated edges are added up
    return adjacency


def infer_categories(ranked: Iterable[tuple[float, Sequence[str]]]) -> tuple[str, ...]:
    """Infer the categories of a query from the categories of its candidates.

    A candidate votes for each of its categories, with its score as the weight. Returns up to four categories
    that have a quarter of the weight of all candidates with categories, most votes first.

    ranked: first-stage score, above 0, and categories of each candidate.

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
    best = sorted(votes, key=lambda category: (-votes[category], category))[:4]
    return tuple(category for category in best if votes[category] >= 0.25 * total)


def nearest_known(category: str, vocabulary: Container[str]) -> str | None:
    """Return the category if it is in the vocabulary, else its longest prefix that is, or None.

    >>> nearest_known("C.2.4", ["C", "C.2"]), nearest_known("C.2", ["C.2.4"])
    ('C.2', None)
    """
    return first_in((category, *parents_of_path(category)), vocabulary)


class CategoryNames:
    """The categories that a trained ranker knows. Upper and lower case do not matter.

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
        names = sorted(self._names, reverse=True)
        return dict(zip(map(str.casefold, names), names))

    def find(self, category: str) -> str | None:
        """Return a category with its spelling in the training, or None if it is unknown.

        Paths below known paths are known.
        """
        category = normalize(category)
        exact = nearest_known(category, self._names)
        folded = nearest_known(category.casefold(), self._folded)
        if exact is not None and exact.casefold() == folded:
            return category
        if folded is None:
            return None
        return self._folded[folded]

    def similar(self, category: str) -> list[str]:
        """Return up to three known categories with similar names, best first."""
        similar_names = get_close_matches(category.casefold(), self._folded)
        return items_at(self._folded, similar_names)
