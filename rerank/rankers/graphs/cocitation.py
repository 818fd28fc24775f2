"""Co-citation networks (Ding et al.), stored as mentions to save memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Level = Literal["sentence", "paragraph", "section", "document"]
LEVELS: tuple[Level, ...] = ("sentence", "paragraph", "section", "document")
"""From the finest to the coarsest."""

Ids = NDArray[np.int32]


class Mention(NamedTuple):
    """A citation: key, and section, paragraph and sentence from 0."""

    reference: str
    section: int
    paragraph: int
    sentence: int


@dataclass(frozen=True)
class Groups:
    """Groups with at least two references.

    indptr, refs: ``refs[indptr[g]:indptr[g + 1]]`` are references of group g, ascending.
    ref_indptr, groups: ``groups[ref_indptr[r]:ref_indptr[r + 1]]`` are groups of r, ascending.
    """

    indptr: NDArray[np.int64]
    refs: Ids
    ref_indptr: NDArray[np.int64]
    groups: Ids

    @classmethod
    def of(cls, group: NDArray[np.int64], ref: Ids, size: int) -> Groups:
        """Return groups of (M,) mentions."""
        numbers, refs = np.divmod(np.unique(group * max(size, 1) + ref), max(size, 1))
        _, counts = np.unique(numbers, return_counts=True)
        kept = counts > 1
        refs, counts = refs[np.repeat(kept, counts)].astype(np.int32), counts[kept]
        place = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ref_counts = np.bincount(refs, minlength=size)
        return cls(
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            refs,
            np.concatenate(([0], np.cumsum(ref_counts))).astype(np.int64),
            place[np.argsort(refs, kind="stable")],
        )

    def around(self, ref: int) -> Ids:
        """Return groups of a reference, ascending."""
        return self.groups[self.ref_indptr[ref] : self.ref_indptr[ref + 1]]

    def neighbors(self, ref: int) -> Ids:
        """Return references that share groups, ascending."""
        found = [self.refs[self.indptr[g] : self.indptr[g + 1]] for g in self.around(ref).tolist()]
        if not found:
            return np.zeros(0, np.int32)
        others: Ids = np.unique(np.concatenate(found))
        return np.delete(others, np.searchsorted(others, ref))

    def shared(self, a: int, b: int) -> int:
        """Count groups with both references."""
        return len(np.intersect1d(self.around(a), self.around(b), assume_unique=True))

    def pairs(self) -> int:
        """Count distinct pairs."""
        return len(self.pair_counts()[0])

    def pair_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs, (P,), a < b as a * V + b, ascending, and group counts."""
        from scipy.sparse import csr_matrix, triu

        size = len(self.ref_indptr) - 1
        ones = np.ones(len(self.refs), np.int32)
        members = csr_matrix((ones, self.refs, self.indptr), shape=(len(self.indptr) - 1, size))
        both = triu(members.T @ members, k=1, format="csr")
        both.sort_indices()
        both = both.tocoo()
        return both.row.astype(np.int64) * size + both.col, both.data.astype(np.int64)


@dataclass(frozen=True)
class CoCitations:
    """V references, ``keys`` by first mention, and groups per level.

    mentions: number of mentions.

    >>> paper = [Mention("a", 0, 0, 0), Mention("b", 0, 0, 0), Mention("c", 0, 0, 1), Mention("d", 0, 1, 2)]
    >>> network = CoCitations.of([("x", paper)])
    >>> network.keys, [network.neighbors(0, level).tolist() for level in LEVELS]
    (('a', 'b', 'c', 'd'), [[1], [1, 2], [1, 2, 3], [1, 2, 3]])
    """

    keys: tuple[str, ...]
    levels: dict[Level, Groups]
    mentions: int

    @classmethod
    def of(cls, papers: Iterable[tuple[str, Iterable[Mention]]]) -> CoCitations:
        """Read documents; keeps 16 bytes per mention.

        Repeated documents and self-mentions are ignored.
        """
        number: dict[str, int] = {}
        known: set[str] = set()
        rows, sizes = array("i"), array("q")
        for paper, mentions in papers:
            if paper in known:
                continue
            known.add(paper)
            before = len(rows)
            for mention in mentions:
                if mention.reference != paper:
                    rows.append(number.setdefault(mention.reference, len(number)))
                    rows.extend(mention[1:])
            sizes.append((len(rows) - before) // 4)
        table = np.frombuffer(rows, np.int32).reshape(-1, 4)
        return cls.of_rows(tuple(number), table, np.frombuffer(sizes, np.int64))

    @classmethod
    def of_rows(cls, keys: tuple[str, ...], rows: Ids, sizes: NDArray[np.int64]) -> CoCitations:
        """Read (M, 4) mentions: reference, section, paragraph, sentence. sizes: per document."""
        paper = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        levels: dict[Level, Groups] = {}
        for level, column in zip(LEVELS, (3, 2, 1)):
            parts = rows[:, column]
            levels[level] = Groups.of(paper * (int(parts.max(initial=0)) + 1) + parts, rows[:, 0], len(keys))
        levels["document"] = Groups.of(paper, rows[:, 0], len(keys))
        return cls(keys, levels, len(rows))

    def __len__(self) -> int:
        return len(self.keys)

    def neighbors(self, ref: int, level: Level) -> Ids:
        """Return references that share groups of this level, ascending."""
        return self.levels[level].neighbors(ref)
