"""Co-citation networks: references that the same sentence, paragraph, section or paper cites.

Kept are mentions, never pairs: a section with 300 references has 300 mentions and 44,850 pairs. Two
references are related at a level when one group of that level (a sentence, ...) mentions both. So the pairs
of sentences are among those of paragraphs, these among those of sections, these among those of papers
(coSentence, coParagraph and coSection of CCHT, Ding, Zhang, Chen and Cao).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Level = Literal["sentence", "paragraph", "section", "document"]
LEVELS: tuple[Level, ...] = ("sentence", "paragraph", "section", "document")
"""From the finest to the coarsest."""

MOST = 20_000
"""Mentions around a reference up to which its neighbors are listed; of more, they are drawn one by one."""
CHUNK = 2_000_000
"""Pairs that are counted at a time."""

Ids = NDArray[np.int32]


class Mention(NamedTuple):
    """One citation in a text: ``reference`` is a key, the others number the text's parts within the paper.

    Sections, paragraphs and sentences are numbered from 0 within their paper; a sentence belongs to one
    paragraph, a paragraph to one section.
    """

    reference: str
    section: int
    paragraph: int
    sentence: int


@dataclass(frozen=True)
class Groups:
    """The groups of one level that mention two references or more.

    indptr, refs: references of group g are ``refs[indptr[g]:indptr[g + 1]]``, ascending, each once.
    ref_indptr, groups: groups of reference r are ``groups[ref_indptr[r]:ref_indptr[r + 1]]``, ascending.
    """

    indptr: NDArray[np.int64]
    refs: Ids
    ref_indptr: NDArray[np.int64]
    groups: Ids

    @classmethod
    def of(cls, group: Ids, ref: Ids, size: int, largest: int | None = None) -> Groups:
        """Make them of (M,) mentions of ``size`` references. largest: leave out groups of more references."""
        pairs = group.astype(np.int64)
        pairs *= size
        pairs += ref
        pairs = _distinct(pairs)[0]
        numbers, refs = (pairs // max(size, 1)).astype(np.int32), (pairs % max(size, 1)).astype(np.int32)
        del pairs
        counts = _distinct(numbers)[1]
        kept = (counts > 1) & (counts <= (largest or len(refs)))
        refs, counts = refs[np.repeat(kept, counts)], counts[kept]
        place = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        order = np.argsort(refs, kind="stable")
        return cls(
            np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
            refs,
            np.concatenate(([0], np.cumsum(np.bincount(refs, minlength=size), dtype=np.int64))),
            place[order],
        )

    def around(self, ref: int) -> Ids:
        """The groups that mention a reference, ascending."""
        return self.groups[self.ref_indptr[ref] : self.ref_indptr[ref + 1]]

    def members(self, group: int) -> Ids:
        """The references of a group, ascending."""
        return self.refs[self.indptr[group] : self.indptr[group + 1]]

    def sizes(self, groups: Ids) -> NDArray[np.int64]:
        """How many references each of these groups has."""
        starts = groups.astype(np.int64)
        found: NDArray[np.int64] = self.indptr[starts + 1] - self.indptr[starts]
        return found

    def mates(self, ref: int) -> Ids:
        """All references that share a group with this one, as often as they do; itself left out."""
        found = [self.members(group) for group in self.around(ref).tolist()]
        flat = np.concatenate(found) if found else np.zeros(0, np.int32)
        others: Ids = flat[flat != ref]
        return others

    @cached_property
    def totals(self) -> list[int]:
        """How many mates each reference has, counted as often as they share a group with it."""
        sizes = np.diff(self.indptr) - 1
        sums = np.concatenate(([0], np.cumsum(sizes[self.groups])))
        found: list[int] = np.diff(sums[self.ref_indptr]).tolist()
        return found

    def shared(self, a: int, b: int) -> int:
        """How many groups mention both."""
        one, other = sorted((self.around(a), self.around(b)), key=len)
        at = np.searchsorted(other, one)
        return int((other[np.minimum(at, max(len(other) - 1, 0))] == one).sum()) if len(other) else 0

    def pairs(self) -> int:
        """Count the distinct pairs of references that share a group."""
        return len(self.pair_keys())

    def pair_keys(self) -> NDArray[np.int64]:
        """(P,) distinct pairs a < b as a * V + b, ascending: all of them, for networks that allow it."""
        return self.pair_counts()[0]

    def pair_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(P,) pairs as :meth:`pair_keys`, and how many groups each shares."""
        keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for found in self._pairs():
            more, times = np.unique(found, return_counts=True)
            both = np.concatenate((keys, more))
            keys, place = np.unique(both, return_inverse=True)
            counts = np.bincount(place, np.concatenate((counts, times)), len(keys)).astype(np.int64)
        return keys, counts

    def _pairs(self) -> Iterator[NDArray[np.int64]]:
        """Pairs as often as they share a group, about CHUNK at a time: groups of one size together."""
        size, sizes = len(self.ref_indptr) - 1, np.diff(self.indptr)
        waiting: list[NDArray[np.int64]] = []
        for members in np.unique(sizes).tolist():
            a, b = np.triu_indices(members, 1)
            starts = self.indptr[:-1][sizes == members]
            for some in np.array_split(starts, max(1, len(starts) * len(a) // CHUNK)):
                refs = self.refs[some[:, None] + np.arange(members)].astype(np.int64)
                waiting.append((refs[:, a] * size + refs[:, b]).ravel())
                if sum(map(len, waiting)) > CHUNK:
                    yield np.concatenate(waiting)
                    waiting = []
        if waiting:
            yield np.concatenate(waiting)


@dataclass(frozen=True)
class CoCitations:
    """References, and the groups at each level that mention them together.

    keys:     V references, in order of first mention.
    levels:   level -> its groups.
    mentions: how many there were. dropped: of the citing paper itself.

    >>> paper = [Mention("a", 0, 0, 0), Mention("b", 0, 0, 0), Mention("c", 0, 0, 1), Mention("d", 0, 1, 2)]
    >>> network = CoCitations.of([("x", paper)])
    >>> [network.names(network.neighbors(network.at("a"), level)) for level in LEVELS]
    [['b'], ['b', 'c'], ['b', 'c', 'd'], ['b', 'c', 'd']]
    """

    keys: tuple[str, ...]
    levels: dict[Level, Groups]
    mentions: int
    dropped: int = 0

    @classmethod
    def of(
        cls, papers: Iterable[tuple[str, Iterable[Mention]]], *, largest: int | None = None
    ) -> CoCitations:
        """Read (paper's key, its mentions), paper by paper.

        A paper that comes twice counts once. A paper's mentions of itself are dropped. largest: groups of
        more references relate none of them: one long review must not decide what is near.
        """
        number: dict[str, int] = {}
        seen: set[str] = set()
        rows, ends = array("i"), array("q")
        dropped = 0
        for paper, found in papers:
            if paper in seen:
                continue
            seen.add(paper)
            for mention in found:
                if mention.reference == paper:
                    dropped += 1
                    continue
                rows.append(number.setdefault(mention.reference, len(number)))
                rows.extend(mention[1:])
            ends.append(len(rows) // 4)
        table = np.frombuffer(rows, np.int32).reshape(-1, 4)
        return cls.of_rows(tuple(number), table, np.frombuffer(ends, np.int64), largest, dropped)

    @classmethod
    def of_rows(
        cls,
        keys: tuple[str, ...],
        rows: Ids,
        ends: NDArray[np.int64],
        largest: int | None = None,
        dropped: int = 0,
    ) -> CoCitations:
        """Make it of (M, 4) mentions: place in ``keys``, section, paragraph, sentence, from 0 in each paper.

        ends: (P,) where the rows of each paper end. What it keeps takes up to 32 bytes a mention, what it
        needs meanwhile about as much again.
        """
        sizes = np.diff(ends, prepend=0)
        sizes = sizes[sizes > 0]
        starts = np.cumsum(sizes) - sizes
        levels: dict[Level, Groups] = {}
        for level, column in zip(LEVELS, (3, 2, 1, None)):
            group = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            if column is not None and len(sizes):
                largest_number = np.maximum.reduceat(rows[:, column], starts).astype(np.int64) + 1
                before = np.cumsum(largest_number) - largest_number
                group = (before[group] + rows[:, column]).astype(np.int32)
            levels[level] = Groups.of(group, rows[:, 0], len(keys), largest)
        return cls(keys, levels, len(rows), dropped)

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, key: str) -> int:
        """Position of a reference. Raises KeyError."""
        return self._places[key]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.keys)}

    def names(self, refs: Ids | Sequence[int]) -> list[str]:
        """Keys of references."""
        return [self.keys[int(ref)] for ref in refs]

    def neighbors(self, ref: int, level: Level) -> Ids:
        """References that share a group of this level, ascending."""
        return _distinct(self.levels[level].mates(ref))[0]

    def finest(self, ref: int) -> tuple[Ids, NDArray[np.int8]]:
        """All neighbors, ascending, and the finest level of each: 1 sentence, 2 paragraph, 3 section, 4."""
        ids = self.neighbors(ref, "document")
        level = np.full(len(ids), len(LEVELS), np.int8)
        for place in range(len(LEVELS) - 1, 0, -1):
            level[np.isin(ids, self.levels[LEVELS[place - 1]].mates(ref))] = place
        return ids, level

    def related(self, a: int, b: int, level: Level) -> bool:
        """Whether two references share a group of this level; no pair is materialised."""
        return self.levels[level].shared(a, b) > 0

    def draw(
        self,
        ref: int,
        level: Level,
        count: int,
        rng: np.random.Generator,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Ids:
        """Draw up to ``count`` distinct neighbors, all alike; fewer if there are no more.

        allowed: (V,) bool, references that may be drawn; None: all.

        Around a reference with more than MOST mentions neighbors are drawn one by one: a group by its size,
        one of its references, kept with probability 1 / the groups they share. No list of neighbors is made.
        """
        total = self.levels[level].totals[ref]
        if not total:
            return np.zeros(0, np.int32)
        if total > MOST:
            return self._rejected(ref, level, count, rng, allowed)
        ids = self.neighbors(ref, level)
        if allowed is not None:
            ids = ids[allowed[ids]]
        return rng.permutation(ids) if len(ids) <= count else rng.choice(ids, count, replace=False)

    def _rejected(
        self,
        ref: int,
        level: Level,
        count: int,
        rng: np.random.Generator,
        allowed: NDArray[np.bool_] | None,
    ) -> Ids:
        groups, found = self.levels[level], dict[int, None]()
        around = groups.around(ref)
        ends = np.cumsum(groups.sizes(around) - 1)
        tries = 200 * count  # more neighbors than are asked for, unless one is in nearly all groups
        for at in rng.integers(int(ends[-1]), size=tries).tolist():
            place = int(np.searchsorted(ends, at, side="right"))
            members = groups.members(int(around[place]))
            own = int(np.searchsorted(members, ref))
            one = int(ends[place]) - at - 1
            mate = int(members[one + (one >= own)])
            if mate in found or not (allowed is None or allowed[mate]):
                continue
            if rng.random() * groups.shared(ref, mate) < 1:
                found[mate] = None
                if len(found) == count:
                    break
        return np.array(list(found), np.int32)


Number = TypeVar("Number", np.int32, np.int64)


def _distinct(found: NDArray[Number]) -> tuple[NDArray[Number], NDArray[np.int64]]:
    """Values, ascending, and how often each is there; sorts in place, and is quick for a few of them."""
    found.sort()
    starts = np.ones(len(found) + 1, np.bool_)
    np.not_equal(found[1:], found[:-1], out=starts[1:-1])
    places = starts.nonzero()[0]
    return found[places[:-1]], places[1:] - places[:-1]
