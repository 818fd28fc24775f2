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

from rerank.documents.records import Document
from rerank.formats.references import find_doi, named_key
from rerank.rankers.base import content_hash
from rerank.rankers.graphs.cocitation import LEVELS, CoCitations, Ids, Level, Mention

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Citations:
    """The citations of a collection, and the graph of texts that are cited together.

    A reference has the id of the document with its DOI or PubMed id as its key, or else its DOI, ``pmid:...``
    or its own name.

    ids:    the keys of the texts: of all documents, in order, and then of other references with a title.
    titles: the title of each key, if it has one.
    away:   the ids of documents whose citations are ignored, because they are held out.
    """

    ids: list[str]
    titles: Mapping[str, str]
    _refs: Sequence[str] = field(repr=False)
    _papers: Sequence[tuple[str, int]] = field(repr=False)  # paper, end of its rows
    _rows: array[int] = field(repr=False)  # reference, section, paragraph, sentence
    away: frozenset[str] = frozenset()

    @classmethod
    def from_documents(cls, documents: Iterable[Document]) -> Citations:
        """Read a stream of documents once. This keeps the titles and 16 bytes per mention."""
        texts = _Texts()
        references: dict[str, int] = {}  # name -> number, in the order of the first mentions
        rows = array("i")
        papers: list[tuple[str, int]] = []
        for document in documents:
            texts.add(document)
            cited = mentions(document)
            for mention in cited:
                rows.append(references.setdefault(mention.reference, len(references)))
                rows.extend(mention[1:])
            if cited:
                papers.append((document.id, len(rows)))

        key_of_name = texts.key_of_name()
        titles = texts.titles(key_of_name)
        only_cited = [key for key in titles if key not in texts.documents]
        refs = [key_of_name.get(name, name) for name in references]
        return cls([*texts.documents, *only_cited], titles, refs, papers, rows)

    def papers(self) -> Iterator[tuple[str, list[Mention]]]:
        """Yield the documents whose citations count, and their mentions."""
        begin = 0
        rows = np.frombuffer(self._rows, np.int32).reshape(-1, 4)
        for paper, end in self._papers:
            if paper not in self.away:
                cited = rows[begin // 4 : end // 4].tolist()
                yield paper, [Mention(self._refs[ref], *numbers) for ref, *numbers in cited]
            begin = end

    @cached_property
    def network(self) -> CoCitations:
        """The network of references that :meth:`papers` cite together; it is built once."""
        return CoCitations.from_papers(self.papers())

    def match_texts(self, network: CoCitations) -> tuple[Ids, Ids]:
        """Return the text of each reference, (V,), and the reference of each text, (N,); -1 for none."""
        number = {id: position for position, id in enumerate(self.ids)}
        texts = np.array([number.get(key, -1) for key in network.keys], np.int32)
        refs = np.full(len(self.ids), -1, np.int32)
        with_text = np.flatnonzero(texts >= 0)
        refs[texts[with_text]] = with_text
        return texts, refs

    def hold_out(self, share: float, seed: int = 0) -> tuple[Citations, NDArray[np.int32]]:
        """Return the graph without the :func:`held_out` documents, and the pairs that it loses, (H, 2).

        The pairs are texts that only these documents cite together, at the finest level that has pairs.
        """
        away = frozenset(paper for paper, _ in self.papers() if held_out(paper, share, seed))
        if not away:
            return self, np.zeros((0, 2), np.int32)
        training = replace(self, away=self.away | away)
        pairs = self._finest_pairs(away)
        _, refs = training.match_texts(training.network)
        groups = training.network.levels["document"]
        is_held_out = []
        for a, b in refs[pairs].tolist():
            is_held_out.append(min(a, b) < 0 or groups.shared(a, b) == 0)
        return training, pairs[np.array(is_held_out, np.bool_)]

    def _finest_pairs(self, papers: frozenset[str]) -> NDArray[np.int32]:
        """Return the pairs that some documents cite together, (P, 2), at the finest level that has pairs."""
        cited = ((paper, mentioned) for paper, mentioned in self.papers() if paper in papers)
        network = CoCitations.from_papers(cited)
        for level in LEVELS:
            pairs = self.pairs_of(network, level)
            if len(pairs):
                return pairs
        return np.zeros((0, 2), np.int32)

    def pairs_of(self, network: CoCitations, level: Level) -> NDArray[np.int32]:
        """Return the pairs of texts that share a group of this level, (P, 2), each once and sorted."""
        keys, _ = network.levels[level].pair_counts()
        texts, _ = self.match_texts(network)
        pairs = texts[np.stack(np.divmod(keys, max(len(network), 1)), axis=1)]
        with_texts = pairs[(pairs >= 0).all(axis=1)]
        return np.unique(np.sort(with_texts, axis=1), axis=0).astype(np.int32)

    def near(self, documents: NDArray[np.integer]) -> csr_matrix:
        """Mark the texts that are cited by the same document as each of n texts, (n, N)."""
        from scipy.sparse import csr_matrix

        texts, refs = self.match_texts(self.network)
        nothing = refs[:0]
        neighbors = []
        for ref in refs[documents]:
            neighbors.append(self.network.neighbors(ref, "document") if ref >= 0 else nothing)
        columns = texts[np.concatenate([nothing, *neighbors])]
        rows = np.repeat(np.arange(len(neighbors)), list(map(len, neighbors)))[columns >= 0]
        columns = columns[columns >= 0]
        return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(neighbors), len(self.ids)))

    def digest(self) -> str:
        """Return a hash of texts, documents, and the parts that cite them."""
        settings = [self.ids, self._refs, self._papers, sorted(self.away)]
        return content_hash(settings, [np.frombuffer(self._rows, np.int32)])


class _Texts:
    """The titles and names of the texts of a collection.

    documents:  the title of each document, by its id.
    references: the first title of each reference, by the name in the citation.
    """

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}
        self.references: dict[str, str] = {}
        self._id_of_name: dict[str, str] = {}

    def add(self, document: Document) -> None:
        """Add a document and the references that it has titles for."""
        self.documents[document.id] = document.title
        for name in _names(document):
            self._id_of_name.setdefault(name, document.id)
        for name, title in _reference_titles(document):
            self.references.setdefault(name, title)

    def key_of_name(self) -> dict[str, str]:
        """Return the name in a citation -> the id of the document with this name.

        The id of a document is never the name of another one.
        """
        return {name: id for name, id in self._id_of_name.items() if name not in self.documents}

    def titles(self, key_of_name: Mapping[str, str]) -> dict[str, str]:
        """Return the title of each text that has one. A document's own title comes before citations."""
        titles = {key_of_name.get(name, name): title for name, title in self.references.items()}
        for id, title in self.documents.items():
            if title:
                titles[id] = title
        return titles


def _reference_titles(document: Document) -> Iterator[tuple[str, str]]:
    """Yield the key and the title of each reference of a document that has a title."""
    for name, title in (document.extra.get("references") or {}).items():
        if title:
            yield named_key(name), title


def _names(document: Document) -> list[str]:
    """Return the keys of a document in citations: its id, its DOI and its PubMed id."""
    names = [named_key(document.id)]
    doi = find_doi(str(document.extra.get("doi", "")))
    if doi:
        names.append(doi)
    pmid = str(document.extra.get("pmid", ""))
    if pmid.isdigit():
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
    citations: Iterable[str | Mapping[str, Any]] | None = document.extra.get("citations")
    numbers = _PartNumbers()
    cited: list[Mention] = []
    for citation in document.links if citations is None else citations:
        row = {"ref": citation} if isinstance(citation, str) else citation
        reference = named_key("" if row.get("ref") is None else str(row["ref"]))
        if reference:
            cited.append(Mention(reference, *numbers.number(row)))
    return cited


class _PartNumbers:
    """Numbers the sections, paragraphs and sentences of a document in the order of their first citation."""

    def __init__(self) -> None:
        self.sections: dict[object, int] = {}
        self.paragraphs: dict[object, int] = {}
        self.sentences: dict[object, int] = {}

    def number(self, row: Mapping[str, Any]) -> tuple[int, int, int]:
        """Return the numbers of the section, the paragraph and the sentence of a citation."""
        section = row.get("section")
        paragraph = row.get("paragraph")
        sentence = row.get("sentence")
        has_place = (section, paragraph, sentence) != (None, None, None)
        section_number = _number(self.sections, (section,) if has_place else None)
        paragraph_key: object = None
        if paragraph is not None:
            paragraph_key = (section_number, paragraph)
        elif sentence is not None:  # a sentence without a paragraph is a paragraph
            paragraph_key = (section_number, None, sentence)
        paragraph_number = _number(self.paragraphs, paragraph_key)
        sentence_key = None if sentence is None else (paragraph_number, sentence)
        return section_number, paragraph_number, _number(self.sentences, sentence_key)


def _number(numbers: dict[object, int], key: object) -> int:
    """Return the number of a key; None is always a new key."""
    return numbers.setdefault(object() if key is None else key, len(numbers))


def held_out(key: str, share: float, seed: int = 0) -> bool:
    """Return whether a document is held out.

    It is if the MD5 of seed and id, as a fraction, is below the share.
    A larger share includes the documents of a smaller one.
    """
    digest = hashlib.md5(f"{seed} {key}".encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return int.from_bytes(digest.digest()[:8], "big") < share * 2**64
