"""Co-citations of a collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rerank.errors import InputError
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


def mine_cocitation(workspace: Workspace, *, progress: Progress | None = None) -> CoCited:
    """Return the sizes of the co-citation network. Raises InputError if no document has citations.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> place = {"section": 0, "paragraph": 0, "sentence": 0}
    >>> cited = {"citations": [{"ref": "a", **place}, {"ref": "b", **place}]}
    >>> _ = workspace.engine.write([Document("x", "X", extra=cited)])
    >>> mine_cocitation(workspace).levels["sentence"].pairs
    1
    """
    citations = workspace.citations(progress)
    if not citations.mentions:
        raise InputError(
            f"{workspace.folder}: no document has citations; ingest documents with links, or JATS articles"
        )
    refs = set(citations.references)
    network = citations.network()
    return CoCited(
        citing=citations.citing,
        references=len(refs),
        outside=len(refs - citations.documents),
        titled=len(refs & citations.titles.keys()),
        mentions=citations.mentions,
        levels={level: _size(network, level) for level in LEVELS},
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
