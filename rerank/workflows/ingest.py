"""Ingest documents from files."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from os import PathLike
from typing import TYPE_CHECKING

from rerank.common.errors import BusyError, EngineError, InputError, UsageError
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.documents.records import Document
from rerank.documents.text import count_of, join_names, language, language_or_none
from rerank.engines.base import WriteOptions, WriteResult
from rerank.formats import read_categories
from rerank.formats.inputs import as_list
from rerank.formats.lines import raise_invalid
from rerank.formats.opening import Source, name_of
from rerank.workflows.document_sources import DocumentSources, Format, Records
from rerank.workflows.encode import encode, encoders_of
from rerank.workflows.ingest_remarks import count_documents
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

if TYPE_CHECKING:
    from rerank.engines.opensearch import Settings

SAMPLE = 1000
"""Number of documents that decide the language of the collection."""

_LAYOUTS = {
    "jsonl": 'write one object per line: {"_id": "1", "title": "...", "text": "..."}',
    "jats": "give JATS articles, or archives or folders of them",
}


@dataclass
class IngestReport(Report):
    """Result of an ingest.

    without_text: documents without title and text. without_body: documents without text.
    other_fields: names of the documents' fields that :class:`rerank.Document` does not have.
    languages: language -> documents ("": unknown). invalid: skipped records. encoded: ranker -> documents.
    not_numbers: field of numbers -> documents with another value there, which count as missing.
    """

    workspace: Workspace
    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    unknown_deletes: tuple[str, ...] = ()
    documents: int = 0
    lang: str | None = None
    languages: dict[str, int] = field(default_factory=dict)
    without_text: int = 0
    without_body: int = 0
    other_fields: list[str] = field(default_factory=list)
    without_categories: int = 0
    not_numbers: dict[str, int] = field(default_factory=dict)
    category_edges: int = 0
    invalid: list[str] = field(default_factory=list)
    encoded: dict[str, int] = field(default_factory=dict)


def ingest(
    workspace: WorkspaceOrPath,
    sources: Records | Iterable[Records],
    *,
    format: Format = "jsonl",
    body: bool = False,
    categories: Source | None = None,
    delete: str | Sequence[str] = (),
    lang: str | None = None,
    skip_invalid: bool = False,
    replace: bool = False,
    yes: bool = False,
    encode_features: bool = True,
    opensearch: Settings | None = None,
    progress: Progress = SILENT,
) -> IngestReport:
    """Add or update documents. A missing workspace is created.

    sources: files, Documents or their fields as in a file, a frame of them, or a data set of ir_datasets.
    format: ``jats`` reads XML articles, archives and folders. body: of articles as text, not the abstract.
    categories: category graph. delete: ids. lang: Default: the language of 90 % of the first documents.
    replace: delete documents not in ``sources``. yes: also if these are more than half of all documents.
    opensearch: cluster of a new workspace. Default: store documents in the folder.

    Raises InputError for invalid records before any change, unless ``skip_invalid``.

    >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "wolf", "text": "a grey wolf", "lang": "en"}')
    >>> report = ingest(folder / "workspace", [folder / "corpus.jsonl"])
    >>> report.added, report.documents, report.lang
    (1, 1, 'en')
    """
    edges = read_categories(categories) if categories else None
    sources = as_list(sources)
    existing = _open_if_exists(workspace, sources, lang, opensearch)
    errors: list[InputError] = []
    on_invalid = errors.append if skip_invalid else raise_invalid
    reader = DocumentSources(sources, format, body, on_invalid)
    remaining = iter(reader)
    sample_size = 1 if existing else SAMPLE
    sample = list(progress.over(islice(remaining, sample_size), "read", unit="doc"))
    if sources and not sample:
        _report_empty(_describe_empty(sources, errors, format), existing is None, replace, progress)

    target = existing or _create(workspace, lang or main_language(sample), opensearch)
    target.recreate_engine()
    if replace and not yes:
        remaining = _keep_half(remaining, sample, target)
    report = IngestReport(target, lang=target.lang)
    documents = count_documents(chain(sample, remaining), report)
    encoders = encoders_of(target, None, progress) if encode_features else []
    options = WriteOptions(encoders, replace, skip_refused=skip_invalid)
    discarding = nullcontext() if existing else _discarded_after_errors(target)
    with reader.naming(), discarding:
        result = _write(target, documents, as_list(delete), options, progress)

    _save_category_edges(report, edges)
    _report_changes(report, result, errors)
    if encode_features:
        _encode_others(report, result.encoded, progress)
    return report


@contextmanager
def _discarded_after_errors(workspace: Workspace) -> Iterator[None]:
    """Remove the new workspace if the block fails."""
    try:
        yield
    except BusyError:  # another process uses the workspace
        raise
    except BaseException:
        workspace.discard()
        raise


def open_existing(
    workspace: WorkspaceOrPath, lang: str | None = None, opensearch: Settings | None = None
) -> Workspace:
    """Open a workspace for an ingest.

    lang, opensearch: as for :func:`ingest`. They cannot change.

    Raises UsageError if the documents are in another cluster, InputError if the language is another one.
    """
    workspace = Workspace.open(workspace)
    if opensearch is not None:
        workspace.settings.check_location("opensearch", opensearch.table())
    if lang is not None and language(lang) != workspace.lang:
        raise InputError(
            f"{workspace.folder}: the language is {workspace.lang or 'not set'} and cannot be changed to"
            f" {lang}; ingest into a new workspace"
        )
    return workspace


def _open_if_exists(
    workspace: WorkspaceOrPath, sources: Sequence[Records], lang: str | None, opensearch: Settings | None
) -> Workspace | None:
    """Open a workspace, or return None if it has to be created, which needs sources."""
    if sources and not Workspace.exists(workspace):
        return None
    return open_existing(workspace, lang, opensearch)


def _create(folder: WorkspaceOrPath, lang: str | None, opensearch: Settings | None) -> Workspace:
    if opensearch is None:
        return Workspace.create(folder, lang=lang)
    return Workspace.create(folder, lang=lang, engine="opensearch", settings=opensearch.table())


def _describe_empty(sources: Sequence[Records], errors: Sequence[InputError], format: Format) -> str:
    """Return the error line for files without valid documents."""
    names = ", ".join(name_of(source) for source in sources if isinstance(source, (str, PathLike)))
    skipped = f" ({count_of(len(errors), 'record')} skipped, {errors[0]})" if errors else ""
    return f"{names or 'the documents'}: no documents{skipped}; {_LAYOUTS[format]}"


def _report_empty(problem: str, is_new: bool, replace: bool, progress: Progress) -> None:
    """Print the problem; raise InputError for a new workspace or a replacement."""
    if is_new:
        raise InputError(problem)
    if replace:
        raise InputError(f"{problem}; replacing would delete all documents: to do that, delete the workspace")
    progress.say(problem)


def _write(
    workspace: Workspace,
    documents: Iterable[Document],
    delete: Sequence[str],
    options: WriteOptions,
    progress: Progress,
) -> WriteResult:
    """Write documents; show how many were read, and how many were sent to a cluster."""
    with ExitStack() as steps:
        sending = cache(lambda: steps.enter_context(progress.step("send", unit="doc")))
        counted = progress.over(documents, "ingest", unit="doc")
        options = dataclasses.replace(options, progress=lambda count: sending()(count))
        return workspace.engine.write(counted, delete, options)


def _report_changes(report: IngestReport, result: WriteResult, errors: Sequence[InputError]) -> None:
    report.added = result.added
    report.updated = result.updated
    report.deleted = result.deleted
    report.unchanged = result.unchanged
    report.unknown_deletes = result.unknown_deletes
    report.documents = len(report.workspace.engine)
    report.invalid = [*map(str, errors), *(f"document {id!r}: {reason}" for id, reason in result.refused)]


def main_language(sample: Sequence[Document]) -> str | None:
    """Return the language that at least 90 % of the documents have, or None."""
    languages = Counter(language_or_none(document.lang) for document in sample)
    del languages[None]
    if not languages:
        return None
    best, count = languages.most_common(1)[0]
    return best if count >= 0.9 * len(sample) else None


def _save_category_edges(report: IngestReport, edges: Sequence[tuple[str, str]] | None) -> None:
    if edges is not None:
        report.workspace.save_category_edges(edges)
        report.category_edges = len(edges)


def _encode_others(report: IngestReport, encoded: int, progress: Progress) -> None:
    """Encode the documents that the write did not. encoded: number of documents that it encoded."""
    report.workspace.forget_rankers()
    counts = encode(report.workspace, progress=progress).encoded
    report.encoded = {name: encoded + count for name, count in counts.items()}


def _keep_half(
    documents: Iterable[Document], sample: Sequence[Document], workspace: Workspace
) -> Iterator[Document]:
    """Yield the documents that replace the stored ones.

    At the end, before the engine changes anything, raises UsageError if more than half of the ids would go.
    """
    stored: list[str] = []
    with suppress(EngineError):  # an index that was removed has nothing to lose
        stored = workspace.engine.ids()
    missing = set(stored) - {document.id for document in sample}
    for document in documents:
        missing.discard(document.id)
        yield document
    if 2 * len(missing) > len(stored):
        examples = join_names(sorted(missing)[:3])
        raise UsageError(
            f"replacing would delete {len(missing):,} of {count_of(len(stored), 'document')}, such as"
            f" {examples}; add --yes to do it, or leave out --replace"
        )
