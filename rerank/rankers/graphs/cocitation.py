"""Co-citation at levels of nearness: sentence, paragraph, section, document (Ding et al.)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

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
    """G groups with at least two of V references.

    members: (G, V) CSR, 1 for each reference of a group, ascending. of_refs: its transpose.
    """

    members: csr_matrix
    of_refs: csr_matrix

    @classmethod
    def of(cls, group: NDArray[np.int64], ref: Ids, size: int) -> Groups:
        """Return groups of (M,) mentions. size: V."""
        from scipy.sparse import csr_matrix

        names, number = np.unique(group, return_inverse=True)
        members = csr_matrix((np.ones(len(ref), np.int32), (number, ref)), shape=(len(names), size))
        members.sum_duplicates()
        members.data[:] = 1
        members = members[np.diff(members.indptr) > 1]
        return cls(members, members.T.tocsr())

    def neighbors(self, ref: int) -> Ids:
        """Return references that share groups, ascending."""
        found = [_row(self.members, group) for group in _row(self.of_refs, ref).tolist()]
        if not found:
            return np.zeros(0, np.int32)
        others: Ids = np.unique(np.concatenate(found))
        return np.delete(others, np.searchsorted(others, ref))

    def shared(self, a: int, b: int) -> int:
        """Count groups with both references."""
        return len(np.intersect1d(_row(self.of_refs, a), _row(self.of_refs, b), assume_unique=True))

    def pairs(self) -> int:
        """Count distinct pairs."""
        return len(self.pair_counts()[0])

    def pair_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs, (P,), a < b as a * V + b, ascending, and group counts."""
        from scipy.sparse import triu

        both = triu(self.of_refs @ self.members, k=1, format="csr")
        both.sort_indices()
        both = both.tocoo()
        return both.row.astype(np.int64) * both.shape[1] + both.col, both.data.astype(np.int64)


def _row(matrix: csr_matrix, number: int) -> Ids:
    """Return the columns of a row."""
    columns: Ids = matrix.indices[matrix.indptr[number] : matrix.indptr[number + 1]]
    return columns


@dataclass(frozen=True)
class CoCitations:
    """V references, ``keys`` by first mention, and groups per level."""

    keys: tuple[str, ...]
    levels: dict[Level, Groups]

    @classmethod
    def of(cls, papers: Iterable[tuple[str, Iterable[Mention]]]) -> CoCitations:
        """Read documents; keeps 16 bytes per mention, and ignores self-mentions."""
        number: dict[str, int] = {}
        rows, sizes = array("i"), array("q")
        for paper, mentions in papers:
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
        return cls(keys, levels)

    def __len__(self) -> int:
        return len(self.keys)

    def neighbors(self, ref: int, level: Level) -> Ids:
        """Return references that share groups of this level, ascending."""
        return self.levels[level].neighbors(ref)
