"""Read the documents of an ingest from files and records, and name their source in errors."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal

from rerank.common.errors import InputError, RepeatedIdError, UsageError
from rerank.documents.records import Document, shorten
from rerank.formats import read_corpus
from rerank.formats.beir import DOCUMENT_COLUMNS, document_from_fields
from rerank.formats.frames import DOCUMENTS, is_tabular, read_frame
from rerank.formats.lines import OnInvalid, raise_invalid
from rerank.formats.opening import Source, name_of

Format = Literal["jsonl", "jats"]
Records = Source | Document | Mapping[str, Any]
"""A file, a document, or the fields of a document as in a file."""

_RECORDS = "sources"
"""Location of documents that are not in a file."""


class DocumentSources:
    """Reads documents from files and records, one source after the other.

    format, body: as for :func:`rerank.ingest`.
    invalid:      called with the error of each invalid record. By default, the first one is raised.
    """

    def __init__(
        self,
        sources: Sequence[Records],
        format: Format = "jsonl",
        body: bool = False,
        invalid: OnInvalid = raise_invalid,
    ) -> None:
        self._sources = sources
        self._format = format
        self._body = body
        self._invalid = invalid
        self._locations: list[str] = []
        self._starts: list[int] = []  # number of documents before each location
        self._count = 0

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents. Raises UsageError for a source of another type, and InputError."""
        if self._format == "jats":
            yield from self._read_articles()
            return
        for position, source in enumerate(self._sources):
            self._start(name_of(source) if isinstance(source, (str, PathLike)) else _RECORDS)
            for document in self._read(f"{_RECORDS}[{position}]", source):
                self._count += 1
                yield document

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Add its source to the error about a repeated id that the block raises."""
        try:
            yield
        except RepeatedIdError as error:
            if not self._starts:
                raise
            source = bisect(self._starts, error.position - 1) - 1
            number = error.position - self._starts[source]
            raise InputError(
                f"{self._locations[source]}, document {number}: the id {error.id!r} occurs twice; remove one"
            ) from None

    def _start(self, location: str) -> None:
        """Remember where the documents of a location start. Many records in a row are one location."""
        if location == _RECORDS and self._locations[-1:] == [_RECORDS]:
            return
        self._locations.append(location)
        self._starts.append(self._count)

    def _read(self, location: str, source: Records) -> Iterator[Document]:
        """Yield the documents of one file, record, frame or data set. location: of records, for errors."""
        if isinstance(source, Document):
            yield source
        elif isinstance(source, Mapping):
            yield from self._read_record(location, source)
        elif isinstance(source, (str, PathLike)):
            yield from read_corpus(source, invalid=self._invalid)
        elif is_tabular(source):
            for row, fields in enumerate(read_frame(source, DOCUMENTS, DOCUMENT_COLUMNS)):
                yield from self._read_record(f"{location} row {row}", fields)
        else:
            raise UsageError(f"sources: {shorten(source)} is neither a file nor a document")

    def _read_record(self, location: str, fields: Mapping[str, Any]) -> Iterator[Document]:
        try:
            yield document_from_fields(location, fields)
        except InputError as error:
            self._invalid(error)

    def _read_articles(self) -> Iterator[Document]:
        """Yield the articles of JATS files. They share the keys of references."""
        from rerank.formats.jats import read_jats

        keys = set[str]()
        for source in self._sources:
            if not isinstance(source, (str, PathLike)):
                raise UsageError(
                    f"sources: {shorten(source)} is not a file of JATS articles; leave out --format"
                )
            if str(source) == "-":
                raise UsageError("JATS articles cannot be read from standard input; give a file or a folder")
            for article in read_jats(source, invalid=self._invalid, known_keys=keys):
                yield article.document(body=self._body)
