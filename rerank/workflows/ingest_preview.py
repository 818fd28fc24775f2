"""Check the files of an ingest without a change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rerank.common.batches import batched
from rerank.common.errors import RepeatedIdError
from rerank.common.progress import SILENT, Progress
from rerank.common.results import Report
from rerank.documents.records import Document
from rerank.documents.text import language, language_or_none
from rerank.workflows.ingest import SAMPLE, main_language, open_existing
from rerank.workspace.workspace import Workspace, WorkspaceOrPath

_BATCH = 1000  # ids that are looked up together


@dataclass
class IngestPreview(Report):
    """What an ingest of the same files would do.

    documents:     valid documents.
    new, existing: documents that the workspace lacks, and documents that it has.
    removed:       documents that ``replace`` would remove.
    lang:          language of the collection; None: mixed or unknown.
    languages:     language -> documents ("": unknown).
    without_text:  documents without title and text.
    invalid:       records that would be skipped.
    """

    documents: int = 0
    new: int = 0
    existing: int = 0
    removed: int = 0
    lang: str | None = None
    languages: dict[str, int] = field(default_factory=dict)
    without_text: int = 0
    invalid: list[str] = field(default_factory=list)


def preview_ingest(
    workspace: WorkspaceOrPath,
    documents: Iterable[Document],
    *,
    lang: str | None = None,
    replace: bool = False,
    progress: Progress = SILENT,
) -> IngestPreview:
    """Count what :func:`rerank.ingest` would do with the documents. Nothing is written.

    documents: see :class:`rerank.workflows.document_sources.DocumentSources`.
    lang, replace: as for an ingest. The workspace need not exist.

    Raises InputError for a repeated id, and for another language than the one of the workspace.
    """
    existing = open_existing(workspace, lang) if Workspace.exists(workspace) else None
    counted = progress.over(documents, "read", unit="doc")
    preview = IngestPreview()
    ids: set[str] = set()
    sample: list[Document] = []
    for batch in batched(counted, _BATCH):
        for document in batch:
            _count(preview, document, ids)
        if existing is not None:
            preview.existing += len(existing.engine.contains(document.id for document in batch))
        sample += batch[: SAMPLE - len(sample)]
    preview.new = preview.documents - preview.existing
    if existing is None:
        preview.lang = language(lang) or main_language(sample)
    else:
        preview.lang = existing.lang
        preview.removed = len(existing.engine) - preview.existing if replace else 0
    return preview


def _count(preview: IngestPreview, document: Document, ids: set[str]) -> None:
    """Count a document. ids: of the documents before; the id is added. Raises RepeatedIdError."""
    if document.id in ids:
        raise RepeatedIdError(document.id, preview.documents + 1)
    ids.add(document.id)
    lang = language_or_none(document.lang) or ""
    preview.documents += 1
    preview.languages[lang] = preview.languages.get(lang, 0) + 1
    preview.without_text += not document.content.strip()
