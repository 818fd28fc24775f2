"""JATS: articles as XML, alone or in archives -> documents, and where in the text each reference is cited.

Read is the article itself: its front matter, the first-level body, the reference list. Peer reviews and
replies (sub-articles), captions, tables, footnotes and displayed formulae are not its text. Needs lxml and
nupunkt (the extra ``fulltext``).
"""

from __future__ import annotations

import gzip
import re
import tarfile
import unicodedata
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rerank.errors import InputError
from rerank.records import Document

if TYPE_CHECKING:
    from lxml.etree import _Element

LARGEST = 50_000_000
"""Bytes of one article's XML, at most."""

_HREF = "{http://www.w3.org/1999/xlink}href"
_TEXTS = ("p", "disp-quote", "verse-group")
_NOT_TEXT = {
    "fig", "fig-group", "table-wrap", "table-wrap-group", "caption", "fn", "fn-group", "disp-formula",
    "disp-formula-group", "supplementary-material", "media", "graphic", "tex-math", "ref-list", "sub-article",
}  # fmt: skip
_DASH = re.compile(r"\s*[-–—−‐‑]\s*")
_NUMBER = re.compile(r"\D{0,2}(\d{1,4})\D{0,2}")
_NUMBERS = re.compile(r"[\s\d,;–-]+")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")


@dataclass
class JatsCounts:
    """What a reading met.

    articles, skipped: files that were read, and that were no readable article.
    without_body, without_references: articles that lack the one or the other.
    references: entries of reference lists. with_doi: of these. without_key: that have no DOI, no PMID and no
        title; duplicates: that have another entry's key.
    mentions: citations in the texts. unresolved: that name no entry of the list, or one without a key.
    """

    articles: int = 0
    skipped: int = 0
    without_body: int = 0
    without_references: int = 0
    references: int = 0
    with_doi: int = 0
    without_key: int = 0
    duplicates: int = 0
    mentions: int = 0
    unresolved: int = 0


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a body: its text, its section and paragraph (numbered from 0), the keys that it cites."""

    text: str
    section: int
    paragraph: int
    cites: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """An entry of a reference list; title and year may be empty."""

    key: str
    title: str
    year: str


@dataclass(frozen=True)
class Article:
    """One article.

    key:        its DOI in lower case, else ``pmid:...``, else the name of its file.
    subjects, keywords: as they are written. related: keys of articles that it names as related.
    sections:   headings, in reading order; text before the first has one without a heading.
    sentences:  of the body, in reading order.
    references: key -> entry, each key once.
    """

    key: str
    title: str
    abstract: str
    subjects: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    references: dict[str, Reference] = field(default_factory=dict)

    @property
    def body(self) -> str:
        """The body's text, a paragraph a line."""
        lines: dict[int, list[str]] = {}
        for one in self.sentences:
            lines.setdefault(one.paragraph, []).append(one.text)
        return "\n".join(" ".join(found) for found in lines.values())

    def document(self, *, body: bool = False) -> Document:
        """As a document of a collection; ``citations`` in ``extra`` has a row for each mention.

        body: the body's text, and not the abstract. Links name the references and the related articles.
        """
        citations = [
            {"ref": key, "section": one.section, "paragraph": one.paragraph, "sentence": number}
            for number, one in enumerate(self.sentences)
            for key in one.cites
        ]
        return Document(
            self.key,
            title=self.title,
            text=self.body if body else self.abstract,
            categories=tuple(dict.fromkeys((*self.subjects, *self.keywords))),
            links=tuple(key for key in dict.fromkeys((*self.references, *self.related)) if key != self.key),
            extra={"citations": citations} if citations else {},
        )


def read_jats(
    path: str | Path, counts: JatsCounts | None = None, *, skip_invalid: bool = False
) -> Iterator[Article]:
    """Read the articles of a file, an archive (zip, tar) or a folder, one at a time, in the order of names.

    counts: is added to. skip_invalid: files that are no readable article are counted and left out.

    Raises InputError, naming the file, for one that cannot be read.
    """
    counts = JatsCounts() if counts is None else counts
    for name, data, problem in _files(Path(path)):
        try:
            if problem or data is None:
                raise InputError(f"{name}: {problem}")
            article = read_article(data, name, counts)
        except InputError:
            if not skip_invalid:
                raise
            counts.skipped += 1
            continue
        counts.articles += 1
        yield article


def _files(path: Path) -> Iterator[tuple[str, bytes | None, str]]:
    """Name, bytes and what is wrong with it, for each XML file."""
    if path.is_dir():
        for one in sorted(path.rglob("*")):
            if one.name.endswith((".xml", ".xml.gz")) and one.is_file():
                yield from _files(one)
        return
    name = str(path)
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    if not info.is_dir():
                        with archive.open(info) as file:
                            yield from _member(f"{name}: {info.filename}", file)
        elif name.endswith(_ARCHIVES):
            with tarfile.open(path, "r|*") as archive:
                for member in archive:
                    inner = archive.extractfile(member) if member.isfile() else None
                    if inner is not None:
                        yield from _member(f"{name}: {member.name}", inner)
        else:
            with path.open("rb") as file:
                yield from _member(name, file)
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file; check the path") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, RuntimeError) as error:
        raise InputError(f"{name}: the archive is cut short or damaged ({error}); fetch it again") from error


def _member(name: str, file: IO[bytes]) -> Iterator[tuple[str, bytes | None, str]]:
    if name.endswith(_ARCHIVES):
        yield name, None, "an archive inside an archive; unpack it first"
        return
    if not name.endswith((".xml", ".xml.gz")):
        return
    data = file.read(LARGEST + 1)
    if name.endswith(".gz"):
        try:
            with gzip.open(_bytes(data)) as inner:
                data = inner.read(LARGEST + 1)
        except (OSError, EOFError, zlib.error) as error:
            yield name, None, f"not a whole gzip file ({error})"
            return
    if len(data) > LARGEST:
        yield name, None, f"more than {LARGEST // 1_000_000} MB; that is no article"
        return
    yield name, data, ""


def _bytes(data: bytes) -> IO[bytes]:
    from io import BytesIO

    return BytesIO(data)


def read_article(data: bytes, name: str, counts: JatsCounts | None = None) -> Article:
    """Read one article from its XML. Raises InputError, naming the file.

    No DTD is loaded, no entity is resolved and nothing is fetched; libxml2's limits of depth and size hold.

    >>> xml = '''<article><front><article-meta><article-id pub-id-type="doi">10.1000/X</article-id>
    ... <title-group><article-title>Yeast</article-title></title-group></article-meta></front>
    ... <body><p>It grows (<xref ref-type="bibr" rid="b1">Li, 2001</xref>). It dies.</p></body><back>
    ... <ref-list><ref id="b1"><pub-id pub-id-type="doi">10.1000/Y</pub-id></ref></ref-list></back>
    ... </article>'''
    >>> article = read_article(xml.encode(), "x.xml")
    >>> article.key, [(one.text, one.cites) for one in article.sentences]
    ('10.1000/x', [('It grows (Li, 2001).', ('10.1000/y',)), ('It dies.', ())])
    """
    from lxml import etree

    counts = JatsCounts() if counts is None else counts
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise InputError(f"{name}{line}: no readable XML ({error.msg})") from None
    except ValueError as error:  # a declared encoding that is unknown, ...
        raise InputError(f"{name}: no readable XML ({error})") from None
    meta = root.find("front/article-meta") if root.tag == "article" else None
    if meta is None:
        raise InputError(f"{name}: no article in JATS (article/front/article-meta is missing)")
    references, by_id = _references(root, counts)
    body = root.find("body")
    counts.without_body += body is None
    counts.without_references += not by_id
    abstract = next((one for one in meta.findall("abstract") if one.get("abstract-type") is None), None)
    paragraphs = (plain(one) for one in abstract.iter("p")) if abstract is not None else ()
    own = _key(meta.findall("article-id"), "", "") or Path(name).name
    sections, sentences = _body(body, own, by_id, counts) if body is not None else ((), ())
    subjects = meta.findall("article-categories/subj-group[@subj-group-type='heading']/subject")
    related = (_doi(one.get(_HREF, "")) for one in meta.findall("related-article"))
    return Article(
        key=own,
        title=plain(meta.find("title-group/article-title")),
        abstract=" ".join(one for one in paragraphs if one and not one.startswith("DOI:")),
        subjects=tuple(plain(one) for one in subjects),
        keywords=tuple(filter(None, (plain(one) for one in meta.findall("kwd-group/kwd")))),
        related=tuple(one for one in dict.fromkeys(related) if one and one != own),
        sections=sections,
        sentences=sentences,
        references={key: one for key, one in references.items() if key != own},
    )


def plain(element: _Element | None) -> str:
    """An element's text without markup, in NFC, white space collapsed: ``Ca<sup>2+</sup>`` gives ``Ca2+``."""
    return _tidy("".join(map(str, element.itertext()))) if element is not None else ""


def _tidy(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _doi(text: str | None) -> str:
    """In lower case and without a resolver before it; nothing for what is no DOI.

    >>> _doi("https://doi.org/10.7554/eLife.00003")
    '10.7554/elife.00003'
    """
    found = re.search(r"10\.\d{2,9}(?:\.\d+)*/\S+", (text or "").strip().lower())
    return found[0] if found else ""


def _key(ids: list[_Element], title: str, year: str) -> str:
    """DOI, else PMID, else the title's words and the year; nothing without any of them."""
    named = {str(one.get("pub-id-type")): (one.text or "").strip() for one in reversed(ids)}
    if doi := _doi(named.get("doi")):
        return doi
    if (pmid := named.get("pmid", "")).isdigit():
        return f"pmid:{pmid}"
    words = re.findall(r"\w+", title.casefold())
    return f"title:{' '.join(words)}|{year}" if words else ""


def _references(root: _Element, counts: JatsCounts) -> tuple[dict[str, Reference], dict[str, str]]:
    """Key -> reference, and the id of each entry of the list -> its key; in the list's order."""
    references: dict[str, Reference] = {}
    by_id: dict[str, str] = {}
    for entry in root.iterfind("back//ref-list//ref"):
        counts.references += 1
        named = entry.find(".//article-title")
        if named is None:
            named = entry.find(".//source")
        title, year = plain(named), plain(entry.find(".//year"))[:4]
        key = _key(entry.findall(".//pub-id"), title, year)
        if not key.startswith("10."):
            link = next(
                (_doi(one.get(_HREF)) for one in entry.iter("ext-link") if "doi" in (one.get(_HREF) or "")),
                "",
            )
            key = link or key
        counts.with_doi += key.startswith("10.")
        counts.without_key += not key
        counts.duplicates += bool(key) and key in references
        by_id[str(entry.get("id"))] = key
        if key:
            references.setdefault(key, Reference(key, title, year))
    return references, by_id


def _body(
    body: _Element, own: str, by_id: dict[str, str], counts: JatsCounts
) -> tuple[tuple[str, ...], tuple[Sentence, ...]]:
    """Headings and sentences. A paragraph belongs to the deepest section around it."""
    from nupunkt import sent_spans

    headings: list[str] = []
    found: list[Sentence] = []
    paragraphs = 0
    for heading, element in _paragraphs(body, ""):
        if heading is not None:
            headings.append(heading)
            continue
        text, marks = _text(element, by_id, counts)
        if not text:
            continue
        if not headings:
            headings.append("")
        spans = [(begin, end) for begin, end in sent_spans(text) if text[begin:end].strip()] or [
            (0, len(text))
        ]
        starts = [begin for begin, _ in spans]
        cites: list[dict[str, None]] = [{} for _ in spans]
        for at, key in marks:
            if key != own:
                cites[max(bisect_right(starts, at) - 1, 0)][key] = None
        for (begin, end), keys in zip(spans, cites):
            found.append(Sentence(text[begin:end].strip(), len(headings) - 1, paragraphs, tuple(keys)))
        paragraphs += 1
    return tuple(headings), tuple(found)


def _paragraphs(parent: _Element, heading: str) -> Iterator[tuple[str | None, Any]]:
    """(heading, None) where a section begins or goes on, (None, paragraph) for each paragraph of it."""
    told = not heading  # a body without sections has its one pseudo-section made by the first paragraph
    for child in parent:
        if child.tag in _NOT_TEXT or not isinstance(child.tag, str):
            continue
        if child.tag == "sec":
            yield from _paragraphs(child, plain(child.find("title")) or "-")
            told = False  # what comes after a subsection is the outer section's again
        elif child.tag in _TEXTS:
            if not told:
                yield heading, None
                told = True
            yield None, child
        elif child.tag != "title":  # lists, boxed texts, statements: their paragraphs are the section's
            for one in child.iter(*_TEXTS):
                if not any(above.tag in _NOT_TEXT for above in one.iterancestors()):
                    if not told:
                        yield heading, None
                        told = True
                    yield None, one


def _text(
    paragraph: _Element, by_id: dict[str, str], counts: JatsCounts
) -> tuple[str, list[tuple[int, str]]]:
    """A paragraph's text, and (place in it, key) of each citation, ranges written out."""
    pieces: list[str] = []
    marks: list[tuple[int, str]] = []
    order = list(by_id)
    state: dict[str, Any] = {"length": 0, "space": True, "range": None, "behind": False}

    def add(text: str | None) -> None:
        if not text:
            return
        if state["range"] is not None and not _DASH.fullmatch(text):
            state["range"] = None
        if state["behind"] and _NUMBERS.fullmatch(text):
            return
        state["behind"] = False
        words = unicodedata.normalize("NFC", text)
        words = re.sub(r"\s+", " ", words)
        if state["space"]:
            words = words.lstrip(" ")
        if words:
            pieces.append(words)
            state["length"] += len(words)
            state["space"] = words.endswith(" ")

    def cite(element: _Element) -> None:
        named = str(element.get("rid") or "").split()
        told = "".join(map(str, element.itertext()))
        if state["range"] is not None and len(named) == 1 and _NUMBER.fullmatch(told) and named[0] in by_id:
            # "3–7" marked up at its ends alone
            first, last = order.index(state["range"]), order.index(named[0])
            named = order[first + 1 : last] + named if first < last else named
        # "as known.<sup>3</sup> Next": the number belongs to the sentence before it, and would hide its end
        stopped = state["behind"] or (pieces and pieces[-1].endswith((".", "?", "!", ",", ";")))
        behind = bool(stopped and _NUMBERS.fullmatch(told))
        for one in named:
            counts.mentions += 1
            if by_id.get(one):
                marks.append((state["length"] - behind, by_id[one]))
            else:
                counts.unresolved += 1
        state["behind"] = behind
        if not behind:
            add(told)
        state["range"] = named[-1] if named and named[-1] in by_id and _NUMBER.fullmatch(told) else None

    def walk(element: _Element) -> None:
        add(element.text)
        for child in element:
            if isinstance(child.tag, str):
                if child.tag == "xref" and child.get("ref-type") == "bibr":
                    cite(child)
                elif child.tag not in _NOT_TEXT:
                    walk(child)
            add(child.tail)

    walk(paragraph)
    return "".join(pieces).rstrip(), marks
