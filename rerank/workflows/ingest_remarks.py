"""Sentences about the documents of an ingest: missing fields, and languages that limit the search."""

from __future__ import annotations

from collections.abc import Iterator

from rerank.documents.text import STEMMERS, count_of
from rerank.workflows.ingest import IngestReport

_WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")
"""Languages whose characters or pairs of them are terms, so they need no stemmer."""
MOST_FIELDS = 10
"""Number of fields that a sentence lists at most."""


def describe_documents(report: IngestReport) -> Iterator[str]:
    """Describe the fields that documents do not have, and limits that come from their languages."""
    yield from _describe_fields(report)
    describe = _describe_other_languages if report.lang else _describe_mixed_languages
    yield from describe(report)


def describe_without_words(count: int) -> str:
    """Describe documents without title and text. count: of these documents."""
    return f"{count_of(count, 'document')} without title and text: no words to find them by"


def _describe_fields(report: IngestReport) -> Iterator[str]:
    documents = report.added + report.updated
    has_no_texts = 0 < report.without_body == sum(report.languages.values())
    if has_no_texts and report.other_fields:
        fields = ", ".join(report.other_fields[:MOST_FIELDS])
        yield f"no document has a text: the field is `text`, but the documents have {fields}"
    if report.without_text:
        yield describe_without_words(report.without_text)
    if 0 < report.without_categories < documents:
        yield f"{count_of(report.without_categories, 'document')} without categories"
    for field, count in report.not_numbers.items():
        yield f"{count_of(count, 'document')} without a number in the field {field!r}: it counts as missing"


def _describe_other_languages(report: IngestReport) -> Iterator[str]:
    """Describe the limits of a workspace with one language."""
    if report.lang not in (*STEMMERS, *_WITHOUT_SPACES):
        yield f"rerank has no stemmer for {report.lang}, so only equal words match"
    for lang, count in report.languages.items():
        if lang not in ("", report.lang):
            yield f"{count_of(count, 'document')} in another language, indexed as {report.lang}: {lang}"


def _describe_mixed_languages(report: IngestReport) -> Iterator[str]:
    """Describe the limits of a workspace without a language."""
    hint = "words are not stemmed. If most are in one language, make a new workspace with --lang en"
    if len(report.languages) > 1:
        by_count = sorted(report.languages.items(), key=lambda item: (-item[1], item[0]))
        counts = ", ".join(f"{lang or 'none'} {count:,}" for lang, count in by_count)
        yield f"mixed languages ({counts}): {hint}"
    elif report.languages.get("") == report.documents:
        yield f"no document has a language: {hint}"
