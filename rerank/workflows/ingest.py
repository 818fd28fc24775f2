"""Ingest documents from files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

from rerank.engines.base import WriteResult
from rerank.errors import BusyError, InputError, UsageError
from rerank.formats import read_categories, read_corpus
from rerank.formats.lines import Source, name_of
from rerank.inputs import as_list
from rerank.progress import Progress
from rerank.records import Document
from rerank.references import CitationCounts
from rerank.results import Report
from rerank.text import language, language_or_none, plural
from rerank.workflows.encode import encode, encoders_of
from rerank.workspace import Workspace

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

Format = Literal["jsonl", "jats"]

SAMPLE = 1000
"""Number of documents that decide the language of the collection."""

_LAYOUTS = {
    "jsonl": 'write one object per line: {"_id": "1", "title": "...", "text": "..."}',
    "jats": "give JATS articles, or archives or folders of them",
}


@dataclass
class IngestReport(Report):
    """Result of an ingest.

    languages: language -> documents, if mixed ("": unknown). invalid: skipped records. encoded: ranker ->
    documents. citations: counts, or None.
    """

    workspace: Workspace
    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    unknown_deletes: tuple[str, ...] = ()
    documents: int = 0
    lang: str | None = None
    other_languages: dict[str, int] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)
    without_text: int = 0
    without_categories: int = 0
    category_edges: int = 0
    invalid: list[str] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)
    citations: CitationCounts | None = None


def ingest(
    workspace: Workspace | Source,
    sources: Source | Sequence[Source],
    *,
    format: Format = "jsonl",
    body: bool = False,
    categories: Source | None = None,
    delete: Sequence[str] = (),
    lang: str | None = None,
    skip_invalid: bool = False,
    replace: bool = False,
    encode_features: bool = True,
    opensearch: Settings | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Add or update documents from files. A missing workspace is created.

    format: ``jats`` reads XML articles, archives and folders (extra ``fulltext``).
    body: use the body of articles as text, not the abstract.
    categories: category graph. delete: document ids.
    lang: Default: the language of 90 % of the first documents.
    replace: delete documents that are not in ``sources``.
    opensearch: cluster of a new workspace. Default: store documents in the folder.

    Raises InputError for invalid records before any change, unless ``skip_invalid``.

    >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "wolf", "text": "a grey wolf", "lang": "en"}')
    >>> report = ingest(folder / "workspace", [folder / "corpus.jsonl"])
    >>> report.added, report.documents, report.lang
    (1, 1, 'en')
    """
    progress, edges = progress or Progress(), read_categories(categories) if categories else None
    files = _Files(as_list(sources), format, body, skip_invalid)
    created = not Workspace.exists(workspace)
    if created:
        workspace, documents = _create(workspace, files, lang, opensearch, progress)
    else:
        workspace, documents = _open(workspace, lang, opensearch), files.documents()
    report = IngestReport(workspace, lang=workspace.lang, category_edges=len(edges or ()))
    documents = files.check_not_empty(_count(documents, report), replace, progress)
    workspace.recreate_engine()
    encoders = encoders_of(workspace, None, progress) if encode_features else []
    try:
        options = {"delete": delete, "replace": replace, "encoders": encoders, "skip_refused": skip_invalid}
        done = _write(workspace, documents, progress, **options)
    except BaseException as error:
        if created and not isinstance(error, BusyError):  # if busy, another process uses it
            workspace.discard()
        raise
    if edges is not None:
        workspace.save_category_edges(edges)
    _fill(report, files, done)
    if encode_features:
        workspace.forget_rankers()
        rest = encode(workspace, progress=progress).encoded
        report.encoded = {name: done.encoded + count for name, count in rest.items()}
    return report


def _fill(report: IngestReport, files: _Files, done: WriteResult) -> None:
    report.added, report.updated, report.deleted = done.added, done.updated, done.deleted
    report.unchanged, report.unknown_deletes = done.unchanged, done.unknown_deletes
    report.citations = files.counts if files.format == "jats" or files.counts.articles else None
    report.documents = len(report.workspace.engine)
    report.invalid = [str(error) for error in files.errors]
    report.invalid += [f"document {id!r}: {reason}" for id, reason in done.refused]


@dataclass
class _Files:
    """errors: of skipped records. counts: citations of full texts."""

    sources: Sequence[Source]
    format: Format
    body: bool
    skip_invalid: bool
    errors: list[InputError] = field(default_factory=list)
    counts: CitationCounts = field(default_factory=CitationCounts)

    @property
    def names(self) -> str:
        return ", ".join(map(name_of, self.sources))

    def documents(self) -> Iterator[Document]:
        invalid = self.errors.append if self.skip_invalid else None
        seen: set[str] = set()
        for source in self.sources:
            if self.format == "jsonl":
                yield from read_corpus(source, invalid=invalid, counts=self.counts)
                continue
            if str(source) == "-":
                raise UsageError("JATS articles cannot be read from standard input; give a file or a folder")
            from rerank.formats.jats import read_jats

            for article in read_jats(source, self.counts, invalid=invalid, seen=seen):
                yield article.document(body=self.body)

    def check_not_empty(
        self, documents: Iterator[Document], replace: bool, progress: Progress
    ) -> Iterator[Document]:
        """Check that there are documents, and yield them."""
        first = next(documents, None)
        if first is not None:
            yield first
            yield from documents
        elif self.sources and replace:
            raise InputError(
                f"{self.names}: no documents, and replacing would delete all documents; to do that, delete"
                " the workspace"
            )
        elif self.sources:
            progress.say(f"{self.names}: no documents; {_LAYOUTS[self.format]}")


def _open(workspace: Workspace | Source, lang: str | None, opensearch: Settings | None) -> Workspace:
    if not isinstance(workspace, Workspace):
        workspace = Workspace.open(workspace)
    if opensearch is not None:
        workspace.check_place("opensearch", opensearch.table())
    if lang is not None and language(lang) != workspace.lang:
        raise InputError(
            f"{workspace.folder}: the language is {workspace.lang or 'mixed'} and cannot be changed to"
            f" {lang}; ingest into a new workspace"
        )
    return workspace


def _create(
    folder: Workspace | Source,
    files: _Files,
    lang: str | None,
    opensearch: Settings | None,
    progress: Progress,
) -> tuple[Workspace, Iterator[Document]]:
    if not files.sources:
        Workspace.open(folder)  # raises: there is nothing to delete from
    documents = files.documents()
    sample = list(progress.over(islice(documents, SAMPLE), "read", unit="doc"))
    if not sample:
        errors = files.errors
        skipped = f" ({plural(len(errors), 'record[|s]')} skipped, {errors[0]})" if errors else ""
        raise InputError(f"{files.names}: no documents{skipped}; {_LAYOUTS[files.format]}")
    engine, settings = ("local", {}) if opensearch is None else ("opensearch", opensearch.table())
    lang = lang or _language(sample)
    return Workspace.create(folder, lang=lang, engine=engine, settings=settings), chain(sample, documents)


def _write(
    workspace: Workspace, documents: Iterable[Document], progress: Progress, **options: Any
) -> WriteResult:
    """Write documents. options: of :meth:`Engine.write`."""
    with ExitStack() as steps:
        sending = cache(lambda: steps.enter_context(progress.step("send", unit="doc")))
        read = progress.over(documents, "ingest", unit="doc")
        return workspace.engine.write(read, progress=lambda count: sending()(count), **options)


def _language(sample: Sequence[Document]) -> str | None:
    languages = Counter(code for document in sample if (code := language_or_none(document.lang)))
    best, count = next(iter(languages.most_common(1)), (None, 0))
    return best if count >= 0.9 * len(sample) else None


def _count(documents: Iterable[Document], report: IngestReport) -> Iterator[Document]:
    for document in documents:
        code = language_or_none(document.lang) or ""
        if not report.lang:
            report.languages[code] = report.languages.get(code, 0) + 1
        elif document.lang and code != report.lang:
            report.other_languages[document.lang] = report.other_languages.get(document.lang, 0) + 1
        report.without_text += not document.content
        report.without_categories += not document.categories
        yield document
