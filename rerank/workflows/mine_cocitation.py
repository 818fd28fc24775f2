"""Co-citations of the collection."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from rerank.engines.base import Engine
from rerank.errors import InputError, UsageError
from rerank.files import atomic_write, check_output
from rerank.progress import Progress
from rerank.rankers.graphs.citations import Citations, mentions
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Level
from rerank.results import Report
from rerank.workspace import Workspace

COUNTED = 100_000_000
"""Largest number of pairs of references whose distinct pairs are counted."""
BLOCK = 500
"""Documents that are read at a time."""


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


@dataclass(frozen=True)
class Shared:
    """A sentence that cites both references; ``text`` may be empty."""

    document: str
    text: str


@dataclass
class Neighbor:
    """A co-cited reference.

    level: finest common level. documents, sentences: citing both.
    """

    key: str
    title: str
    level: Level = "document"
    documents: list[str] = field(default_factory=list)
    sentences: list[Shared] = field(default_factory=list)


@dataclass(frozen=True)
class Neighborhood:
    """A reference and its neighbors.

    cited_by: documents. sizes: level -> neighbors at this or a finer level. neighbors: by level, documents,
    key.
    """

    key: str
    title: str
    cited_by: list[str]
    sizes: dict[Level, int]
    neighbors: list[Neighbor]


@dataclass
class CoCited(Report):
    """Co-citations of a workspace.

    citing: documents with citations. outside: references without documents. titled: references with titles.
    mentions: citations. levels: empty for one reference.
    """

    citing: int
    references: int
    outside: int
    titled: int
    mentions: int
    levels: dict[Level, LevelSize]
    shown: Neighborhood | None = None
    out: str | None = None


def mine_cocitation(
    workspace: Workspace,
    *,
    show: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> CoCited:
    """Return the sizes of the co-citation network, or one reference with its neighbors.

    show: DOI, PMID, document id or title.
    out: TSV file of all pairs: keys, counts of citing sentences, paragraphs, sections and documents.

    Raises UsageError for a reference that no document cites.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> place = {"section": 0, "paragraph": 0, "sentence": 0, "text": "As A and B say."}
    >>> cited = {"citations": [{"ref": "a", **place}, {"ref": "b", **place}]}
    >>> _ = workspace.engine.write([Document("x", "X", extra=cited)])
    >>> report = mine_cocitation(workspace, show="a")
    >>> report.shown.neighbors[0].key, report.shown.neighbors[0].sentences[0].text
    ('b', 'As A and B say.')
    """
    if out is not None:
        check_output(out, "a\tb\t")
    citations = workspace.citations(progress)
    if not citations.mentions:
        raise InputError(
            f"{workspace.folder}: no document has citations; ingest articles"
            f" (`rerank ingest ARCHIVE --format jats`), or documents with links or citations"
        )
    refs = set(citations.references)
    shown = None if show is None else _neighborhood(workspace.engine, citations, _named(citations, show))
    network = citations.network() if shown is None or out is not None else None
    if network is not None and out is not None:
        _write_network(network, out)
    return CoCited(
        citing=citations.citing,
        references=len(refs),
        outside=len(refs - citations.documents),
        titled=len(refs & citations.titles.keys()),
        mentions=citations.mentions,
        levels={level: _size(network, level) for level in LEVELS} if network is not None else {},
        shown=shown,
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


def _named(citations: Citations, name: str) -> str:
    key = citations.key(name)
    if key in citations.references:
        return key
    titled = citations.titled(name)
    if titled:
        return titled[0]
    if key in citations.documents:
        raise UsageError(f"no document cites {key!r}; choose a cited document")
    near = "; ".join(f"{one} ({citations.titles[one]})" for one in citations.nearest(name, 3))
    wanted = f"the nearest titles are {near}" if near else "give a DOI, a PMID, a document id or a title"
    raise UsageError(f"no document cites {name!r}; {wanted}")


def _neighborhood(engine: Engine, citations: Citations, key: str) -> Neighborhood:
    found: dict[str, Neighbor] = {}
    citing = citations.citing_of(key)
    blocks = (engine.get(citing[begin : begin + BLOCK]) for begin in range(0, len(citing), BLOCK))
    for document in filter(None, chain.from_iterable(blocks)):
        cited = mentions(document)
        keys = [citations.key(mention.reference) for mention in cited]
        rows = document.extra.get("citations") or [{}] * len(cited)
        texts = {mention.sentence: str(row["text"]) for mention, row in zip(cited, rows) if row.get("text")}
        own = [mention for mention, name in zip(cited, keys) if name == key]
        parts: dict[Level, set[int]] = {
            level: {getattr(mention, level) for mention in own} for level in LEVELS[:-1]
        }
        sentences = dict[tuple[str, int], None]()
        for mention, name in zip(cited, keys):
            if name in (key, document.id):
                continue
            level = next((one for one in parts if getattr(mention, one) in parts[one]), LEVELS[-1])
            near = found.setdefault(name, Neighbor(name, citations.titles.get(name, "")))
            near.level = min(near.level, level, key=LEVELS.index)
            if near.documents[-1:] != [document.id]:
                near.documents.append(document.id)
            if level == "sentence":
                sentences[name, mention.sentence] = None
        for name, sentence in sentences:
            found[name].sentences.append(Shared(document.id, texts.get(sentence, "")))
    ranks = {name: LEVELS.index(one.level) for name, one in found.items()}
    order = sorted(found, key=lambda name: (ranks[name], -len(found[name].documents), name))
    return Neighborhood(
        key,
        citations.titles.get(key, ""),
        citing,
        {level: sum(rank <= place for rank in ranks.values()) for place, level in enumerate(LEVELS)},
        [found[name] for name in order],
    )


def _write_network(network: CoCitations, path: str | os.PathLike[str]) -> None:
    order = sorted(range(len(network)), key=lambda ref: natural(network.keys[ref]))
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


def natural(key: str) -> tuple[int, int, str]:
    """Return a sort key: numbers by value, then texts."""
    return (0, int(key), key) if key.isascii() and key.isdigit() else (1, 0, key)
