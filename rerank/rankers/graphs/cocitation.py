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
    """A citation of a reference, and the numbers of its section, paragraph and sentence, from 0."""

    reference: str
    section: int
    paragraph: int
    sentence: int


@dataclass(frozen=True)
class Groups:
    """G groups of references that are cited together, each with at least two of V references.

    members: (G, V) CSR, 1 for each reference of a group, ascending.
    of_refs: (V, G) CSR, its transpose: the groups of each reference.
    """

    members: csr_matrix
    of_refs: csr_matrix

    @classmethod
    def from_mentions(cls, group: NDArray[np.int64], ref: Ids, size: int) -> Groups:
        """Build the groups from M mentions.

        group: (M,) the group of each mention; any number names one.
        ref:   (M,) the reference of each mention.
        size:  V.
        """
        from scipy.sparse import csr_matrix

        names, number = np.unique(group, return_inverse=True)
        members = csr_matrix((np.ones(len(ref), np.int32), (number, ref)), shape=(len(names), size))
        members.sum_duplicates()
        members.data[:] = 1
        members = members[np.diff(members.indptr) > 1]
        return cls(members, members.T.tocsr())

    def neighbors(self, ref: int) -> Ids:
        """Return the other references that share a group with a reference, ascending."""
        groups = [_row(self.members, group) for group in _row(self.of_refs, ref).tolist()]
        if not groups:
            return np.zeros(0, np.int32)
        members: Ids = np.unique(np.concatenate(groups))
        return np.delete(members, np.searchsorted(members, ref))

    def shared(self, a: int, b: int) -> int:
        """Return the number of groups that have both references."""
        return len(np.intersect1d(_row(self.of_refs, a), _row(self.of_refs, b), assume_unique=True))

    def pairs(self) -> int:
        """Return the number of distinct pairs of references that share a group."""
        return len(self.pair_counts()[0])

    def pair_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of references that share groups, and the number of these groups, (P,) and (P,).

        A pair of a < b is the number a * V + b. The pairs ascend.
        """
        from scipy.sparse import triu

        counts = triu(self.of_refs @ self.members, k=1, format="csr")
        counts.sort_indices()
        counts = counts.tocoo()
        pairs = counts.row.astype(np.int64) * counts.shape[1] + counts.col
        return pairs, counts.data.astype(np.int64)


def _row(matrix: csr_matrix, number: int) -> Ids:
    """Return the columns of a row."""
    columns: Ids = matrix.indices[matrix.indptr[number] : matrix.indptr[number + 1]]
    return columns


@dataclass(frozen=True)
class CoCitations:
    """Which of V references are cited together.

    keys:   the references, in the order of their first mention.
    levels: the groups of references in one sentence, paragraph, section or document.
    """

    keys: tuple[str, ...]
    levels: dict[Level, Groups]

    @classmethod
    def from_papers(cls, papers: Iterable[tuple[str, Iterable[Mention]]]) -> CoCitations:
        """Read the key and the mentions of each document. This keeps 16 bytes per mention.

        Mentions of the document itself are ignored.
        """
        number: dict[str, int] = {}
        rows = array("i")
        sizes = array("q")
        for paper, mentions in papers:
            before = len(rows)
            for mention in mentions:
                if mention.reference != paper:
                    rows.append(number.setdefault(mention.reference, len(number)))
                    rows.extend(mention[1:])
            sizes.append((len(rows) - before) // 4)
        table = np.frombuffer(rows, np.int32).reshape(-1, 4)
        return cls.from_mentions(tuple(number), table, np.frombuffer(sizes, np.int64))

    @classmethod
    def from_mentions(cls, keys: tuple[str, ...], rows: Ids, sizes: NDArray[np.int64]) -> CoCitations:
        """Build the groups from M mentions of several documents, one after the other.

        rows:  (M, 4) reference, section, paragraph and sentence.
        sizes: the number of mentions of each document.
        """
        paper = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        levels: dict[Level, Groups] = {}
        for level, column in zip(LEVELS, (3, 2, 1)):
            parts = rows[:, column]
            levels[level] = Groups.from_mentions(
                paper * (int(parts.max(initial=0)) + 1) + parts, rows[:, 0], len(keys)
            )
        levels["document"] = Groups.from_mentions(paper, rows[:, 0], len(keys))
        return cls(keys, levels)

    def __len__(self) -> int:
        return len(self.keys)

    def neighbors(self, ref: int, level: Level) -> Ids:
        """Return the other references that share a group of this level with a reference, ascending."""
        return self.levels[level].neighbors(ref)
