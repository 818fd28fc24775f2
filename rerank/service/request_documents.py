"""The documents of a request to ``/v1/rerank``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rerank.common.errors import UsageError
from rerank.documents.records import Document
from rerank.documents.text import join_names
from rerank.service.schemas import RerankBody, TextDocument

LONGEST_TEXT = 1_000_000
"""Characters that are read of a title or text."""

LONGEST_DOCUMENTS = 4_000_000
"""Characters of all documents of a request together."""

_MARKS = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """Cut a text, and runs of combining marks to 32, as Unicode sorts them slowly.

    >>> len(clean("a" + "\\u0301\\u0327" * 1000))
    33
    """
    text = text[:longest]
    return text if text.isascii() else _MARKS.sub(r"\1", text)


def read_documents(body: RerankBody) -> list[Document]:
    """Return the documents of a request. Their ids are their positions, which break ties.

    Raises UsageError for objects without words, fields that no document has, or too many characters.
    """
    documents = []
    for position, document in enumerate(body.documents):
        parsed = _read(document, position, body.rank_fields)
        if body.max_tokens_per_doc is not None:
            parsed = _first_words(parsed, body.max_tokens_per_doc)
        documents.append(parsed)
    characters = 0
    for parsed in documents:
        characters += sum(map(len, (parsed.title, parsed.text, *parsed.categories)))
    if characters > LONGEST_DOCUMENTS:
        raise UsageError(
            f"the documents have {characters:,} characters, but a request may have {LONGEST_DOCUMENTS:,};"
            " send fewer or shorter documents"
        )
    return documents


def _read(document: str | Mapping[str, Any], position: int, rank_fields: Sequence[str] | None) -> Document:
    id = f"{position:09}"
    if isinstance(document, str):
        return Document(id, text=clean(document))
    fields = _convert(document, position)
    categories = tuple(fields.categories or ())
    if rank_fields:
        text = _joined_fields(document, position, rank_fields)
        return Document(id, text=clean(text), categories=categories)
    _check_fields(document, position)
    return Document(id, clean(fields.title or ""), clean(fields.text or ""), categories)


def _convert(document: Mapping[str, Any], position: int) -> TextDocument:
    """Return the known fields of a document. Raises UsageError for a value of another type."""
    try:
        return msgspec.convert(document, TextDocument)
    except msgspec.ValidationError as error:
        raise UsageError(f"documents.{position}: {error}") from error


def _check_fields(document: Mapping[str, Any], position: int) -> None:
    """Raise UsageError for a document that has none of the known fields."""
    if not document.keys().isdisjoint(("title", "text", "categories")):
        return
    names = join_names([repr(name[:50]) for name in document], 10) or "no field"
    raise UsageError(
        f"documents.{position} has {names}, but no 'text' or 'title'; rename a field, or name the fields"
        " in rank_fields"
    )


def _joined_fields(document: Mapping[str, Any], position: int, names: Sequence[str]) -> str:
    """Return the texts of fields. Raises UsageError if the document has none of them."""
    values = [document[name] for name in names if document.get(name) is not None]
    if not values:
        raise UsageError(f"documents.{position} has none of the rank_fields {', '.join(names)}"[:300])
    return " ".join(map(_as_text, values))


def _as_text(value: object) -> str:
    """Return a text unchanged, and another value of JSON as its JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _first_words(document: Document, count: int) -> Document:
    words = document.content.split()
    if len(words) <= count:
        return document
    return Document(document.id, text=" ".join(words[:count]), categories=document.categories)
