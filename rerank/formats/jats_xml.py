"""The XML of a JATS article: parsing, named entities, and texts without markup."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from html.entities import html5
from typing import TYPE_CHECKING

from rerank.common.errors import InputError

if TYPE_CHECKING:
    from lxml.etree import _Element

HREF = "{http://www.w3.org/1999/xlink}href"
LANG = "{http://www.w3.org/XML/1998/namespace}lang"

PARAGRAPHS = ("p", "disp-quote", "verse-group", "preformat", "def-item")
"""Elements that are read as a paragraph."""
BLOCKS = {
    *PARAGRAPHS, "title", "subtitle", "term", "list", "list-item", "verse-line", "speech", "statement",
    "boxed-text",
}  # fmt: skip
"""Elements that separate the words before them from the words after them."""
SEPARATED = {*BLOCKS, "break"}
"""Elements with a space before and after them. A line break starts no block."""
NOT_TEXT = {
    "fig", "fig-group", "table-wrap", "table-wrap-group", "caption", "fn", "fn-group", "disp-formula",
    "disp-formula-group", "supplementary-material", "media", "graphic", "tex-math", "ref-list", "sub-article",
}  # fmt: skip
"""Elements that are not part of the running text."""
_MATHML = "{http://www.w3.org/1998/Math/MathML}"
NOT_MATH = {f"{_MATHML}annotation", f"{_MATHML}annotation-xml"}
"""Elements that repeat a formula, often as LaTeX."""

_NAMED_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]*);")
_DECLARED_ENTITY = re.compile(rb"""<!ENTITY\s+([A-Za-z]\w*)\s+["']""")
_GREEK_NAMES = "a b g d e z ee th i k l m n x o p r sf s t u ph kh ps oh".split()  # noqa: SIM905
_GREEK = dict(zip(_GREEK_NAMES, "αβγδεζηθικλμνξοπρςστυφχψω"))
_GREEK |= {name.upper(): letter.upper() for name, letter in _GREEK.items()}
"""Names of ISO entities such as ``&bgr;`` without ``gr``. HTML has the other sets."""
_CHARACTERS = {**html5, **{f"{name}gr;": letter for name, letter in _GREEK.items()}}
"""Name of an entity and a semicolon -> its character."""


def parse_article(data: bytes, name: str) -> tuple[_Element, _Element]:
    """Return the elements ``article``, without namespace, and ``article-meta``.

    No DTD and no external entity is loaded. name: of the file, for errors.

    Raises InputError for invalid XML, and for a file that does not have exactly one article.
    """
    from lxml import etree

    try:
        root = _parse(data)
    except etree.XMLSyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise InputError(f"{name}{line}: invalid XML ({error.msg})") from None
    except ValueError as error:  # for example an unknown encoding
        raise InputError(f"{name}: invalid XML ({error})") from None
    articles = list(root.iter("{*}article"))
    if len(articles) > 1:
        raise InputError(f"{name}: {len(articles)} articles in one file; split the file")
    if not articles:
        raise InputError(f"{name}: not a JATS article (the root is {etree.QName(root).localname})")
    article = articles[0]
    namespace = etree.QName(article).namespace
    if namespace:
        for element in article.iter(f"{{{namespace}}}*"):
            element.tag = etree.QName(element).localname
    meta = article.find("front/article-meta")
    if meta is None:
        raise InputError(f"{name}: not a JATS article (article/front/article-meta is missing)")
    return article, meta


def _parse(data: bytes) -> _Element:
    """Return the root. Entities that only an external DTD declares become characters."""
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
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        undeclared = (etree.ErrorTypes.ERR_UNDECLARED_ENTITY, etree.ErrorTypes.WAR_UNDECLARED_ENTITY)
        if error.code not in undeclared:
            raise
        return etree.fromstring(_replace_undeclared_entities(data), parser)


def _replace_undeclared_entities(data: bytes) -> bytes:
    """Replace named entities, which an external DTD would declare, by characters."""
    declared = {b"amp", b"lt", b"gt", b"quot", b"apos", *_DECLARED_ENTITY.findall(data)}

    def replacement(entity: re.Match[bytes]) -> bytes:
        if entity[1] in declared:
            return entity[0]
        text = _entity_text(entity[1].decode())
        return "".join(f"&#{ord(character)};" for character in text).encode()

    return _NAMED_ENTITY.sub(replacement, data)


def _entity_text(name: str) -> str:
    """Return the character of a named entity of HTML or ISO; the entity itself if the name is unknown."""
    return _CHARACTERS.get(f"{name};", f"&{name};")


def plain(element: _Element | None, without: Set[str] = frozenset(NOT_TEXT)) -> str:
    """Return text without markup, formulas in LaTeX and notes, in NFC: ``Ca<sup>2+</sup>`` gives ``Ca2+``.

    A line break or a block, such as an item of a list, is a space. without: elements to leave out.
    """
    if element is None:
        return ""
    parts: list[str | None] = []
    _collect_text(element, without | NOT_MATH, parts)
    text = "".join(filter(None, parts))
    return " ".join(unicodedata.normalize("NFC", text).split())


_GAPS = dict.fromkeys(SEPARATED, " ")
"""Element -> the text before and after it."""


def _collect_text(element: _Element, without: Set[str], parts: list[str | None]) -> None:
    """Add the texts inside of an element to the parts, None for no text."""
    parts.append(element.text)
    for child in element:
        gap = _GAPS.get(child.tag)
        parts.append(gap)
        if child.tag not in without:
            _collect_text(child, without, parts)
        parts += (gap, child.tail)
