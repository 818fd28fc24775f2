"""Citations of documents (``rerank.formats``) or their links."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rerank.rankers.base import content_hash
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level, Mention
from rerank.records import Document
from rerank.references import find_doi, named_key

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Citations:
    """Citations of a collection, and the graph of texts cited together: documents, then titled references.

    Keys are document ids (also for ``doi`` or ``pmid``), other DOIs, ``pmid:...``, or given names.

    ids: keys of the texts: of the documents, in order, then of other references with a title.
    titles: key -> title, also of references.
    away: documents with ignored citations.
    """

    ids: list[str]
    titles: Mapping[str, str]
    _refs: Sequence[str] = field(repr=False)
    _papers: Sequence[tuple[str, int]] = field(repr=False)  # paper, end of its rows
    _rows: array[int] = field(repr=False)  # reference, section, paragraph, sentence
    away: frozenset[str] = frozenset()

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
            for key, title in (document.extra.get("references") or {}).items():
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
        ids = [*own, *(key for key in titles if key not in own)]
        return cls(ids, titles, [keys.get(ref, ref) for ref in number], papers, rows)

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Yield citing documents that count, and their mentions."""
        begin = 0
        rows = np.frombuffer(self._rows, np.int32).reshape(-1, 4)
        for paper, end in self._papers:
            if paper not in self.away:
                some = rows[begin // 4 : end // 4].tolist()
                yield paper, [Mention(self._refs[ref], *places) for ref, *places in some]
            begin = end

    @cached_property
    def network(self) -> CoCitations:
        """Co-citation network of :meth:`papers`."""
        return CoCitations.of(self.papers())

    def places(self, network: CoCitations) -> tuple[Ids, Ids]:
        """Return texts of references, (V,), and references of texts, (N,) or -1."""
        number = {id: place for place, id in enumerate(self.ids)}
        texts = np.array([number.get(key, -1) for key in network.keys], np.int32)
        refs = np.full(len(self.ids), -1, np.int32)
        there = np.flatnonzero(texts >= 0)
        refs[texts[there]] = there
        return texts, refs

    def hold_out(self, share: float, seed: int = 0) -> tuple[Citations, NDArray[np.int32]]:
        """Return the graph without :func:`held_out` documents, and pairs, (H, 2).

        Pairs: cited together by only these documents, at their finest level.
        """
        gone = frozenset(paper for paper, _ in self.papers() if held_out(paper, share, seed))
        if not gone:
            return self, np.zeros((0, 2), np.int32)
        rest = replace(self, away=self.away | gone)
        held = CoCitations.of((paper, cited) for paper, cited in self.papers() if paper in gone)
        levels = (self.pairs_of(held, level) for level in LEVELS)
        pairs = next((pairs for pairs in levels if len(pairs)), np.zeros((0, 2), np.int32))
        _, refs = rest.places(rest.network)
        groups = rest.network.levels["document"]
        together = [min(a, b) >= 0 and groups.shared(a, b) > 0 for a, b in refs[pairs].tolist()]
        return rest, pairs[~np.array(together, np.bool_)]

    def pairs_of(self, network: CoCitations, level: Level) -> NDArray[np.int32]:
        """Return pairs, (P, 2), that share groups."""
        keys, _ = network.levels[level].pair_counts()
        texts, _ = self.places(network)
        pairs = texts[np.stack(np.divmod(keys, max(len(network), 1)), axis=1)]
        return np.unique(np.sort(pairs[(pairs >= 0).all(axis=1)], axis=1), axis=0).astype(np.int32)

    def near(self, documents: NDArray[np.integer]) -> csr_matrix:
        """Mark texts that are cited by the same document, (n, N)."""
        from scipy.sparse import csr_matrix

        texts, refs = self.places(self.network)
        found = [self.network.neighbors(ref, "document") if ref >= 0 else refs[:0] for ref in refs[documents]]
        columns = texts[np.concatenate([refs[:0], *found])]
        rows = np.repeat(np.arange(len(found)), [len(one) for one in found])[columns >= 0]
        columns = columns[columns >= 0]
        return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(found), len(self.ids)))

    def digest(self) -> str:
        """Return a hash of texts, documents and places."""
        known = [self.ids, self._refs, self._papers, sorted(self.away)]
        return content_hash(known, [np.frombuffer(self._rows, np.int32)])


def _names(document: Document) -> list[str]:
    names = [named_key(document.id)]
    if doi := find_doi(str(document.extra.get("doi", ""))):
        names.append(doi)
    if (pmid := str(document.extra.get("pmid", ""))).isdigit():
        names.append(f"pmid:{pmid}")
    return names


def mentions(document: Document) -> list[Mention]:
    """Return citations of named references, with parts numbered from 0.

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
    rows: Iterable[str | Mapping[str, Any]] | None = document.extra.get("citations")
    sections: dict[object, int] = {}
    paragraphs: dict[object, int] = {}
    sentences: dict[object, int] = {}
    found = []
    for one in document.links if rows is None else rows:
        row = {"ref": one} if isinstance(one, str) else one
        reference = named_key("" if row.get("ref") is None else str(row["ref"]))
        if not reference:
            continue
        section, paragraph, sentence = row.get("section"), row.get("paragraph"), row.get("sentence")
        unplaced = section is None and paragraph is None and sentence is None
        s = _number(sections, None if unplaced else (section,))
        if paragraph is not None:
            p = _number(paragraphs, (s, paragraph))
        else:  # a sentence without a paragraph is a paragraph
            p = _number(paragraphs, None if sentence is None else (s, None, sentence))
        n = _number(sentences, None if sentence is None else (p, sentence))
        found.append(Mention(reference, s, p, n))
    return found


def _number(known: dict[object, int], name: object) -> int:
    """Return the number of a name; None is always new."""
    return known.setdefault(object() if name is None else name, len(known))


def held_out(key: str, share: float, seed: int = 0) -> bool:
    """Return whether MD5 of seed and id, as a fraction, is below the share.

    Larger shares include smaller ones.
    """
    digest = hashlib.md5(f"{seed} {key}".encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return int.from_bytes(digest.digest()[:8], "big") < share * 2**64
