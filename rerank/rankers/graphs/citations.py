"""Citations of documents, from ``citations`` (``rerank.formats``) or links."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rerank.rankers.graphs.cocitation import CoCitations, Mention
from rerank.records import Document
from rerank.references import find_doi, named_key


@dataclass(frozen=True)
class Citations:
    """Citations of a collection.

    Keys are document ids (also for ``doi`` or ``pmid``), other DOIs, ``pmid:...``, or given names.

    documents: ids, in order.
    titles: key -> title, also of references.

    >>> import tempfile
    >>> from rerank import Document, Workspace
    >>> workspace = Workspace.create(tempfile.mkdtemp() + "/ws", lang="en")
    >>> rows = [{"ref": "10.1000/y", "section": 0, "paragraph": 0, "sentence": 0}, {"ref": "z", "section": 0}]
    >>> cited = {"citations": rows, "references": {"z": "On Z"}}
    >>> documents = [Document("x", "X", extra=cited), Document("y", "Y", extra={"doi": "10.1000/Y"})]
    >>> _ = workspace.engine.write(documents)
    >>> citations = workspace.citations()
    >>> [(paper, [mention.reference for mention in mentions]) for paper, mentions in citations.papers()]
    [('x', ['y', 'z'])]
    >>> len(citations.network()), "z" in citations.documents
    (2, False)
    """

    documents: Set[str]
    titles: Mapping[str, str]
    _refs: Sequence[str] = field(repr=False)
    _papers: Sequence[tuple[str, int]] = field(repr=False)  # paper, end of its rows
    _rows: array[int] = field(repr=False)  # reference, section, paragraph, sentence

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Citations:
        """Read documents once; keeps titles and 16 bytes per mention."""
        number: dict[str, int] = {}
        rows, papers = array("i"), list[tuple[str, int]]()
        own: dict[str, str] = {}
        outside: dict[str, str] = {}
        keys: dict[str, str] = {}
        for document in documents:
            own[document.id] = document.title
            for key in _names(document):
                keys.setdefault(key, document.id)
            for key, title in document.extra.get("references", {}).items():
                if title:
                    outside.setdefault(named_key(key), title)
            cited = mentions(document)
            for mention in cited:
                rows.append(number.setdefault(mention.reference, len(number)))
                rows.extend(mention[1:])
            if cited:
                papers.append((document.id, len(rows)))
        keys = {key: id for key, id in keys.items() if key not in own}
        titles = {keys.get(key, key): title for key, title in outside.items()}
        titles |= {id: title for id, title in own.items() if title}
        return cls(own.keys(), titles, [keys.get(ref, ref) for ref in number], papers, rows)

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Yield citing documents and mentions."""
        begin = 0
        rows = np.frombuffer(self._rows, np.int32).reshape(-1, 4)
        for paper, end in self._papers:
            some = rows[begin // 4 : end // 4].tolist()
            yield paper, [Mention(self._refs[ref], *places) for ref, *places in some]
            begin = end

    def network(self) -> CoCitations:
        """Return the co-citation network."""
        return CoCitations.of(self.papers())

    @property
    def references(self) -> list[str]:
        """Cited keys, by first mention."""
        return list(dict.fromkeys(self._refs))

    @property
    def mentions(self) -> int:
        """Number of mentions."""
        return len(self._rows) // 4

    @property
    def citing(self) -> int:
        """Number of citing documents."""
        return len(self._papers)


def _names(document: Document) -> list[str]:
    names = [named_key(document.id)]
    if doi := find_doi(str(document.extra.get("doi", ""))):
        names.append(doi)
    if (pmid := str(document.extra.get("pmid", ""))).isdigit():
        names.append(f"pmid:{pmid}")
    return names


def mentions(document: Document) -> list[Mention]:
    """Return citations with parts numbered from 0.

    Numbers may restart in each part. A missing section is the whole body;
    missing paragraphs or sentences are never shared.

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
    sections: dict[object, int] = {}
    paragraphs: dict[object, int] = {}
    sentences: dict[object, int] = {}
    found = []
    for row in rows:
        section, paragraph, sentence = row.get("section"), row.get("paragraph"), row.get("sentence")
        unplaced = section is None and paragraph is None and sentence is None
        s = _number(sections, None if unplaced else (section,))
        if paragraph is not None:
            p = _number(paragraphs, (s, paragraph))
        else:  # a sentence without a paragraph is a paragraph
            p = _number(paragraphs, None if sentence is None else (s, None, sentence))
        n = _number(sentences, None if sentence is None else (p, sentence))
        found.append(Mention(named_key(row["ref"]), s, p, n))
    return found


def _number(known: dict[object, int], name: object) -> int:
    """Return the number of a name; None is always new."""
    return known.setdefault(object() if name is None else name, len(known))
