"""The sentences of a JATS article and their citations."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from rerank.common.values import items_not_in
from rerank.formats.jats_xml import BLOCKS, NOT_MATH, NOT_TEXT, PARAGRAPHS, SEPARATED

if TYPE_CHECKING:
    from lxml.etree import _Element

MAX_RANGE = 100
"""Largest range of references, such as "3–7", that is expanded; of longer ranges only the ends count."""

_DASH = re.compile(r"\s*[-–—−‐‑]\s*")
_NUMBER = re.compile(r"\D{0,2}(\d{1,4})\D{0,2}")
_NUMBERS = re.compile(r"[\s\d,;–-]+")

Span = tuple[int, int]
"""Start and end of a part of a text."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the body.

    section, paragraph: positions, from 0. cites: keys of the cited references.
    """

    text: str
    section: int
    paragraph: int
    cites: tuple[str, ...]


def read_sentences(body: _Element, article_key: str, key_of_entry: Mapping[str, str]) -> Iterator[Sentence]:
    """Yield the sentences of a body, without captions, tables, notes and displayed formulas.

    article_key:  citations of the article itself are left out.
    key_of_entry: id of an entry of the reference list -> its key, in the order of the list.
    """
    from lxml import etree

    etree.strip_elements(body, *NOT_TEXT, *NOT_MATH, with_tail=False)
    references = ReferenceList(key_of_entry, article_key)
    sections: list[_Element] = []
    paragraph_number = 0
    for paragraph in body.iter(*PARAGRAPHS):
        if next(paragraph.iterancestors(*PARAGRAPHS), None) is not None:
            continue  # a part of the outer paragraph
        reader = _ParagraphReader(references)
        reader.read(paragraph)
        if not reader.text:
            continue
        section = _section(paragraph, body)
        if not sections or section is not sections[-1]:
            sections.append(section)
        spans = _sentence_spans(reader.text, reader.block_starts)
        cited_keys = _keys_by_sentence(spans, reader.citations)
        for (start, end), cites in zip(spans, cited_keys):
            yield Sentence(reader.text[start:end].strip(), len(sections) - 1, paragraph_number, cites)
        paragraph_number += 1


def _sentence_spans(text: str, block_starts: Sequence[int]) -> list[Span]:
    """Return the sentences of a paragraph. A sentence ends before each block."""
    from nupunkt import sent_spans

    spans: list[Span] = []
    for block_start, block_end in pairwise((0, *block_starts, len(text))):
        for start, end in sent_spans(text[block_start:block_end]):
            if text[block_start + start : block_start + end].strip():
                spans.append((block_start + start, block_start + end))
    return spans or [(0, len(text))]


def _keys_by_sentence(spans: Sequence[Span], citations: Sequence[tuple[int, str]]) -> list[tuple[str, ...]]:
    """Return the cited keys of each sentence, each key once. citations: (position in the text, key)."""
    starts = list(map(itemgetter(0), spans))
    keys: list[dict[str, None]] = [{} for _ in spans]
    for position, key in citations:
        sentence = max(bisect_right(starts, position) - 1, 0)
        keys[sentence][key] = None
    return list(map(tuple, keys))


def _section(paragraph: _Element, body: _Element) -> _Element:
    """Return the innermost section; one inside a list or box is not a section of the body."""
    section = body
    ancestors = list(paragraph.iterancestors())
    for ancestor in reversed(ancestors[: ancestors.index(body)]):
        if ancestor.tag != "sec":
            break
        section = ancestor
    return section


class ReferenceList:
    """The entries of a reference list.

    key_of_entry: id of an entry -> its key, in the order of the list; the key can be empty.
    article_key:  key of the article itself, which it does not cite.
    """

    def __init__(self, key_of_entry: Mapping[str, str], article_key: str) -> None:
        self._key_of_entry = key_of_entry
        self._not_cited = {"", article_key}
        self._entries = list(key_of_entry)
        self._positions = dict(zip(self._entries, count()))

    def keys(self, entries: Sequence[str]) -> list[str]:
        """Return the keys of entries, without unknown entries, empty keys and the article itself."""
        keys = [self._key_of_entry.get(entry, "") for entry in entries]
        return items_not_in(keys, self._not_cited)

    def between(self, first: str | None, last: str | None) -> list[str]:
        """Return the entries between two others; none for unknown ones, or if the range is too long."""
        if first not in self._positions or last not in self._positions:
            return []
        start = self._positions[first]
        end = self._positions[last]
        if end - start > MAX_RANGE:
            return []
        return self._entries[start + 1 : end]


class _ParagraphReader:
    """Reads the text of a paragraph and its citations.

    text:         without citation numbers that follow a sentence.
    citations:    (position in the text, key). A range such as "3–7" has all its keys.
    block_starts: start positions of blocks in the text, such as the items of a list.
    """

    def __init__(self, references: ReferenceList) -> None:
        self.text = ""
        self.citations: list[tuple[int, str]] = []
        self.block_starts: list[int] = []
        self._references = references
        self._range_start: str | None = None
        """The entry of the last citation, if only a dash has followed it."""
        self._left_out_number = False
        """Whether the last citation is a number that was left out of the text."""

    def read(self, paragraph: _Element) -> None:
        """Read a paragraph with all its elements into the attributes."""
        self._read_element(paragraph)
        self.text = self.text.rstrip()
        del self.block_starts[bisect_left(self.block_starts, len(self.text)) :]

    def _read_element(self, element: _Element) -> None:
        self._add_text(element.text)
        for child in element:
            self._separate(child)
            if child.tag == "xref" and child.get("ref-type") == "bibr":
                self._read_citation(child)
            else:
                self._read_element(child)
            self._separate(child)
            self._add_text(child.tail)

    def _separate(self, element: _Element) -> None:
        """Add a space before and after a line break or a block."""
        if element.tag not in SEPARATED:
            return
        self._left_out_number = False
        self._add_text(" ")
        last_start = max(self.block_starts, default=0)
        if element.tag in BLOCKS and len(self.text) > last_start:
            self.block_starts.append(len(self.text))

    def _add_text(self, text: str | None) -> None:
        if not text:
            return
        if not _DASH.fullmatch(text):
            self._range_start = None
        if self._left_out_number and _NUMBERS.fullmatch(text):
            return  # the separator of two numbers that are left out
        self._left_out_number = False
        words = re.sub(r"\s+", " ", unicodedata.normalize("NFC", text))
        if self.text[-1:] in ("", " "):
            words = words.lstrip(" ")
        self.text += words

    def _read_citation(self, element: _Element) -> None:
        entries = str(element.get("rid", "")).split()
        text = "".join(map(str, element.itertext()))
        range_end: str | None = None
        if entries and _NUMBER.fullmatch(text):
            range_end = entries[-1]
        if entries == [range_end]:  # of a range such as "3–7", only the ends are marked as citations
            entries = [*self._references.between(self._range_start, range_end), *entries]
        self._left_out_number = self._hides_end_of_sentence(text)
        self._add_citations(entries)
        if not self._left_out_number:
            self._add_text(text)
        self._range_start = range_end

    def _add_citations(self, entries: Sequence[str]) -> None:
        """Add citations at the end of the text. A number that is left out belongs to the sentence before."""
        position = len(self.text) - 1 if self._left_out_number else len(self.text)
        for key in self._references.keys(entries):
            self.citations.append((position, key))

    def _hides_end_of_sentence(self, text: str) -> bool:
        """Return whether a citation is a number after a sentence: "as known.<sup>3</sup> Next"."""
        if not _NUMBERS.fullmatch(text):
            return False
        return self._left_out_number or self.text.endswith((".", "?", "!", ",", ";"))
