"""Co-citations of a collection."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from rerank.errors import InputError
from rerank.files import atomic_write, check_output
from rerank.progress import Progress
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Level
from rerank.results import Report
from rerank.workspace import Workspace

COUNTED = 100_000_000
"""Largest number of pairs of references whose distinct pairs are counted."""


@dataclass(frozen=True)
class LevelSize:
    """Size of a level of a network.

    groups: places with several references. largest: references in the largest group. references: in any
    group. pairs: distinct; None if too many.
    """

    groups: int
    largest: int
    references: int
    pairs: int | None


@dataclass
class CoCited(Report):
    """Co-citations of a workspace.

    citing: documents with citations. outside: references without documents. titled: references with titles.
    mentions: citations.
    """

    citing: int
    references: int
    outside: int
    titled: int
    mentions: int
    levels: dict[Level, LevelSize]
    out: str | None = None


def mine_cocitation(
    workspace: Workspace,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> CoCited:
    """Return the sizes of the co-citation network.

    out: TSV file of all pairs: keys, counts of citing sentences, paragraphs, sections and documents.

    Raises InputError if no document has citations.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> place = {"section": 0, "paragraph": 0, "sentence": 0}
    >>> cited = {"citations": [{"ref": "a", **place}, {"ref": "b", **place}]}
    >>> _ = workspace.engine.write([Document("x", "X", extra=cited)])
    >>> mine_cocitation(workspace).levels["sentence"].pairs
    1
    """
    if out is not None:
        check_output(out, "a\tb\t")
    citations = workspace.citations(progress)
    if not citations.mentions:
        raise InputError(
            f"{workspace.folder}: no document has citations; ingest articles"
            " (`rerank ingest ARCHIVE --format jats`), or documents with links or citations"
        )
    refs = set(citations.references)
    network = citations.network()
    if out is not None:
        _write_network(network, out)
    return CoCited(
        citing=citations.citing,
        references=len(refs),
        outside=len(refs - citations.documents),
        titled=len(refs & citations.titles.keys()),
        mentions=citations.mentions,
        levels={level: _size(network, level) for level in LEVELS},
        out=None if out is None else os.fspath(out),
    )


def _size(network: CoCitations, level: Level) -> LevelSize:
    groups = network.levels[level]
    sizes = np.diff(groups.indptr)
    return LevelSize(
        groups=len(sizes),
        largest=int(sizes.max(initial=0)),
        references=len(np.unique(groups.refs)),
        pairs=groups.pairs() if (sizes * (sizes - 1) // 2).sum() <= COUNTED else None,
    )


def _write_network(network: CoCitations, path: str | os.PathLike[str]) -> None:
    order = sorted(range(len(network)), key=network.keys.__getitem__)
    rank = np.argsort(np.array(order, np.int64))
    names = network.names(order)
    counted = {level: network.levels[level].pair_counts() for level in LEVELS}
    pairs = counted["document"][0]
    columns = np.zeros((2 + len(LEVELS), len(pairs)), np.int64)
    columns[:2] = np.sort(rank[np.stack(np.divmod(pairs, max(len(network), 1)))], axis=0)
    for row, (keys, counts) in zip(columns[2:], counted.values()):
        row[np.searchsorted(pairs, keys)] = counts
    columns = columns[:, np.lexsort(columns[1::-1])]
    with atomic_write(path, follow=True) as file:
        file.write(("\t".join(("a", "b", *LEVELS)) + "\n").encode())
        for begin in range(0, len(pairs), 100_000):
            rows = columns[:, begin : begin + 100_000].T.tolist()
            lines = ("\t".join((names[a], names[b], *map(str, counts))) for a, b, *counts in rows)
            file.write("".join(f"{line}\n" for line in lines).encode())
