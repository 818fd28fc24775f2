"""Mine co-citations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rerank.errors import InputError, UsageError
from rerank.files import atomic_write, check_output
from rerank.progress import Progress
from rerank.rankers.graphs.citations import Citations, mentions
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Level, Mention
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


@dataclass(frozen=True)
class Shared:
    """A sentence that cites both references; ``text`` may be empty."""

    document: str
    text: str


@dataclass(frozen=True)
class Neighbor:
    """A co-cited reference.

    level: finest common level. documents, sentences: citing both.
    """

    key: str
    title: str
    level: Level
    documents: tuple[str, ...]
    sentences: tuple[Shared, ...]


@dataclass(frozen=True)
class Neighborhood:
    """A reference and its neighbors.

    cited_by: documents. sizes: level -> neighbors at this or a finer level. neighbors: by level, documents,
    key.
    """

    key: str
    title: str
    cited_by: tuple[str, ...]
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
    shown = _around(citations, _named(citations, show)) if show is not None else None
    network = citations.network() if shown is None or out is not None else None
    if network is not None and out is not None:
        _write(network, out)
    return CoCited(
        citing=citations.citing,
        references=len(refs),
        outside=len(refs - citations.documents),
        titled=len(refs & citations.titles.keys()),
        mentions=citations.mentions,
        levels=_sizes(network) if network is not None else {},
        shown=shown,
        out=None if out is None else os.fspath(out),
    )


def _sizes(network: CoCitations) -> dict[Level, LevelSize]:
    levels: dict[Level, LevelSize] = {}
    for level in LEVELS:
        groups = network.levels[level]
        sizes = np.diff(groups.indptr)
        many = int((sizes * (sizes - 1) // 2).sum()) > COUNTED
        levels[level] = LevelSize(
            groups=len(sizes),
            largest=int(sizes.max(initial=0)),
            references=int((np.diff(groups.ref_indptr) > 0).sum()),
            pairs=None if many else groups.pairs(),
        )
    return levels


def _named(citations: Citations, name: str) -> str:
    key = citations.key(name)
    refs = set(citations.references)
    if key in refs:
        return key
    titled = citations.titled(name)
    if titled:
        return titled[0]
    if key in citations.documents:
        raise UsageError(f"no document cites {key!r}; choose a cited document")
    near = "; ".join(f"{one} ({citations.titles[one]})" for one in citations.nearest(name, 3))
    wanted = f"the nearest titles are {near}" if near else "give a DOI, a PMID, a document id or a title"
    raise UsageError(f"no document cites {name!r}; {wanted}")


def _around(citations: Citations, key: str) -> Neighborhood:
    level: dict[str, int] = {}
    documents: dict[str, list[str]] = {}
    sentences: dict[str, list[Shared]] = {}
    citing = citations.citing_of(key)
    for document in citations.read(citing):
        cited = [
            mention._replace(reference=citations.key(mention.reference)) for mention in mentions(document)
        ]
        texts = {
            mention.sentence: str(row["text"])
            for mention, row in zip(cited, document.extra.get("citations") or ())
            if row.get("text")
        }
        near: dict[str, int] = {}
        both: dict[tuple[str, int], None] = {}
        for other, place, sentence in _mates(cited, key, document.id):
            near[other] = min(near.get(other, place), place)
            if place == 0:
                both[other, sentence] = None
        for other, place in near.items():
            level[other] = min(level.get(other, place), place)
            documents.setdefault(other, []).append(document.id)
        for other, sentence in both:
            sentences.setdefault(other, []).append(Shared(document.id, texts.get(sentence, "")))
    order = sorted(level, key=lambda one: (level[one], -len(documents[one]), one))
    return Neighborhood(
        key,
        citations.titles.get(key, ""),
        tuple(citing),
        {name: sum(one <= place for one in level.values()) for place, name in enumerate(LEVELS)},
        [
            Neighbor(
                one,
                citations.titles.get(one, ""),
                LEVELS[level[one]],
                tuple(documents[one]),
                tuple(sentences.get(one, ())),
            )
            for one in order
        ],
    )


def _mates(cited: list[Mention], key: str, paper: str) -> Iterator[tuple[str, int, int]]:
    own = [mention for mention in cited if mention.reference == key]
    parts = [{one.sentence for one in own}, {one.paragraph for one in own}, {one.section for one in own}]
    for other in cited:
        if other.reference not in (key, paper):
            where = (other.sentence, other.paragraph, other.section)
            place = next((place for place, part in enumerate(parts) if where[place] in part), len(parts))
            yield other.reference, place, other.sentence


def _write(network: CoCitations, path: str | os.PathLike[str]) -> None:
    ordered = {one: place for place, one in enumerate(sorted(network.keys, key=natural))}
    rank = np.array([ordered[one] for one in network.keys], np.int64)
    size = len(network)
    counted = {level: network.levels[level].pair_counts() for level in LEVELS}
    pairs = counted["document"][0]
    a, b = rank[pairs // size], rank[pairs % size]
    order = np.lexsort((np.maximum(a, b), np.minimum(a, b)))
    columns = []
    for level in LEVELS:
        column = np.zeros(len(pairs), np.int64)
        keys, counts = counted[level]
        column[np.searchsorted(pairs, keys)] = counts
        columns.append(column[order])
    names = sorted(network.keys, key=natural)
    first, second = np.minimum(a, b)[order], np.maximum(a, b)[order]
    with atomic_write(path, follow=True) as file:
        file.write(("\t".join(("a", "b", *LEVELS)) + "\n").encode())
        for begin in range(0, len(pairs), 100_000):
            some = slice(begin, begin + 100_000)
            rows = zip(first[some].tolist(), second[some].tolist(), *(one[some].tolist() for one in columns))
            file.write(
                "".join(
                    f"{names[one]}\t{names[other]}\t{'	'.join(map(str, counts))}\n"
                    for one, other, *counts in rows
                ).encode()
            )


def natural(key: str) -> tuple[int, int, str]:
    """Return a sort key: numbers by value, then texts."""
    return (0, int(key), key) if key.isascii() and key.isdigit() else (1, 0, key)
