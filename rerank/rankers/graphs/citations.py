"""Where the documents of a collection cite what: read once, for networks of references.

A document says it in its field ``citations`` (``rerank.formats``). One without the field, but with links,
cites what it links to, and nobody knows where.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Protocol

import numpy as np

from rerank.rankers.graphs.cocitation import CoCitations, Mention
from rerank.records import Document
from rerank.references import find_doi, named_key

_SOME = 500
"""Documents that are asked for at a time."""


class Documents(Protocol):
    """What is read: an engine."""

    def documents(self) -> Iterator[Document]:
        """All documents."""

    def get(self, ids: Sequence[str]) -> list[Document | None]:
        """Those with these ids."""


@dataclass(frozen=True)
class Citations:
    """Where the documents of a collection cite what.

    A reference has a key. That of a document of the collection is the document's id, whether it was cited by
    the id, by the DOI or by the PMID (fields ``doi`` and ``pmid``); ``key in citations.documents`` tells. All
    other references have a key of their own: a DOI, ``pmid:...``, or the name that was given.

    documents: ids of the collection's documents.
    titles:    key -> title, of documents and of references outside the collection; not of those without one.
    collection: what was read.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> rows = [{"ref": "10.1000/y", "section": 0, "paragraph": 0, "sentence": 0}, {"ref": "z", "section": 0}]
    >>> cited = {"citations": rows, "references": {"z": "On Z"}}
    >>> documents = [Document("x", "X", extra=cited), Document("y", "Y", extra={"doi": "10.1000/Y"})]
    >>> _ = workspace.engine.write(documents)
    >>> citations = workspace.citations()
    >>> [(paper, [mention.reference for mention in found]) for paper, found in citations.papers()]
    [('x', ['y', 'z'])]
    >>> citations.texts(["y", "z"])
    [('Y', ''), ('On Z', '')]
    >>> len(citations.network()), "z" in citations.documents
    (2, False)
    """

    documents: frozenset[str]
    titles: Mapping[str, str]
    collection: Documents = field(repr=False)
    _keys: Mapping[str, str] = field(repr=False)  # DOIs and PMIDs of documents -> their ids
    _refs: Sequence[str] = field(repr=False)
    _papers: Sequence[tuple[str, int]] = field(repr=False)  # paper, end of its rows
    _rows: array[int] = field(repr=False)  # reference, section, paragraph, sentence

    @classmethod
    def of(cls, collection: Documents, documents: Iterable[Document] | None = None) -> Citations:
        """Read the documents of an engine, once; 16 bytes a mention are kept, and titles.

        documents: the same ones as a stream, for those who watch it.
        """
        number: dict[str, int] = {}
        rows, papers = array("i"), list[tuple[str, int]]()
        own: dict[str, str] = {}
        outside: dict[str, str] = {}
        keys: dict[str, str] = {}
        for document in collection.documents() if documents is None else documents:
            own[document.id] = document.title
            for key in _names(document):
                keys.setdefault(key, document.id)
            for key, title in document.extra.get("references", {}).items():
                if title:
                    outside.setdefault(named_key(key), title)
            for mention in mentions(document):
                rows.append(number.setdefault(mention.reference, len(number)))
                rows.extend(mention[1:])
            if len(rows) > (papers[-1][1] if papers else 0):
                papers.append((document.id, len(rows)))
        ids = frozenset(own)
        keys = {key: id for key, id in keys.items() if key not in ids}
        titles = {keys.get(key, key): title for key, title in outside.items()}
        titles |= {id: title for id, title in own.items() if title}
        return cls(ids, titles, collection, keys, [keys.get(ref, ref) for ref in number], papers, rows)

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Id and mentions of each document that cites something, for :meth:`CoCitations.of`.

        Whole papers are held out by leaving them out here.
        """
        begin, refs, rows = 0, self._refs, self._rows
        for paper, end in self._papers:
            yield (
                paper,
                [
                    Mention(refs[rows[at]], rows[at + 1], rows[at + 2], rows[at + 3])
                    for at in range(begin, end, 4)
                ],
            )
            begin = end

    def network(self, *, without: Collection[str] | None = None, largest: int | None = None) -> CoCitations:
        """The network of all papers but those ``without``; see :meth:`CoCitations.of`."""
        left = without or ()
        number: dict[str, int] = {}
        place = np.array([number.setdefault(ref, len(number)) for ref in self._refs], np.int32)
        rows = np.frombuffer(self._rows, np.int32).reshape(-1, 4)
        ends = np.array([end // 4 for _, end in self._papers], np.int64)
        paper = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        refs = place[rows[:, 0]] if len(place) else rows[:, 0]
        own = np.array([number.get(id, -1) for id, _ in self._papers], np.int32)
        kept = np.array([id not in left for id, _ in self._papers], np.bool_)[paper]
        itself = refs == own[paper]
        refs, rows, paper = refs[kept & ~itself], rows[kept & ~itself], paper[kept & ~itself]
        used, first = np.unique(refs, return_index=True)
        used = used[np.argsort(first)]  # in order of first mention
        place = np.zeros(len(number), np.int32)
        place[used] = np.arange(len(used))
        rows[:, 0] = place[refs]
        names = list(number)
        return CoCitations.of_rows(
            tuple(names[one] for one in used.tolist()),
            rows,
            np.cumsum(np.bincount(paper, minlength=len(ends))),
            largest,
            int((kept & itself).sum()),
        )

    def key(self, name: str) -> str:
        """Give the key of a reference by a name: a document's id, a DOI with its resolver or not, a PMID."""
        if name in self.documents:
            return name
        key = named_key(name)
        return self._keys.get(key, key)

    @property
    def references(self) -> list[str]:
        """Keys of what is cited, in order of first mention."""
        return list(dict.fromkeys(self._refs))

    @property
    def mentions(self) -> int:
        """How many citations there are."""
        return len(self._rows) // 4

    @property
    def citing(self) -> int:
        """How many documents cite something."""
        return len(self._papers)

    def citing_of(self, key: str) -> list[str]:
        """Ids of the documents that cite a reference, ascending."""
        rows = np.frombuffer(self._rows, np.int32).reshape(-1, 4)
        numbers = [number for number, ref in enumerate(self._refs) if ref == key]
        ends = np.array([end // 4 for _, end in self._papers])
        papers = np.unique(np.searchsorted(ends, np.flatnonzero(np.isin(rows[:, 0], numbers)), side="right"))
        return sorted(paper for paper, _ in (self._papers[place] for place in papers) if paper != key)

    def read(self, ids: Sequence[str]) -> Iterator[Document]:
        """Read documents again, for what is not kept: sentences."""
        for begin in range(0, len(ids), _SOME):
            yield from (one for one in self.collection.get(ids[begin : begin + _SOME]) if one is not None)

    def titled(self, title: str) -> list[str]:
        """Keys of the cited references with this title, but for case and signs; the most cited first."""
        words = _words(title)
        cited = Counter(self._refs[number] for number in self._rows[::4])
        found = [
            key for key in dict.fromkeys(self._refs) if words and _words(self.titles.get(key, "")) == words
        ]
        return sorted(found, key=lambda key: (-cited[key], key))

    def nearest(self, title: str, count: int) -> list[str]:
        """Keys of cited references whose titles share most words with a text, rare ones counting more."""
        titles = {key: set(_words(self.titles[key])) for key in self._refs if key in self.titles}
        common = Counter(word for words in titles.values() for word in words)
        wanted = set(_words(title))

        def weight(words: Collection[str]) -> float:
            return sum(log(1 + len(titles) / common[word]) if word in common else 1.0 for word in words)

        found = {}
        for key, words in titles.items():
            if both := words & wanted:
                found[key] = weight(both) / weight(words | wanted)
        return sorted(found, key=lambda key: (-found[key], key))[:count]

    def texts(self, keys: Sequence[str]) -> list[tuple[str, str]]:
        """Title and abstract of references, both empty where nothing is known.

        The abstract of a document is its field ``abstract``, else its text.
        """
        found: list[tuple[str, str]] = [(self.titles.get(key, ""), "") for key in keys]
        inside = [place for place, key in enumerate(keys) if key in self.documents]
        for begin in range(0, len(inside), _SOME):
            some = inside[begin : begin + _SOME]
            for place, document in zip(some, self.collection.get([keys[one] for one in some])):
                if document is not None:
                    found[place] = (document.title, str(document.extra.get("abstract") or document.text))
        return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _names(document: Document) -> list[str]:
    """Keys by which a document may be cited."""
    names = [named_key(document.id)]
    if doi := find_doi(str(document.extra.get("doi", ""))):
        names.append(doi)
    if (pmid := str(document.extra.get("pmid", ""))).isdigit():
        names.append(f"pmid:{pmid}")
    return names


def mentions(document: Document) -> list[Mention]:
    """Where a document cites what, its parts numbered from 0; references by the keys that it uses.

    A sentence is told by its section, paragraph and sentence together, so numbers may begin anew in each
    part. Citations that say no section stand in one, the whole body. What is not known relates nothing:
    citations without a sentence share none.

    >>> rows = [{"ref": "a", "section": "Intro", "paragraph": 0, "sentence": 0}, {"ref": "b", "paragraph": 0},
    ...         {"ref": "c", "section": "Intro", "paragraph": 1, "sentence": 0}]
    >>> for mention in mentions(Document("x", extra={"citations": rows})):
    ...     print(*mention)
    a 0 0 0
    b 1 1 1
    c 0 2 2
    """
    rows: Iterable[Mapping[str, Any]] | None = document.extra.get("citations")
    if rows is None:
        rows = [{"ref": link} for link in document.links]
    sections, paragraphs, sentences = _Numbers(), _Numbers(), _Numbers()
    found = []
    for row in rows:
        section, paragraph, sentence = row.get("section"), row.get("paragraph"), row.get("sentence")
        nowhere = section is None and paragraph is None and sentence is None
        s = sections.of(None if nowhere else (section,))
        if sentence is not None:  # in a paragraph that nobody names it is one of its own
            p = paragraphs.of((s, paragraph, sentence if paragraph is None else None))
        else:
            p = paragraphs.of(None if paragraph is None else (s, paragraph, None))
        found.append(
            Mention(named_key(row["ref"]), s, p, sentences.of(None if sentence is None else (s, p, sentence)))
        )
    return found


class _Numbers:
    """Numbers from 0 for what is met; a new one each time for what has no name."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], int] = {}
        self.next = 0

    def of(self, name: tuple[object, ...] | None) -> int:
        if name is not None and name in self.known:
            return self.known[name]
        self.next += 1
        if name is not None:
            self.known[name] = self.next - 1
        return self.next - 1
