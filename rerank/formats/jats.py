"""Read JATS articles (XML), without sub-articles, captions, tables, footnotes and displayed formulas."""

from __future__ import annotations

import os
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from html.entities import html5
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.errors import InputError
from rerank.formats.archives import file_name, read_files
from rerank.formats.references import find_doi, reference_key
from rerank.records import Document

if TYPE_CHECKING:
    from lxml.etree import _Element

LARGEST = 50_000_000
"""Largest size of an article in bytes."""

ENDINGS = (".xml", ".nxml")
"""File names of articles, in any case, plain or compressed."""

MAX_RANGE = 100
"""Largest range of references, such as "3–7", that is expanded; of longer ranges only the ends count."""

_HREF = "{http://www.w3.org/1999/xlink}href"
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_TEXTS = ("p", "disp-quote", "verse-group", "preformat", "def-item")
_BLOCKS = {
    *_TEXTS, "title", "subtitle", "term", "list", "list-item", "verse-line", "speech", "statement",
    "boxed-text",
}  # fmt: skip
_NOT_TEXT = {
    "fig", "fig-group", "table-wrap", "table-wrap-group", "caption", "fn", "fn-group", "disp-formula",
    "disp-formula-group", "supplementary-material", "media", "graphic", "tex-math", "ref-list", "sub-article",
}  # fmt: skip
_NOT_TEXT_IN_TITLES = {*_NOT_TEXT, "xref"}
_MATHML = "{http://www.w3.org/1998/Math/MathML}"
_NOT_MATH = {f"{_MATHML}annotation", f"{_MATHML}annotation-xml"}  # formulas again, often as LaTeX
_LAST_ABSTRACTS = ("graphical", "teaser", "toc", "video", "key-points", "web-summary")
"""Types of abstracts that are used only without another one."""
_NAMED_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]*);")
_DECLARED_ENTITY = re.compile(rb"""<!ENTITY\s+([A-Za-z]\w*)\s+["']""")
_GREEK = dict(
    zip(
        [
            "a",
            "b",
            "g",
            "d",
            "e",
            "z",
            "ee",
            "th",
            "i",
            "k",
            "l",
            "m",
            "n",
            "x",
            "o",
            "p",
            "r",
            "sf",
            "s",
            "t",
            "u",
            "ph",
            "kh",
            "ps",
            "oh",
        ],
        "αβγδεζηθικλμνξοπρςστυφχψω",
    )
)
_GREEK |= {name.upper(): letter.upper() for name, letter in _GREEK.items()}
"""Names of ISO entities such as ``&bgr;`` without ``gr``. HTML has the other sets."""
_DASH = re.compile(r"\s*[-–—−‐‑]\s*")
_NUMBER = re.compile(r"\D{0,2}(\d{1,4})\D{0,2}")
_NUMBERS = re.compile(r"[\s\d,;–-]+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text, section and paragraph (from 0), keys of cited references."""

    text: str
    section: int
    paragraph: int
    cites: tuple[str, ...]


@dataclass(frozen=True)
class Article:
    """One article.

    key: lowercase DOI, ``pmid:...``, ``PMC...``, or the path of the file in its source.
    related: keys. sentences: of the body. references: key -> title, which may be empty.
    """

    key: str
    title: str
    abstract: str
    lang: str = "en"
    pmid: str = ""
    subjects: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    references: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> str:
        """Return the body, one line per paragraph."""
        lines: dict[int, list[str]] = {}
        for one in self.sentences:
            lines.setdefault(one.paragraph, []).append(one.text)
        return "\n".join(" ".join(found) for found in lines.values())

    def document(self, *, body: bool = False) -> Document:
        """Return a document with citations, as :func:`rerank.formats.read_corpus` does.

        body: use the body as text; the abstract goes to ``extra``.
        """
        citations: list[dict[str, Any]] = []
        for number, one in enumerate(self.sentences):
            place = {"section": one.section, "paragraph": one.paragraph, "sentence": number}
            citations += [{"ref": key, **place} for key in one.cites]
            if one.cites:
                citations[-len(one.cites)]["text"] = one.text
        extra: dict[str, Any] = {"citations": citations}
        if titles := {key: title for key, title in self.references.items() if title}:
            extra["references"] = titles
        if self.pmid and self.key != f"pmid:{self.pmid}":
            extra["pmid"] = self.pmid
        if body and self.abstract:
            extra["abstract"] = self.abstract
        linked = (key for key in self.references if not key.startswith("title:"))
        return Document(
            self.key,
            title=self.title,
            text=self.body if body else self.abstract,
            categories=tuple(dict.fromkeys((*self.subjects, *self.keywords))),
            links=tuple(key for key in dict.fromkeys((*linked, *self.related)) if key != self.key),
            lang=self.lang,
            extra=extra,
        )


def read_jats(
    path: str | os.PathLike[str],
    *,
    invalid: Callable[[InputError], object] | None = None,
    seen: set[str] | None = None,
    sentences: bool = True,
) -> Iterator[Article]:
    """Read articles of a file, an archive (zip, tar) or a folder, one at a time, by name.

    invalid: receives the errors of files, which are then skipped. seen: article keys, extended. sentences:
    False skips the body.

    Raises InputError, also for a repeated article or none.
    """
    seen = set() if seen is None else seen
    name = None
    for name, data, problem in read_files(Path(path), ENDINGS, LARGEST):
        try:
            if problem or data is None:
                raise InputError(f"{name}: {problem}")
            article = read_article(data, name, sentences=sentences, key=_relative_name(Path(path), name))
            if article.key in seen:
                raise InputError(f"{name}: article {article.key} occurs twice; remove one of the files")
        except InputError as error:
            if invalid is None:
                raise
            invalid(error)
            continue
        seen.add(article.key)
        yield article
    if name is None:
        raise InputError(f"{path}: no articles; they are .xml or .nxml files, plain or .gz")


def _relative_name(source: Path, name: str) -> str:
    """Return the name of a file inside ``source``, a folder or an archive."""
    inside = name.removeprefix(str(source)).removeprefix(": ").lstrip("/")
    return inside.replace(": ", "/") or source.name


def read_article(data: bytes, name: str, *, sentences: bool = True, key: str = "") -> Article:
    """Read an article. No DTD or external entity is loaded. Raises InputError.

    name: for errors. key: of an article without DOI, PMID and PMCID. Default: the file name.

    >>> xml = '''<article><front><article-meta><article-id pub-id-type="doi">10.1000/X</article-id>
    ... <title-group><article-title>Yeast</article-title></title-group></article-meta></front>
    ... <body><p>It grows (<xref ref-type="bibr" rid="b1">Li, 2001</xref>). It dies.</p></body><back>
    ... <ref-list><ref id="b1"><pub-id pub-id-type="doi">10.1000/Y</pub-id></ref></ref-list></back>
    ... </article>'''
    >>> article = read_article(xml.encode(), "x.xml")
    >>> article.key, [(one.text, one.cites) for one in article.sentences]
    ('10.1000/x', [('It grows (Li, 2001).', ('10.1000/y',)), ('It dies.', ())])
    """
    root, meta = parse_article(data, name)
    references, by_id = _references(root)
    body = root.find("body")
    ids = meta.findall("article-id")
    own = _key(ids) or key or file_name(name)
    read = _sentences(body, own, by_id) if sentences and body is not None else ()
    subjects = [
        subject
        for group in meta.findall("article-categories/subj-group")
        if not (group.get("subj-group-type") or "").lower().endswith(("display-channel", "article-type"))
        for subject in group.iter("subject")
    ]
    related = (find_doi(one.get(_HREF, "")) for one in meta.findall("related-article"))
    return Article(
        key=own,
        title=_title(meta),
        abstract=_abstract(meta),
        lang=root.get(_LANG) or "en",
        pmid=_key([one for one in ids if one.get("pub-id-type") == "pmid"]).removeprefix("pmid:"),
        subjects=tuple(plain(one) for one in subjects),
        keywords=_keywords(meta),
        related=tuple(one for one in dict.fromkeys(related) if one and one != own),
        sentences=tuple(read),
        references={key: title for key, title in references.items() if key != own},
    )


def parse_article(data: bytes, name: str) -> tuple[_Element, _Element]:
    """Return the elements ``article``, without namespace, and ``article-meta``. Raises InputError."""
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities="internal",  # libxml2 limits their expansion
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        try:
            root = etree.fromstring(data, parser)
        except etree.XMLSyntaxError as error:
            undeclared = (etree.ErrorTypes.ERR_UNDECLARED_ENTITY, etree.ErrorTypes.WAR_UNDECLARED_ENTITY)
            if error.code not in undeclared:
                raise
            root = etree.fromstring(_replace_undeclared_entities(data), parser)
    except etree.XMLSyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise InputError(f"{name}{line}: invalid XML ({error.msg})") from None
    except ValueError as error:  # for example an unknown encoding
        raise InputError(f"{name}: invalid XML ({error})") from None
    found = list(root.iter("{*}article"))
    if len(found) > 1:
        raise InputError(f"{name}: {len(found)} articles in one file; split the file")
    if not found:
        raise InputError(f"{name}: not a JATS article (the root is {etree.QName(root).localname})")
    if space := etree.QName(found[0]).namespace:
        for element in found[0].iter(f"{{{space}}}*"):
            element.tag = etree.QName(element).localname
    meta = found[0].find("front/article-meta")
    if meta is None:
        raise InputError(f"{name}: not a JATS article (article/front/article-meta is missing)")
    return found[0], meta


def _entity_text(name: str) -> str:
    """Return the character of a named entity of HTML or ISO; the entity itself if the name is unknown."""
    greek = _GREEK.get(name[:-2]) if name.endswith("gr") else None
    return html5.get(f"{name};") or greek or f"&{name};"


def _replace_undeclared_entities(data: bytes) -> bytes:
    """Replace named entities, which an external DTD would declare, by characters."""
    declared = {b"amp", b"lt", b"gt", b"quot", b"apos", *_DECLARED_ENTITY.findall(data)}

    def replacement(entity: re.Match[bytes]) -> bytes:
        if entity[1] in declared:
            return entity[0]
        return "".join(f"&#{ord(character)};" for character in _entity_text(entity[1].decode())).encode()

    return _NAMED_ENTITY.sub(replacement, data)


def _title(meta: _Element) -> str:
    """Return title and subtitle, without marks of footnotes."""
    group = meta.find("title-group")
    if group is None:
        return ""
    parts = [
        plain(part, _NOT_TEXT_IN_TITLES) for part in (group.find("article-title"), group.find("subtitle"))
    ]
    return ": ".join(part for part in parts if part)


def _abstract(meta: _Element) -> str:
    """Return the first abstract with a text: without a type, else of any type, else one for readers."""

    def order(abstract: _Element) -> int:
        kind = abstract.get("abstract-type")
        return 0 if kind is None else 2 if kind in _LAST_ABSTRACTS else 1

    for abstract in sorted(meta.findall("abstract"), key=order):
        has_paragraphs = next(abstract.iter(*_TEXTS), None) is not None
        text = " ".join(paragraphs_of(abstract)) if has_paragraphs else plain(abstract)
        if text:
            return text
    return ""


def _keywords(meta: _Element) -> tuple[str, ...]:
    """Return the keywords. A compound keyword is one, without its codes; others can be a list in one text."""
    keywords: dict[str, None] = {}
    for group in meta.findall("kwd-group"):
        for keyword in group.iter("kwd", "compound-kwd"):
            text = plain(keyword)
            if keyword.tag == "compound-kwd":
                parts = keyword.findall("compound-kwd-part")
                text = ", ".join(plain(part) for part in parts if part.get("content-type") != "code")
            keywords[text] = None
        for unstructured in group.findall("unstructured-kwd-group"):
            text = plain(unstructured).rstrip(".")
            keywords.update(dict.fromkeys(re.split(r"\s*;\s*" if ";" in text else r"\s*,\s*", text)))
    keywords.pop("", None)
    return tuple(keywords)


def paragraphs_of(abstract: _Element) -> tuple[str, ...]:
    """Return the paragraphs of an abstract, without its DOI."""
    texts = []
    for paragraph in abstract.iter(*_TEXTS):
        above = {element.tag for element in paragraph.iterancestors()}
        if not above & {*_TEXTS, *_NOT_TEXT}:  # neither a part of another paragraph nor a note
            texts.append(plain(paragraph))
    return tuple(text for text in texts if text and not text.startswith("DOI:"))


def plain(element: _Element | None, without: Set[str] = frozenset(_NOT_TEXT)) -> str:
    """Return text without markup, formulas in LaTeX and notes, in NFC: ``Ca<sup>2+</sup>`` gives ``Ca2+``.

    A line break or a block, such as an item of a list, is a space. without: elements to leave out.
    """
    if element is None:
        return ""
    parts: list[str] = []
    _collect_text(element, without, parts)
    return " ".join(unicodedata.normalize("NFC", "".join(parts)).split())


def _collect_text(element: _Element, without: Set[str], parts: list[str]) -> None:
    parts.append(element.text or "")
    for child in element:
        gap = " " if child.tag in _BLOCKS or child.tag == "break" else ""
        parts.append(gap)
        if child.tag not in without and child.tag not in _NOT_MATH:
            _collect_text(child, without, parts)
        parts.append(gap)
        parts.append(child.tail or "")


def _key(ids: list[_Element], title: str = "", year: str = "") -> str:
    named = {str(one.get("pub-id-type")): (one.text or "").strip() for one in reversed(ids)}
    pmcid = named.get("pmcid") or named.get("pmc", "")
    return reference_key(
        doi=named.get("doi", ""), pmid=named.get("pmid", ""), pmcid=pmcid, title=title, year=year
    )


def _references(root: _Element) -> tuple[dict[str, str], dict[str, str]]:
    """Key -> title, and entry id -> key, in order."""
    references: dict[str, str] = {}
    by_id: dict[str, str] = {}
    entries = (entry for back in root.findall("back") for entry in back.iter("ref"))
    for entry in entries:
        if any(above.tag == "ref" for above in entry.iterancestors()):
            continue
        named = entry.find(".//article-title")
        if named is None:
            named = entry.find(".//source")
        title, year = plain(named), plain(entry.find(".//year"))[:4]
        key = _key(entry.findall(".//pub-id"), title, year)
        if not key.startswith("10."):
            links = (one.get(_HREF) or "" for one in entry.iter("ext-link"))
            key = next((find_doi(one) for one in links if "doi" in one), "") or key
        by_id[str(entry.get("id"))] = key
        if key:
            references.setdefault(key, title)
    return references, by_id


def _sentences(body: _Element, own: str, by_id: dict[str, str]) -> Iterator[Sentence]:
    from lxml import etree
    from nupunkt import sent_spans

    etree.strip_elements(body, *_NOT_TEXT, *_NOT_MATH, with_tail=False)
    entries = list(by_id)
    positions = {entry: position for position, entry in enumerate(entries)}
    sections: list[_Element] = []
    number = 0
    for paragraph in body.iter(*_TEXTS):
        if any(above.tag in _TEXTS for above in paragraph.iterancestors()):
            continue  # a part of the outer paragraph
        text, marks, breaks = _Paragraph(by_id, entries, positions).read(paragraph)
        if not text:
            continue
        section = _section(paragraph, body)
        if not sections or section is not sections[-1]:
            sections.append(section)
        spans = [
            (start + begin, start + end)
            for start, stop in zip((0, *breaks), (*breaks, len(text)))
            for begin, end in sent_spans(text[start:stop])
            if text[start + begin : start + end].strip()
        ] or [(0, len(text))]
        starts = [begin for begin, _ in spans]
        cites: list[dict[str, None]] = [{} for _ in spans]
        for at, key in marks:
            if key != own:
                cites[max(bisect_right(starts, at) - 1, 0)][key] = None
        for (begin, end), keys in zip(spans, cites):
            yield Sentence(text[begin:end].strip(), len(sections) - 1, number, tuple(keys))
        number += 1


def _section(paragraph: _Element, body: _Element) -> _Element:
    """Return the innermost section; one inside a list or box is not a section of the body."""
    section = body
    above = list(paragraph.iterancestors())
    for one in reversed(above[: above.index(body)]):
        if one.tag != "sec":
            break
        section = one
    return section


class _Paragraph:
    """Reads the text of a paragraph and its citations."""

    def __init__(self, by_id: dict[str, str], entries: list[str], positions: dict[str, int]) -> None:
        self._by_id = by_id
        self._entries = entries
        self._positions = positions
        self._text = ""
        self._range: str | None = None  # the citation that may start a range
        self._behind = False  # a number after a sentence was skipped
        self._marks: list[tuple[int, str]] = []
        self._breaks: list[int] = []

    def read(self, paragraph: _Element) -> tuple[str, list[tuple[int, str]], list[int]]:
        """Return the text, (position, key) of its citations, and the starts of blocks, which end sentences.

        The text has no citation numbers after a sentence. Ranges of citations are expanded.
        """
        self._walk(paragraph)
        text = self._text.rstrip()
        return text, self._marks, [place for place in self._breaks if place < len(text)]

    def _walk(self, element: _Element) -> None:
        self._add(element.text)
        for child in element:
            self._part(child)
            if child.tag == "xref" and child.get("ref-type") == "bibr":
                self._cite(child)
            else:
                self._walk(child)
            self._part(child)
            self._add(child.tail)

    def _part(self, element: _Element) -> None:
        if element.tag in _BLOCKS or element.tag == "break":
            self._behind = False
            self._add(" ")
            if element.tag != "break" and len(self._text) > (self._breaks or [0])[-1]:
                self._breaks.append(len(self._text))

    def _add(self, text: str | None) -> None:
        if not text:
            return
        if self._range is not None and not _DASH.fullmatch(text):
            self._range = None
        if self._behind and _NUMBERS.fullmatch(text):
            return
        self._behind = False
        words = re.sub(r"\s+", " ", unicodedata.normalize("NFC", text))
        self._text += words.lstrip(" ") if not self._text or self._text.endswith(" ") else words

    def _cite(self, element: _Element) -> None:
        ids = str(element.get("rid") or "").split()
        text = "".join(map(str, element.itertext()))
        is_number = _NUMBER.fullmatch(text) is not None
        if self._range is not None and len(ids) == 1 and is_number and ids[0] in self._by_id:
            # "3–7": only the ends have marks
            first = self._positions[self._range]
            last = self._positions[ids[0]]
            if first < last <= first + MAX_RANGE:
                ids = self._entries[first + 1 : last] + ids
        # "as known.<sup>3</sup> Next": the number would hide the end of the sentence
        ended = self._behind or self._text.endswith((".", "?", "!", ",", ";"))
        self._behind = ended and _NUMBERS.fullmatch(text) is not None
        keys = [key for id in ids if (key := self._by_id.get(id))]
        self._marks += [(len(self._text) - self._behind, key) for key in keys]
        if not self._behind:
            self._add(text)
        self._range = ids[-1] if ids and ids[-1] in self._by_id and is_number else None
