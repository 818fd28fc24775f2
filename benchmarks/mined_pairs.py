"""Draw related and unrelated pairs of documents by their categories, for ``concept.py``.

    rerank ingest DATA/cf/corpus.jsonl.gz --categories DATA/cf/categories.tsv -w cf
    python benchmarks/mined_pairs.py cf --out cf.pairs

Documents that share a category are related, those whose categories share a parent are of one topic. A
category is in one of ``train.tsv``, ``dev.tsv`` and ``test.tsv`` only.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rerank import SearchRequest, Workspace
from rerank.categories import path_edges
from rerank.records import Document, LabeledPair
from rerank.text import words

PARTS = {"train": 0.7, "dev": 0.15, "test": 0.15}
Near = Callable[[int], Sequence[int]]
"""Position of a document -> positions of documents with similar words."""

TRIES = 50
"""Candidates for an unrelated document, before another kind is used."""


@dataclass(frozen=True)
class PairMining:
    """Sampling options.

    each: related pairs of a document. negatives: unrelated pairs for each. hard: share of them of one topic.
    smallest, largest: documents of a category that counts, their number and their share.
    """

    each: int = 3
    negatives: float = 1.0
    hard: float = 0.5
    smallest: int = 5
    largest: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class RelatedDocuments:
    """Relations of n documents.

    ids: (n,) ascending.
    units: (n,) group, never split; -1: none.
    mates: related documents.
    labels: documents with a common label, or a label that is a topic of the other, are never unrelated.
    topics: a common topic means similar, not related.
    """

    ids: list[str]
    units: NDArray[np.int64]
    mates: list[NDArray[np.int64]]
    labels: list[frozenset[str]]
    topics: list[frozenset[str]]

    def __len__(self) -> int:
        return len(self.ids)

    def related(self, i: int, j: int) -> bool:
        """Return whether documents are, or may be, related."""
        labels, topics = self.labels, self.topics
        return i == j or bool(labels[i] & (labels[j] | topics[j]) or labels[j] & topics[i])

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
        return cls([one.id for one in ordered], units, _mates(units), labels, topics)


def split_units(related: RelatedDocuments, shares: Sequence[float], seed: int = 0) -> list[NDArray[np.int64]]:
    """Return documents per split; groups stay together."""
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
        for i in part.tolist():
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
        topics = sorted(self._related.topics[i])
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


def read_short(workspace: Workspace) -> list[Document]:
    """Documents by id; the first words replace a missing title."""
    short = []
    for one in workspace.engine.documents():
        text = "" if one.title else " ".join(words(one.text)[:20])
        short.append(Document(one.id, one.title, text, one.categories))
    return sorted(short, key=lambda one: one.id)


def sample(workspace: Workspace, mining: PairMining, shares: Sequence[float]) -> list[SampledPairs]:
    """Draw the pairs of each part."""
    documents = read_short(workspace)
    related = RelatedDocuments.by_categories(documents, workspace.category_edges(), mining)
    place = {one: i for i, one in enumerate(related.ids)}

    def near(i: int) -> list[int]:
        text = documents[i].title or documents[i].text
        found = workspace.engine.find(SearchRequest(text, first_stage=workspace.first_stage, depth=100))
        return [place[one] for one in found.ids if one in place]

    parts = split_units(related, shares, mining.seed)
    return [
        SampledPairs(related, part, replace(mining, seed=mining.seed + number), near)
        for number, part in enumerate(parts)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workspace")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--smallest", type=int, default=PairMining.smallest)
    parser.add_argument("--largest", type=float, default=PairMining.largest)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    mining = PairMining(smallest=options.smallest, largest=options.largest, seed=options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, found in zip(PARTS, sample(Workspace.open(options.workspace), mining, [*PARTS.values()])):
        lines = ["a\tb\trelated", *(f"{a}\t{b}\t{int(related)}" for a, b, related in found.pairs)]
        (options.out / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        related = sum(pair.related for pair in found.pairs)
        print(f"{name}: {related} related, {len(found.pairs) - related} unrelated, {found.hard} of one topic")


if __name__ == "__main__":
    main()
