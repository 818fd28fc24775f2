"""Pairs from unlabeled collections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from rerank.categories import path_edges
from rerank.config import Count, Natural, Options, Positive, Share, option
from rerank.errors import UsageError
from rerank.rankers.graphs.links import LinkGraph
from rerank.records import Document, LabeledPair, Qrels

Source = Literal["qrels", "categories", "links"]
Near = Callable[[int], Sequence[int]]
"""Position of a document -> positions of documents with similar words."""

TRIES = 50
"""Candidates for an unrelated document, before another kind is used."""


class PairMining(Options, frozen=True):
    """Sampling options."""

    each: Annotated[Count, option("Related pairs of a document.")] = 3
    negatives: Annotated[Positive, option("Unrelated pairs for each related one.")] = 1.0
    hard: Annotated[Share, option("Share of the unrelated pairs that have a common topic.")] = 0.5
    smallest: Annotated[int, option("Least number of documents of a category that is a group.", ge=2)] = 5
    largest: Annotated[
        float, option("Ignore categories with a larger share of the documents.", gt=0, le=1)
    ] = 0.05
    seed: Annotated[Natural, option("Random seed of the samples and the split.")] = 0


@dataclass(frozen=True)
class RelatedDocuments:
    """Relations of n documents.

    ids: (n,) ascending.
    units: (n,) group, never split; -1: none.
    mates: related documents.
    labels, kin: documents with matching labels or kin are never unrelated pairs.
    topics: a common topic means similar, not related.
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
        """Return whether documents are, or may be, related."""
        if i == j or bool((self.mates[i] == j).any() or (self.mates[j] == i).any()):
            return True
        return bool(
            self.labels and (self.labels[i] & (self.labels[j] | self.kin[j]) or self.labels[j] & self.kin[i])
        )

    @classmethod
    def by_categories(
        cls, documents: Iterable[Document], edges: Sequence[tuple[str, str]] | None, mining: PairMining
    ) -> RelatedDocuments:
        """Relate documents by category; parents are topics.

        Groups: smallest categories with ``mining.smallest`` ungrouped documents.
        edges: child and parent; None: implied by paths.

        >>> documents = [Document(f"{c}{i}", categories=(c,)) for c in ("a.x", "a.y") for i in range(2)]
        >>> found = RelatedDocuments.by_categories(documents, None, PairMining(smallest=2, largest=0.5))
        >>> found.units.tolist(), found.related(0, 1), found.related(0, 2), sorted(found.topics[0])
        ([0, 0, 1, 1], True, False, ['a'])
        """
        ordered = sorted(documents, key=lambda one: one.id)
        sizes = Counter(name for one in ordered for name in dict.fromkeys(one.categories))
        most = mining.largest * len(ordered)
        labels = [frozenset(name for name in one.categories if sizes[name] <= most) for one in ordered]
        members: dict[str, list[int]] = defaultdict(list)
        for i, names in enumerate(labels):
            for name in names:
                members[name].append(i)
        order = sorted(members, key=lambda name: (len(members[name]), name))
        units = _disjoint((members[name] for name in order), len(ordered), mining.smallest)
        parents: dict[str, set[str]] = defaultdict(set)
        for child, parent in edges if edges is not None else path_edges(sizes):
            parents[child].add(parent)
        topics = [frozenset(parent for name in names for parent in parents[name]) for names in labels]
        return cls([one.id for one in ordered], units, _mates(units), labels, topics, topics)

    @classmethod
    def by_qrels(cls, ids: Iterable[str], qrels: Qrels) -> RelatedDocuments:
        """Relate documents relevant to a query; queries are topics of judged documents.

        Groups: queries with the fewest relevant documents.
        """
        ordered = sorted(ids)
        place = {one: i for i, one in enumerate(ordered)}
        labels, topics = [set[str]() for _ in ordered], [set[str]() for _ in ordered]
        groups: list[tuple[int, str, list[int]]] = []
        for query, grades in qrels.items():
            judged = {place[one]: grade for one, grade in grades.items() if one in place}
            relevant = sorted(i for i, grade in judged.items() if grade > 0)
            for i in judged:
                topics[i].add(query)
            for i in relevant:
                labels[i].add(query)
            groups.append((len(relevant), query, relevant))
        units = _disjoint((relevant for _, _, relevant in sorted(groups)), len(ordered), 2)
        unrelated = (units < 0) & np.array([bool(of) for of in topics], dtype=np.bool_)
        units[unrelated] = units.max(initial=-1) + 1 + np.arange(int(unrelated.sum()))
        frozen = [frozenset(of) for of in labels]
        return cls(ordered, units, _mates(units), frozen, frozen, [frozenset(of) for of in topics])

    @classmethod
    def by_links(cls, documents: Iterable[Document]) -> RelatedDocuments:
        """Relate linked documents, each a group."""
        ordered = sorted(documents, key=lambda one: one.id)
        links = LinkGraph.of(ordered).matrix()
        linked = np.diff(links.indptr) > 0
        units = np.where(linked, np.cumsum(linked) - 1, -1).astype(np.int64)
        mates = np.split(links.indices.astype(np.int64), links.indptr[1:-1])
        return cls([one.id for one in ordered], units, mates)


def split_units(related: RelatedDocuments, shares: Sequence[float], seed: int = 0) -> list[NDArray[np.int64]]:
    """Return documents per split; groups stay together.

    Raises UsageError unless shares exceed 0.

    >>> related = RelatedDocuments(list("abcd"), np.array([0, 0, 1, -1]), [np.array([], int)] * 4)
    >>> [part.tolist() for part in split_units(related, [0.7, 0.3])]
    [[0, 1], [2]]
    """
    if not shares or any(share <= 0 for share in shares):
        raise UsageError(f"shares of a split are above 0, not {', '.join(map(str, shares))}")
    sizes = np.bincount(related.units[related.units >= 0])
    order = np.random.default_rng([seed, 1]).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]  # the small groups fill the gaps
    missing = np.array(shares) / sum(shares) * sizes.sum()
    part = np.full(len(sizes), -1, dtype=np.int64)
    for unit in order[sizes[order] > 0].tolist():
        part[unit] = missing.argmax()
        missing[part[unit]] -= sizes[unit]
    parts = np.where(related.units >= 0, part[related.units], -1)
    return [np.flatnonzero(parts == number) for number in range(len(shares))]


class SampledPairs:
    """Pairs of a part of the split.

    documents, groups: number with pairs.
    hard: number of unrelated pairs with a common topic or similar words.
    """

    def __init__(
        self, related: RelatedDocuments, part: NDArray[np.int64], mining: PairMining, near: Near
    ) -> None:
        self.pairs: list[LabeledPair] = []
        self.hard = 0
        self._related, self._mining, self._near = related, mining, near
        self._inside = np.zeros(len(related), np.bool_)
        self._inside[part] = True
        self._by_topic: dict[str, list[int]] = defaultdict(list)
        for i in part.tolist() if related.topics else ():
            for topic in related.topics[i]:
                self._by_topic[topic].append(i)
        self._rng = np.random.default_rng([mining.seed, 2])
        self._keys: set[tuple[int, int]] = set()
        self._sample(part)
        ends = np.unique(np.array(sorted(self._keys), np.int64))
        self.documents, self.groups = len(ends), len(np.unique(related.units[ends]))

    def _sample(self, part: NDArray[np.int64]) -> None:
        owed = owed_hard = 0.0
        for i in part.tolist():
            mates = self._related.mates[i][self._inside[self._related.mates[i]]]
            chosen = self._rng.permutation(mates)[: self._mining.each].tolist()
            owed += sum(self._add(i, j, True) for j in chosen) * self._mining.negatives
            while owed >= 1:
                owed -= 1
                owed_hard += self._mining.hard
                other = self._hard_negative(i) if owed_hard >= 1 else None
                if other is not None:
                    owed_hard -= 1
                    self.hard += 1
                else:
                    other = self._unrelated(i, self._rng.choice(part, TRIES))
                if other is None:  # the next documents get the missing pairs
                    break
                self._add(i, other, False)

    def _add(self, i: int, j: int, label: bool) -> bool:
        """Add a pair, or return False if it is known."""
        key = (min(i, j), max(i, j))
        if key in self._keys:
            return False
        self._keys.add(key)
        self.pairs.append(LabeledPair(self._related.ids[i], self._related.ids[j], label))
        return True

    def _unrelated(self, i: int, candidates: NDArray[np.int64]) -> int | None:
        """Return the first unrelated, unpaired candidate."""
        for j in candidates.tolist():
            known = not self._inside[j] or (min(i, j), max(i, j)) in self._keys
            if not known and not self._related.related(i, j):
                return int(j)
        return None

    def _hard_negative(self, i: int) -> int | None:
        topics = sorted(self._related.topics[i]) if self._related.topics else []
        for place in self._rng.permutation(len(topics)).tolist():
            pool = self._rng.permutation(self._by_topic[topics[place]])[:TRIES]
            if (other := self._unrelated(i, pool)) is not None:
                return other
        # In random order: the nearest documents may well be related.
        return self._unrelated(i, self._rng.permutation(np.array(self._near(i), np.int64)))


def _disjoint(groups: Iterable[list[int]], size: int, smallest: int) -> NDArray[np.int64]:
    """Return first groups, (n,), or -1."""
    units = np.full(size, -1, dtype=np.int64)
    number = 0
    for group in groups:
        free = [i for i in group if units[i] < 0]
        if len(free) >= smallest:
            units[free] = number
            number += 1
    return units


def _mates(units: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    nothing = np.zeros(0, np.int64)
    order = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[order], np.arange(units.max(initial=-1) + 2))
    groups = np.split(order, starts)[1:]
    return [
        groups[unit][groups[unit] != i] if unit >= 0 else nothing for i, unit in enumerate(units.tolist())
    ]
