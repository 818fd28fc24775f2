"""Mine co-citations: what is cited together with what, how near, and in which sentences."""

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
"""Pairs of references, each as often as it is cited together, up to which the distinct ones are counted."""


@dataclass(frozen=True)
class LevelSize:
    """What one level of a network holds.

    groups: sentences, paragraphs, sections or documents that cite two references or more. largest: references
    of the largest. references: that are in any. pairs: distinct ones that share a group; None where there
    are too many to count.
    """

    groups: int
    largest: int
    references: int
    pairs: int | None


@dataclass(frozen=True)
class Shared:
    """One sentence of a document that cites two references; ``text`` is empty where it was not given."""

    document: str
    text: str


@dataclass(frozen=True)
class Neighbor:
    """A reference that is cited together with another one.

    level: the finest that they share. documents: that cite both. sentences: those that cite both.
    """

    key: str
    title: str
    level: Level
    documents: tuple[str, ...]
    sentences: tuple[Shared, ...]


@dataclass(frozen=True)
class Neighborhood:
    """A reference and what it is cited together with.

    cited_by: documents. sizes: level -> neighbors at that level or a finer one. neighbors: from the finest
    level to the coarsest, those that most documents cite together with it first, then by key.
    """

    key: str
    title: str
    cited_by: tuple[str, ...]
    sizes: dict[Level, int]
    neighbors: list[Neighbor]


@dataclass
class CoCited(Report):
    """What the documents of a workspace cite together.

    citing: documents that cite something. references: that are cited; outside: of these, not in the
    collection; titled: of these with a title. mentions: citations. levels: of the whole network; of none
    where one reference was asked for.
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
    """Tell what is cited together: sizes of the network's levels, or one reference and its neighbors.

    show: a reference, by its DOI, PMID, document id or title.
    out: a file for all pairs: two keys, and how many sentences, paragraphs, sections and documents cite
        both, between tabs.

    Raises UsageError for a reference that nobody cites, with those of the nearest titles.

    >>> import tempfile
    >>> from rerank import Document
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> place = {"section": 0, "paragraph": 0, "sentence": 0, "text": "As A and B say."}
    >>> cited = {"citations": [{"ref": "a", **place}, {"ref": "b", **place}]}
    >>> _ = workspace.engine.write([Document("x", "X", extra=cited)])
    >>> found = mine_cocitation(workspace, show="a")
    >>> found.shown.neighbors[0].key, found.shown.neighbors[0].sentences[0].text
    ('b', 'As A and B say.')
    """
    if out is not None:
        check_output(out, "a\tb\t")
    citations = workspace.citations(progress)
    if not citations.mentions:
        raise InputError(
            f"{workspace.folder}: no document says what it cites; ingest articles"
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
    found: dict[Level, LevelSize] = {}
    for level in LEVELS:
        groups = network.levels[level]
        sizes = np.diff(groups.indptr)
        many = int((sizes * (sizes - 1) // 2).sum()) > COUNTED
        found[level] = LevelSize(
            groups=len(sizes),
            largest=int(sizes.max(initial=0)),
            references=int((np.diff(groups.ref_indptr) > 0).sum()),
            pairs=None if many else groups.pairs(),
        )
    return found


def _named(citations: Citations, name: str) -> str:
    """The key of the reference that a user names."""
    key = citations.key(name)
    refs = set(citations.references)
    if key in refs:
        return key
    titled = citations.titled(name)
    if titled:
        return titled[0]
    if key in citations.documents:
        raise UsageError(f"no document cites {key!r}: nothing is cited together with it")
    near = "; ".join(f"{one} ({citations.titles[one]})" for one in citations.nearest(name, 3))
    raise UsageError(
        f"no document cites anything that is called {name!r};"
        f" {f'the nearest titles: {near}' if near else 'name a DOI, a PMID, a document or a title'}"
    )


def _around(citations: Citations, key: str) -> Neighborhood:
    """Read again those documents that cite a reference, for their sentences."""
    level: dict[str, int] = {}
    documents: dict[str, list[str]] = {}
    sentences: dict[str, list[Shared]] = {}
    citing = citations.citing_of(key)
    for document in citations.read(citing):
        found = [
            mention._replace(reference=citations.key(mention.reference)) for mention in mentions(document)
        ]
        texts = {
            mention.sentence: str(row["text"])
            for mention, row in zip(found, document.extra.get("citations") or ())
            if row.get("text")
        }
        near: dict[str, int] = {}
        both: dict[tuple[str, int], None] = {}
        for other, place, sentence in _mates(found, key, document.id):
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
        {name: sum(found <= place for found in level.values()) for place, name in enumerate(LEVELS)},
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


def _mates(found: list[Mention], key: str, paper: str) -> Iterator[tuple[str, int, int]]:
    """Reference, place of the finest level, and sentence, of each mention beside those of ``key``."""
    own = [mention for mention in found if mention.reference == key]
    parts = [{one.sentence for one in own}, {one.paragraph for one in own}, {one.section for one in own}]
    for other in found:
        if other.reference not in (key, paper):
            where = (other.sentence, other.paragraph, other.section)
            place = next((place for place, part in enumerate(parts) if where[place] in part), len(parts))
            yield other.reference, place, other.sentence


def _write(network: CoCitations, path: str | os.PathLike[str]) -> None:
    """Write all pairs, the smaller key first, sorted by both."""
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
    """Order keys that are numbers by their value, before all others."""
    return (0, int(key), key) if key.isascii() and key.isdigit() else (1, 0, key)
