"""Labeled pairs without labels: what relates documents, and draws of related and unrelated ones from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from rerank.categories import path_edges
from rerank.config import Count, Natural, Options, Positive, Share, option
from rerank.errors import UsageError
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document, LabeledPair, Qrels
from rerank.text import words

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Source = Literal["qrels", "categories", "links", "titles"]
Near = Callable[[int], Sequence[int]]
"""Position of a document -> positions of those whose words are like its own."""

TRIES = 50
"""Draws of an unrelated document before another kind is taken."""
SIMILAR = 0.5
"""Cosine of two titles' words, weighted by idf, from which on the documents are related."""
_BLOCK = 512


class PairMining(Options, frozen=True):
    """How pairs are drawn."""

    each: Annotated[Count, option("related pairs that are drawn for a document")] = 3
    negatives: Annotated[Positive, option("unrelated pairs for each related one")] = 1.0
    hard: Annotated[Share, option("share of the unrelated pairs that are of one topic")] = 0.5
    smallest: Annotated[int, option("documents of a category that is a group of its own", ge=2)] = 5
    largest: Annotated[
        float, option("share of the documents; a category with more of them relates none", gt=0, le=1)
    ] = 0.05
    seed: Annotated[Natural, option("of the draws and of the split")] = 0


@dataclass(frozen=True)
class Related:
    """What is related in a collection of n documents.

    ids:    (n,) ascending.
    units:  (n,) what a split keeps together: a group, or a document; -1: related to nothing, left out.
    mates:  of each document, those that it is related to.
    labels, kin: two documents are no unrelated pair where a label of one is a label or kin of the other.
    topics: what documents have in common that are near without being related.
    """

    ids: list[str]
    units: NDArray[np.int64]
    mates: list[NDArray[np.int64]]
    labels: list[frozenset[str]] = field(default_factory=list)
    kin: list[frozenset[str]] = field(default_factory=list)
    topics: list[frozenset[str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def related(self, i: int, j: int) -> bool:
        """Whether two documents are related, or may be."""
        if i == j or bool((self.mates[i] == j).any() or (self.mates[j] == i).any()):
            return True
        return bool(
            self.labels and (self.labels[i] & (self.labels[j] | self.kin[j]) or self.labels[j] & self.kin[i])
        )

    @classmethod
    def by_categories(
        cls, documents: Iterable[Document], edges: Sequence[tuple[str, str]] | None, mining: PairMining
    ) -> Related:
        """Documents of one category are related; those below one parent of it are of one topic.

        A document is in one group only, of the smallest of its categories that ``mining.smallest`` documents
        have that are in no smaller one; so a split by groups is one by categories. edges: child and parent;
        None: those that paths imply.

        >>> documents = [Document(f"{c}{i}", categories=(c,)) for c in ("a.x", "a.y") for i in range(2)]
        >>> found = Related.by_categories(documents, None, PairMining(smallest=2, largest=0.5))
        >>> found.units.tolist(), found.related(0, 1), found.related(0, 2), sorted(found.topics[0])
        ([0, 0, 1, 1], True, False, ['a'])
        """
        ordered = sorted(documents, key=lambda one: one.id)
        sizes = Counter(name for one in ordered for name in dict.fromkeys(one.categories))
        most = mining.largest * len(ordered)
        labels = [frozenset(name for name in one.categories if sizes[name] <= most) for one in ordered]
        members: dict[str, list[int]] = defaultdict(list)
        for i, of in enumerate(labels):
            for name in of:
                members[name].append(i)
        order = sorted(members, key=lambda name: (len(members[name]), name))
        units = _apart((members[name] for name in order), len(ordered), mining.smallest)
        parents: dict[str, set[str]] = defaultdict(set)
        for child, parent in edges if edges is not None else path_edges(sizes):
            parents[child].add(parent)
        topics = [frozenset(parent for name in of for parent in parents[name]) for of in labels]
        return cls([one.id for one in ordered], units, _mates(units), labels, topics, topics)

    @classmethod
    def by_qrels(cls, ids: Iterable[str], qrels: Qrels) -> Related:
        """Documents that are relevant for one query are related; those judged for it are of one topic.

        A document is in the group of one query only, the one with the fewest relevant documents.
        """
        ordered = sorted(ids)
        place = {one: i for i, one in enumerate(ordered)}
        labels, topics = [set[str]() for _ in ordered], [set[str]() for _ in ordered]
        groups: list[tuple[int, str, list[int]]] = []
        for query, grades in qrels.items():
            there = {place[one]: grade for one, grade in grades.items() if one in place}
            for i, grade in there.items():
                topics[i].add(query)
                if grade > 0:
                    labels[i].add(query)
            found = sorted(i for i, grade in there.items() if grade > 0)
            groups.append((len(found), query, found))
        units = _apart((found for _, _, found in sorted(groups)), len(ordered), 2)
        judged = np.array([bool(of) for of in topics], dtype=np.bool_)
        alone = (units < 0) & judged  # judged as not relevant: for unrelated pairs
        units[alone] = units.max(initial=-1) + 1 + np.arange(int(alone.sum()))
        frozen = [frozenset(of) for of in labels]
        return cls(ordered, units, _mates(units), frozen, frozen, [frozenset(of) for of in topics])

    @classmethod
    def by_links(cls, documents: Iterable[Document]) -> Related:
        """Documents that are linked, either way, are related. A split keeps nothing together."""
        ordered = sorted(documents, key=lambda one: one.id)
        links = LinkGraph.of(ordered).matrix()
        linked = np.diff(links.indptr) > 0
        units = np.where(linked, np.cumsum(linked) - 1, -1).astype(np.int64)
        return cls([one.id for one in ordered], units, _rows(links))

    @classmethod
    def by_titles(cls, documents: Iterable[Document]) -> Related:
        """Documents whose titles' words have a cosine of SIMILAR or more are related."""
        from scipy.sparse.csgraph import connected_components

        ordered = sorted(documents, key=lambda one: one.id)
        alike = _alike([words(one.title) for one in ordered])
        _, component = connected_components(alike, directed=False)
        paired = np.diff(alike.indptr) > 0
        units = np.where(paired, component, -1).astype(np.int64)
        return cls([one.id for one in ordered], units, _rows(alike))


@dataclass(frozen=True)
class Drawn:
    """Pairs of one part of a split.

    hard: how many of the unrelated ones are of one topic, or found by each other's words.
    """

    pairs: list[LabeledPair]
    hard: int
    documents: int
    groups: int


def split_units(related: Related, shares: Sequence[float], seed: int = 0) -> list[NDArray[np.int64]]:
    """Documents of each part, units kept together: each goes where most is missing from the share.

    Raises UsageError for shares that are none.

    >>> related = Related(list("abcd"), np.array([0, 0, 1, -1]), [np.array([], int)] * 4)
    >>> [part.tolist() for part in split_units(related, [0.7, 0.3])]
    [[0, 1], [2]]
    """
    if not shares or any(share <= 0 for share in shares):
        raise UsageError(f"shares of a split are above 0, not {', '.join(map(str, shares))}")
    sizes = np.bincount(related.units[related.units >= 0])
    rng = np.random.default_rng([seed, 1])
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]  # the small ones then fill the gaps
    missing = np.array(shares) / sum(shares) * sizes.sum()
    part = np.full(len(sizes), -1, dtype=np.int64)
    for unit in order[sizes[order] > 0].tolist():
        part[unit] = missing.argmax()
        missing[part[unit]] -= sizes[unit]
    of = np.where(related.units >= 0, part[related.units], -1)
    return [np.flatnonzero(of == number) for number in range(len(shares))]


def draw_pairs(related: Related, part: NDArray[np.int64], mining: PairMining, near: Near) -> Drawn:
    """Draw the pairs of some documents, related and unrelated ones, all between these documents.

    An unrelated pair is of one topic where that is wanted, else of documents with the same words (``near``),
    else of any two.
    """
    draws = _Draws.of(related, part, mining, near)
    owed = owed_hard = 0.0
    for i in part.tolist():
        owed += draws.relate(i) * mining.negatives
        while owed >= 1:
            owed -= 1
            owed_hard += mining.hard
            other = draws.hard_negative(i) if owed_hard >= 1 else None
            if other is not None:
                owed_hard -= 1
                draws.hard += 1
            else:
                other = draws.unused(i, draws.rng.choice(part, TRIES).tolist())
            if other is None:  # no more negatives of this document: the next ones have to do
                break
            draws.add(i, other, False)
    ends = {one for pair in draws.pairs for one in pair[:2]}
    positions = [i for i in part.tolist() if related.ids[i] in ends]
    return Drawn(draws.pairs, draws.hard, len(ends), len(np.unique(related.units[positions])))


@dataclass
class _Draws:
    """Pairs that are drawn so far. of_topic: documents of the part by topic."""

    related: Related
    mining: PairMining
    near: Near
    inside: NDArray[np.bool_]
    of_topic: Mapping[str, list[int]]
    rng: np.random.Generator
    seen: set[tuple[int, int]] = field(default_factory=set)
    pairs: list[LabeledPair] = field(default_factory=list)
    hard: int = 0

    @classmethod
    def of(cls, related: Related, part: NDArray[np.int64], mining: PairMining, near: Near) -> _Draws:
        inside = np.zeros(len(related), np.bool_)
        inside[part] = True
        of_topic: dict[str, list[int]] = defaultdict(list)
        for i in part.tolist() if related.topics else ():
            for topic in related.topics[i]:
                of_topic[topic].append(i)
        return cls(related, mining, near, inside, of_topic, np.random.default_rng([mining.seed, 2]))

    def add(self, i: int, j: int, label: bool) -> None:
        """Add a pair."""
        self.seen.add((min(i, j), max(i, j)))
        self.pairs.append(LabeledPair(self.related.ids[i], self.related.ids[j], label))

    def relate(self, i: int) -> int:
        """Add related pairs of a document; return how many."""
        mates = self.related.mates[i][self.inside[self.related.mates[i]]]
        chosen = self.rng.permutation(mates)[: self.mining.each].tolist()
        found = [j for j in chosen if (min(i, j), max(i, j)) not in self.seen]
        for j in found:
            self.add(i, j, True)
        return len(found)

    def unused(self, i: int, candidates: Iterable[int]) -> int | None:
        """The first candidate that is not related to a document, and not paired with it."""
        for j in candidates:
            known = not self.inside[j] or (min(i, j), max(i, j)) in self.seen
            if not known and not self.related.related(i, j):
                return j
        return None

    def hard_negative(self, i: int) -> int | None:
        """A document of one topic, or with the same words."""
        topics = sorted(self.related.topics[i]) if self.related.topics else []
        for place in self.rng.permutation(len(topics)).tolist():
            pool = self.rng.permutation(self.of_topic[topics[place]])[:TRIES].tolist()
            if (other := self.unused(i, pool)) is not None:
                return other
        # Not in the order of nearness: the nearest ones may well be related.
        return self.unused(i, self.rng.permutation(np.array(self.near(i), np.int64)).tolist())


def _apart(groups: Iterable[list[int]], size: int, smallest: int) -> NDArray[np.int64]:
    """(n,) number of the first group that takes each document; -1: none, those left are too few."""
    units = np.full(size, -1, dtype=np.int64)
    number = 0
    for group in groups:
        free = [i for i in group if units[i] < 0]
        if len(free) >= smallest:
            units[free] = number
            number += 1
    return units


def _mates(units: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Of each document the others of its unit."""
    nothing = np.zeros(0, np.int64)
    order = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[order], np.arange(units.max(initial=-1) + 2))
    groups = [order[begin:end] for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist())]
    return [
        groups[unit][groups[unit] != i] if unit >= 0 else nothing for i, unit in enumerate(units.tolist())
    ]


def _rows(matrix: csr_matrix) -> list[NDArray[np.int64]]:
    return [row.astype(np.int64) for row in np.split(matrix.indices, matrix.indptr[1:-1])]


def _alike(texts: Sequence[Sequence[str]]) -> csr_matrix:
    """(n, n) where the cosine of two texts' words is SIMILAR or more."""
    from scipy.sparse import coo_matrix, csr_matrix, vstack

    count = Counter(word for text in texts for word in set(text))
    number = {word: i for i, word in enumerate(sorted(count))}
    idf = np.array([np.log((1 + len(texts)) / (1 + count[word])) + 1 for word in number])
    rows = np.repeat(np.arange(len(texts)), [len(set(text)) for text in texts])
    columns = np.array([number[word] for text in texts for word in sorted(set(text))], dtype=np.int64)
    matrix = csr_matrix((idf[columns], (rows, columns)), shape=(len(texts), len(number)))
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
    matrix = csr_matrix(matrix.multiply(1 / np.maximum(lengths, 1e-12)[:, None]))
    blocks = []
    for start in range(0, len(texts), _BLOCK):
        found = coo_matrix(matrix[start : start + _BLOCK] @ matrix.T)
        kept = (found.data >= SIMILAR) & (found.row + start != found.col)
        shape = found.shape
        blocks.append(csr_matrix((found.data[kept], (found.row[kept], found.col[kept])), shape=shape))
    return csr_matrix(vstack(blocks)) if blocks else csr_matrix((0, 0))
