"""Read JATS articles (XML), without sub-articles, captions, tables, footnotes and displayed formulas."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rerank.common.errors import InputError
from rerank.common.values import without_empty
from rerank.documents.records import Document
from rerank.formats.archives import file_name, read_files
from rerank.formats.jats_body import Sentence, read_sentences
from rerank.formats.jats_xml import HREF, LANG, NOT_TEXT, PARAGRAPHS, parse_article, plain
from rerank.formats.lines import OnInvalid, raise_invalid
from rerank.formats.references import find_doi, reference_key

if TYPE_CHECKING:
    from lxml.etree import _Element

LARGEST = 50_000_000
"""Largest size of an article in bytes."""

ENDINGS = (".xml", ".nxml")
"""File names of articles, in any case, plain or compressed."""

_NOT_TEXT_IN_TITLES = {*NOT_TEXT, "xref"}
_LAST_ABSTRACTS = ("graphical", "teaser", "toc", "video", "key-points", "web-summary")
"""Types of abstracts that are used only without another one."""
_NOT_SUBJECTS = ("display-channel", "article-type")
"""Ends of the types of groups that name the kind of an article instead of its subject."""


@dataclass(frozen=True)
class Article:
    """One article.

    key:        the DOI in lower case, ``pmid:...``, ``PMC...``, or the path of the file in its source.
    related:    keys of related articles.
    sentences:  the sentences of the body.
    references: key -> title, which may be empty.
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
        """The text of the body, with one line for each paragraph."""
        paragraphs: dict[int, list[str]] = {}
        for sentence in self.sentences:
            paragraphs.setdefault(sentence.paragraph, []).append(sentence.text)
        return "\n".join(" ".join(texts) for texts in paragraphs.values())

    def document(self, *, body: bool = False) -> Document:
        """Return a document with citations, as :func:`rerank.formats.read_corpus` does.

        body: use the body as text; the abstract goes to ``extra``.
        """
        text = self.abstract
        extra = self._extra()
        if body:
            text = self.body
            extra |= without_empty({"abstract": self.abstract})
        return Document(
            self.key,
            title=self.title,
            text=text,
            categories=_unique((*self.subjects, *self.keywords)),
            links=self._links(),
            lang=self.lang,
            extra=extra,
        )

    def _extra(self) -> dict[str, Any]:
        """Return the citations, and the titles of references and the PMID if there are any."""
        extra: dict[str, Any] = {"citations": self._citations()}
        titles = without_empty(self.references)
        if titles:
            extra["references"] = titles
        is_key = self.key == f"pmid:{self.pmid}"
        if self.pmid and not is_key:
            extra["pmid"] = self.pmid
        return extra

    def _citations(self) -> list[dict[str, Any]]:
        """Return a record per citation. The first one of a sentence has its text."""
        citations: list[dict[str, Any]] = []
        for number, sentence in enumerate(self.sentences):
            for position, key in enumerate(sentence.cites):
                citation: dict[str, Any] = {
                    "ref": key,
                    "section": sentence.section,
                    "paragraph": sentence.paragraph,
                    "sentence": number,
                }
                if position == 0:
                    citation["text"] = sentence.text
                citations.append(citation)
        return citations

    def _links(self) -> tuple[str, ...]:
        """Return the keys of references and related articles. Titles are not ids of documents."""
        links = dict.fromkeys((*self.references, *self.related))
        links.pop(self.key, None)
        return tuple(key for key in links if not key.startswith("title:"))


def _unique(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def read_jats(
    path: str | os.PathLike[str],
    *,
    invalid: OnInvalid = raise_invalid,
    known_keys: set[str] | None = None,
    sentences: bool = True,
) -> Iterator[Article]:
    """Read articles of a file, an archive (zip, tar) or a folder, one at a time, by name.

    invalid:    is called with the error of each invalid file, which is then skipped. By default, the
                first error is raised.
    known_keys: keys of articles that were read before; the keys of this source are added.
    sentences:  False skips the body.

    Raises InputError, also for a repeated article or a source without articles.
    """
    known_keys = set() if known_keys is None else known_keys
    name = None
    for name, data, problem in read_files(Path(path), ENDINGS, LARGEST):
        try:
            if data is None:
                raise InputError(f"{name}: {problem}")
            article = read_article(data, name, sentences=sentences, key=_relative_name(Path(path), name))
            if article.key in known_keys:
                raise InputError(f"{name}: article {article.key} occurs twice; remove one of the files")
        except InputError as error:
            invalid(error)
            continue
        known_keys.add(article.key)
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
    titles, key_of_entry = _references(root)
    body = root.find("body")
    ids = meta.findall("article-id")
    pmids = [element for element in ids if element.get("pub-id-type") == "pmid"]
    article_key = _key(ids) or key or file_name(name)
    body_sentences: tuple[Sentence, ...] = ()
    if sentences and body is not None:
        body_sentences = tuple(read_sentences(body, article_key, key_of_entry))
    titles.pop(article_key, None)
    return Article(
        key=article_key,
        title=_title(meta),
        abstract=_abstract(meta),
        lang=root.get(LANG) or "en",
        pmid=_key(pmids).removeprefix("pmid:"),
        subjects=_subjects(meta),
        keywords=_keywords(meta),
        related=_related_articles(meta, article_key),
        sentences=body_sentences,
        references=titles,
    )


def _subjects(meta: _Element) -> tuple[str, ...]:
    subjects: list[str] = []
    for group in meta.findall("article-categories/subj-group"):
        group_type = group.get("subj-group-type", "").lower()
        if not group_type.endswith(_NOT_SUBJECTS):
            subjects += map(plain, group.iter("subject"))
    return tuple(subjects)


def _related_articles(meta: _Element, article_key: str) -> tuple[str, ...]:
    """Return the DOIs of related articles."""
    dois: dict[str, None] = {}
    for element in meta.findall("related-article"):
        address = element.get(HREF, "")
        dois[find_doi(address)] = None
    for not_related in ("", article_key):
        dois.pop(not_related, None)
    return tuple(dois)


def _title(meta: _Element) -> str:
    """Return title and subtitle, without marks of footnotes."""
    group = meta.find("title-group")
    if group is None:
        return ""
    title = plain(group.find("article-title"), _NOT_TEXT_IN_TITLES)
    subtitle = plain(group.find("subtitle"), _NOT_TEXT_IN_TITLES)
    return ": ".join(filter(None, (title, subtitle)))


def _abstract(meta: _Element) -> str:
    """Return the first abstract with a text: without a type, else of any type, else one for readers."""
    abstracts = sorted(meta.findall("abstract"), key=_abstract_order)
    texts = filter(None, map(_abstract_text, abstracts))
    return next(texts, "")


def _abstract_text(abstract: _Element) -> str:
    has_paragraphs = next(abstract.iter(*PARAGRAPHS), None) is not None
    if has_paragraphs:
        return " ".join(paragraphs_of(abstract))
    return plain(abstract)


def _abstract_order(abstract: _Element) -> int:
    abstract_type = abstract.get("abstract-type")
    if abstract_type is None:
        return 0
    if abstract_type in _LAST_ABSTRACTS:
        return 2
    return 1


def _keywords(meta: _Element) -> tuple[str, ...]:
    """Return the keywords. A compound keyword is one, without its codes; others can be a list in one text."""
    keywords: list[str] = []
    for group in meta.findall("kwd-group"):
        keywords += map(_keyword, group.iter("kwd", "compound-kwd"))
        for unstructured in group.findall("unstructured-kwd-group"):
            keywords += _split_keywords(plain(unstructured))
    return _unique(list(filter(None, keywords)))


def _keyword(keyword: _Element) -> str:
    """Return the text of a keyword; of a compound one, its parts with commas, without codes."""
    if keyword.tag == "kwd":
        return plain(keyword)
    texts: list[str] = []
    for element in keyword.findall("compound-kwd-part"):
        if element.get("content-type") != "code":
            texts.append(plain(element))
    return ", ".join(texts)


def _split_keywords(text: str) -> list[str]:
    """Return the keywords of a text that lists them, with semicolons or else with commas."""
    separator = ";" if ";" in text else ","
    return re.split(rf"\s*{separator}\s*", text.rstrip("."))


def paragraphs_of(abstract: _Element) -> tuple[str, ...]:
    """Return the paragraphs of an abstract, without its DOI."""
    texts: list[str] = []
    for paragraph in abstract.iter(*PARAGRAPHS):
        outer = next(paragraph.iterancestors(*PARAGRAPHS, *NOT_TEXT), None)
        if outer is not None:  # a part of a paragraph, or in a note
            continue
        text = plain(paragraph)
        if text and not text.startswith("DOI:"):
            texts.append(text)
    return tuple(texts)


def _references(root: _Element) -> tuple[dict[str, str], dict[str, str]]:
    """Return key -> title of the references, and id -> key of all entries, both in the order of the list."""
    titles: dict[str, str] = {}
    key_of_entry: dict[str, str] = {}
    for back in root.findall("back"):
        for entry in back.iter("ref"):
            if next(entry.iterancestors("ref"), None) is not None:  # a part of another entry
                continue
            key, title = _reference(entry)
            key_of_entry[str(entry.get("id"))] = key
            if key:
                titles.setdefault(key, title)
    return titles, key_of_entry


def _reference(entry: _Element) -> tuple[str, str]:
    """Return the key and the title of a reference. A DOI in a link comes before other keys."""
    title_element = entry.find(".//article-title")
    if title_element is None:
        title_element = entry.find(".//source")
    title = plain(title_element)
    year = plain(entry.find(".//year"))[:4]
    key = _key(entry.findall(".//pub-id"), title, year)
    has_doi = key.startswith("10.")
    if not has_doi:
        key = _linked_doi(entry) or key
    return key, title


def _linked_doi(entry: _Element) -> str:
    """Return the DOI of the first link with ``doi`` in its address; empty if it has none."""
    for link in entry.iter("ext-link"):
        address = link.get(HREF, "")
        if "doi" in address:
            return find_doi(address)
    return ""


def _key(ids: Sequence[_Element], title: str = "", year: str = "") -> str:
    """Return the key that ids of a publication give; the first one of each type counts."""
    id_of_type: dict[str, str] = {}
    for element in ids:
        id_of_type.setdefault(str(element.get("pub-id-type")), (element.text or "").strip())
    return reference_key(
        doi=id_of_type.get("doi", ""),
        pmid=id_of_type.get("pmid", ""),
        pmcid=id_of_type.get("pmcid") or id_of_type.get("pmc", ""),
        title=title,
        year=year,
    )
