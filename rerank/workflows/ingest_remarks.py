"""Counts of the documents of an ingest, and sentences about missing fields and about languages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from rerank.common.values import items_not_in, without_none
from rerank.documents.records import Document
from rerank.documents.text import STEMMERS, count_of, language_or_none
from rerank.engines.base import field_number

_WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")
"""Languages whose characters or pairs of them are terms, so they need no stemmer."""
MOST_FIELDS = 10
"""Number of fields that a sentence lists at most."""


class DocumentCounts(Protocol):
    """Counts of the documents of an ingest, or of its preview.

    documents:          of the workspace after the ingest.
    lang:               language of the collection; None: mixed or unknown.
    languages:          language -> documents ("": unknown).
    without_text:       documents without title and text.
    without_body:       documents without text.
    without_categories: documents without categories.
    other_fields:       names of the documents' fields that :class:`rerank.Document` does not have.
    not_numbers:        field of numbers -> documents with another value there, which count as missing.
    """

    documents: int
    lang: str | None
    languages: dict[str, int]
    without_text: int
    without_body: int
    without_categories: int
    other_fields: list[str]
    not_numbers: dict[str, int]


def count_documents(documents: Iterable[Document], counts: DocumentCounts) -> Iterator[Document]:
    """Yield the documents, and count their languages and fields."""
    numbers = Counter[str]()
    texts = Counter[str]()
    for document in documents:
        lang = language_or_none(document.lang) or ""
        counts.languages[lang] = counts.languages.get(lang, 0) + 1
        counts.without_text += not document.content.strip()
        counts.without_body += not document.text
        counts.without_categories += not document.categories
        counts.other_fields += items_not_in(document.extra, counts.other_fields)
        for name, value in without_none(document.extra).items():
            values = texts if math.isnan(field_number(value)) else numbers
            values[name] += 1
        yield document
    # In a field that mostly has numbers, the other values are mistakes.
    counts.not_numbers = {name: count for name, count in sorted(texts.items()) if count <= numbers[name]}


def describe_documents(counts: DocumentCounts) -> Iterator[str]:
    """Describe the fields that documents do not have, and limits that come from their languages."""
    yield from _describe_fields(counts)
    describe = _describe_other_languages if counts.lang else _describe_mixed_languages
    yield from describe(counts)


def _describe_fields(counts: DocumentCounts) -> Iterator[str]:
    documents = sum(counts.languages.values())
    has_no_texts = 0 < counts.without_body == documents
    if has_no_texts and counts.other_fields:
        fields = ", ".join(counts.other_fields[:MOST_FIELDS])
        yield f"no document has a text: the field is `text`, but the documents have {fields}"
    if counts.without_text:
        documents_without_words = count_of(counts.without_text, "document")
        yield f"{documents_without_words} without title and text: no words to find them by"
    if 0 < counts.without_categories < documents:
        yield f"{count_of(counts.without_categories, 'document')} without categories"
    for field, count in counts.not_numbers.items():
        yield f"{count_of(count, 'document')} without a number in the field {field!r}: it counts as missing"


def _describe_other_languages(counts: DocumentCounts) -> Iterator[str]:
    """Describe the limits of a workspace with one language."""
    if counts.lang not in (*STEMMERS, *_WITHOUT_SPACES):
        yield f"rerank has no stemmer for {counts.lang}, so only equal words match"
    for lang, count in counts.languages.items():
        if lang not in ("", counts.lang):
            yield f"{count_of(count, 'document')} in another language, indexed as {counts.lang}: {lang}"


def _describe_mixed_languages(counts: DocumentCounts) -> Iterator[str]:
    """Describe the limits of a workspace without a language."""
    hint = "words are not stemmed. If most are in one language, make a new workspace with --lang en"
    if len(counts.languages) > 1:
        by_count = sorted(counts.languages.items(), key=lambda item: (-item[1], item[0]))
        languages = ", ".join(f"{lang or 'none'} {count:,}" for lang, count in by_count)
        yield f"mixed languages ({languages}): {hint}"
    elif counts.languages.get("") == counts.documents:
        yield f"no document has a language: {hint}"
